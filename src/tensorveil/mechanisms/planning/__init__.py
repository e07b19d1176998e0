"""Computations on public numbers while planning: expected information, windows, weights."""
