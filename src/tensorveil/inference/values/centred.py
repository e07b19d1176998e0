"""Completion from symbols of continuous values on a released range.

If the symbols carry little information for the size of the model, the chain may fit noise. A second chain is then run
on four fifths of the released symbols. The held-out fifth decides how far predictions may deviate from the released
mean. If the held-out symbols do not clearly support the model, the prediction falls back to the mean. Everything here
reads released symbols only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.laws import USUAL_SIGMA, NoiseLaw, NoisyNumbers, Symbols
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import (
    MOST_FOR_SYMBOLS,
    Coordinates,
    Floats,
    Noisy,
    Progress,
    Target,
    fit_values,
    sample_values,
)
from tensorveil.inference.values.private_range import PrivateRange
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.solvers.als import ALS

Integers = NDArray[np.int64]

FEWEST_FOR_SYMBOLS = 0.02  # share of the information that must pass for draws of what is behind symbols to move
MOST_FOR_SCORES = 0.5  # share of the information below which scores take the place of draws behind symbols,
FEWEST_FOR_SCORES = 25.0  # where there are more than so many values' worth for each number, so that sums are normal
FEWEST_A_NUMBER = 4.0  # and whole values' worth of it for each number of the model: fewer tell of no more than a slope
SURELY_NOT_NOISE = 10.0  # what a model explains over what fits of so many numbers to noise explain
HELD_OUT = 5  # one symbol in so many is held out of the second chain
APART = math.sqrt(2) - 1  # its multiples, modulo 1, decide which: evenly spread
MOST_HELD_OUT = 20_000
EVIDENCE = math.log(20)  # for a model against the mean alone: without a signal one in 20 at most is so likely
SHARES = np.linspace(0.0, 1.0, 21)  # of a model's deviations from the mean


class Channel(Protocol):
    """The table that symbols were drawn by, and the numbers that stand for them (privacy/noise/channels.py)."""

    @property
    def levels(self) -> tuple[float, ...]: ...

    @property
    def chances(self) -> Floats: ...

    @property
    def weights(self) -> Floats: ...

    @property
    def information(self) -> float: ...

    @property
    def pseudo_values(self) -> Floats: ...

    @property
    def variances(self) -> Floats: ...


def information_of(channel: Channel) -> float:
    """Share of the information about a value's mean that passes a channel, by its design or by the noise it adds."""
    if not math.isnan(channel.information):
        return channel.information
    return USUAL_SIGMA**2 / (USUAL_SIGMA**2 + float(channel.weights @ channel.variances))


@final
@dataclass(frozen=True)
class Released:
    """The released data: a range, and symbols of the values on its scale. Inference reads nothing else."""

    found: PrivateRange
    channel: Channel
    symbols: Integers

    @cached_property
    def variance(self) -> float:
        """Mean noise variance of the number that represents a symbol."""
        return float(self.channel.weights @ self.channel.variances)

    @cached_property
    def stands(self) -> Floats:
        """A number for each symbol; their mean is the one that is known best."""
        numbers = self.channel.pseudo_values[self.symbols]
        return np.asarray(numbers + (self.found.mean - numbers.mean()))

    @property
    def passed(self) -> float:
        """Share of the information about a value's mean that passes."""
        return information_of(self.channel)

    def values_a_number(self, family: ModelFamily, shape: tuple[int, ...]) -> float:
        """Information per parameter of a model, in units of one exact value."""
        return self.passed * len(self.symbols) / sum(map(math.prod, family.block_shapes(shape)))

    def law(self, chosen: Integers, told: float) -> NoiseLaw:
        """The noise law that a solver uses for these symbols.

        If symbols carry little information, it is Gaussian noise on the numbers that represent them. This is accurate
        for sums of many symbols, and draws of the latent values behind single symbols would mix too slowly.
        """
        optimal = self.found.spread is not None
        if optimal:
            told_enough = self.passed >= FEWEST_FOR_SYMBOLS and told >= FEWEST_A_NUMBER
        else:
            told_enough = self.variance <= MOST_FOR_SYMBOLS * USUAL_SIGMA**2
        law: NoiseLaw
        if told_enough:
            law = Symbols(
                self.symbols[chosen],
                self.channel.chances,
                np.asarray(self.channel.levels),
                ordered=False,
                around=self.found.around if optimal else None,
                scored=optimal and self.passed < MOST_FOR_SCORES and told > FEWEST_FOR_SCORES,
            )
        else:
            law = NoisyNumbers(self.stands[chosen], noise_std=math.sqrt(self.variance), spread=self.found.spread)
        law.level = self.found.level
        return law

    def chance_of_shares(self, chosen: Integers, deviations: Floats, sigma: float) -> Floats:
        """Log likelihood of these symbols if the mean of a value is the released mean plus a share of the deviation.

        There is one result for each of SHARES.

        sigma : spread of values about all of it
        """
        from scipy.special import ndtr

        grid = np.asarray(self.channel.levels)
        cuts = np.concatenate(([-np.inf], (grid[1:] + grid[:-1]) / 2, [np.inf]))
        chances = self.channel.chances.T[self.symbols[chosen]]
        explained = float((deviations**2).mean())
        found = []
        for share in SHARES:
            left = math.sqrt(sigma**2 + (1 - share**2) * explained)
            levels = np.diff(ndtr((cuts - (self.found.mean + share * deviations)[:, None]) / left), axis=1)
            found.append(float(np.log(np.maximum((levels * chances).sum(axis=1), 1e-300)).sum()))
        return np.array(found)


