"""The checks of a certificate: how one is asked, and how a doubt is reported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from tensorveil.errors import InputError

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
