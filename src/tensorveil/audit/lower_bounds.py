"""Empirical lower bounds on epsilon from many releases of two neighbouring worlds.

A mechanism that is (epsilon, delta)-private keeps P1(E) <= e^epsilon P0(E) + delta for every event E and both orders of
the worlds. One event is chosen on the first half of the runs; how often it happens is counted on the second, and
Clopper-Pearson limits of the two rates give an epsilon that is too large with chance 1 - confidence at most, if the
mechanism keeps its promise. Nothing is chosen on the second half.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.audit.runs import FAILURES, run_both
from tensorveil.audit.scores import trained_scores, with_failures
from tensorveil.errors import InputError
from tensorveil.mechanisms.base import Progress, no_progress

CLAIMS = ("pure", "gaussian")
FEWEST_RUNS = 16  # of a world
MOST_THRESHOLDS = 1000  # tried on the first half
CHOOSING = 1e-3  # of the error, while many events are compared: one that is rare must not win by luck


@final
@dataclass(frozen=True)
class Event:
    """An event defined by a score, and the world in which it is more likely.

    Attributes
    ----------
    above : the event is score >= threshold if True, score <= threshold if False
    world : 0 or 1: the world in which the event is more likely. An attacker who sees the event guesses this world.
    """

    threshold: float
    above: bool
    world: int

    def count(self, scores: Floats) -> int:
        """How many of the scores are in the event."""
        return int((scores >= self.threshold).sum() if self.above else (scores <= self.threshold).sum())

    def __str__(self) -> str:
        return f"score {'>=' if self.above else '<='} {self.threshold:.4g}, a sign of world {self.world}"


@final
@dataclass(frozen=True)
class LowerBound:
    """The result of an audit: a lower bound on the true epsilon at a given confidence.

    Attributes
    ----------
    epsilon : the bound; 0 if nothing was shown
    claim : "pure": valid whatever the mechanism is. "gaussian": valid against a claim that all noise is Gaussian; it
        refutes such a claim and says nothing about other mechanisms.
    runs : runs of each world, those that chose the event included
    event : chosen on the first half
    hits : runs of the event's own world in which it happened, of the `counted` ones
    false_positives : runs of the other world in which it happened
    counted : runs of each world on the second half
    score : which score was used
    scores : pair of arrays
        Scores of the second half, world 0 and world 1; infinite for runs that failed.
    failures : pair of int
        Runs of each world that ended in an error, e.g. diverged: an error can be seen, so it is an output, too.
    """

    epsilon: float
    delta: float
    confidence: float
    claim: str
    runs: int
    event: Event
    hits: int
    false_positives: int
    counted: int
    score: str
    scores: tuple[Floats, Floats] = field(repr=False, compare=False)
    failures: tuple[int, int] = (0, 0)

    @property
    def false_negatives(self) -> int:
        """Runs of the event's own world in which it did not happen."""
        return self.counted - self.hits

    def refutes(self, epsilon: float) -> bool:
        """Whether a stated epsilon is shown to be false."""
        return self.epsilon > epsilon

    def __str__(self) -> str:
        condition = ", given that all noise is Gaussian" if self.claim == "gaussian" else ""
        return (
            f"epsilon is at least {self.epsilon:.3g} at delta {self.delta:g}, at confidence {self.confidence:.10g}"
            f"{condition} ({self.runs:,} runs per world; {self.event}: {self.hits:,} of {self.counted:,} runs there, "
            f"{self.false_positives:,} in the other)"
        )


