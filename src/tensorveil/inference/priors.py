"""Generic variances on the centred scale, where the bounds of values are -1 and 1.

Values spread about half a unit around their mean, and the offsets of a mode about a third of that, of which features
tell a part. They are fitted to released numbers where these tell more. They shape accuracy, never a promise.
"""

from __future__ import annotations

MEAN_VARIANCE = 1 / 4
OFFSET_VARIANCE = 1 / 36
FEATURE_VARIANCE = 1 / 144  # of the effects of a group of features, all its columns together
RESIDUAL_VARIANCE = 2 / 9  # of a value around mean and offsets
INTERACTION_VARIANCE = 1 / 36  # of what factors could tell beyond offsets
LEVELLED_VARIANCE = 1 / 9  # of a value around offsets, after division by three standard deviations of all values
