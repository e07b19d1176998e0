"""Which sums are asked for, in which order and for which share of the budget; reads public numbers only.

Errors are on the latent scale, where the spread of the values is 1. An index with sum of weights N is known
with variance a = (noise + sigma^2 w N) / N^2, which leaves v a / (v + a) of the prior variance v of an effect. A
dynamic program divides the budget so that the sum over all effects is least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.mechanisms.planning.information import seen
from tensorveil.privacy.plan import Request

Floats = NDArray[np.float64]

UNITS = 40  # a share is a whole number of these
MEAN_REACH = 10.0  # half the range of values, in standard deviations
MARGINAL_CELLS = 16
OFFSET_VARIANCE = 0.1
FEATURE_VARIANCE = 0.05  # of it, by public features, if there are any
GROUP_VARIANCE = 0.015  # of the effects of an index on groups of another mode's indices
INDEX_VARIANCE = 0.03  # the same, if every index is a group
LEFT = 0.6  # of the latent variance, around offsets
REACH = 2.0  # standard deviations
MOST_GROUPS, MOST_INDICES = 6, 24
REACHES = (1.5, 2.0, 2.5, 3.0)
LOSS = 0.03  # log variance around predictions that a wider reach may cost: it is safer if values are not normal
OFFSET_SHARES = (0.02, 0.1, 0.3, 0.7, 0.85)
QUANTILES = 9
INDEX = -1  # in the place of a mode: sums by the index of an observation, all modes together
INDEX_SHARE = 0.1  # for these sums, at most; less where observations times epsilon are below or above these numbers
SUMMED, WELL_SUMMED = 3e3, 3e4
PASSES = 2  # over the modes under slices: a slice's own offset is subtracted before other offsets are known


@final
@dataclass(frozen=True)
class SumStage:
    """Sums of one mode, or of all values.

    Attributes
    ----------
    mode : int or None
        None: the total of the values. INDEX: all modes together.
    share : float
        Of what the budget leaves after the marginal.
    partner, groups : int
        The sums are split by so many groups of the indices of the partner mode; 1: they are not split.
    """

    mode: int | None
    share: float
    partner: int = -1
    groups: int = 1


@final
@dataclass(frozen=True)
class Noise:
    """Variance of the noise of a sum as a function of the share, and the weight of an observation in the sum."""

    whole: float
    pure: bool
    weight: float

    def at(self, share: float) -> float:
        """The variance for this share of the budget."""
        return self.whole / (share**2 if self.pure else share)


def sum_stages(
    request: Request, marginal: float, of_total: Noise, noise: Noise, features: Mapping[int, int]
) -> tuple[float, tuple[SumStage, ...]]:
    """The expected error, and the stages: the total first, then modes, by their size.

    Scores are read less what is known, within a reach that shrinks with the spread that is left. So later sums have
    less noise, and an index of a large mode, with few observations, needs that most: smallest first. Train halves, unit
    `entry`, errors at epsilon 5 / 1 as shares of those with the largest mode first: Birmingham 0.93 / 1.00 (3 seeds),
    taxi 0.93 / 0.94 (1), MIMIC 0.98 / 1.01 (4), FilmTrust 1.00 / 1.00 (1); nine made-up kinds 0.998 to 1.003 / 0.993 to
    1.005. Where coordinates are public, largest first: smallest first costs 1.5 % and 1.3 % on MovieLens at epsilon 1
    and 0.5 (`value`, ua's train half, 3 seeds).

    Offsets are learned in units of the spread of the values. If the marginal may not show it, because bounds may be far
    too wide, all of the budget goes to the total.

    Parameters
    ----------
    marginal : what every histogram of the marginal costs, as a share of the budget of the sums
    of_total, noise : of the total of the values, and of the sums of modes
    features : how many public ones a mode has
    """
    withheld = request.unit.mode_number if request.unit.kind == "slice" else None
    sign = -1 if request.unit.coordinates_public else 1
    modes = sorted((m for m in range(len(request.shape)) if m != withheld), key=lambda mode: sign * request.shape[mode])
    means = _errors_of_mean(request, marginal, of_total)
    if not request.unit.whole_slices and not seen(request.count_or_guess * of_total.weight, of_total.at(marginal)):
        return means[-1], (SumStage(None, 1.0),)
    splits: list[tuple[int, int, int]] = [(-1, -1, 1)]
    if not request.unit.whole_slices:
        splits += [
            (mode, partner, groups)
            for mode, partner in permutations(modes, 2)
            for groups in _groups(request, mode, partner)
        ]
    plans = [_divided(request, means, noise, features, modes, split) for split in splits]
    error, stages = min(plans, key=lambda plan: plan[0])
    if withheld is None:
        return error, _with_index(request, stages)
    total, *others = stages
    halves = [SumStage(stage.mode, stage.share / PASSES) for stage in others]
    return error, (total, *halves * PASSES)


def _with_index(request: Request, stages: tuple[SumStage, ...]) -> tuple[SumStage, ...]:
    """The stages and, if any of them is of a mode, sums by the index.

    With the largest share, noise on the count of a row is about a tenth of it at the first number, and a hundredth at
    the second, where more would be wasted. Below, these sums tell little, and the budget is better spent on others.
    Train halves, unit `entry`, epsilon 1 / 5, errors as shares of the private mean's, without and with these sums, when
    the spread around the index was not yet widened (`LatentPosterior.completion`): MIMIC 1.02 / 1.12 and 0.95 / 0.88
    (5 seeds), Birmingham 0.478 / 0.389 and 0.475 / 0.391, FilmTrust 0.898 / 0.876 and 0.899 / 0.874 (3 seeds). Widened,
    Birmingham has 0.482 / 0.393, and its largest tenth is covered by 0.87 / 0.91 instead of 0.82 / 0.82.
    """
    if len(stages) == 1:
        return stages
    told = request.count_or_guess * request.epsilon
    share = INDEX_SHARE * min(1.0, told / SUMMED, WELL_SUMMED / told)
    return (*(replace(stage, share=stage.share * (1 - share)) for stage in stages), SumStage(INDEX, share))


def _groups(request: Request, mode: int, partner: int) -> list[int]:
    """Numbers of groups to try."""
    ranks = request.family.ranks_for(request.shape)
    size = request.shape[partner]
    few = range(2, min(MOST_GROUPS, size - 1, ranks[mode], ranks[partner]) + 1)
    return [*few, *([size] if 1 < size <= MOST_INDICES else [])]


def _divided(
    request: Request,
    means: list[float],
    noise: Noise,
    features: Mapping[int, int],
    modes: list[int],
    split: tuple[int, int, int],
) -> tuple[float, tuple[SumStage, ...]]:
    """The best shares for one way to split, and the error that they leave."""
    mode, partner, groups = split
    order = list(modes)
    if groups > 1 and order.index(partner) > order.index(mode):
        order.remove(partner)
        order.insert(order.index(mode), partner)
    total, tables = request.count_or_guess * noise.weight, [means]
    for one in order:
        tables.append([_error(request, noise, features, share, total, one, split) for share in _shares()])
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ()), *((math.inf, ()) for _ in range(UNITS))]
    for place, table in enumerate(tables):  # the total has a share
        best = [
            min(
                (best[used - more][0] + (table[more] if place or more else math.inf), (*best[used - more][1], more))
                for more in range(used + 1)
            )
            for used in range(UNITS + 1)
        ]
    error, shares = best[UNITS]
    stages = [
        SumStage(one, share / UNITS, *((partner, groups) if one == mode and groups > 1 else ()))
        for one, share in zip([None, *order], shares, strict=True)
        if share
    ]
    asked = {stage.mode for stage in stages}
    if groups > 1 and not {mode, partner} <= asked:
        return math.inf, ()
    return error, tuple(stages)


def _errors_of_mean(request: Request, marginal: float, of_total: Noise) -> list[float]:
    """What is left of the mean's variance for every share: it may lie anywhere, and the marginal tells of it too.

    Masses of cells that are spread evenly over the range have errors of the noise each.
    """
    reach = (MEAN_REACH / (request.count_or_guess * of_total.weight)) ** 2
    before = _left(MEAN_REACH**2 / 3, of_total.at(marginal) * reach * MARGINAL_CELLS / 3)
    return [_left(before, of_total.at(share) * reach) for share in _shares()]


def _error(
    request: Request,
    noise: Noise,
    features: Mapping[int, int],
    share: float,
    total: float,
    mode: int,
    split: tuple[int, int, int],
) -> float:
    """What is left of the effects of a mode, and of interactions if this mode is the one that is split."""
    size, groups = request.shape[mode], split[2] if mode == split[0] else 1
    count = total / size
    spread = LEFT * noise.weight * count
    found = noise.at(share) * REACH**2 * LEFT
    each_index, columns = (groups * found + spread) / count**2, features.get(mode, 0)
    shared = FEATURE_VARIANCE if columns else 0.0
    left = _left(OFFSET_VARIANCE - shared, each_index) + _left(shared, columns * each_index / size)
    if mode == split[0]:
        variance = INDEX_VARIANCE if groups == request.shape[split[1]] else GROUP_VARIANCE * (1 - 1 / groups)
        each = count / groups
        left -= variance - _left(variance, (found + spread / groups) / each**2)
    return left


def best_reach(noise: float, count: float, weight: float, slope: Callable[[Floats], Floats]) -> float:
    """How far scores are read, in standard deviations: the widest reach that costs little.

    For every share of the variance that offsets may have, the expected error of predictions is compared with that of
    the best reach; the largest of these losses decides. One value moves a sum by the reach at most, and a shift of all
    values moves it by the part inside.

    Parameters
    ----------
    noise : variance of the noise on a sum of numbers from -1 to 1
    count, weight : sum of weights of an index, and the weight of a value
    slope : of values by latent numbers; errors count by its square
    """
    from scipy.special import ndtr, ndtri

    quantiles = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES)
    reaches = np.array(REACHES)[:, None]
    regrets = []
    for share in OFFSET_SHARES:
        offsets, sigma = math.sqrt(share) * quantiles, math.sqrt(1 - share)
        inside = np.maximum(ndtr((reaches - offsets) / sigma) - ndtr((-reaches - offsets) / sigma), 1e-3)
        errors = (noise * reaches**2 + (1 - share) * weight * count) / (inside * max(count, 1e-9)) ** 2
        matter = slope(offsets) ** 2
        logs = np.log((1 - share + share * errors / (share + errors)) @ matter / matter.sum())
        regrets.append(logs - logs.min())
    losses = np.max(regrets, axis=0)
    return float(REACHES[int(np.flatnonzero(losses <= max(LOSS, float(losses.min())))[-1])])


def _shares() -> list[float]:
    return [max(steps, 1e-9) / UNITS for steps in range(UNITS + 1)]


def _left(prior: float, error: float) -> float:
    return prior * error / max(prior + error, 1e-300)
