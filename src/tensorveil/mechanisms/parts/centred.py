"""Input perturbation of continuous values: a private range first, then every value through a channel on it."""

from __future__ import annotations

import math

from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.priors import MEAN_VARIANCE
from tensorveil.inference.values.centred import Released, complete_released, information_of
from tensorveil.inference.values.noisy import Progress, Target
from tensorveil.inference.values.private_range import PrivateRange
from tensorveil.mechanisms.planning.private_range import Prices, prices, range_channel
from tensorveil.models.completion import Completion
from tensorveil.privacy.bounds import VALUE_STEPS
from tensorveil.privacy.queries.values.choices import EDGE_STEPS, Quantile
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.queries.values.values import SumWithin
from tensorveil.privacy.vault import Vault
from tensorveil.solvers.als import ALS

STAGE = "values"
NARROWEST = 16 * EDGE_STEPS  # of a range: a thousandth of the bounds
TAIL = 0.1  # quantiles bought: 10 % and 90 %
SPREADS = 2.563  # standard deviations of a normal law between them
BEYOND = 0.53  # of their distance, added at both ends: 2.6 standard deviations from the centre


def ask_range(vault: Vault, paid: Prices) -> PrivateRange:
    """Release quantiles and mean; without quantiles the range is that of the public bounds."""
    low, high, spread = -VALUE_STEPS, VALUE_STEPS, None
    if paid.quantile > 0:
        ends = sorted(vault.choose(STAGE, Quantile(share), epsilon=paid.quantile) for share in (TAIL, 1 - TAIL))
        first, last = (-VALUE_STEPS + EDGE_STEPS * end for end in ends)
        beyond = max(round(BEYOND * (last - first)), (NARROWEST - (last - first) + 1) // 2)
        low, high = max(low, first - beyond), min(high, last + beyond)  # [P5] reads released edges only
        if high - low < NARROWEST:  # at an end of the bounds
            low, high = min(low, high - NARROWEST), max(high, low + NARROWEST)
            low, high = max(low, -VALUE_STEPS), min(high, VALUE_STEPS)
        spread = 2 * max(last - first, EDGE_STEPS) / SPREADS / (high - low)
    half = (high - low) / 2
    answer = vault.answer(STAGE, SumWithin(low, high), epsilon=paid.mean)
    number = max(len(vault.pattern), 1)
    mean = min(max((float(answer.values[0]) / number - (low + high) / 2) / half, -1.0), 1.0)
    error = math.sqrt(2) * (high - low) / paid.mean / number / half
    trust = MEAN_VARIANCE / (MEAN_VARIANCE + error**2)  # of a mean that noise drowns: the middle of the range
    return PrivateRange(low / VALUE_STEPS, high / VALUE_STEPS, trust * mean, math.sqrt(trust) * error, spread)


def complete_centred(
    vault: Vault, epsilon: float, target: Target, solver: ALS | Posterior, progress: Progress
) -> Completion:
    """Release a range, then symbols, and complete them on its scale; unit `value`, where n is public."""
    pattern = vault.pattern
    paid = prices(epsilon, len(pattern), sum(target.shape))  # [P8] no value is read
    found = ask_range(vault, paid)
    if paid.symbols == 0:
        progress("noise", 1, 1)
        return found.on_bounds(found.mean_alone(target.family, target.shape), target.low, target.high)
    optimal = isinstance(solver, Posterior) and found.spread is not None
    channel = range_channel(found, paid.symbols, optimal)
    within = int(found.low * VALUE_STEPS), int(found.high * VALUE_STEPS)  # exact: whole steps
    symbols = vault.symbols(STAGE, Symbols(within, nearest=optimal), channel, epsilon=paid.symbols)  # [P9]
    progress("noise", 1, 1)
    found = found.told_by(channel.pseudo_values[symbols], information_of(channel))
    return complete_released(Released(found, channel, symbols), pattern.coordinates, target, solver, progress)
