"""From noisy sums to offsets and factors."""
