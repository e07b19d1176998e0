"""Pieces that several mechanisms share, each with its stages and its questions to the vault."""
