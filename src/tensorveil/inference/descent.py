"""Descent on noisy gradients with known noise: the state of a factor model, and its updates. Reads no data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np

from tensorveil.arrays import Floats
from tensorveil.kernels import hashing
from tensorveil.models.algebra import mode_product, unfold
from tensorveil.models.factor_model import LARGEST_PARAMETER, FactorModel, ModelFamily

TINY = 1e-30
SMALLEST_SPREAD = 2.0**-7
MEAN_VARIANCE = 1 / 9  # of a mean that is known to lie between -1 and 1
SMALLEST_COUNT = 0.1  # of the average: an index is taken to occur that often

# Tuned on synthetic tensors
SIGNAL_SHARE = 0.5  # of the variance of values, taken for signal
FIRST_MOVE, LAST_MOVE, LAST_ROW_MOVE = 0.7, 0.2, 0.4  # share of the way to the new estimate, in first and last step
CORE_MOVE = 0.57  # times that with a core: one more block moves at once, and factors and core can undo each other
CLIP_SPREADS = 0.7  # clip norm, in gradients of a residual of one spread
UNCLIPPED = 0.7  # curvature left by that clipping
EVEN = math.sqrt(3) / 2  # mean of numbers spread evenly from 0 to 1, by the root of their mean square
SMALLEST_COMPONENT = 0.15  # a component is kept at this part of the signal's level while steps go on


@final
@dataclass(frozen=True)
class Moments:
    """Mean and spread of the values, and how often each index of each mode is observed, as far as is known."""

    mean: float
    spread: float
    counts: list[Floats]

    @classmethod
    def of(cls, number: float, total: float, squares: float, variance: float, counts: list[Floats]) -> Self:
        """From a number of values, their sum and sum of squares, the latter two with noise of this variance."""
        count = max(number, math.sqrt(variance), TINY)
        uncertain = math.sqrt(variance) / count
        mean = float(np.clip(total / count * MEAN_VARIANCE / (MEAN_VARIANCE + uncertain**2), -1.0, 1.0))
        square = max(squares / count - mean**2, uncertain)
        return cls(mean, math.sqrt(float(np.clip(square, SMALLEST_SPREAD**2, 1.0))), counts)


def believed_counts(noisy: Floats, variance: float, total: float) -> Floats:
    """Counts from noisy counts, shrunk to their average according to the noise."""
    average = max(total / len(noisy), 1.0)
    excess = max(0.0, float(((noisy - average) ** 2).mean()) - variance)
    share = excess / (excess + variance + TINY)
    return np.asarray(np.maximum(average + share * (noisy - average), SMALLEST_COUNT * average))


@final
@dataclass(frozen=True)
class NoisyDescent:
    """A state of the descent: factor matrices and perhaps a core, with the level of the signal that they explain.

    Every step receives noisy sums of e phi (residual times features) and the variance of their noise, and moves each
    row part of the way to its best linear estimate. Rows that move together with other rows take shorter steps.
    """

    family: ModelFamily
    factors: tuple[Floats, ...]
    core: Floats | None
    level: float
    weights: tuple[Floats, ...]  # of the indices of each mode: their shares of the observations

    @classmethod
    def start(cls, family: ModelFamily, shape: tuple[int, ...], moments: Moments) -> Self:
        """Pseudo-random numbers, the same in every run: a hash of block and position."""
        blocks = []
        for number, block in enumerate(family.block_shapes(shape)):
            size = math.prod(block)
            places = np.column_stack([np.full(size, number), np.arange(size)]).astype(np.uint32)
            hashes = np.empty(size, dtype=np.uint64)
            hashing.hash_rows(np.ascontiguousarray(places), np.uint64(0), np.uint64(0), hashes)
            numbers = (hashes / 2.0**63 - 1.0).reshape(block)
            blocks.append(np.abs(numbers) if family.nonnegative else numbers)
        order = len(shape)
        weights = tuple(np.asarray(count / max(float(count.sum()), TINY)) for count in moments.counts)
        level = moments.spread * math.sqrt(SIGNAL_SHARE)
        if family.nonnegative:  # the sum of all components begins near the mean, above the constant
            level = (1 + moments.mean) / (math.sqrt(blocks[0].shape[1]) * EVEN ** len(shape))
        state = cls(family, tuple(blocks[:order]), blocks[order] if len(blocks) > order else None, level, weights)
        return state.balanced(1.0, exactly=True)

    def model(self) -> FactorModel:
        """The factor model of this state."""
        blocks = [*self.factors] if self.core is None else [*self.factors, self.core]
        return self.family.model([np.clip(block, -LARGEST_PARAMETER, LARGEST_PARAMETER) for block in blocks])

    def grams(self) -> list[Floats]:
        """Mean outer product of the rows of each factor matrix, over observations."""
        pairs = zip(self.factors, self.weights, strict=True)
        return [np.asarray((factor * weights[:, None]).T @ factor) for factor, weights in pairs]

    def feature_moments(self) -> list[Floats]:
        """Mean of phi phi^T over observations, for each factor matrix."""
        grams, moments = self.grams(), []
        for mode in range(len(grams)):
            others = [gram for number, gram in enumerate(grams) if number != mode]
            if self.core is None:
                moments.append(np.prod(others, axis=0))
                continue
            partly = self.core
            for number, gram in enumerate(grams):
                if number != mode:
                    partly = mode_product(partly, gram, number)
            moments.append(unfold(partly, mode) @ unfold(self.core, mode).T)
        return [np.asarray((moment + moment.T) / 2) for moment in moments]

    def feature_norms(self) -> Floats:
        """Root mean square of |phi_b| over observations, for each block; never zero."""
        squares = [float(np.trace(moment)) for moment in self.feature_moments()]
        if self.core is not None:
            squares.append(math.prod(float(np.trace(gram)) for gram in self.grams()))
        return np.sqrt(np.maximum(squares, 1e-12))

    def clip_norms(self, spread: float) -> Floats:
        """For each block, the norm that gradients by one of its rows are clipped to."""
        return np.asarray(2 * CLIP_SPREADS * spread * self.feature_norms())

    def joint_clipping(self, spread: float, size: float, mode: int | None) -> tuple[float, float]:
        """The norm that joint gradients of units are clipped to, and the share of their curvature that this leaves.

        `size` is the typical number of observations of one unit, `mode` that of whole slices. The residuals of a slice
        that agree add up in its own row, so that more is clipped.
        """
        lengths = self.feature_norms()
        norm = 2 * CLIP_SPREADS * spread * float(np.linalg.norm(lengths)) * math.sqrt(size)
        if mode is None:
            return norm, 1.0
        return norm, min(1.0, norm / math.hypot(norm, 2 * size * float(lengths[mode]) * spread))

    def move(self, step: int, steps: int, last: float) -> float:
        """The share of the way to the new estimate that a step goes: from FIRST_MOVE to `last`, less with a core."""
        first = FIRST_MOVE if self.core is None else FIRST_MOVE * CORE_MOVE
        return float(first * (last / FIRST_MOVE) ** (step / max(steps - 1, 1)))

    def balanced(self, smallest: float, exactly: bool = False) -> Self:
        """The same tensor with components of equal size in all blocks, with weak ones raised."""
        return self._balanced_cp(smallest, exactly) if self.core is None else self._balanced_tucker(smallest, exactly)

    def _balanced_cp(self, smallest: float, exactly: bool) -> Self:
        norms = np.array([np.sqrt(np.diag(gram)) for gram in self.grams()]) + TINY
        sizes, least = norms.prod(axis=0), smallest * self.level / math.sqrt(norms.shape[1])
        sizes = np.full_like(sizes, least) if exactly else np.maximum(sizes, least)
        root = sizes ** (1 / len(self.factors))
        factors = tuple(factor / norm * root for factor, norm in zip(self.factors, norms, strict=True))
        return replace(self, factors=factors)

    def _balanced_tucker(self, smallest: float, exactly: bool) -> Self:
        """Orthogonal factors, the core rotated to its higher-order singular vectors."""
        core, factors = np.asarray(self.core), []
        for mode, factor in enumerate(self.factors):
            left, values, right = np.linalg.svd(factor, full_matrices=False)
            core = mode_product(core, np.maximum(values, TINY)[:, None] * right, mode) / math.sqrt(len(factor))
            factors.append(left * math.sqrt(len(factor)))
        for mode in range(0 if exactly else len(factors)):
            left, values, _ = np.linalg.svd(unfold(core, mode), full_matrices=False)
            if left.shape[1] < left.shape[0]:  # a core too flat to have that many singular vectors
                continue
            factors[mode] = factors[mode] @ left
            raised = np.maximum(1.0, smallest * self.level / math.sqrt(len(values)) / np.maximum(values, 1e-9))
            core = mode_product(core, raised[:, None] * left.T, mode)
        size = float(np.linalg.norm(core)) + TINY
        wanted = smallest * self.level if exactly else max(size, smallest * self.level)
        scale = (wanted / math.sqrt(core.size)) ** (1 / (len(factors) + 1))
        core = core * (wanted / size / scale ** len(factors))
        return replace(self, factors=tuple(factor * scale for factor in factors), core=core)

    def moved(
        self,
        model: FactorModel,
        sums: Floats,
        variances: Sequence[float],
        counts: Sequence[Floats],
        residual_variance: float,
        move: float,
    ) -> Self:
        """Part of the way to the best linear estimate of each row, given noisy sums of e phi at this state."""
        parts = np.split(sums, model.block_starts[1:])
        lasting = move / (2 - move)  # of the noise's variance, in a moving average
        noise = [(variance * lasting, residual_variance * lasting) for variance in variances]
        factors = []
        for mode, (factor, moment) in enumerate(zip(self.factors, self.feature_moments(), strict=True)):
            strengths, basis = np.linalg.eigh(moment)
            curvature = counts[mode][:, None] * np.maximum(strengths, 0.0)
            part = parts[mode].reshape(factor.shape)
            prior = float((factor**2).mean(axis=1) @ self.weights[mode])
            factors.append(_towards(factor @ basis, part @ basis, curvature, noise[mode], prior, move) @ basis.T)
            if self.family.nonnegative:
                np.maximum(factors[mode], 0.0, out=factors[mode])
        core = self.core
        if core is not None:
            bases = [np.linalg.eigh(gram) for gram in self.grams()]
            now, part, curvature = core, parts[-1].reshape(core.shape), counts[-1][0] * np.ones(())
            for mode, (strengths, basis) in enumerate(bases):
                now, part = mode_product(now, basis.T, mode), mode_product(part, basis.T, mode)
                curvature = np.multiply.outer(curvature, np.maximum(strengths, 0.0))
            core = _towards(now, part, curvature, noise[-1], float((core**2).mean()), move)
            for mode, (_, basis) in enumerate(bases):
                core = mode_product(core, basis, mode)
        return replace(self, factors=tuple(factors), core=core)


def _towards(
    now: Floats, sums: Floats, curvature: Floats, noise: tuple[float, float], prior: float, move: float
) -> Floats:
    """Part of the way to the Wiener filter for sums = curvature (true - now) + noise of variance a + b curvature."""
    spread = curvature**2 * prior + noise[0] + noise[1] * curvature + TINY
    best = prior * curvature * (sums + curvature * now) / spread
    return np.asarray(np.clip(now + move * (best - now), -LARGEST_PARAMETER, LARGEST_PARAMETER))
