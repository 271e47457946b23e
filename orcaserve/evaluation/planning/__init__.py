"""Planning: what a model needs of a machine, and which settings carry the most within a target; nothing is loaded."""
