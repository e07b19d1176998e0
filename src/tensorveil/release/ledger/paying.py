"""How a run pays from a ledger: the budget is reserved before noise is drawn, and then spent in any case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tensorveil.arrays import Integers
from tensorveil.errors import InputError, SpentError, UnprovenError
from tensorveil.privacy.units import Unit
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.ledger.reservation import Reservation

if TYPE_CHECKING:
    from tensorveil.privacy.plan import Plan

UNPAID = "noise was already drawn, so the budget of this release counts as spent"


@contextmanager
def paying(
    ledger: Ledger | None, dataset: str | None, plan: Plan, counts: Callable[[int], Integers], trusted: bool
) -> Iterator[Reservation | None]:
    """Reserve and draw before the block, commit after it; an error inside the block becomes a SpentError.

    Without a ledger only a lack of memory does, since other errors are faults of the program.
    An interrupt (Ctrl-C) stays an interrupt, with a note that the reservation counts as spent.

    Parameters
    ----------
    ledger, dataset : the account that pays; both None for a release without a ledger
    plan : what is released
    counts : gives the observations per index of a mode, to check the limit per slice that the ledger states
    trusted : whether the noise is secret; a seeded run cannot be charged as a release
    """
    if ledger is None and dataset is None:
        try:
            yield None
        except MemoryError:
            with counted_as_spent(None):
                raise
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
    _check_slices(ledger.budget(dataset)[0], plan, counts)
    reservation = ledger.reserve(dataset, plan)
    with counted_as_spent(reservation.record):
        reservation.draw()  # where this fails nothing is drawn, yet the reservation stands
        yield reservation
        reservation.commit()


@contextmanager
def counted_as_spent(record: Mapping[str, str] | None) -> Iterator[None]:
    """Turn an error inside the block into a SpentError; an interrupt stays one, with a note of what is spent.

    `record` is what a certificate says of the reservation, None for a release without a ledger.
    """
    spent = UNPAID
    if record is not None:
        spent = f"reservation {record['reservation']} of data set {record['dataset']!r} counts as spent"
    try:
        yield
    except SpentError:
        raise
    except MemoryError:  # what numpy says of it may be how many observations there are
        raise SpentError(f"{spent}: memory ran out") from None
    except Exception as error:
        raise SpentError(f"{spent}: {error}") from error
    except BaseException as stop:
        stop.add_note(spent)
        raise


def refuse_published(ledger: Ledger | None, dataset: str | None) -> None:
    """A published algorithm has no proven price to charge."""
    if ledger is not None or dataset is not None:
        raise UnprovenError(
            "a release on a ledger must have a proven price, got a published algorithm, whose guarantee is only "
            "claimed; leave out the ledger, or take a proven mechanism"
        )


def _check_slices(unit: Unit, plan: Plan, counts: Callable[[int], Integers]) -> None:
    """If the cost assumes a largest number of observations per slice, check it."""
    if unit.at_most is None or plan.request.unit.kind not in ("entry", "value") or not unit.whole_slices:
        return
    resolved = unit.resolved(plan.request.mode_names)
    if counts(resolved.mode_number).max(initial=0) > unit.at_most:
        raise InputError(
            f"a slice must have at most {unit.at_most} observations, as the ledger says of the data set, got one "
            f"with more; plan for the unit {str(unit)!r} (this error is for the data holder, not for release)"
        )
