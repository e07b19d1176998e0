"""Checks of what a certificate states in numbers: the cost of its stages, recomputed and checked by other methods."""

import math
from fractions import Fraction

from tensorveil.mechanisms.base import ideal_budget, price
from tensorveil.privacy.accounting.composition import DISAGREEMENT, second_opinion
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.certificate.curve import curve_of
from tensorveil.release.certificate.questions import NotRunError, need

ROUNDING = 1e-6  # relative: how far a stated epsilon may lie above the recomputed one


def epsilon(certificate: Certificate) -> str:
    found = price(certificate.events, certificate.request, certificate.randomness.gaussian_coordinates)
    need(found <= certificate.epsilon, f"the stages cost {found!r}, more than the stated {certificate.epsilon!r}")
    need(
        found >= certificate.epsilon * (1 - ROUNDING),
        f"the stages cost {found!r}, which is not the stated {certificate.epsilon!r}",
    )
    return f"{found:.6g} recomputed from {len(certificate.stages)} stages"


def delta(certificate: Certificate) -> str:
    wanted = 0.0 if certificate.pure else certificate.request.delta
    need(certificate.delta == wanted, f"the stages are priced at delta {wanted!r}, not at {certificate.delta!r}")
    return f"{certificate.delta:g}"


def closed_form(certificate: Certificate) -> str:
    """Pure stages: the exact sum. Gaussian stages: Balle and Wang's formula (arXiv:1805.06530, Theorem 8)."""
    events = certificate.events
    if certificate.pure:
        total = sum(
            (Fraction(event.epsilon) * event.count for event in events if isinstance(event, PureEvent)), Fraction()
        )
        need(
            total <= Fraction(certificate.epsilon), f"the stages' epsilons add up to {float(total)!r}, more than stated"
        )
        return f"epsilons add up to {float(total):.6g}"
    gaussian = [event for event in events if isinstance(event, GaussianEvent)]
    if len(gaussian) != len(events):
        raise NotRunError("there is no closed form for stages of several kinds, nor for sampled ones")
    epsilon, delta = _ideal(certificate)
    found = gaussian_delta(math.sqrt(sum(event.count / event.noise_multiplier**2 for event in gaussian)), epsilon)
    need(found <= delta, f"at the stated epsilon the Gaussian formula gives delta {found:.6g}, more than {delta:.6g}")
    return f"Gaussian formula: delta {found:.3g} at the stated epsilon"


def gaussian_delta(distance: float, epsilon: float) -> float:
    """Delta of a Gaussian of std 1 whose mean moves by `distance`: Phi(d/2 - e/d) - exp(e) Phi(-d/2 - e/d)."""
    from scipy.special import log_ndtr, ndtr

    first = float(ndtr(distance / 2 - epsilon / distance))
    second = math.exp(epsilon + float(log_ndtr(-distance / 2 - epsilon / distance)))
    return max(0.0, first - second)


def second_accountant(certificate: Certificate) -> str:
    epsilon, delta = _ideal(certificate)
    if certificate.pure:
        raise NotRunError("pure epsilons are added up, which the closed form does exactly")
    found = second_opinion(certificate.events, delta)
    if found is None:
        raise NotRunError("no other method prices sampled stages under which a unit is replaced")
    if all(isinstance(event, GaussianEvent) for event in certificate.events):
        need(found <= epsilon, f"the exact formula gives epsilon {found!r}, more than stated")
        return f"exact epsilon {found:.6g}"
    need(epsilon <= found * (1 + DISAGREEMENT), f"RDP, which never underestimates, gives only {found!r}")
    return f"RDP, which never underestimates, gives {found:.6g}"


def _ideal(certificate: Certificate) -> tuple[float, float]:
    """The stated epsilon, and delta, once the noise's finite precision is paid."""
    request, coordinates = certificate.request, certificate.randomness.gaussian_coordinates
    if certificate.pure:
        return certificate.epsilon, 0.0
    epsilon, delta = ideal_budget(request.epsilon, request.delta, coordinates)
    return certificate.epsilon - (request.epsilon - epsilon), delta


def curve(certificate: Certificate) -> str:
    found = curve_of(certificate.events, certificate.request, certificate.randomness.gaussian_coordinates)
    need(
        len(found) == len(certificate.curve)
        and all(
            mine[0] == theirs[0] and math.isclose(mine[1], theirs[1], rel_tol=2 * ROUNDING, abs_tol=0)
            for mine, theirs in zip(found, certificate.curve, strict=True)
        ),
        "the curve is not what the stages give",
    )
    return f"{len(found)} points recomputed"
