"""A release as other people's objects: charts, tables of a notebook, tensors of TensorLy."""
