"""Commands of local privacy. `randomize` runs at the source and imports NumPy and what its files need, no more."""
