"""What events cost: epsilon for a delta, delta for an epsilon.

Pure epsilon is added up. Everything else is composed as a privacy loss distribution (PLD) by dp-accounting, always
rounded towards more epsilon, and confirmed by a second method where there is one: the closed form of the Gaussian
mechanism, and Rényi accounting (RDP). What is unsupported, not finite or contradicted is an error, never a number.

dp-accounting is asked for add/remove, with noise over the true sensitivity; only the sampled replace-one pair is asked
as REPLACE_ONE, with noise over the clip norm (docs/proofs/gradients.md).
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tensorveil import checks
from tensorveil.errors import InputError, TensorveilError
from tensorveil.privacy.accounting.events import (
    Event,
    GaussianEvent,
    PureEvent,
    gaussian_precision,
    joined,
    pure_epsilon,
)
from tensorveil.privacy.accounting.events import (
    shares as shares,
)

ROUNDING = 1e-9  # relative: answers are raised by it, far above what float arithmetic loses
NOTICEABLE = 1e-6  # absolute: smaller differences of epsilon are nobody's concern
DISCRETISATION = 2e-3  # relative: the PLD is refined until halving its interval gains less
FINEST = 64  # by how much the interval is refined at most
DISAGREEMENT = 5e-3  # relative: RDP below the PLD by more than this is an error
RENYI_ORDERS = (*range(2, 65), 128, 256, 512, 1024)  # whole ones: dp-accounting's series for others may not converge
TRANSFORM_ERROR = 1e-15  # of delta, a step: what convolving by FFT may lose; measured below 2e-17 a step
LARGEST_MIXED_EPSILON, LARGEST_MIXED_COUNT = 30.0, 1000  # pure stages beyond these are added, not composed


class AccountingError(TensorveilError, ArithmeticError):
    """The accountants fail or contradict each other: no number is given."""


def epsilon_of(events: Sequence[Event], delta: float) -> float:
    """The epsilon that all events together cost at this delta, an upper bound.

    Parameters
    ----------
    events : stages that read the same units, also when later ones are chosen by earlier outputs
    delta : at least 0 and below 1; above 0 if any event is Gaussian

    Raises
    ------
    InputError
        A parameter breaks a rule, such as delta = 0 with Gaussian noise.
    AccountingError
        The accountants give no finite answer or contradict each other.
    """
    everything, chance = joined(events), _delta(delta, events)
    noisy, pure = _without_pure(everything), pure_epsilon(everything)
    if not noisy:
        return pure
    epsilon = _refined(noisy, lambda losses: _epsilon(losses, noisy, chance), NOTICEABLE)
    _confirm(noisy, epsilon, chance)
    if len(noisy) == len(everything):
        return epsilon
    answers = [math.nextafter(pure + epsilon, math.inf)]
    if _composable(everything):
        answers.append(_refined(everything, lambda losses: _epsilon(losses, everything, chance), NOTICEABLE))
        if answers[-1] < epsilon * (1 - DISAGREEMENT) - NOTICEABLE:
            raise AccountingError(
                f"pure stages must not lower the cost, got epsilon {answers[-1]!r} with and {epsilon!r} without; "
                "report these events"
            )
    return min(answers)


def delta_of(events: Sequence[Event], epsilon: float) -> float:
    """The delta that all events together cost at this epsilon, an upper bound.

    Pure events alone are taken as one stage of their total: 0 from that total on, below it what randomized response
    of that total shows.
    """
    everything, budget = joined(events), checks.nonnegative_number("epsilon", epsilon)
    noisy, pure = _without_pure(everything), pure_epsilon(everything)
    if not noisy:
        shown = -math.expm1(budget - pure) / (1 + math.exp(-pure))
        return 0.0 if pure <= budget else min(1.0, shown * (1 + ROUNDING))
    answers = [1.0]
    left = budget - pure if pure == 0 else math.nextafter(budget - pure, -math.inf)
    if left >= 0:
        answers.append(_refined(noisy, lambda losses: _hockey_stick(losses, noisy, left), 0.0))
        if (
            _only_gaussian(noisy)
            and answers[-1] < 1
            and _closed_form(noisy, answers[-1]) > left * (1 + ROUNDING) + ROUNDING
        ):
            raise AccountingError(
                f"the PLD must not be below the closed form, got delta {answers[-1]!r} for epsilon {left!r}; "
                "report these events"
            )
    if len(noisy) < len(everything) and _composable(everything):
        answers.append(_refined(everything, lambda losses: _hockey_stick(losses, everything, budget), 0.0))
    return min(answers)


def curve(events: Sequence[Event], deltas: Iterable[float]) -> tuple[tuple[float, float], ...]:
    """Pairs (delta, epsilon), one for each delta, in the given order."""
    return tuple((float(delta), epsilon_of(events, delta)) for delta in deltas)


def second_opinion(events: Sequence[Event], delta: float) -> float | None:
    """The same epsilon by another method, or None where no other method is known.

    Gaussians alone: the exact closed form of Balle and Wang (arXiv:1805.06530, Theorem 8), where 1/z^2 adds up.
    Sampled, or mixed with pure events: RDP, which is never below the truth. Pure events alone, and the sampled
    replace-one pair, which RDP refuses: None.
    """
    everything, chance = joined(events), _delta(delta, events)
    if not _without_pure(everything):
        return None
    return _closed_form(everything, chance) if _only_gaussian(everything) else _renyi(everything, chance)


def rough_epsilon(events: Sequence[Event], delta: float) -> float:
    """A quick estimate to start the search with; it promises nothing."""
    everything = joined(events)
    noisy, pure, chance = _without_pure(everything), pure_epsilon(everything), _delta(delta, events)
    if not noisy:
        return pure
    if _only_gaussian(everything):
        return _closed_form(everything, chance)
    together = everything if _composable(everything) else noisy
    with _failing_closed():
        epsilon = _epsilon(_loss_distribution(together, _first_interval(together)), together, chance)
    return epsilon if together is everything else pure + epsilon


def _loss_distribution(events: Sequence[Event], interval: float) -> Any:
    """dp-accounting's privacy loss distribution of all events, rounded up to multiples of `interval`, a power of 2."""
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.common import DifferentialPrivacyParameters
    from dp_accounting.privacy_accountant import NeighboringRelation

    parts: list[Any] = []
    precision = gaussian_precision(events)
    if precision > 0:
        parts.append(library.from_gaussian_mechanism(precision**-0.5, value_discretization_interval=interval))
    for event in events:
        if isinstance(event, GaussianEvent):
            continue
        if isinstance(event, PureEvent):  # dominated by randomized response, here of the next epsilon on the grid
            parameters = DifferentialPrivacyParameters(math.ceil(event.epsilon / interval) * interval, 0.0)
            step = library.from_privacy_parameters(parameters, value_discretization_interval=interval)
        else:
            step = library.from_gaussian_mechanism(
                event.noise_multiplier,  # over the clip norm: REPLACE_ONE itself knows of the distance 2 m
                value_discretization_interval=interval,
                sampling_prob=event.sampling_probability,
                neighboring_relation=NeighboringRelation.REPLACE_ONE
                if event.replace
                else NeighboringRelation.ADD_OR_REMOVE_ONE,
            )
        parts.append(step.self_compose(event.count) if event.count > 1 else step)
    return functools.reduce(lambda composed, part: composed.compose(part), parts)


