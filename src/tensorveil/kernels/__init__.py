"""Numba functions of models and solvers, one file a subject; single letters are those of docs/notation.md."""
