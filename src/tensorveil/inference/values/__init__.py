"""From noisy values and symbols to a completion."""
