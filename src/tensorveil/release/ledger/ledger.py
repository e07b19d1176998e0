"""The budget ledger: who spent how much of which data set's privacy, in a file that many processes share.

A release is paid before it is drawn: *reserve* (checked against the budget), *draw* (from here on noise may exist),
*commit*. What was reserved counts as spent, for ever, unless it is made *void* before anything was drawn. The ledger
holds prices and words, never data.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, final

from tensorveil import checks
from tensorveil.errors import BudgetError, InputError, UnprovenError
from tensorveil.privacy.accounting import filters
from tensorveil.privacy.accounting.events import Event, pure_epsilon
from tensorveil.privacy.accounting.filters import Charge
from tensorveil.privacy.units import Unit
from tensorveil.release.ledger.accounts import (
    FORMAT,
    STEPS,
    Remaining,
    Spent,
    account_of,
    accounts_of,
    refusal,
    remaining_of,
    spent_of,
    summary_of,
)
from tensorveil.release.ledger.chain import Chain, Entry, first_fault

if TYPE_CHECKING:
    from tensorveil.data.observations import Observations
    from tensorveil.privacy.plan import Plan

LONGEST_TEXT = 1000
SPENT = "counts as spent"


@final
class Reservation:
    """A paid right to draw one release, once, by the process that reserved it.

    Attributes
    ----------
    id : int
        The number of its entry in the ledger.
    dataset, mode, hash : str
        The data set, how its budget is kept, the hash of the entry.
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
        """Say that noise may be drawn from now on. Only once: nothing is ever drawn again on the same reservation."""
        self._follow("draw", {})

    def commit(self, note: str = "") -> None:
        """Say that the release is complete."""
        self._follow("commit", {"note": _text("note", note)})

    def void(self, reason: str) -> None:
        """Give the budget back, before `draw` only. The reason must not be something that the data told."""
        self._follow("void", {"reason": _text("reason", reason, needed=True)})

    def _follow(self, kind: str, more: Mapping[str, str]) -> None:
        if os.getpid() != self._process:
            raise BudgetError(
                f"reservation {self.id} must be used by the process that made it, got another; reserve in this one"
            )

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            account = account_of(entries, self.dataset)
            state = account.states.get(self.id)
            if state is None or account.reserved[self.id]["token"] != _fingerprint(self._token):
                raise BudgetError(f"reservation {self.id} must be in the ledger, got another entry there; reserve anew")
            if state != STEPS[kind][0]:
                raise BudgetError(
                    f"reservation {self.id} must be {STEPS[kind][0]} to {kind}, got it {state}; reserve anew"
                )
            return {"kind": kind, "dataset": self.dataset, "reservation": self.id, **more}

        self._chain.append(decide)


class _NotCoveredError(Exception):
    """The account does not cover the costs: both are its arguments."""