def complete_released(
    released: Released, where: Coordinates, target: Target, solver: ALS | Posterior, progress: Progress
) -> Completion:
    """A completion on the scale of the released range, brought to that of the bounds."""
    found = released.found
    if isinstance(solver, ALS):
        noisy = Noisy(released.stands, released.variance)
        return found.on_bounds(fit_values(solver, noisy, where, target, progress), target.low, target.high)
    told = released.values_a_number(target.family, target.shape)
    model = sample_values(solver, released.law(np.arange(len(where)), told), where, target, progress)
    if told * explained_ratio(model, where, found) < SURELY_NOT_NOISE:
        share, explained = believed(released, where, target, solver, progress)
        nothing = found.mean_alone(target.family, target.shape)
        model = found.shrunk(model, share, explained) if share > 0 else nothing
    return found.on_bounds(model, target.low, target.high)


def explained_ratio(model: Completion, where: Coordinates, found: PrivateRange) -> float:
    """Mean square of a model's deviations from the mean, over the variance of values about it, half of all at least."""
    some = where[:: 1 + len(where) // MOST_HELD_OUT]
    deviations = model.centred(np.ascontiguousarray(some)) - found.mean
    return float((deviations**2).mean()) / max(_variance_left(model), found.around[1] ** 2 / 2)


def _variance_left(model: Completion) -> float:
    return USUAL_SIGMA**2 if model.draws is None else float((model.draws.sigmas**2).mean())


def believed(
    released: Released, where: Coordinates, target: Target, solver: Posterior, progress: Progress
) -> tuple[float, float]:
    """The share of a model's deviations from the released mean to keep, and the variance of the deviations.

    A priori the share is 1 with probability one half, and otherwise uniform between 0 and 1. Held-out symbols update
    this prior. If they are not clearly more likely than under the mean alone, the share is 0.
    """
    out = np.modf(np.arange(len(where)) * APART)[0] < 1 / HELD_OUT
    held, rest = np.flatnonzero(out), np.flatnonzero(~out)
    if not len(rest):
        return 0.0, 0.0
    held = held[:: -(-len(held) // MOST_HELD_OUT)]
    told = released.values_a_number(target.family, target.shape)
    second = sample_values(solver, released.law(rest, told), where[rest], target, _named("second chain", progress))
    deviations = second.centred(np.ascontiguousarray(where[held])) - released.found.mean
    chances = released.chance_of_shares(held, deviations, math.sqrt(_variance_left(second)))
    weights = np.append(np.full(len(SHARES) - 1, 1 / (len(SHARES) - 1)), 1.0) / 2
    weights *= np.exp(chances - chances.max())
    if math.log(weights.sum()) < EVIDENCE + chances[0] - chances.max():
        return 0.0, 0.0
    return float(SHARES @ weights / weights.sum()), float((deviations**2).mean())


def _named(stage: str, progress: Progress) -> Progress:
    """Progress under another name."""
    return lambda _, done, planned: progress(stage, done, planned)
