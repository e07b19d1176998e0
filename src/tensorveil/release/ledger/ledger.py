"""The budget ledger: the privacy budgets of data sets and what was spent, in a file that many processes can share.

A release is paid for before any noise is drawn. The steps are *reserve* (checked against the budget), *draw* (noise
may exist from now on), *commit* (the release is made) and *save* (it is in a folder). A reservation counts as spent
permanently, unless it is made *void* before anything was drawn. The ledger holds costs and notes, never data.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from tensorveil import checks
from tensorveil.errors import BudgetError, InputError
from tensorveil.privacy.accounting import filters
from tensorveil.privacy.accounting.events import Event, pure_epsilon
from tensorveil.privacy.accounting.filters import Charge
from tensorveil.privacy.units import Unit
from tensorveil.release.ledger import accounts
from tensorveil.release.ledger.balance import balance_of
from tensorveil.release.ledger.chain import Chain, Entry, first_fault
from tensorveil.release.ledger.reservation import Reservation, fingerprint, text_of

if TYPE_CHECKING:
    from tensorveil.privacy.plan import Plan
    from tensorveil.release.certificate.certificate import Certificate


class _NotCoveredError(Exception):
    """The account does not cover the costs; both are the arguments of the exception."""


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
        accounts.accounts_of(self._chain.read())

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
        """Create the file if it does not exist, and add a data set to it.

        Parameters
        ----------
        path : the ledger's file
        dataset : a name for the data; use one name for all data about the same people
        unit : what the budget protects: "value", "entry", "slice:user", "slice_values:user"
        epsilon, delta : the budget; delta 0 for pure releases only
        at_most : with a slice unit, the largest number of observations per slice in the data. Releases under smaller
            units can then be charged that many times. `fit` checks it.
        """
        name, protected = text_of("dataset", dataset, needed=True), Unit.of(unit, at_most)
        if isinstance(protected.mode, int) and protected.mode < 0:
            raise InputError(f"unit must name a mode or count it from 0, got {protected}; write e.g. slice:user")
        budget = checks.positive_number("epsilon", epsilon)
        chance = filters.budget_delta(delta)
        allowed = filters.limits(budget, chance, filters.orders_for(budget, chance))

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            if name in accounts.accounts_of(entries):
                raise InputError(
                    f"dataset must be a new name, got {name!r}, which already exists; raise its budget instead"
                )
            return {
                "kind": "dataset",
                "format": accounts.FORMAT,
                "dataset": name,
                "unit": {"kind": protected.kind, "mode": protected.mode, "at_most": protected.at_most},
                "limits": filters.as_json(allowed),
            }

        chain = Chain(path)
        chain.create()
        chain.append(decide)
        return cls(path)

    def reserve(self, dataset: str, release: Plan | Charge, note: str = "") -> Reservation:
        """Reserve the cost of a release in the budget of a data set, or raise BudgetError and reserve nothing.

        Parameters
        ----------
        dataset : its name in the ledger
        release : a plan, or a Charge for a release by other software
        note : for readers of the ledger; nothing about the data
        """
        charge, words = _charge(release), text_of("note", note)
        _check_price(release)
        token = secrets.token_hex(16)

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            account = accounts.account_of(entries, dataset)
            protected = accounts.protected_mode(account, charge.mode_names)
            found = filters.costs(charge, account.unit, account.limits.orders)
            mode = filters.admitted_mode(account.totals(found), account.limits, account.mode)
            if mode is None:
                raise _NotCoveredError(account, found)
            return {
                "kind": "reserve",
                "dataset": dataset,
                "title": charge.title,
                "unit": str(charge.unit),
                "protected": protected,
                "events": [event.to_json() for event in charge.events],
                "epsilon": charge.epsilon,
                "delta": charge.delta,
                "steps": filters.steps_between(charge, account.unit),
                "costs": filters.as_json(found),
                "mode": mode,
                "token": fingerprint(token),
                "note": words,
            }

        try:
            entry = self._chain.append(decide)
        except _NotCoveredError as error:  # what is left is computed here, while others may go on
            raise BudgetError(accounts.refusal(*error.args)) from None
        return Reservation(self._chain, entry, token)

    def saved(self, certificate: Certificate) -> None:
        """Record that a release which this ledger paid for is saved in a folder; `Release.save` calls this.

        The ledger keeps the digest of the certificate. No token is needed, because the amount spent does not change. A
        copy of the same folder adds nothing.
        """

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            account, number = accounts.paid_reservation(entries, certificate)
            return {"kind": "save", "dataset": account.name, "reservation": number, "digest": certificate.digest}

        account, number = accounts.paid_reservation(self._chain.read(), certificate)
        if certificate.digest not in account.folders.get(number, ()):
            self._chain.append(decide)

    def check_paid(self, certificate: Certificate) -> None:
        """Refuse a certificate whose reservation is not in this ledger."""
        accounts.paid_reservation(self._chain.read(), certificate)

    def raise_budget(self, dataset: str, epsilon: float, delta: float | None = None, *, why: str) -> None:
        """Set a larger total budget. The reason is stored permanently.

        With `delta` None, delta stays unchanged.
        """
        reason = text_of("why", why, needed=True)

        def decide(entries: tuple[Entry, ...]) -> dict[str, Any]:
            account = accounts.account_of(entries, dataset)
            chance = account.limits.delta if delta is None else delta
            new = filters.raised_limits(account.limits, account.totals(), epsilon, chance)
            return {"kind": "raise", "dataset": dataset, "limits": filters.as_json(new), "reason": reason}

        self._chain.append(decide)

    def datasets(self) -> tuple[str, ...]:
        """Names of all data sets."""
        return tuple(accounts.accounts_of(self._chain.read()))

    def budget(self, dataset: str) -> tuple[Unit, float, float]:
        """The unit of a data set, and its epsilon and delta."""
        account = accounts.account_of(self._chain.read(), dataset)
        return account.unit, account.limits.epsilon, account.limits.delta

    def spent(self, dataset: str) -> accounts.Spent:
        """What was spent of a data set's budget."""
        return accounts.spent_of(accounts.account_of(self._chain.read(), dataset))

    def remaining(self, dataset: str) -> accounts.Remaining:
        """The largest cost of one more release of a data set."""
        return accounts.remaining_of(accounts.account_of(self._chain.read(), dataset))

    def balance(self, dataset: str, reservation: int) -> dict[str, Any]:
        """Budget, amounts spent before and after a reservation, and earlier releases, as certificates state them."""
        return balance_of(self._chain.read(), dataset, reservation)

    def entries(self) -> tuple[dict[str, Any], ...]:
        """What every entry says, the oldest first."""
        return tuple(entry.body for entry in self._chain.read())

    def export(self) -> dict[str, Any]:
        """Everything in the ledger, with hashes and the result of checking them, as plain values for JSON."""
        return export_ledger(self.path)


