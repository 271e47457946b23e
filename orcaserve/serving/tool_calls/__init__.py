"""Tools: what clients offer, and the calls that a model writes in its family's format."""
