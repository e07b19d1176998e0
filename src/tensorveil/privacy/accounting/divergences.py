"""How far apart an event can bring two data sets: as the mu of a Gaussian, and as a Rényi divergence.

Both are upper bounds for every pair of neighbours, both ways, whatever was released before; docs/proofs/ledger.md has
the proofs. `steps` is how many changes of the event's own unit lie between the two data sets.
"""

import math

from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.theorems import proves

LARGEST_EXPONENT = 700.0  # of e, that floats hold
SMALLEST_EPSILON = 1e-6  # below it the difference of two normal tails has too few digits
LIMIT_DOWN = 1 - 1e-6  # limits are lowered by far more than the arithmetic loses


@proves("ledger-filter")
def squared_mu(event: Event, steps: int) -> float:
    """mu^2 of a Gaussian that dominates one such event, between data sets that are so many steps apart."""
    if isinstance(event, PureEvent):
        return _mu_of_pure(event.epsilon * steps) ** 2  # [L12]
    return (_distance(event, steps) / event.noise_multiplier) ** 2  # [L13] the credit of sampling is dropped


@proves("ledger-filter")
def _distance(event: GaussianEvent | SampledGaussianEvent, steps: int) -> int:
    """How far apart the means are, in units of what the noise multiplier is relative to."""
    return 2 * steps if isinstance(event, SampledGaussianEvent) and event.replace else steps


@proves("ledger-filter")
def _mu_of_pure(epsilon: float) -> float:
    from scipy.special import expit, ndtri

    if epsilon > LARGEST_EXPONENT:
        return math.inf
    # for small epsilon the quantile loses its digits; mu <= sqrt(pi / 2) epsilon always
    return min(1.2533142 * epsilon, math.inf if epsilon < 1e-3 else -2 * float(ndtri(expit(-epsilon))))


@proves("ledger-filter")
def renyi(event: Event, steps: int, order: int) -> float:
    """An upper bound of the Rényi divergence of one such event, both ways, between data sets so many steps apart."""
    if isinstance(event, PureEvent):
        x = event.epsilon * steps
        return (_log_cosh((order - 0.5) * x) - _log_cosh(0.5 * x)) / (order - 1)  # [L14]
    distance = _distance(event, steps)
    unsampled = order * (distance / event.noise_multiplier) ** 2 / 2  # [L15]
    if isinstance(event, GaussianEvent) or distance > 2 or event.sampling_probability == 1:
        return unsampled
    if distance == 1:
        return min(unsampled, _sampled_renyi(event, order))  # [L16]
    there, back = _sampled_renyi(event, 2 * order), _sampled_renyi(event, 2 * order - 1)
    return min(unsampled, (order - 0.5) / (order - 1) * there + back)  # [L17]


@proves("ledger-filter")
def _sampled_renyi(event: SampledGaussianEvent, order: int) -> float:
    """D(mixture | base) of one step, a unit added or removed, for a whole order (arXiv:1908.10530, section 3.3).

    The terms of the binomial sum have 1 subtracted, so that small divergences keep all their digits.
    """
    q, z = event.sampling_probability, event.noise_multiplier
    logs = []
    for k in range(2, order + 1):
        exponent = k * (k - 1) / (2 * z * z)
        binomial = math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        less_one = exponent + math.log(-math.expm1(-exponent))
        logs.append(binomial + k * math.log(q) + (order - k) * math.log1p(-q) + less_one)
    top = max(logs)
    log_sum = top + math.log(math.fsum(math.exp(log - top) for log in logs))
    return (log_sum + math.log1p(math.exp(-log_sum)) if log_sum > 0 else math.log1p(math.exp(log_sum))) / (order - 1)


def _log_cosh(x: float) -> float:
    return math.log1p(2 * math.sinh(x / 2) ** 2) if x < 1 else x + math.log1p(math.exp(-2 * x)) - math.log(2)


@proves("ledger-filter")
def renyi_limit(epsilon: float, delta: float, order: int) -> float:
    """The largest divergence at this order that gives (epsilon, delta) (arXiv:2004.00010, Proposition 12)."""
    limit = epsilon + (math.log(delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)  # [L18]
    return max(0.0, limit - 1e-6 * epsilon)


@proves("ledger-filter")
def squared_mu_limit(epsilon: float, delta: float) -> float:
    """The largest mu^2 at which a Gaussian is (epsilon, delta), or a little less; 0 where that cannot be computed."""
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian, get_sigma_gaussian

    if epsilon < SMALLEST_EPSILON:
        return 0.0
    try:
        squared = float(get_sigma_gaussian(epsilon, delta)) ** -2 * LIMIT_DOWN
        kept = 0 < squared < math.inf and get_epsilon_gaussian(squared**-0.5, delta) <= epsilon  # [L19]
    except (ArithmeticError, ValueError):
        return 0.0
    return squared if kept else 0.0
