"""Serving in virtual time: the scheduler that serves, over models of what its iterations cost."""
