"""Pictures of a release as inline SVG: text stays text, every picture carries its description, nothing is fetched.

Only numbers and labels that are part of a release go in. The same numbers give the same bytes. Bars, tiles and lines
are written as they are: a drawing library would take longer than all the rest of a report.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, final
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats
from tensorveil.release.report.colours import colour_of

WIDTH = 340  # of a picture, in CSS pixels: legible as it is on a phone
MAP_WIDTH = 460  # of a heat map
INK, QUIET, HAIRLINE = "#1c2733", "#56616d", "#c9d1d9"
ABOVE, BELOW = "#2b6496", "#b4521b"  # blue and orange: told apart with every kind of colour vision, and in grey
TEXT, SMALL = 11, 9.5  # font sizes, in CSS pixels
SMALL_DELTA = 1e-3  # from here down, a curve of epsilon needs a logarithmic axis
STEPS = 41  # of a drawn colour scale
LINE_POINTS = 240  # a longer series is averaged down to this many points
BAR = 0.62  # of the height of its line
MARGIN = 0.05  # of a line's range, left free below and above
TICKS = 5
MIDDLE = 0.35  # of a font's size, from the middle of a line of text to its base
LETTER, WIDE_LETTER = 0.58, 1.05  # widths of a letter, of a font's size; wide ones are those of Chinese and the like
NAMES = 148  # pixels for names beside bars; longer names are written above their bars
MAP_NAMES = 190  # pixels for names beside and below a heat map, at most

_SECOND = np.dtype("datetime64[s]")
_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?")
_FIRST_DAY = np.datetime64("1970-01-01", "D")  # stands for any day where labels are times of day
_TIME = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:\d{2}){0,2}(\.\d+)?Z?)?)?")
_WEEK = re.compile(r"(\d{4})-W(\d{2})")


@final
@dataclass(frozen=True)
class Drawing:
    """A picture: an ``<svg>`` element for a page, and what it shows in words."""

    svg: str
    description: str


class _Picture:
    """Paths and texts in a panel that has margins; x and y run from the left and from below, in the panel's units."""

    def __init__(
        self, height: float, left: float, right: float, above: float, below: float, width: float = WIDTH
    ) -> None:
        self.height, self.left, self.right, self.top, self.bottom = height, left, width - right, above, height - below
        self.width = width
        self.xs, self.ys = (0.0, 1.0), (0.0, 1.0)
        self.root = ElementTree.Element("svg")

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point, in pixels from the upper left corner."""
        across, up = ((value - low) / (high - low) for value, (low, high) in ((x, self.xs), (y, self.ys)))
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def path(self, points: Sequence[tuple[float, float]], style: str, closed: bool = False) -> None:
        """A line through points in pixels."""
        steps = " L ".join(f"{_number(x)} {_number(y)}" for x, y in points)
        ElementTree.SubElement(self.root, "path", d=f"M {steps}" + (" z" if closed else ""), style=style)

    def box(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """A rectangle from its upper left corner, in pixels."""
        self.path([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], style, closed=True)

    def dot(self, x: float, y: float, radius: float, colour: str) -> None:
        """A disc, in pixels."""
        arc = f"a {radius:g} {radius:g} 0 1 0"
        d = f"M {_number(x - radius)} {_number(y)} {arc} {2 * radius:g} 0 {arc} {-2 * radius:g} 0 z"
        ElementTree.SubElement(self.root, "path", d=d, style=f"fill: {colour}")

    def text(
        self,
        text: str,
        x: float,
        y: float,
        anchor: str = "start",
        colour: str = INK,
        size: float = TEXT,
        turned: bool = False,
    ) -> None:
        """Text whose base line begins, has its middle or ends at a point in pixels; `turned` reads upwards."""
        place = {"x": _number(x), "y": _number(y)}
        if turned:
            place["transform"] = f"rotate(-90 {_number(x)} {_number(y)})"
        style = f"font-size: {size:g}px; text-anchor: {anchor}; fill: {colour}"
        ElementTree.SubElement(self.root, "text", {**place, "style": style}).text = text

    def scale_beside(self, ticks: Sequence[float]) -> None:
        """Numbers and hairlines of the vertical axis."""
        for tick in ticks:
            _, y = self.at(self.xs[0], tick)
            self.path([(self.left, y), (self.right, y)], f"fill: none; stroke: {HAIRLINE}; stroke-width: 0.6")
            self.text(short(tick), self.left - 4, y + MIDDLE * SMALL, "end", QUIET, SMALL)

    def drawing(self, description: str) -> Drawing:
        """The picture as one element that fits into any page."""
        title = ElementTree.Element("title")
        title.text = description
        self.root.insert(0, title)
        self.root.attrib = {
            "viewBox": f"0 0 {_number(self.width)} {_number(self.height)}",
            "width": _number(self.width),
            "height": _number(self.height),
            "role": "img",
            "aria-label": description,
            "font-family": "system-ui, sans-serif",
            "stroke-linejoin": "round",
        }
        return Drawing(ElementTree.tostring(self.root, encoding="unicode"), description)


def _number(pixels: float) -> str:
    """A place in a picture, to a hundredth of a pixel."""
    return f"{pixels:.2f}".rstrip("0").rstrip(".")


def _ticks(low: float, high: float) -> list[float]:
    """At most `TICKS` + 1 round numbers within a range."""
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * TICKS >= high - low)
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def curve_plot(points: Sequence[tuple[float, float]], stated: tuple[float, float]) -> Drawing | None:
    """Epsilon against delta, with the stated pair marked; None where there is no curve to draw.

    Parameters
    ----------
    points : pairs (delta, epsilon)
    stated : the pair (delta, epsilon) of the guarantee

    Notes
    -----
    Small deltas are drawn on a logarithmic axis; a curve of large ones, as pure privacy has it, starts at zero.
    """
    known = sorted((delta, epsilon) for delta, epsilon in points if math.isfinite(epsilon))
    powers = any(0 < delta < SMALL_DELTA for delta, _ in known)
    if powers:
        known = [pair for pair in known if pair[0] > 0]
    if len({epsilon for _, epsilon in known}) < 2:
        return None
    marked = stated[0] > 0 or not powers

    def across(delta: float) -> float:
        return math.log10(delta) if powers else delta

    picture = _Picture(220, 46, 14, 10, 40)
    places = [across(delta) for delta, _ in [*known, *([stated] if marked else [])]]
    room = MARGIN * (max(places) - min(places))
    picture.xs = min(places) - room, max(places) + room
    picture.ys = 0.0, 1.15 * max(epsilon for _, epsilon in [*known, (0.0, stated[1])])
    picture.scale_beside(_ticks(*picture.ys))
    if powers:
        exponents = range(math.ceil(picture.xs[0] - 1e-9), math.floor(picture.xs[1] + 1e-9) + 1)
        shown = [(float(power), f"1e{power}") for power in exponents[:: math.ceil(len(exponents) / 6) or 1]]
    else:
        shown = [(tick, short(tick)) for tick in _ticks(*picture.xs)]
    for place, name in shown:
        x, y = picture.at(place, 0)
        picture.path([(x, picture.top), (x, y)], f"fill: none; stroke: {HAIRLINE}; stroke-width: 0.6")
        picture.text(name, x, y + 14, "middle", QUIET, SMALL)
    dots = [picture.at(across(delta), epsilon) for delta, epsilon in known]
    steps = [dots[0]]
    for x, y in dots[1:]:  # between two deltas the epsilon of the smaller one holds: never too low
        steps += [(x, steps[-1][1]), (x, y)]
    picture.path(steps, f"fill: none; stroke: {ABOVE}; stroke-width: 1.5")
    for x, y in dots:
        picture.dot(x, y, 2, ABOVE)
    description = (
        f"A falling curve: epsilon is {short(known[0][1])} at delta {short(known[0][0])} "
        f"and {short(known[-1][1])} at delta {short(known[-1][0])}."
    )
    if marked:
        x, y = picture.at(across(stated[0]), stated[1])
        picture.dot(x, y, 3.5, BELOW)
        before = x > (picture.left + picture.right) / 2  # the text is where there is room
        picture.text("stated here", x + (-9 if before else 9), y - 6, "end" if before else "start", BELOW)
        description += f" The pair stated here is marked: epsilon {short(stated[1])} at delta {short(stated[0])}."
    picture.text("delta", (picture.left + picture.right) / 2, picture.height - 6, "middle", QUIET)
    picture.text("epsilon", 12, (picture.top + picture.bottom) / 2, "middle", QUIET, turned=True)
    return picture.drawing(description)


def bar_plot(names: Sequence[str], values: Floats, hidden: int = 0, split: int = 0) -> Drawing:
    """One bar per label, from the highest value to the lowest, with its number.

    Parameters
    ----------
    names, values : what is shown, already in order
    hidden : how many labels are left out, between the first `split` and the others
    """
    above = any(text_width(clean(name), TEXT) > NAMES for name in names)  # long names stand above their bars
    shown = [fitting(name, WIDTH - 4 if above else NAMES, TEXT) for name in names]
    rows = len(shown) + bool(hidden)
    step, left = (34, 4) if above else (19, NAMES + 8)
    picture = _Picture(step * rows + 10, left, 52, 4, 4)
    reach = float(np.abs(values).max(initial=0.0)) or 1.0
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    picture.xs, picture.ys = (low - 0.02 * reach, high + 0.02 * reach), (0.5 - rows, 0.5)
    depth = BAR * 19
    places = [number + (bool(hidden) and number >= split) for number in range(len(shown))]
    for place, name, value in zip(places, shown, values.tolist(), strict=True):
        zero, y = picture.at(0.0, -place)
        end, _ = picture.at(value, -place)
        colour = ABOVE if value >= 0 else BELOW
        if above:
            picture.text(name, left, y - 3)
            y += step / 4
        else:
            picture.text(name, left - 8, y + MIDDLE * TEXT, "end")
        picture.box(min(zero, end), y - depth / 2, abs(end - zero), depth, f"fill: {colour}")
        picture.text(signed(value), picture.right + 49, y + MIDDLE * TEXT, "end", QUIET)
    zero, _ = picture.at(0.0, 0.0)
    if not above:
        picture.path([(zero, picture.top), (zero, picture.bottom)], f"fill: none; stroke: {QUIET}; stroke-width: 0.8")
    if hidden:
        _, y = picture.at(0.0, -split)
        edge = "start" if above else "end"
        picture.text(f"{hidden:,} more in between", left - (0 if above else 8), y + 3, edge, QUIET, SMALL)
    top, last = shown[0], shown[-1]
    description = f"Bars from {top} ({signed(values[0])}) to {last} ({signed(values[-1])})"
    description += f"; {hidden:,} labels in between are not shown." if hidden else "."
    return picture.drawing(description)


def line_plot(times: NDArray[Any], values: Floats, names: Sequence[str] | None = None) -> Drawing:
    """A line over time; more points than `LINE_POINTS` are averaged in equal runs.

    Parameters
    ----------
    times : points in time or, with names, any numbers in their order
    names : what the points are called; None: their date and hour
    """
    order = np.argsort(times, kind="stable")
    when = times[order].astype(_SECOND if names is None else np.float64)
    called = [day(moment) for moment in when] if names is None else [clean(names[place], 24) for place in order]
    if names is None and when[-1] - when[0] > np.timedelta64(0) and (when.astype("datetime64[D]") == _FIRST_DAY).all():
        called = [str(np.datetime64(moment, "m"))[-5:] for moment in when]
    level = values[order]
    runs = np.array_split(np.arange(len(when)), min(len(when), LINE_POINTS))
    description = (
        f"A line from {called[0]} to {called[-1]}: lowest {signed(level.min())} at {called[int(level.argmin())]}, "
        f"highest {signed(level.max())} at {called[int(level.argmax())]}."
    )
    if len(runs) < len(when):
        description += f" {len(when):,} points are averaged to {len(runs)}."
        level = np.array([level[run].mean() for run in runs])
        middles = [int(run[len(run) // 2]) for run in runs]
        when, called = when[middles], [called[place] for place in middles]
    picture = _Picture(150, 46, 12, 8, 24)
    across = when.astype(np.float64)
    low, high = min(0.0, float(level.min())), max(0.0, float(level.max()))
    room = MARGIN * (high - low) or 1.0
    picture.ys = low - room, high + room
    picture.xs = float(across[0]), max(float(across[-1]), float(across[0]) + 1.0)
    picture.scale_beside(_ticks(*picture.ys))
    ends = [picture.at(place, 0.0) for place in picture.xs]
    picture.path(ends, f"fill: none; stroke: {QUIET}; stroke-width: 0.8")
    points = [picture.at(x, y) for x, y in zip(across.tolist(), level.tolist(), strict=True)]
    picture.path(points, f"fill: none; stroke: {ABOVE}; stroke-width: 1.5")
    for x, y in points if len(points) < 30 else ():
        picture.dot(x, y, 1.5, ABOVE)
    marks = [0, len(when) // 2, len(when) - 1] if len(when) > 2 else list(range(len(when)))
    edges = ("start", "middle", "end") if len(marks) == 3 else ("start", "end")
    for mark, edge in zip(marks, edges, strict=False):
        x, _ = picture.at(float(across[mark]), 0.0)
        picture.text(called[mark], x, picture.bottom + 16, edge, QUIET, SMALL)
    return picture.drawing(description)


def heat_map(rows: Sequence[str], columns: Sequence[str], values: Floats, low: float, high: float) -> Drawing:
    """A table of numbers as colours between `low` and `high`, with a scale below.

    Parameters
    ----------
    rows, columns : labels
    values : one row per label of `rows`
    low, high : the ends of the colour scale, to be shared by maps that are compared
    """
    if not high > low:
        room = max(0.5, 2.0**-40 * abs(low))  # half would vanish beside a large number
        low, high = low - room, high + room
    shown = [fitting(name, MAP_NAMES, SMALL) for name in rows]
    below_names = [fitting(name, MAP_NAMES, SMALL) for name in columns]
    left, right = round(max(text_width(name, SMALL) for name in shown)) + 10, 8
    side = MAP_WIDTH - left - right
    depth = max(8, round(side * len(rows) / max(len(columns), 1)))
    depth = min(depth, 300, max(16 * len(rows), 24))
    # room for the longest name, upright, and for the scale
    above, below = 8, 52 + round(max(text_width(name, SMALL) for name in below_names))
    picture = _Picture(above + depth + below, left, right, above, below, MAP_WIDTH)
    tile_height, tile_width = depth / len(rows), side / len(columns)
    for (row, column), value in np.ndenumerate(values):
        style = f"fill: {colour_of((value - low) / (high - low))}; stroke: #ffffff; stroke-width: 0.7"
        picture.box(left + column * tile_width, above + row * tile_height, tile_width, tile_height, style)
    for row, name in enumerate(shown):
        y = above + (row + 0.5) * tile_height + MIDDLE * SMALL
        picture.text(name, left - 5, y, "end", QUIET, SMALL)
    for column, name in enumerate(below_names):
        x = left + (column + 0.5) * tile_width + MIDDLE * SMALL
        picture.text(name, x, picture.bottom + 5, "end", QUIET, SMALL, turned=True)
    step = side / STEPS
    for number in range(STEPS):
        colour = colour_of(number / (STEPS - 1))
        style = f"fill: {colour}; stroke: {colour}; stroke-width: 0.7"
        picture.box(left + number * step, picture.height - 29, step, 9, style)
    for share, edge in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = left + share * side
        picture.text(short(low + share * (high - low)), x, picture.height - 9, edge, QUIET, SMALL)
    highest, lowest = (divmod(int(place), len(columns)) for place in (values.argmax(), values.argmin()))
    description = (
        f"A heat map of {len(rows)} by {len(columns)} predictions from {short(values.min())} "
        f"({clean(rows[lowest[0]], 40)}, {clean(columns[lowest[1]], 40)}) to {short(values.max())} "
        f"({clean(rows[highest[0]], 40)}, {clean(columns[highest[1]], 40)})."
    )
    return picture.drawing(description)


def times_of(labels: NDArray[Any] | Sequence[Any] | None) -> NDArray[Any] | None:
    """The labels as points in time, where all are dates, times, months or ISO weeks; else None."""
    if labels is None or len(labels) < 2:
        return None
    array = np.asarray(labels)
    try:
        if array.dtype.kind != "M":
            texts = [_week_start(str(label)) for label in array.tolist()]
            if all(_CLOCK.fullmatch(text) for text in texts):
                texts = [f"{_FIRST_DAY}T{text}" for text in texts]
            if not all(_TIME.fullmatch(text) for text in texts):
                return None
            array = np.array([text.rstrip("Z").replace(" ", "T") for text in texts], dtype=_SECOND)
    except ValueError:  # looks like a date and is none, e.g. 2024-02-31
        return None
    return None if np.isnat(array).any() else array.astype(_SECOND)


def _week_start(text: str) -> str:
    week = _WEEK.fullmatch(text)
    return text if week is None else date.fromisocalendar(int(week[1]), int(week[2]), 1).isoformat()


def day(moment: Any) -> str:
    """A point in time as people write it: the date, and the hour where it is not midnight."""
    text = str(np.datetime64(moment, "m"))
    return text.removesuffix("T00:00").replace("T", " ")


def clean(text: object, length: int | None = None) -> str:
    """A text on one line, without characters that steer the display, cut to a length."""
    kept = "".join(" " if unicodedata.category(sign)[0] in "CZ" else sign for sign in str(text))
    line = " ".join(kept.split()) or "(blank)"
    return line if length is None or len(line) <= length else line[: length - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def text_width(text: str, size: float) -> float:
    """About how wide a text is in a font of this size, in pixels; never much less than it is."""
    return sum(WIDE_LETTER if unicodedata.east_asian_width(sign) in "WF" else LETTER for sign in text) * size


def fitting(text: object, width: float, size: float) -> str:
    """A text on one line, cut where it is wider than this many pixels."""
    line = clean(text)
    while text_width(line, size) > width:
        line = line[:-2].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
    return line


def short(number: float) -> str:
    """A number in three digits."""
    return f"{float(number):.3g}".replace("-", "\N{MINUS SIGN}", 1) if number < 0 else f"{float(number):.3g}"


def signed(number: float) -> str:
    """A number in two decimals or three digits, with its sign."""
    text = f"{abs(number):.2f}" if 0.005 <= abs(number) < 1000 or number == 0 else f"{abs(number):.2g}"
    return ("\N{MINUS SIGN}" if number < 0 else "+") + text
