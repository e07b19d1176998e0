"""Questions about single values: symbols, noisy values, every cell of the box, choices by rank."""
