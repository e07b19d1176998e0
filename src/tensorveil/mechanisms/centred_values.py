"""Input perturbation of continuous values: a range is bought first, then every value goes through a channel on it.

Where the symbols tell little for the size of the model, a chain of draws may settle in a fit to noise. Then a second
chain is run on four fifths of the released symbols, and the last fifth tells how much of its deviations from the paid
mean to believe: nothing, unless it is clearly likelier with them. Post-processing, for it reads released symbols only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.laws import USUAL_SIGMA, NoiseLaw, NoisyNumbers, Symbols
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.mechanisms.base import Progress, no_progress
from tensorveil.mechanisms.noisy_completion import MOST_FOR_SYMBOLS, Noisy, fit_values, sample_values
from tensorveil.mechanisms.private_range import PrivateRange, information_of, prices, private_range
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise.channels import Channel, quantize
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Plan
from tensorveil.solvers.als import ALS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

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


@final
@dataclass(frozen=True)
class Released:
    """What was released: a range and symbols of the values on its scale. All that follows reads nothing else."""

    found: PrivateRange
    channel: Channel
    symbols: Integers

    @cached_property
    def variance(self) -> float:
        """Mean variance of the noise of a number that stands for a symbol."""
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
        """Whole values' worth of information for each number of a model."""
        return self.passed * len(self.symbols) / sum(map(math.prod, family.block_shapes(shape)))

    def law(self, chosen: Integers, told: float) -> NoiseLaw:
        """The law that a solver takes for these symbols: where they tell little, Gaussian noise on what stands for
        them, which it nearly is in sums of many; draws of what is behind single symbols would hardly move."""
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
        """Log likelihood of these symbols where a value's mean is the paid one plus each of SHARES of a deviation.

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


def complete_centred(
    data: BoundedObservations, plan: Plan, noise: NoiseSource, solver: ALS | Posterior, progress: Progress
) -> Completion:
    """Buy a range, then symbols, and complete these on its scale; unit `value`, where n is public."""
    request, where = plan.request, data.coordinates
    paid = prices(request.epsilon, len(data), sum(request.shape))  # [P8] no value is read
    found = private_range(data, paid, noise)
    if paid.symbols == 0:
        progress("noise", 1, 1)
        return found.on_bounds(found.mean_alone(request.family, request.shape), request.bounds)
    optimal = isinstance(solver, Posterior) and found.spread is not None
    channel = found.channel(paid.symbols, optimal)
    values = found.normalised(data.steps)  # [P9] each from its own
    symbols = (
        noise.channel(quantize(values, channel.levels), channel) if optimal else noise.dithered_channel(values, channel)
    )
    found = found.told_by(channel.pseudo_values[symbols], information_of(channel))
    released = Released(found, channel, symbols)
    progress("noise", 1, 1)
    if isinstance(solver, ALS):
        noisy = Noisy(released.stands, released.variance)
        return found.on_bounds(fit_values(solver, noisy, where, plan, progress), request.bounds)
    told = released.values_a_number(request.family, request.shape)
    model = sample_values(solver, released.law(np.arange(len(where)), told), where, plan, progress)
    if told * explained_ratio(model, where, found) < SURELY_NOT_NOISE:
        share, explained = believed(released, where, plan, solver, progress)
        nothing = found.mean_alone(request.family, request.shape)
        model = found.shrunk(model, share, explained) if share > 0 else nothing
    return found.on_bounds(model, request.bounds)


def explained_ratio(model: Completion, where: Coordinates, found: PrivateRange) -> float:
    """Mean square of a model's deviations from the mean, over the variance of values about it, half of all at least."""
    some = where[:: 1 + len(where) // MOST_HELD_OUT]
    deviations = model.centred(np.ascontiguousarray(some)) - found.mean
    return float((deviations**2).mean()) / max(_variance_left(model), found.around[1] ** 2 / 2)


def _variance_left(model: Completion) -> float:
    return USUAL_SIGMA**2 if model.draws is None else float((model.draws.sigmas**2).mean())


def believed(
    released: Released, where: Coordinates, plan: Plan, solver: Posterior, progress: Progress = no_progress
) -> tuple[float, float]:
    """The expected share of a model's deviations from the paid mean that is true, and their variance.

    A priori the share is 1, or any from 0 to 1, with equal chances. Symbols that the model did not see tell which;
    where they are not clearly likelier than with the mean alone the share is 0.
    """
    out = np.modf(np.arange(len(where)) * APART)[0] < 1 / HELD_OUT
    held, rest = np.flatnonzero(out), np.flatnonzero(~out)
    if not len(rest):
        return 0.0, 0.0
    held = held[:: -(-len(held) // MOST_HELD_OUT)]
    told = released.values_a_number(plan.request.family, plan.request.shape)
    second = sample_values(solver, released.law(rest, told), where[rest], plan, _named("second chain", progress))
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
