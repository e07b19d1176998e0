"""Entries laid out in memory for solvers with threads."""
