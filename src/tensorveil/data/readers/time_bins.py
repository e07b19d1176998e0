"""Times, grouped into hours, days, ISO weeks, months or years of UTC, or into hours of the day, weekdays and months."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Flags, Integers
from tensorveil.data import tables
from tensorveil.errors import InputError

# how a bin's label is written
PATTERNS = {
    "hour": r"\d{4}-\d\d-\d\dT\d\d",
    "day": r"\d{4}-\d\d-\d\d",
    "week": r"\d{4}-W\d\d",
    "month": r"\d{4}-\d\d",
    "year": r"\d{4}",
    "hour_of_day": r"[01]\d|2[0-3]",
    "weekday": r"(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day",
    "month_of_year": r"0[1-9]|1[0-2]",
}
EXAMPLES = {
    "hour": "1998-03-08T14",
    "day": "1998-03-08",
    "week": "1998-W10",
    "month": "1998-03",
    "year": "1998",
    "hour_of_day": "14",
    "weekday": "Sunday",
    "month_of_year": "03",
}
BINS = tuple(PATTERNS)
# bins that come again: all their labels, which do not depend on the data
CYCLES = {
    "hour_of_day": tuple(f"{hour:02d}" for hour in range(24)),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "month_of_year": tuple(f"{month:02d}" for month in range(1, 13)),
}
OTHER_WORDS = {"date": "day"}
LATER_WORDS = {"hour": "hour_of_day", "month": "month_of_year"}  # after the first part, as in day+hour
NUMPY_UNITS = {"hour": "h", "day": "D", "month": "M", "year": "Y"}
SECONDS_PER_DAY = 86_400
EPOCH = dt.datetime(1970, 1, 1)
FIRST_SECOND = -62_135_596_800  # 0001-01-01T00:00:00
LAST_SECOND = 253_402_300_799  # 9999-12-31T23:59:59
PARTS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def bin_parts(kind: Any, name: str) -> dict[str, str]:
    """The modes that a column of times is binned into, and the bin of each: {"day": "day", "hour": "hour_of_day"}.

    A single bin such as "day" keeps the name of the mode. The modes of "day+hour" are called by the parts: the first
    one counts days, and later ones come again, so "hour" is the hour of the day there.
    """
    words = kind.split("+") if isinstance(kind, str) else [kind]
    first, *later = [OTHER_WORDS.get(word, word) if isinstance(word, str) else word for word in words]
    checks.choice(f"the bin of {name!r}", first, BINS)
    if not later:
        return {name: first}
    cycles = [checks.choice(f"a later bin of {name!r}", LATER_WORDS.get(word, word), tuple(CYCLES)) for word in later]
    if len({first, *cycles}) != len(words):
        raise InputError(f"the bins of {name!r} must be different, got {kind!r}; leave one of them out")
    return dict(zip(words, [first, *cycles], strict=True))


def bin_numbers(column: Any, kind: str, name: str) -> tuple[Integers, Flags]:
    """The number of each time's bin, counted from 1970, or from the first label of a cycle, and which rows hold a time.

    Numbers are seconds since 1970, texts are ISO dates or timestamps. Times with a time zone are converted to UTC;
    times without one are taken as UTC.
    """
    seconds, known = epoch_seconds(column, name)
    days = seconds // SECONDS_PER_DAY
    if kind == "hour":
        return seconds // 3600, known
    if kind == "day":
        return days, known
    if kind == "week":
        return (days + 3) // 7, known  # 1970-01-01 was a Thursday, weeks begin on Monday
    if kind == "hour_of_day":
        return seconds // 3600 % 24, known
    if kind == "weekday":
        return (days + 3) % 7, known
    unit = NUMPY_UNITS["month" if kind == "month_of_year" else kind]
    numbers = days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)
    return numbers % 12 if kind == "month_of_year" else numbers, known


def bin_texts(numbers: Integers, kind: str) -> NDArray[np.object_]:
    """Labels of bins, e.g. 1998-03-08 or 1998-W10."""
    if kind in CYCLES:
        return np.array(CYCLES[kind], dtype=object)[numbers]
    if kind != "week":
        return np.datetime_as_string(numbers.astype(f"datetime64[{NUMPY_UNITS[kind]}]")).astype(object)
    mondays = (numbers * 7 - 3).astype("datetime64[D]")
    # the year of an ISO week is the one that its Thursday lies in; the first week holds the year's first Thursday
    thursdays = mondays + np.timedelta64(3, "D")
    years = thursdays.astype("datetime64[Y]")
    weeks = (thursdays - years.astype("datetime64[D]")).astype(np.int64) // 7 + 1
    return np.array([f"{year}-W{week:02d}" for year, week in zip(years.astype(str), weeks, strict=True)], dtype=object)


def bin_labels(labels: Any, kind: str, name: str) -> NDArray[np.object_]:
    """Labels that a caller gives for a binned mode: texts in the form of `PATTERNS`, or dates."""
    array = np.asarray(labels)
    if array.dtype.kind == "M":
        numbers, known = bin_numbers(pa.array(array.astype("datetime64[s]")), kind, name)
        if known.all():
            return bin_texts(numbers, kind)
    texts = [str(label) for label in array.tolist()]
    if array.dtype.kind == "M" or not all(re.fullmatch(PATTERNS[kind], text) for text in texts):
        raise InputError(
            f"the labels of {name!r}, binned by {kind}, must be written like {EXAMPLES[kind]}, got others; rewrite them"
        )
    return np.array(texts, dtype=object)


def label_numbers(labels: NDArray[Any], kind: str) -> Integers:
    """The numbers of bins, as `bin_numbers` counts them, from their labels."""
    texts = labels.tolist()
    if kind in CYCLES:
        return np.array([CYCLES[kind].index(text) for text in texts], dtype=np.int64)
    if kind == "week":
        mondays = [dt.date.fromisocalendar(int(text[:4]), int(text[-2:]), 1).toordinal() for text in texts]
        return (np.array(mondays, dtype=np.int64) - EPOCH.toordinal() + 3) // 7
    return np.array(texts, dtype=f"datetime64[{NUMPY_UNITS[kind]}]").astype(np.int64)


def epoch_seconds(column: Any, name: str) -> tuple[Integers, Flags]:
    """Whole seconds since 1970 in UTC, rounded down, and which rows hold a time of the years 1 to 9999."""
    column = tables.plain_column(column)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        seconds, known = _of_texts(column)
    elif pa.types.is_null(kind):
        seconds, known = np.zeros(len(column), np.int64), np.zeros(len(column), np.bool_)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        seconds, known = _of_numbers(column)
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        seconds, known = _of_dates(column)
    else:
        raise InputError(
            f"the column {name!r} must hold times to be binned: seconds since 1970, dates, timestamps or ISO texts, "
            f"got {kind}; convert it or leave it out of bins"
        )
    known &= (seconds >= FIRST_SECOND) & (seconds <= LAST_SECOND)
    seconds[~known] = 0
    return seconds, known


def _of_numbers(column: Any) -> tuple[Integers, Flags]:
    known = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else np.ones(len(column), np.bool_)
    if pa.types.is_signed_integer(column.type):
        return np.array(pc.fill_null(column, 0).to_numpy(), dtype=np.int64), np.array(known)
    numbers = np.array(tables.as_floats(column))
    with np.errstate(invalid="ignore"):
        known = known & (numbers >= FIRST_SECOND) & (numbers < LAST_SECOND + 1)
    return np.floor(np.where(known, numbers, 0)).astype(np.int64), known


def _of_dates(column: Any) -> tuple[Integers, Flags]:
    known = np.array(column.is_valid().to_numpy(zero_copy_only=False))
    if pa.types.is_date32(column.type):
        days = np.array(pc.fill_null(column.cast(pa.int32()), 0).to_numpy())
        return days.astype(np.int64) * SECONDS_PER_DAY, known
    unit = "ms" if pa.types.is_date64(column.type) else column.type.unit
    parts = np.array(pc.fill_null(column.cast(pa.int64()), 0).to_numpy())
    return parts // PARTS_PER_SECOND[unit], known


def _of_texts(column: Any) -> tuple[Integers, Flags]:
    """Texts are all seconds or all ISO dates, whichever most rows are; the others hold no time.

    A text that is a number, such as 19980308, is never read as a date: what a cell means must not depend on other rows.
    """
    codes, texts = tables.distinct(column)
    numbers = tables.text_numbers(texts)
    rows = np.bincount(codes[codes >= 0], minlength=len(texts))
    if 2 * rows[~np.isnan(numbers)].sum() > rows.sum():
        seconds, known = _of_numbers(pa.array(numbers))
    else:
        seconds, known = _of_iso_texts(texts)
        known &= np.isnan(numbers)
    # an empty cell has the code -1
    return np.append(seconds, 0)[codes], np.append(known, np.False_)[codes]


def _of_iso_texts(texts: pa.Array) -> tuple[Integers, Flags]:
    for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):  # texts without and with a time zone
        try:
            return _of_dates(texts.cast(kind))
        except pa.ArrowInvalid:
            continue
    seconds, known = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    for number, text in enumerate(texts.to_pylist()):
        try:
            time = dt.datetime.fromisoformat(text.strip())
            moment = time.replace(tzinfo=None) - (time.utcoffset() or dt.timedelta())
        except (ValueError, OverflowError):
            continue
        seconds[number], known[number] = (moment - EPOCH) // dt.timedelta(seconds=1), True
    return seconds, known
