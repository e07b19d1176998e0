"""Observations of a tensor: from arrays and tables, scaled, generated, and MovieLens."""
