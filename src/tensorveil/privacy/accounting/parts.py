"""Two releases, the later of which may read the output of the earlier one: what they cost together."""

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from numbers import Integral, Real

from tensorveil.privacy.accounting.events import float_above
from tensorveil.privacy.local.client import DATED, label_key
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

Cost = tuple[float, float]  # epsilon and delta
TIME = re.compile(r"\d{4}(-\d\d(-\d\d( .*)?)?)?")  # a year, a month, a day or a time, as `label_key` writes them
WEEK = re.compile(r"\d{4}-W\d\d")
ROUND = re.compile(r"(?<=:\d\d):00$|:00:00$")  # the part of a time of the day that is not told
TO_THE_DAY = len("2024-05-03")


def label_text(label: object) -> str:
    """A label as text, without spaces around it. A whole number is written as one also if it is a float.

    A time is the same in any unit and form of ISO 8601, in UTC, and a day is its midnight. Times of a NumPy array are
    taken as they are: `tolist` would make whole numbers of nanoseconds.

    Examples
    --------
    >>> import numpy as np
    >>> label_text("2024-05-03T00:00:00Z"), label_text(np.datetime64("2024-05-03T14:30", "ns")), label_text(7.0)
    ('2024-05-03', '2024-05-03 14:30:00', '7')
    """
    number = float(label) if isinstance(label, Real) and not isinstance(label, Integral) else math.nan
    text = str(int(number)) if number.is_integer() else str(label).strip()
    return label_key(text) if DATED.match(text) else text


def in_common(before: Iterable[object], after: Iterable[object]) -> bool:
    """Whether some label of one side may be, or contain, one of the other side, in whatever way both are spelled.

    Times of different resolutions, such as a month and its days, are compared by the coarser one; weeks of the year
    are not compared with dates, but taken to contain them.

    Examples
    --------
    >>> in_common([1, 2], ["2.0"]), in_common(["2024-05"], ["2024-05-31", "2024-06-01"]), in_common(["7"], ["7a"])
    (True, True, False)
    """
    sides = [{label_key(label_text(label)) for label in side} for side in (before, after)]
    sizes = [{len(ROUND.sub("", label)) for label in side if TIME.fullmatch(label)} for side in sides]
    weeks = [any(map(WEEK.match, side)) for side in sides]
    if (weeks[0] and sizes[1]) or (weeks[1] and sizes[0]):
        return True
    if all(sizes):
        coarse = {size for side in sizes for size in side if size < TO_THE_DAY}  # others may just be round times
        size = min(*map(max, sizes), *coarse)
        sides = [{_time(label)[:size] if TIME.fullmatch(label) else label for label in side} for side in sides]
    return not sides[0].isdisjoint(sides[1])


def _time(label: str) -> str:
    """A day as its midnight, in full."""
    return f"{label} 00:00:00" if len(label) == TO_THE_DAY else label


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
    return not in_common(before, after) and (not unit.whole_slices or unit.mode_number == time)


@proves("two-parts")
def cost_of_both(first: Cost, second: Cost, *, apart: bool) -> Cost:
    """Epsilon and delta of both releases together: the larger ones if no unit is in both parts, else the sums."""
    if apart:
        return max(first[0], second[0]), max(first[1], second[1])  # [L3]
    epsilon, delta = (Fraction(one) + Fraction(two) for one, two in zip(first, second, strict=True))
    return float_above(epsilon), float_above(delta)  # [L4] rounded up
