"""Solvers: from observations to a model, without any privacy of their own."""
