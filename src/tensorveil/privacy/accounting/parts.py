"""Two releases, the later of which may read the output of the earlier one: what they cost together."""

import datetime as dt
import re
from collections.abc import Iterable
from fractions import Fraction

from tensorveil.privacy.accounting.events import float_above
from tensorveil.privacy.theorems import proves
from tensorveil.privacy.units import Unit

Cost = tuple[float, float]  # epsilon and delta
DATED = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)")  # how a day or a time of a day begins


def label_text(label: object) -> str:
    """A label as text. A time is the same in any unit and form of ISO 8601, in UTC, and a day is its midnight.

    Times of a NumPy array are taken as they are: `tolist` would make whole numbers of nanoseconds.

    Examples
    --------
    >>> import numpy as np
    >>> label_text("2024-05-03T00:00:00Z"), label_text(np.datetime64("2024-05-03T14:30", "ns")), label_text(7)
    ('2024-05-03', '2024-05-03 14:30:00', '7')
    """
    text = str(label)
    if not DATED.match(text):
        return text
    try:
        moment = dt.datetime.fromisoformat(text)
        plain = moment.replace(tzinfo=None) - (moment.utcoffset() or dt.timedelta())
    except (ValueError, OverflowError):
        return text
    return str(plain).removesuffix(" 00:00:00")


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
