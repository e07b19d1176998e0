"""The state of a ledger: for every data set its budget, its reservations, and the amounts spent and remaining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from tensorveil.errors import BudgetError, InputError
from tensorveil.privacy.accounting import filters, remaining
from tensorveil.privacy.accounting.filters import Costs, Limits, Totals
from tensorveil.privacy.units import Unit
from tensorveil.release.ledger.chain import Entry

if TYPE_CHECKING:
    from tensorveil.release.certificate.certificate import Certificate

FORMAT = 1
RESERVED, DRAWING, DRAWN, SAVED, VOID = "reserved", "drawing", "drawn", "saved", "void"
STEPS = {  # kind of entry -> states that it may follow, state that it leads to
    "draw": ((RESERVED,), DRAWING),
    "commit": ((DRAWING,), DRAWN),
    "save": ((DRAWN, SAVED), SAVED),  # a release may be saved in several places
    "void": ((RESERVED,), VOID),
}


@final
@dataclass
class Account:
    """One data set: its reservations, their states and their saved folders, by entry number."""

    name: str
    unit: Unit
    limits: Limits
    reserved: dict[int, dict[str, Any]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    folders: dict[int, list[str]] = field(default_factory=dict)  # digests of the certificates in them

    @property
    def paid(self) -> list[int]:
        """Reservations that count as spent: all that are not void."""
        return [number for number, state in self.states.items() if state != VOID]

    @property
    def mode(self) -> str | None:
        """How the budget is kept, fixed by the first reservation that counts; None while there is none."""
        return next((self.reserved[number]["mode"] for number in self.paid), None)

    def totals(self, *more: Costs) -> Totals:
        """The sums over all reservations that count, and the given additional costs."""
        parts = [_costs(self.reserved[number]["costs"]) for number in self.paid]
        return filters.total([*parts, *more], self.limits.orders)


@final
@dataclass(frozen=True)
class Spent:
    """What was spent of a data set's budget.

    Attributes
    ----------
    epsilon, delta : the sums of the stated costs. In the mode "classes" they may exceed the budget (docs/ledger.md).
    share : how much of the budget is used, from 0 to 1
    mode : "classes" or "added" (docs/ledger.md); None before the first release.
    saved, drawn, unfinished, void : numbers of reservations, by state. Saved: the release is in a folder. Drawn: the
        release was made, but no folder is on record. Unfinished: the run is in progress or died. All but void ones
        count as spent.
    """

    epsilon: float
    delta: float
    share: float
    mode: str | None
    saved: int
    drawn: int
    unfinished: int
    void: int


@final
@dataclass(frozen=True)
class Remaining:
    """The largest cost of one more release.

    Attributes
    ----------
    pure_epsilon : the largest epsilon of a pure release
    epsilon, delta : the largest cost of a release with Gaussian noise (unsampled, few numbers); 0 if none is possible
    """

    pure_epsilon: float
    epsilon: float
    delta: float


def accounts_of(entries: Sequence[Entry]) -> dict[str, Account]:
    """The state of all data sets, computed from the entries in order."""
    found: dict[str, Account] = {}
    for entry in entries:
        try:
            _play(entry, found)
        except (KeyError, TypeError, ValueError) as error:
            raise BudgetError(
                f"the ledger's entries must be of format {FORMAT}, got entry {entry.number} of another; "
                "update tensorveil"
            ) from error
    return found


def _play(entry: Entry, found: dict[str, Account]) -> None:
    body = entry.body
    kind, name = body["kind"], body["dataset"]
    if kind == "dataset":
        if body["format"] != FORMAT:
            raise ValueError(body["format"])
        found[name] = Account(name, Unit(**body["unit"]), _limits(body["limits"]))
    elif kind == "raise":
        found[name].limits = _limits(body["limits"])
    elif kind == "reserve":
        found[name].reserved[entry.number] = body
        found[name].states[entry.number] = RESERVED
    else:
        before, after = STEPS[kind]
        account, number = found[name], body["reservation"]
        if account.states[number] not in before:
            raise ValueError(kind)
        account.states[number] = after
        if kind == "save":
            account.folders.setdefault(number, []).append(body["digest"])


def account_of(entries: Sequence[Entry], dataset: str) -> Account:
    """One data set of the ledger."""
    found = accounts_of(entries)
    if not isinstance(dataset, str) or dataset not in found:
        names = ", ".join(map(repr, found)) or "none"
        raise InputError(
            f"dataset must be one of the data sets in the ledger ({names}), got {dataset!r}; create it first"
        )
    return found[dataset]


def protected_mode(account: Account, mode_names: Sequence[str]) -> int | str | None:
    """What a release calls the mode that a data set protects; a number must not be another mode than earlier on."""
    mode = account.unit.mode
    if not isinstance(mode, int) or mode >= len(mode_names) or mode_names[mode] == f"mode_{mode}":
        return mode
    name = mode_names[mode]
    names = {account.reserved[number].get("protected") for number in account.paid} - {None, mode, name}
    if names:
        raise BudgetError(
            f"mode {mode}, which data set {account.name!r} protects, must be {names.pop()!r}, as in earlier releases, "
            f"got {name!r}; put that mode at the same place"
        )
    return name


def paid_reservation(entries: Sequence[Entry], certificate: Certificate) -> tuple[Account, int]:
    """The reservation that a certificate names, with its account; stages and cost must be the same."""
    record = certificate.ledger
    if record is None:
        raise InputError("the certificate must name a ledger, got none; no budget was charged for this release")
    account = account_of(entries, record.dataset)
    number = next((entry.number for entry in entries if entry.hash == record.entry_hash), None)
    if number not in account.reserved or str(number) != record.reservation:
        raise BudgetError(f"the ledger must contain reservation {record.reservation} with the stated hash, got none")
    charged, state = account.reserved[number], account.states[number]
    if state not in (DRAWN, SAVED):
        raise BudgetError(f"reservation {number} must be {DRAWN} or {SAVED} in the ledger, got it {state}")
    unit, paid = (Unit.of(text).resolved(certificate.mode_names) for text in (certificate.unit, charged["unit"]))
    if unit != paid:
        raise BudgetError(
            f"the ledger must be charged for the unit {certificate.unit!r}, got it charged for {charged['unit']!r}"
        )
    events = [event.to_json() for event in certificate.events]
    if (charged["events"], charged["epsilon"], charged["delta"]) != (events, certificate.epsilon, certificate.delta):
        raise BudgetError("the ledger must be charged for the same stages and cost, got other stages or another cost")
    return account, number


def _limits(plain: Mapping[str, Any]) -> Limits:
    return Limits(**{**plain, "orders": tuple(plain["orders"]), "renyi": tuple(plain["renyi"])})


def _costs(plain: Mapping[str, Any]) -> Costs:
    return Costs(**{**plain, "renyi": tuple(plain["renyi"])})


def spent_of(account: Account) -> Spent:
    """What was spent."""
    sums, states = account.totals(), list(account.states.values())
    return Spent(
        float(sums.epsilon),
        float(sums.delta),
        remaining.share_used(sums, account.limits, account.mode),
        account.mode,
        states.count(SAVED),
        states.count(DRAWN),
        states.count(RESERVED) + states.count(DRAWING),
        states.count(VOID),
    )


def remaining_of(account: Account) -> Remaining:
    """What one more release may cost."""
    sums = account.totals()
    pure = remaining.largest_pure(sums, account.limits, account.mode)
    return Remaining(pure, *remaining.largest_gaussian(sums, account.limits, account.mode))


def without_folder(account: Account) -> list[dict[str, Any]]:
    """Reservations that count as spent but have no folder on record, oldest first."""
    return [
        {"reservation": number, "state": account.states[number]}
        | {name: account.reserved[number][name] for name in ("title", "epsilon", "delta", "time")}
        for number in account.paid
        if account.states[number] != SAVED
    ]


def summary_of(account: Account) -> dict[str, Any]:
    """Budget, spent, remaining, and reservations without a folder, as plain values."""
    unit, allowed = account.unit, account.limits
    budget = {"unit": str(unit), "at_most": unit.at_most, "epsilon": allowed.epsilon, "delta": allowed.delta}
    return budget | {
        "spent": vars(spent_of(account)),
        "remaining": vars(remaining_of(account)),
        "without_folder": without_folder(account),
    }


def refusal(account: Account, found: Costs) -> str:
    """Why a release with these costs is refused, and what the budget still allows."""
    left = remaining_of(account)
    offer = [f"a pure release of epsilon up to {_down(left.pure_epsilon)}"] if left.pure_epsilon > 0 else []
    if left.epsilon > 0:
        offer.append(f"a Gaussian one of up to epsilon {_down(left.epsilon)} at delta {left.delta:g}")
    return (
        f"the budget of data set {account.name!r} (epsilon {account.limits.epsilon:g}, delta {account.limits.delta:g}) "
        f"must cover the release, got epsilon {found.epsilon:g}, delta {found.delta:g}; "
        + (f"the remaining budget allows {' or '.join(offer)}; request less, or" if offer else "no budget is left;")
        + " raise the budget with a reason"
    )


def _down(number: float) -> str:
    return f"{number * (1 - 1e-6) if number != round(number, 6) else number:.6g}"
