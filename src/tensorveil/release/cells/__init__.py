"""Cells of a release: with modes left open, and ranked."""
