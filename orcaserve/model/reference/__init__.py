"""The model in plain PyTorch: written to be read, on any device. The native model is tested against it."""
