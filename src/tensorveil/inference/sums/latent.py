"""Mean, offsets and factors on the latent scale, learned from noisy sums of scores, one mode after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.offsets import NoisySums
from tensorveil.inference.sums.counts import believed_counts
from tensorveil.inference.sums.effects import GRID, Curve, OffsetSampler, ReadSums, normal_told
from tensorveil.inference.sums.groups import drawn_interactions
from tensorveil.inference.sums.index import Index, drawn_bends, index_of
from tensorveil.inference.sums.law import SMALLEST_LEFT, Earlier, ScoreLaw, relinked
from tensorveil.inference.sums.linked_factors import linked_factors
from tensorveil.inference.values.scale import Scale
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

DRAWS = 64
WARM_UP = 8  # draws that tell how much of the spread is the mode's, before its curve is made
MOST_LINKED = 0.5  # of the latent variance that offsets leave, for effects on groups
OWN_VARIANCE = 0.15  # of the offsets that slices subtract by themselves, generic
OFFSET_VARIANCE = 0.1  # of a mode, before its sums are read; generic
UNLIMITED = 100.0  # a reach that clips no score
INDEPENDENT = np.array([0.0, 1.0, 1.0, float(DRAWS)])  # mixing of draws without a chain
COMBINATIONS = 20_000  # of indices, by which rows of the index are described
SPREADS = 0.3  # standard deviation of the log spread around the index: no sums tell how it differs between cells
MIXED = 400  # combinations of offsets by which the mean is set


@final
@dataclass(frozen=True, eq=False)
class Split:
    """Groups of the indices of a partner mode, by which the sums of another mode are split."""

    partner: int
    labels: Places
    number: int


@final
@dataclass(frozen=True, eq=False)
class _Mode:
    """What was learned about a mode: draws of its offsets, their means, the scores subtracted for it, and the sums."""

    draws: Floats
    mean: Floats
    scores: Floats
    counts: Floats
    released: NoisySums
    excess: Floats

    @property
    def shares(self) -> Floats:
        return self.counts / max(float(self.counts.sum()), 1e-300)


@final
class LatentPosterior:
    """What is known on the latent scale so far.

    Parameters
    ----------
    scale : of the values
    mean, error : the mean of the values, centred, and its standard error
    model : factors that predict nothing
    withheld : the mode whose indices subtract their own offsets before sums read them, if there is one
    """

    def __init__(
        self, scale: Scale, mean: float, error: float, model: FactorModel, withheld: int | None = None
    ) -> None:
        self.scale, self.law = scale, ScoreLaw(scale)
        self._withheld = withheld
        self._rng = np.random.default_rng(0)
        self._value = mean + error * _even_normals(self._rng)
        self.mean = self.law.mean_of_value(mean, 1.0)
        self._modes: dict[int, _Mode] = {}
        self._factors = [model] * DRAWS
        self._bends: tuple[Index, Floats, Floats] | None = None  # the index, shares of its places, latent means there
        self._linked = np.zeros(DRAWS)  # variance that factors explain

    @property
    def subtracted(self) -> Offsets:
        """Expected scores of the modes so far, to be subtracted from the scores that later sums read."""
        order = self._factors[0].order
        return Offsets(0.0, [self._modes[mode].scores if mode in self._modes else None for mode in range(order)])

    @property
    def left(self) -> float:
        """Variance of latent values that the posterior means of offsets do not explain."""
        return self._left(None)

    def _means(self, sigmas: Floats) -> Floats:
        """For every draw, the latent mean at which values have the mean that they should have."""
        added = np.zeros((DRAWS, MIXED))
        for part in self._modes.values():
            added += part.draws[:, self._rng.choice(len(part.mean), MIXED, p=part.shares)]
        return np.array([self.law.mean_of_values(*one) for one in zip(self._value, sigmas, added, strict=True)])

    def _left(self, without: int | None) -> float:
        own = 0.0 if self._withheld is None else OWN_VARIANCE
        known = sum(float(part.shares @ part.mean**2) for mode, part in self._modes.items() if mode != without)
        return max(1.0 - own - known, SMALLEST_LEFT)

    def _unexplained(self, without: int | None = None) -> Floats:
        """For every draw, the latent variance around the offsets of that draw."""
        own = 0.0 if self._withheld is None else OWN_VARIANCE
        parts = [part for mode, part in self._modes.items() if mode != without]
        known = sum((part.draws**2 @ part.shares for part in parts), self._linked)
        return np.maximum(1.0 - own - known, SMALLEST_LEFT)

    def _earlier(self, without: int) -> Earlier:
        found = Earlier.none()
        for mode, part in self._modes.items():
            if mode != without:
                found = found.plus(part.mean, part.scores, part.counts + 1e-9)
        return found

    def learn_mode(
        self, mode: int, rows: NoisySums, reach: float, features: Sequence[Floats], split: Split | None = None
    ) -> Floats:
        """Offsets of a mode from sums of scores, which were read less `subtracted` and clipped to +-reach; its counts.

        With a split, rows are pairs of an index of the mode and a group, and the effects on groups become factors.
        Sums of a second pass are added to those of the first.
        """
        released = rows if split is None else rows.joined(split.number)
        if mode in self._modes:
            released = released.averaged(self._modes[mode].released, self._modes[mode].scores)
        counts, doubts = believed_counts(released.counts, released.count_variance)
        shares = counts / max(float(counts.sum()), 1e-300)
        before, earlier = self._left(mode), self._earlier(mode)
        read = ReadSums(released.sums, counts, released.sum_variance, doubts, released.weight * counts)
        floor = max(math.sqrt(released.count_variance), released.weight) / 2
        groups = [_normalised(part, shares) for part in (np.log(np.maximum(counts, floor))[:, None], *features)]
        limits = np.sqrt(self._unexplained(mode))
        left = before - OFFSET_VARIANCE * limits.mean() ** 2
        for kept in (False, True):
            curve = self.law.curve(self.mean + GRID, math.sqrt(left), reach, earlier)
            sampler = OffsetSampler(read, curve, groups, self._rng)
            found = [sampler.step(limit) for limit in (*limits[:WARM_UP], *(limits if kept else ()))][WARM_UP // 2 :]
            draws = np.array([draw for _, draw in found])
            draws -= (draws @ shares)[:, None]
            spread = float(np.mean(draws**2 @ shares))
            left = max(before - spread, before / 10)
        mean, draws = np.mean([mean for mean, _ in found], axis=0), draws[-DRAWS:]
        if split is not None:
            self._learn_factors(mode, split, rows, mean, curve, left)
        mean -= shares @ mean
        scores = self.law.curve(self.mean + mean, math.sqrt(left), UNLIMITED, earlier).mean
        level, spread = (np.interp(mean, GRID, part) for part in (curve.mean, curve.variance))
        data = released.weight * spread
        excess = (released.sums - counts * level) * data / (data * counts + released.sum_variance + doubts * level**2)
        self._modes[mode] = _Mode(draws, mean, scores - shares @ scores, counts, released, excess)
        return counts

    def _learn_factors(self, mode: int, split: Split, rows: NoisySums, mean: Floats, curve: Curve, left: float) -> None:
        counts, doubts = (part.reshape(-1, split.number) for part in believed_counts(rows.counts, rows.count_variance))
        level = np.interp(mean, GRID, curve.mean)[:, None]
        sums = rows.sums.reshape(counts.shape)
        partner = (sums - counts * level).sum(axis=0) / np.maximum(counts.sum(axis=0), 1e-9)  # its offsets have these
        told = [
            normal_told(
                ReadSums(one - each * shift, each, rows.sum_variance, doubt, rows.weight * each), curve, mean, left
            )
            for one, each, doubt, shift in zip(sums.T, counts.T, doubts.T, partner, strict=True)
        ]
        around, precision = np.array(told).transpose(1, 2, 0)
        draws = drawn_interactions(around, np.ones(counts.shape), 1 / precision, DRAWS, self._rng)
        self._linked = np.einsum("dug,ug->d", draws**2, counts / max(float(counts.sum()), 1e-300))
        kept = np.minimum(1.0, MOST_LINKED * left / np.maximum(self._linked, 1e-300))
        draws, self._linked = draws * np.sqrt(kept)[:, None, None], self._linked * kept
        model = self._factors[0]
        width = min(model.ranks[mode], model.ranks[split.partner])
        _, _, directions = np.linalg.svd(draws.mean(axis=0), full_matrices=False)
        turn = directions[:width].T
        marks = np.eye(split.number)[split.labels] @ turn
        self._factors = [linked_factors(model, split.partner, marks, mode, draw @ turn) for draw in draws]

    def index(self) -> Index:
        """Rows of observations by what their offsets add up to."""
        parts = self._modes.items()
        mixed = {mode: self._rng.choice(len(part.mean), COMBINATIONS, p=part.shares) for mode, part in parts}
        drawn = np.sum([part.draws[np.arange(COMBINATIONS) % DRAWS, mixed[mode]] for mode, part in parts], axis=0)
        return index_of({m: part.mean for m, part in parts}, {m: part.excess for m, part in parts}, mixed, drawn)

    def learn_index(self, index: Index, sums: NoisySums) -> None:
        """Latent means by the index, from sums of scores."""
        sigma = math.sqrt(float(np.mean(self._unexplained() + self._linked)))
        self._bends = index, *drawn_bends(index, self.scale, sums, sigma, DRAWS, self._rng)

    def offsets(self, mode: int) -> Floats:
        """Posterior means of the offsets of a mode."""
        return self._modes[mode].mean

    def leave_rows(self, mode: int, partner: int, columns: Floats) -> None:
        """Factors for owners: columns of the partner's indices; rows of the mode are zero until owners fit them."""
        self._factors = [linked_factors(model, partner, columns, mode) for model in self._factors]

    def completion(self, bounds: tuple[float, float]) -> Completion:
        """Everything as draws of a model."""
        scale, first = self.scale, self._factors[0]
        whole = [
            self._modes[mode].draws if mode in self._modes else np.zeros((DRAWS, size))
            for mode, size in enumerate(first.shape)
        ]
        left = self._unexplained()
        knots, bends = np.tile(scale.knots, (DRAWS, 1)), None
        if self._bends is None:
            means = self._means(np.sqrt(left))
        else:
            index, shares, lines = self._bends
            latent = lines**2 @ shares - (lines @ shares) ** 2 + left + self._linked  # the residuals keep their share
            means, left = np.zeros(DRAWS), left * latent * np.exp(2 * SPREADS * _even_normals(self._rng))
            spreads = np.sqrt(left + self._linked)
            scales = [relinked(scale, line, shares, sigma) for line, sigma in zip(lines, spreads, strict=True)]
            each = zip(scales, self._value, spreads, lines, strict=True)
            shifts = [ScoreLaw(one).mean_of_values(value, sigma, line, shares) for one, value, sigma, line in each]
            knots = np.array([one.knots for one in scales])
            bends = np.stack([np.tile(index.places, (DRAWS, 1)), lines + np.array(shifts)[:, None]], axis=1)
        offsets = Offsets(float(means.mean()), [part.mean(axis=0) for part in whole])
        deviations = np.column_stack([means - means.mean(), *(part - part.mean(axis=0) for part in whole)])
        draws = PosteriorDraws(
            first.family,
            first.shape,
            np.array([model.parameters for model in self._factors], dtype=np.float32),
            deviations.astype(np.float32),
            np.sqrt(left),
            knots,
            scale.low,
            scale.high,
            INDEPENDENT,
            bends,
        )
        mean = np.mean([model.parameters for model in self._factors], axis=0)
        return Completion(offsets, first.replace_parameters(mean), *bounds, self._withheld, draws=draws)


def _even_normals(rng: np.random.Generator) -> Floats:
    """Quantiles of a standard normal law, in random order."""
    from scipy.special import ndtri

    return np.asarray(rng.permutation(ndtri((np.arange(DRAWS) + 0.5) / DRAWS)))


def _normalised(columns: Floats, shares: Floats) -> Floats:
    """Columns less their weighted mean, with mean square one per index, all columns together; none if nearly zero."""
    centred = columns - shares @ columns
    size = float(np.sqrt(np.square(centred).sum(axis=1).mean()))
    return np.asarray(centred / size) if size > 1e-9 else np.empty((len(columns), 0))
