"""Tensors between workers, and nothing else. Only workers of a model that is cut need it."""