def lower_bound(
    run_world_0: Callable[[], Any],
    run_world_1: Callable[[], Any],
    *,
    runs: int,
    delta: float = 0.0,
    confidence: float = 0.95,
    claim: str = "pure",
    score: Callable[[Any], float] | None = None,
    features: Callable[[Any], ArrayLike] | None = None,
    failures: tuple[type[BaseException], ...] = FAILURES,
    workers: int = 2,
    progress: Progress = no_progress,
) -> LowerBound:
    """Run a pipeline many times on two neighbouring data sets and compute a lower bound on its epsilon.

    Parameters
    ----------
    run_world_0, run_world_1 : the pipeline on either data set; each call is one release with fresh noise, and gives
        numbers, or anything that `features` or `score` reads
    runs : number of runs per world; a quarter trains a score, a quarter chooses the event, and half are counted
    delta : of the claim
    confidence : the least probability that the bound holds
    claim : "pure" is right for any mechanism; "gaussian" is stronger, but valid only if all noise is Gaussian
    score : a number from one output, high in one world and low in the other; None: scores are trained on features
    features : a vector of numbers from one output; it should contain everything that is released
    failures : exceptions that count as outputs; other exceptions stop the audit
    workers : number of processes. Each must draw its own noise. A generator that was created before is copied to every
        process and repeats itself; the audit detects this and raises an error. Use workers=1 for such pipelines
    progress : called with the name of the task, the steps done and the total

    Examples
    --------
    >>> import secrets
    >>> def answer(truth):  # the truth with chance 0.75, else the opposite: epsilon = log 3 = 1.0986
    ...     return truth if secrets.randbelow(4) else 1 - truth
    >>> found = lower_bound(lambda: answer(0), lambda: answer(1), runs=4000, confidence=0.999999, workers=1)
    >>> found.refutes(0.5), found.refutes(1.0987)
    (True, False)
    """
    number = _runs(runs)
    _checked(delta, confidence, claim)
    if score is not None and features is not None:
        raise InputError("score and features must not both be given, got both; leave one out")
    reading = score if score is not None else features
    vectors = run_both(run_world_0, run_world_1, number, reading, failures, workers, progress)
    failed = [np.isnan(part).any(axis=1) for part in vectors]
    quarter, half = number // 4, number // 2
    tried = trained_scores(vectors[0][:quarter], vectors[1][:quarter], own=score is not None)
    chosen: tuple[float, Event, str, list[Floats]] | None = None
    for name, function in tried:
        scores = with_failures(function, vectors, quarter)
        worth, event = _choose([part[quarter:half] for part in scores], delta, confidence, claim)
        if chosen is None or worth > chosen[0]:
            chosen = worth, event, name, scores
    if chosen is None:
        raise InputError("at least one score must be tried, got none; give features with at least one number")
    _, event, name, scores = chosen
    lost = (int(failed[0].sum()), int(failed[1].sum()))
    return _counted(event, [part[half:] for part in scores], number, delta, confidence, claim, name, lost)


def lower_bound_from_scores(
    scores_0: ArrayLike,
    scores_1: ArrayLike,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    claim: str = "pure",
) -> LowerBound:
    """The bound from ready scores of independent runs, one per run: the first half of each world chooses the event.

    The score must not have been chosen or trained on the second halves. A run that failed has a score too, e.g. inf.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> noise = rng.laplace(size=(2, 20_000))  # of scale 1 on a value that moves by 1: epsilon is 1
    >>> round(lower_bound_from_scores(noise[0], 1 + noise[1]).epsilon, 1)
    0.9
    """
    scores = [np.asarray(part, dtype=np.float64) for part in (scores_0, scores_1)]
    for part in scores:
        if part.ndim != 1 or np.isnan(part).any():
            raise InputError(
                "scores must be one number per run without NaN, got others; give failed runs a score of inf"
            )
    if len(scores[0]) != len(scores[1]):
        raise InputError(
            f"both worlds must have the same number of runs, got {len(scores[0])} and {len(scores[1])}; drop some"
        )
    number = _runs(len(scores[0]))
    _checked(delta, confidence, claim)
    half = number // 2
    _, event = _choose([part[:half] for part in scores], delta, confidence, claim)
    return _counted(event, [part[half:] for part in scores], number, delta, confidence, claim, "as given", (0, 0))


def clopper_pearson(hits: ArrayLike, runs: int, error: float) -> tuple[Floats, Floats]:
    """Exact limits of a chance: each of the two is wrong with chance `error` at most.

    Parameters
    ----------
    hits : how often it happened; an array gives arrays
    runs : how often it could have
    error : of each limit
    """
    from scipy.special import betaincinv

    count = np.asarray(hits, dtype=np.float64)
    low = np.where(count > 0, betaincinv(np.maximum(count, 1.0), runs - count + 1.0, error), 0.0)
    # 1 - x, x the small solution of the mirrored case: near 1 that keeps its digits
    high = np.where(count < runs, 1.0 - betaincinv(np.maximum(runs - count, 1.0), count + 1.0, error), 1.0)
    return np.asarray(low), np.asarray(high)


