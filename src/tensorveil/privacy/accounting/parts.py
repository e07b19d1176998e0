"""Two releases, the later of which may read the output of the earlier one: what they cost together."""

from collections.abc import Iterable
from fractions import Fraction

from tensorveil.privacy.accounting.events import float_above
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

Cost = tuple[float, float]  # epsilon and delta


def label_text(label: object) -> str:
    """A label as text; a day is the same as its midnight, which some files write for it."""
    return str(label).removesuffix(" 00:00:00")


def never_in_both(unit: Unit, time: int, before: Iterable[object], after: Iterable[object]) -> bool:
    """Whether no unit can have observations in both parts of the data, which have these labels of a mode.

    One value or observation has one label of every mode [L1]. A slice has one label of its own mode, and any of the
    others [L2].

    Examples
    --------
    >>> never_in_both(Unit.value(), 2, ["May"], ["June"]), never_in_both(Unit.value(), 2, ["May"], ["May", "June"])
    (True, False)
    >>> never_in_both(Unit.slice(0), 2, ["May"], ["June"]), never_in_both(Unit.slice(2), 2, ["May"], ["June"])
    (False, True)
    """
    apart = {label_text(label) for label in before}.isdisjoint(map(label_text, after))
    return apart and (not unit.whole_slices or unit.mode_number == time)


@proves("two-parts")
def cost_of_both(first: Cost, second: Cost, *, apart: bool) -> Cost:
    """Epsilon and delta of both releases together: the larger ones if no unit is in both parts, else the sums."""
    if apart:
        return max(first[0], second[0]), max(first[1], second[1])  # [L3]
    epsilon, delta = (Fraction(one) + Fraction(two) for one, two in zip(first, second, strict=True))
    return float_above(epsilon), float_above(delta)  # [L4] rounded up
