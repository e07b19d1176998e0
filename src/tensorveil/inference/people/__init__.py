"""Rows of single people, from released numbers and their own data."""