def epsilon_of_gdp(mu: float, delta: float) -> float:
    """The smallest epsilon at delta of a mu-GDP mechanism: Gaussian noise of 1 / mu sensitivities.

    arXiv:1905.02383, Corollary 2.13: delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr, ndtr

    def excess(epsilon: float) -> float:
        above = math.exp(min(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)), 0.0))
        return float(ndtr(mu / 2 - epsilon / mu)) - above - delta

    if delta <= 0:
        raise InputError(f"delta must be above 0 for the Gaussian form, got {delta!r}; Gaussian noise is never pure")
    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    most = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1  # there the Gaussian tail is below delta
    return max(float(brentq(excess, 0.0, most, xtol=1e-12)) - 1e-9, 0.0)  # a lower bound is rounded down


def _bounds(hits: Integers, false: Integers, runs: int, delta: float, error: float, claim: str) -> Floats:
    """What each pair of counts shows: epsilon, or mu in the Gaussian form; -inf where nothing.

    Each of the two limits is wrong with chance error / 2 at most, so that one of them is with chance `error` at most.
    """
    own, other = clopper_pearson(hits, runs, error / 2)[0], clopper_pearson(false, runs, error / 2)[1]
    if claim == "gaussian":
        from scipy.special import ndtri

        shown = own > other
        return np.where(shown, ndtri(np.where(shown, own, 0.5)) - ndtri(np.where(shown, other, 0.5)), -np.inf)
    return np.log(np.maximum(own - delta, 1e-300)) - np.log(other)


def _choose(scores: Sequence[Floats], delta: float, confidence: float, claim: str) -> tuple[float, Event]:
    """The event that shows most, and what it shows, on runs that will not be counted.

    All sets {score >= t} and {score <= t} are tried, t a score that was seen, and both orders of the worlds. With ties,
    {score > t} is {score >= the next one seen}, so that steps of a discrete score are all among them.
    """
    seen = np.unique(np.concatenate(scores))
    if len(seen) > MOST_THRESHOLDS:  # evenly spaced, with both tails in full
        edge = MOST_THRESHOLDS // 4
        inner = np.linspace(edge, len(seen) - 1 - edge, MOST_THRESHOLDS - 2 * edge).astype(np.int64)
        seen = seen[np.unique(np.concatenate([np.arange(edge), inner, len(seen) - 1 - np.arange(edge)]))]
    ordered = [np.sort(part) for part in scores]
    runs = len(ordered[0])
    best: tuple[float, Event] = (-math.inf, Event(float(seen[0]), True, 1))
    for above in (True, False):
        counts = [
            runs - np.searchsorted(part, seen, "left") if above else np.searchsorted(part, seen, "right")
            for part in ordered
        ]
        for world in (1, 0):
            worth = _bounds(counts[world], counts[1 - world], runs, delta, CHOOSING * (1 - confidence), claim)
            place = int(worth.argmax())
            if worth[place] > best[0]:
                best = float(worth[place]), Event(float(seen[place]), above, world)
    return best


def _counted(
    event: Event,
    scores: Sequence[Floats],
    runs: int,
    delta: float,
    confidence: float,
    claim: str,
    name: str,
    failures: tuple[int, int],
) -> LowerBound:
    """The bound that an event shows on runs that did not choose it."""
    hits, false = event.count(scores[event.world]), event.count(scores[1 - event.world])
    counted = len(scores[0])
    shown = float(_bounds(np.array(hits), np.array(false), counted, delta, 1 - confidence, claim))
    epsilon = epsilon_of_gdp(shown, delta) if claim == "gaussian" else max(shown, 0.0)
    kept = (scores[0], scores[1])
    return LowerBound(epsilon, delta, confidence, claim, runs, event, hits, false, counted, name, kept, failures)


def _runs(value: object) -> int:
    number = checks.positive_integer("runs", value)
    if number < FEWEST_RUNS:
        raise InputError(f"runs must be at least {FEWEST_RUNS} per world, got {number}; use some thousands")
    return number


def _checked(delta: float, confidence: float, claim: str) -> None:
    checks.fraction("confidence", confidence, "give e.g. 0.95")
    checks.choice("claim", claim, CLAIMS)
    if not 0 <= checks.nonnegative_number("delta", delta) < 1:
        raise InputError(f"delta must be in [0, 1), got {delta!r}; give that of the claim")
    if claim == "gaussian" and delta == 0:
        raise InputError("delta must be above 0 for a Gaussian claim, got 0; Gaussian noise is never pure")
