"""Data to try things on: the paper's synthetic tensors, and MovieLens."""