def export_ledger(path: str | Path) -> dict[str, Any]:
    """Everything in a ledger file, even if its chain is broken; see `verified` and `fault` in the result."""
    entries = Chain(path).read_unverified()
    fault = first_fault(entries)
    told: dict[str, Any] = {"format": accounts.FORMAT, "verified": fault is None, "fault": fault}
    told["head"] = entries[-1].hash if entries else None
    told["datasets"] = (
        {} if fault else {name: accounts.summary_of(account) for name, account in accounts.accounts_of(entries).items()}
    )
    return told | {"entries": [entry.to_json() for entry in entries]}


def _charge(release: Plan | Charge) -> Charge:
    if isinstance(release, Charge):
        return release
    from tensorveil.privacy.plan import Plan

    if not isinstance(release, Plan):
        raise InputError(f"release must be a Plan or a Charge, got {type(release).__name__}; plan it first")
    asked = release.request
    price = (release.events, release.epsilon, release.delta, release.gaussian_coordinates)
    return Charge(asked.unit, *price, asked.mode_names, f"{release.mechanism.title}, {asked.family}")


def _check_price(release: Plan | Charge) -> None:
    """Refuse a stated cost below the cost of the events."""
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
        raise InputError(
            f"epsilon must be at least the cost of the events, {cost!r}, got {release.epsilon!r}; state more"
        )


@lru_cache(maxsize=64)
def _composed(events: tuple[Event, ...], delta: float) -> float:
    from tensorveil.privacy.accounting import composition as accounting

    return accounting.epsilon_of(events, delta)
