"""Rows of new indices, and proposals of non-negative rows."""