@final
class Ledger:
    """Budgets of data sets, in a file; see docs/ledger.md.

    Parameters
    ----------
    path : an existing file; `Ledger.create` makes one

    Examples
    --------
    >>> import tempfile, pathlib, tensorveil as tv
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "L.sqlite"
    >>> ledger = tv.Ledger.create(path, "clinic", "value", epsilon=1.0)
    >>> plan = tv.InputPerturbation().plan(tv.CP(rank=2), tv.Bounds(1, 5), "value", 0.6, shape=(6, 5, 4))
    >>> reservation = ledger.reserve("clinic", plan)
    >>> ledger.remaining("clinic").pure_epsilon
    0.4
    """

    def __init__(self, path: str | Path) -> None:
        self._chain = Chain(path)
        accounts_of(self._chain.read())

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The file."""
        return self._chain.path

    @classmethod
    def create(
        cls,
        path: str | Path,
        dataset: str,
        unit: str | Unit,
        epsilon: float,
        delta: float = 0.0,
        *,
        at_most: int | None = None,
    ) -> Ledger:
        """Make the file if there is none, and add a data set to it.

        Parameters
        ----------
        path : the ledger's file
        dataset : a name for the data; one name for everything that holds the same units
        unit : whose privacy the budget protects: "value", "entry", "slice:user", "slice_values:user"
        epsilon, delta : the budget; delta 0 for pure releases only
        at_most : with a slice unit, how many observations a slice has in the data; releases under smaller units can
            then be charged that many times. It is a promise about the data, checked by `fit`.
        """
        name, protected = _text("dataset", dataset, needed=True), Unit.of(unit, at_most)
        if isinstance(protected.mode, int) and protected.mode < 0:
            raise InputError(f"unit must name a mode or count it from 0, got {protected}; write e.g. slice:user")
        budget = checks.positive_number("epsilon", epsilon)
        chance = filters.budget_delta(delta)
        allowed = filters.limits(budget, chance, filters.orders_for(budget, chance))

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            if name in accounts_of(entries):
                raise InputError(f"dataset must be a new name, got {name!r}, which exists; raise its budget instead")
            return {
                "kind": "dataset",
                "format": FORMAT,
                "dataset": name,
                "unit": {"kind": protected.kind, "mode": protected.mode, "at_most": protected.at_most},
                "limits": filters.as_json(allowed),
            }

        chain = Chain(path)
        chain.create()
        chain.append(decide)
        return cls(path)

    def reserve(self, dataset: str, release: Plan | Charge, note: str = "") -> Reservation:
        """Take the price of a release from a data set's budget, or raise BudgetError and take nothing.

        Parameters
        ----------
        dataset : its name in the ledger
        release : a plan, or a Charge for what other software draws
        note : for readers of the ledger; nothing about the data
        """
        charge, words = _charge(release), _text("note", note)
        _check_price(release)
        token = secrets.token_hex(16)

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            account = account_of(entries, dataset)
            found = filters.costs(charge, account.unit, account.limits.orders)
            mode = filters.admitted_mode(account.totals(found), account.limits, account.mode)
            if mode is None:
                raise _NotCoveredError(account, found)
            return {
                "kind": "reserve",
                "dataset": dataset,
                "title": charge.title,
                "unit": str(charge.unit),
                "events": [event.to_json() for event in charge.events],
                "epsilon": charge.epsilon,
                "delta": charge.delta,
                "steps": filters.steps_between(charge, account.unit),
                "costs": filters.as_json(found),
                "mode": mode,
                "token": _fingerprint(token),
                "note": words,
            }

        try:
            entry = self._chain.append(decide)
        except _NotCoveredError as error:  # what is left is computed here, while others may go on
            raise BudgetError(refusal(*error.args)) from None
        return Reservation(self._chain, entry, token)

    def raise_budget(self, dataset: str, epsilon: float, delta: float | None = None, *, why: str) -> None:
        """Set a larger budget: the new total, not the addition. The reason is kept for ever.

        `delta` None leaves it as it is.
        """
        reason = _text("why", why, needed=True)

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            account = account_of(entries, dataset)
            chance = account.limits.delta if delta is None else delta
            new = filters.raised_limits(account.limits, account.totals(), epsilon, chance)
            return {"kind": "raise", "dataset": dataset, "limits": filters.as_json(new), "reason": reason}

        self._chain.append(decide)

    def datasets(self) -> tuple[str, ...]:
        """Names of all data sets."""
        return tuple(accounts_of(self._chain.read()))

    def budget(self, dataset: str) -> tuple[Unit, float, float]:
        """The unit of a data set, and its epsilon and delta."""
        account = account_of(self._chain.read(), dataset)
        return account.unit, account.limits.epsilon, account.limits.delta

    def spent(self, dataset: str) -> Spent:
        """What was spent of a data set's budget."""
        return spent_of(account_of(self._chain.read(), dataset))

    def remaining(self, dataset: str) -> Remaining:
        """What one more release of a data set may cost."""
        return remaining_of(account_of(self._chain.read(), dataset))

    def entries(self) -> tuple[dict[str, Any], ...]:
        """What every entry says, the oldest first."""
        return tuple(entry.body for entry in self._chain.read())

    def export(self) -> dict[str, Any]:
        """Everything in the ledger, with hashes and whether they are right; plain values for JSON."""
        return export_ledger(self.path)


def export_ledger(path: str | Path) -> dict[str, Any]:
    """Everything in a ledger's file, also where its chain is broken: `verified` and `fault` say so."""
    entries = Chain(path).read_unverified()
    fault = first_fault(entries)
    told: dict[str, Any] = {"format": FORMAT, "verified": fault is None, "fault": fault}
    told["head"] = entries[-1].hash if entries else None
    told["datasets"] = {} if fault else {name: summary_of(account) for name, account in accounts_of(entries).items()}
    return told | {"entries": [entry.to_json() for entry in entries]}


