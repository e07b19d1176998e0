"""Kernels that read like the formulas they compute: the oracle of `fast`, and what runs where speed does not matter."""
