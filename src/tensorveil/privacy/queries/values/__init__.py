"""Questions about single values: symbols, noisy values, histograms, every cell of the box."""
