"""Questions about sums of values: over all observations, and for every index of a mode."""