def _first_interval(events: Sequence[Event]) -> float:
    """A power of 2 about 1/16 of the standard deviation of a step's loss; at most 2^13 points a step."""
    steps, variance, span, finest = 0, 0.0, 0.0, math.inf
    precision = gaussian_precision(events)
    if precision > 0:
        steps, variance, span = 1, precision, 21 * math.sqrt(precision) + precision
    for event in events:
        if isinstance(event, GaussianEvent):
            continue
        steps += event.count
        if isinstance(event, PureEvent):
            variance += event.count * event.epsilon**2
            finest = min(finest, event.epsilon / 128)  # rounding a pure epsilon up costs up to an interval a stage
            span = max(span, 2 * event.epsilon)
        else:
            distance = 1 / event.noise_multiplier
            chi_square = event.sampling_probability**2 * math.expm1(min(distance**2, 50.0))
            variance += event.count * min(chi_square, distance**2) * (4 if event.replace else 1)
            largest = 10 * distance + 0.5 * distance**2  # loss where dp-accounting cuts the tail, without sampling
            if largest < 50:
                largest = math.log1p(event.sampling_probability * math.expm1(largest))
            span = max(span, 2 * largest)
    wanted = max(min(math.sqrt(variance / steps) / 16, finest), span / 2**13)
    return 2.0 ** math.floor(math.log2(wanted))


def _refined(events: Sequence[Event], measure: Callable[[Any], float], negligible: float) -> float:
    """An upper bound read off the loss distribution, the interval halved until that gains next to nothing."""
    interval = _first_interval(events)
    coarsest = interval
    with _failing_closed():
        answer = measure(_loss_distribution(events, interval))
        while coarsest / interval < FINEST:
            interval /= 2
            finer = measure(_loss_distribution(events, interval))
            gain, answer = answer - finer, min(answer, finer)
            if gain <= DISCRETISATION * answer + negligible:
                break
    return answer


def _epsilon(losses: Any, events: Sequence[Event], delta: float) -> float:
    """Epsilon of a loss distribution, raised; what the transforms may have lost is taken off delta first."""
    lost = _transform_error(events)
    if delta < 100 * lost:
        raise InputError(
            f"delta must be at least {101 * lost:.3g} for these events, whose composition is computed in floating "
            f"point, got {delta!r}; use a larger delta or fewer steps"
        )
    epsilon = float(losses.get_epsilon_for_delta((delta - lost) * (1 - ROUNDING))) * (1 + ROUNDING)
    if not 0 <= epsilon < math.inf or not losses.get_delta_for_epsilon(epsilon) <= delta:
        raise AccountingError(f"epsilon must be finite and keep delta, got {epsilon:g} for {delta:g}; add noise")
    return epsilon


