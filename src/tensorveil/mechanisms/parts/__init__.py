"""Pieces that several mechanisms share, each with its stages and its queries to the vault."""
