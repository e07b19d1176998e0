"""Shared parts of the checks of a certificate: how a doubt is reported, and what was requested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from tensorveil.errors import InputError
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.plan import Request

if TYPE_CHECKING:
    from tensorveil.release.certificate.certificate import Certificate

OK: Literal["ok"] = "ok"
DOUBT: Literal["doubt"] = "doubt"
NOT_RUN: Literal["not run"] = "not run"


@final
@dataclass(frozen=True)
class Check:
    """One question that was asked of a release.

    Attributes
    ----------
    state : "ok", "doubt", or "not run" where the question does not apply to this release or cannot be asked here
    found : what was found; for a check that was not run, the reason
    """

    name: str
    state: Literal["ok", "doubt", "not run"]
    found: str


class NotRunError(Exception):
    """A check does not apply; the message is the reason."""


def asked(name: str, question: Callable[[], str]) -> Check:
    """Run one check: its return value is the finding, and an exception is a doubt."""
    try:
        return Check(name, OK, question())
    except NotRunError as reason:
        return Check(name, NOT_RUN, str(reason))
    except Exception as error:  # whatever went wrong, the question has no good answer
        return Check(name, DOUBT, str(error) or type(error).__name__)


def need(holds: bool, doubt: str) -> None:
    """Raise the doubt unless the condition holds."""
    if not holds:
        raise InputError(doubt)


def request_of(certificate: Certificate) -> Request:
    """What was asked for, rebuilt from the certificate and checked by the rules of a plan."""
    asked, bounds, ranks = certificate.asked, certificate.bounds, certificate.model.ranks
    if asked is None or bounds is None:
        raise InputError("the certificate does not state what was requested, so nothing can be recomputed")
    family = CP(ranks[0]) if certificate.model.family == "cp" else Tucker(ranks)
    budget, modes = (asked.epsilon, asked.delta), (certificate.shape, certificate.mode_names)
    facts = (family, Bounds(bounds.low, bounds.high), certificate.unit, *budget, *modes)
    return Request.checked(*facts, asked.expected_count, certificate.at_most)


def pure(events: tuple[Event, ...]) -> bool:
    """Whether all stages are of pure epsilon."""
    return bool(events) and all(isinstance(event, PureEvent) for event in events)
