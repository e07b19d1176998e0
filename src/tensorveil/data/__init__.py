"""Observations of a tensor: from arrays, tables and files, scaled, and example data sets."""
