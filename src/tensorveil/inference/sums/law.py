"""What sums read of latent numbers: expectations of values and of clipped scores under normal laws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.sums.effects import Curve
from tensorveil.inference.values.scale import Scale
from tensorveil.models.draws import expected_values

Floats = NDArray[np.float64]

POINTS = np.linspace(-12.0, 12.0, 481)  # latent numbers
EDGES = np.concatenate([[-np.inf], (POINTS[1:] + POINTS[:-1]) / 2, [np.inf]])  # between points
MEANS = np.linspace(-8.0, 8.0, 161)  # latent means that expectations are tabulated at
SMALLEST_LEFT = 0.03  # share of the latent variance that is never explained
MOST_EARLIER = 48
BISECTIONS = 40
SMALLEST_VARIANCE = 1e-9
FAINTEST = 1e-6  # share of values beyond a place; where fewer are, it is carried along


@final
@dataclass(frozen=True, eq=False)
class Earlier:
    """Equally likely pairs: what earlier offsets add to a latent mean, and what is subtracted from a score for them."""

    latent: Floats
    scores: Floats

    @classmethod
    def none(cls) -> Earlier:
        """Nothing known, nothing subtracted."""
        return cls(np.zeros(1), np.zeros(1))

    def plus(self, latent: Floats, scores: Floats, counts: Floats) -> Earlier:
        """The pairs with one more mode, whose index is taken to be independent of the others'."""
        order = np.argsort(latent, kind="stable")
        shares = np.cumsum(counts[order]) / max(float(counts.sum()), 1e-300)
        wanted = np.searchsorted(shares, (np.arange(MOST_EARLIER) + 0.5) / MOST_EARLIER)
        chosen = order[np.minimum(wanted, len(order) - 1)]
        chosen = np.random.default_rng(0).permutation(chosen)
        mine = (np.resize(part, MOST_EARLIER) for part in (self.latent, self.scores))
        return Earlier(*(old + new[chosen] for old, new in zip(mine, (latent, scores), strict=True)))


@final
class ScoreLaw:
    """Expectations for latent numbers N(mean, sigma^2) that are seen through a scale.

    Scores are those of the same scale, or of the one that they are read by.
    """

    def __init__(self, scale: Scale, read: Scale | None = None) -> None:
        self._scale = scale
        self.scores = (read or scale).scores(np.rint(scale.value(POINTS) * scale.steps).astype(np.int64))

    def mean_of_value(self, value: float, sigma: float) -> float:
        """The latent mean at which this centred value is expected."""
        return self.mean_of_values(value, sigma, np.zeros(1))

    def mean_of_values(self, value: float, sigma: float, added: Floats, weights: Floats | None = None) -> float:
        """The latent mean at which this value is expected on average, if these numbers are added to the mean."""
        scale, low, high = self._scale, MEANS[0], MEANS[-1]
        table = expected_values(MEANS, sigma, scale.knots, scale.low, scale.high)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = float(np.average(np.interp(middle + added, MEANS, table), weights=weights)) < value
            low, high = (middle, high) if below else (low, middle)
        return float((low + high) / 2)

    def moments(self, means: Floats, sigma: float, reach: float) -> tuple[Floats, Floats]:
        """Means and variances of scores, clipped to +-reach."""
        chances, read = _chances_at(means, sigma), np.clip(self.scores, -reach, reach)
        first = chances @ read
        return first, np.maximum(chances @ read**2 - first**2, SMALLEST_VARIANCE)

    def curve(self, means: Floats, sigma: float, reach: float, earlier: Earlier) -> Curve:
        """Mean and variance of the score less what is subtracted for earlier modes, clipped to +-reach."""
        chances = _chances(sigma).T
        read = np.clip(self.scores - earlier.scores[:, None], -reach, reach)
        first, second = (self._expected(means, part @ chances, earlier) for part in (read, read**2))
        return Curve(first, np.maximum(second - first**2, SMALLEST_VARIANCE))

    def _expected(self, means: Floats, tables: Floats, earlier: Earlier) -> Floats:
        parts = [np.interp(means + more, MEANS, row) for more, row in zip(earlier.latent, tables, strict=True)]
        return np.asarray(np.mean(parts, axis=0))


def relinked(scale: Scale, centres: Floats, weights: Floats, sigma: float) -> Scale:
    """The scale on which levels have their masses, if latent numbers are N(centre, sigma^2) for weighted centres.

    A scale is made for latent numbers N(0, 1) and a simple link. Offsets of a few indices, or of a long tail of them,
    have another law, and the released marginal tells where values lie on it. Cuts beyond all mass keep their distances.
    """
    from scipy.special import ndtr, ndtri

    below, above = (ndtr(side * (POINTS[:, None] - centres) / sigma) @ weights for side in (1.0, -1.0))
    known = (below > FAINTEST) & (above > FAINTEST)
    scores = np.where(below < 0.5, ndtri(below), -ndtri(above))[known]  # each tail with all its digits
    shares = np.cumsum(scale.masses)[:-1] / scale.masses.sum()
    inside = (shares > FAINTEST) & (shares < 1 - FAINTEST)
    if not inside.any():
        return scale
    moved = np.interp(ndtri(shares[inside]), scores, POINTS[known])
    moved += 1e-9 * np.arange(len(moved))  # cuts stay apart
    cuts, ends = (_carried(places, scale.cuts[inside], moved) for places in (scale.cuts, scale.ends))
    return replace(scale, cuts=cuts, ends=ends)


def _carried(places: Floats, known: Floats, moved: Floats) -> Floats:
    """Places moved as known ones were; beyond these, by as much as the last one."""
    beyond = np.minimum(places - known[0], 0.0) + np.maximum(places - known[-1], 0.0)
    return np.asarray(np.interp(places, known, moved) + beyond)


@lru_cache(maxsize=8)
def _chances(sigma: float) -> Floats:
    """The chance of each point, one row per mean of the table."""
    return _chances_at(MEANS, sigma)


def _chances_at(means: Floats, sigma: float) -> Floats:
    """The chance of each point, one row per mean."""
    from scipy.special import ndtr

    return np.asarray(np.diff(ndtr((EDGES - means[:, None]) / sigma), axis=1))
