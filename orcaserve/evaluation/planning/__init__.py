"""Planning: what a model needs of a machine, and which settings carry the most load within a target; nothing is loaded."""
