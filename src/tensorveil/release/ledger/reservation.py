"""A reservation: the budget set aside for one release, and the steps that follow."""

import hashlib
import os
from collections.abc import Mapping
from typing import Any, NoReturn, final

from tensorveil.errors import BudgetError, InputError
from tensorveil.release.ledger.accounts import STEPS, account_of
from tensorveil.release.ledger.chain import Chain, Entry

LONGEST_TEXT = 1000


@final
class Reservation:
    """A paid right to draw one release, once, by the process that reserved it.

    Attributes
    ----------
    id : the number of its entry in the ledger
    dataset, mode, hash : the data set, how its budget is kept, the hash of the entry
    """

    def __init__(self, chain: Chain, entry: Entry, token: str) -> None:
        self._chain, self._token, self._process = chain, token, os.getpid()
        self.id, self.hash = entry.number, entry.hash
        self.dataset: str = entry.body["dataset"]
        self.mode: str = entry.body["mode"]

    def __repr__(self) -> str:
        return f"Reservation({self.id}, data set {self.dataset!r})"

    def __reduce__(self) -> NoReturn:
        raise InputError("a reservation must stay in the process that made it, got pickled; reserve anew")

    @property
    def record(self) -> dict[str, str]:
        """What a certificate says about it."""
        return {"dataset": self.dataset, "reservation": str(self.id), "entry_hash": self.hash}

    def draw(self) -> None:
        """Record that noise may be drawn from now on. This is possible only once per reservation."""
        self._follow("draw", {})

    def commit(self, note: str = "") -> None:
        """Record that the release is made. `Ledger.saved` records that it is in a folder."""
        self._follow("commit", {"note": text_of("note", note)})

    def void(self, reason: str) -> None:
        """Give the budget back, only before `draw`. The decision must not depend on the data."""
        self._follow("void", {"reason": text_of("reason", reason, needed=True)})

    def _follow(self, kind: str, more: Mapping[str, str]) -> None:
        if os.getpid() != self._process:
            raise BudgetError(
                f"reservation {self.id} must be used by the process that made it, got another; reserve in this one"
            )

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            account = account_of(entries, self.dataset)
            state = account.states.get(self.id)
            if state is None or account.reserved[self.id]["token"] != fingerprint(self._token):
                raise BudgetError(f"reservation {self.id} must be in the ledger, got another entry there; reserve anew")
            before, _ = STEPS[kind]
            if state not in before:
                raise BudgetError(
                    f"reservation {self.id} must be {' or '.join(before)} to {kind}, got it {state}; reserve anew"
                )
            return {"kind": kind, "dataset": self.dataset, "reservation": self.id, **more}

        self._chain.append(decide)


def text_of(name: str, value: object, needed: bool = False) -> str:
    """A text for the ledger, short enough and, where it is needed, not blank."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or (needed and not value.strip()):
        rule = f"a text of {'1' if needed else '0'} to {LONGEST_TEXT} characters"
        raise InputError(f"{name} must be {rule}, got {value!r:.60}; write it in a few words")
    return value


def fingerprint(token: str) -> str:
    """What the ledger keeps of a reservation's secret token."""
    return hashlib.sha256(token.encode()).hexdigest()