def _hockey_stick(losses: Any, events: Sequence[Event], epsilon: float) -> float:
    """Delta of a loss distribution, raised by what the transforms may have lost."""
    lost = _transform_error(events)
    delta = float(losses.get_delta_for_epsilon(epsilon)) * (1 + ROUNDING) + lost
    if not delta >= 0:
        raise AccountingError(f"delta must be a number of at least 0, got {delta:g} for epsilon {epsilon:g}; add noise")
    return min(1.0, delta)


def _confirm(events: Sequence[Event], epsilon: float, delta: float) -> None:
    """Compare the PLD's epsilon with the closed form, which it must reach, and with RDP, which it must not pass."""
    if _only_gaussian(events):
        exact = _closed_form(events, delta)
        if epsilon < exact * (1 - ROUNDING) - ROUNDING:
            raise AccountingError(
                f"the PLD must not be below the closed form, got epsilon {epsilon!r} and {exact!r}; report these events"
            )
    renyi = _renyi(events, delta)
    if renyi is not None and renyi < epsilon * (1 - DISAGREEMENT) - NOTICEABLE:
        raise AccountingError(
            f"RDP must not be below the PLD, got epsilon {renyi!r} and {epsilon!r}; report these events"
        )


def _closed_form(events: Sequence[Event], delta: float) -> float:
    """The exact epsilon of composed Gaussians."""
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    with _failing_closed():
        epsilon = float(get_epsilon_gaussian(gaussian_precision(events) ** -0.5, delta))
    return _finite(epsilon)


def _renyi(events: Sequence[Event], delta: float) -> float | None:
    """Epsilon by RDP, or None for the replace-one pair and where rounding has eaten every order."""
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import rdp_privacy_accountant as library

    noise = library.RdpAccountant(RENYI_ORDERS)
    answers = library.RdpAccountant(RENYI_ORDERS, NeighboringRelation.REPLACE_ONE)
    with _failing_closed():
        for event in events:
            if isinstance(event, PureEvent):
                lie = 2 / (1 + math.exp(event.epsilon))  # randomized response of two answers
                answers.compose(dp_event.RandomizedResponseDpEvent(lie, 2), event.count)
            elif isinstance(event, GaussianEvent):
                noise.compose(dp_event.GaussianDpEvent(event.noise_multiplier), event.count)
            elif event.replace:
                return None
            else:
                step = dp_event.GaussianDpEvent(event.noise_multiplier)
                noise.compose(dp_event.PoissonSampledDpEvent(event.sampling_probability, step), event.count)
        divergences = noise.rdp + answers.rdp
        # dp-accounting takes a negative divergence, which is lost digits, for an epsilon of 0: such orders are dropped
        usable = np.isfinite(divergences) & (divergences > 0)
        if not usable.any():
            return None
        epsilon, _ = library.compute_epsilon(noise.orders[usable], divergences[usable], delta)
    return _finite(float(epsilon))


@contextmanager
def _failing_closed() -> Iterator[None]:
    """Turn whatever goes wrong inside the accountants, numpy's silent infinities included, into an AccountingError."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="ignore"):
            yield
    except TensorveilError:
        raise
    except (ArithmeticError, ValueError, NotImplementedError) as error:
        raise AccountingError(f"accounting must succeed, got {error}; use more noise or fewer stages") from error


def _finite(epsilon: float) -> float:
    if not 0 <= epsilon < math.inf:
        raise AccountingError(f"epsilon must be finite, got {epsilon:g}; use more noise or a larger delta")
    return epsilon


def _delta(value: object, events: Sequence[Event] = ()) -> float:
    delta = checks.nonnegative_number("delta", value, "give a number from 0 to below 1")
    if delta >= 1:
        raise InputError(f"delta must be in [0, 1), got {value!r}; use less than 1 / (public number of units)")
    if delta == 0 and _without_pure(events):
        raise InputError("delta must be above 0 for Gaussian noise, got 0; give a delta or take a pure mechanism")
    return delta


def _without_pure(events: Sequence[Event]) -> tuple[Event, ...]:
    return tuple(event for event in events if not isinstance(event, PureEvent))


def _only_gaussian(events: Sequence[Event]) -> bool:
    return all(isinstance(event, GaussianEvent) for event in events)


def _transform_error(events: Sequence[Event]) -> float:
    """What floating point may have taken from delta: next to nothing without convolutions."""
    if _only_gaussian(events):
        return 1e-20
    return TRANSFORM_ERROR * (10 + sum(event.count for event in events if not isinstance(event, GaussianEvent)))


def _composable(events: Sequence[Event]) -> bool:
    """Whether the pure events are few and small enough to go through the PLD."""
    pure = [event for event in events if isinstance(event, PureEvent)]
    stages = sum(event.count for event in pure)
    return stages <= LARGEST_MIXED_COUNT and sum(event.count * event.epsilon for event in pure) <= LARGEST_MIXED_EPSILON