@contextmanager
def paying(
    ledger: Ledger | None, dataset: str | None, plan: Plan, observations: Observations, trusted: bool
) -> Iterator[Reservation | None]:
    """Reserve and draw before the block, commit after it. What fails inside is raised as it is, with a note.

    Parameters
    ----------
    ledger, dataset : the account to pay from; both None for a release that is not accounted
    plan : what is released
    observations : only to check what the data set's unit promises of them
    trusted : whether the noise is secret; a seeded run cannot be charged as a release
    """
    if ledger is None and dataset is None:
        yield None
        return
    if not isinstance(ledger, Ledger) or not isinstance(dataset, str):
        raise InputError(
            f"ledger and dataset must be given together, a Ledger and a name in it, got {ledger!r} and {dataset!r}"
        )
    if not trusted:
        raise InputError(
            "a release on a ledger must draw secret noise, got a seed or a noise source for audits; "
            "leave out the ledger in experiments, or the seed in releases"
        )
    _check_slices(ledger.budget(dataset)[0], plan, observations)
    reservation = ledger.reserve(dataset, plan)
    try:
        reservation.draw()  # where this fails nothing is drawn, yet the reservation stands
        yield reservation
        reservation.commit()
    except BaseException as error:
        error.add_note(f"reservation {reservation.id} of data set {dataset!r} {SPENT}")
        raise


def counts_as_spent(error: BaseException) -> bool:
    """Whether an error came after the budget was reserved."""
    return any(note.endswith(SPENT) for note in getattr(error, "__notes__", ()))


def refuse_published(ledger: Ledger | None, dataset: str | None) -> None:
    """A published algorithm has no proven price to charge."""
    if ledger is not None or dataset is not None:
        raise UnprovenError(
            "a release on a ledger must have a proven price, got a published algorithm, whose guarantee is only "
            "claimed; leave out the ledger, or take a proven mechanism"
        )


def _charge(release: Plan | Charge) -> Charge:
    if isinstance(release, Charge):
        return release
    from tensorveil.privacy.plan import Plan

    if not isinstance(release, Plan):
        raise InputError(f"release must be a Plan or a Charge, got {type(release).__name__}; plan it first")
    asked = release.request
    return Charge(
        asked.unit,
        release.events,
        release.epsilon,
        release.delta,
        release.gaussian_coordinates,
        asked.mode_names,
        f"{release.mechanism.title}, {asked.family}",
    )


def _check_price(release: Plan | Charge) -> None:
    """Refuse a stated price below what the events cost."""
    if isinstance(release, Charge) and release.pure:
        cost = pure_epsilon(release.events)
    elif not isinstance(release, Charge):
        from tensorveil.mechanisms.base import price

        cost = price(release.events, release.request, release.gaussian_coordinates)
    else:
        from tensorveil.mechanisms.base import ideal_budget

        epsilon, delta = ideal_budget(release.epsilon, release.delta, release.gaussian_coordinates)
        cost = _composed(release.events, delta) + (release.epsilon - epsilon)
    if cost > release.epsilon:
        raise InputError(f"epsilon must state what the events cost, got {release.epsilon!r} for {cost!r}; state more")


@lru_cache(maxsize=64)
def _composed(events: tuple[Event, ...], delta: float) -> float:
    from tensorveil.privacy.accounting import composition as accounting

    return accounting.epsilon_of(events, delta)


def _check_slices(unit: Unit, plan: Plan, observations: Observations) -> None:
    """Where the price rests on how many observations a slice has, see that it has no more."""
    import numpy as np

    if unit.at_most is None or plan.request.unit.kind not in ("entry", "value") or not unit.whole_slices:
        return
    resolved = unit.resolved(plan.request.mode_names)
    counts = np.bincount(observations.coordinates[:, resolved.mode_number])
    if counts.max(initial=0) > unit.at_most:
        raise InputError(
            f"a slice must have at most {unit.at_most} observations, as the ledger says of the data set, got one "
            f"with more; plan for the unit {str(unit)!r} (this error is for the data holder, not for release)"
        )


def _text(name: str, value: object, needed: bool = False) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or (needed and not value.strip()):
        rule = f"a text of {'1' if needed else '0'} to {LONGEST_TEXT} characters"
        raise InputError(f"{name} must be {rule}, got {value!r:.60}; write it in a few words")
    return value


def _fingerprint(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
