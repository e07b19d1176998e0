"""The balance of a data set before and after one release, as its certificate states it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorveil.errors import BudgetError
from tensorveil.release.ledger.accounts import account_of, remaining_of, spent_of
from tensorveil.release.ledger.chain import Entry


def balance_of(entries: Sequence[Entry], dataset: str, reservation: int) -> dict[str, Any]:
    """Budget, what was spent before and after a reservation, what remained, and the earlier releases.

    Only entries up to the reservation count, so that the balance is the same whenever it is computed.
    """
    before = account_of([entry for entry in entries if entry.number < reservation], dataset)
    after = account_of([entry for entry in entries if entry.number <= reservation], dataset)
    if reservation not in after.reserved:
        raise BudgetError(f"the ledger must contain reservation {reservation} of data set {dataset!r}, got none")
    spent, total, left = spent_of(before), spent_of(after), remaining_of(after)
    times = {entry.number: entry.body["time"] for entry in entries}
    return {
        "unit": str(after.unit),
        "at_most": after.unit.at_most,
        "budget": (after.limits.epsilon, after.limits.delta),
        "before": (spent.epsilon, spent.delta),
        "after": (total.epsilon, total.delta),
        "share_before": spent.share,
        "share_after": total.share,
        "remaining": left.pure_epsilon,
        "earlier": tuple(
            {
                "reservation": str(number),
                "day": str(times[number])[:10],
                "title": before.reserved[number]["title"],
                "epsilon": before.reserved[number]["epsilon"],
                "delta": before.reserved[number]["delta"],
            }
            for number in before.paid
        ),
    }
