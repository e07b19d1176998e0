"""Generic variances on the centred scale, where the bounds of values are -1 and 1.

The standard deviation of the values is assumed to be about half a unit, and that of the offsets of a mode about a third
of that. Features explain a part of the offsets. The variances are fitted to released numbers where possible. They
affect accuracy, never privacy.
"""

MEAN_VARIANCE = 1 / 4
OFFSET_VARIANCE = 1 / 36
FEATURE_VARIANCE = 1 / 144  # of the effects of a group of features, all its columns together
RESIDUAL_VARIANCE = 2 / 9  # of a value around mean and offsets
INTERACTION_VARIANCE = (
    1 / 24
)  # of what factors could tell beyond offsets; sums and channel then part at epsilon 1.6 to 1.8
LEVELLED_VARIANCE = 1 / 9  # of a value around offsets, after division by three standard deviations of all values
