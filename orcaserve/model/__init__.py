"""What every way of running a model shares: sizes, names, layout, pages, positions. PyTorch is in `reference/` only."""
