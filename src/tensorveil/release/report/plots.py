"""Pictures of a release as inline SVG: text stays text, every picture carries its description, nothing is fetched.

Only numbers and labels that are part of a release go in. The same numbers give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, final
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH = 340  # of every picture, in CSS pixels: legible as it is on a phone
INK, QUIET, HAIRLINE = "#1c2733", "#56616d", "#c9d1d9"
ABOVE, BELOW = "#2b6496", "#b4521b"  # blue and orange: told apart with every kind of colour vision, and in grey
COLOUR_MAP = "cividis"  # even steps of lightness, the same for colour-blind readers
TEXT, SMALL = 11, 9.5  # font sizes, in CSS pixels
SMALL_DELTA = 1e-3  # from here down, a curve of epsilon needs a logarithmic axis
STEPS = 41  # of a drawn colour scale
LINE_POINTS = 240  # a longer series is averaged down to this many points

_SECOND = np.dtype("datetime64[s]")
_TIME = re.compile(r"\d{4}-\d{2}(-\d{2}([T ]\d{2}(:\d{2}){0,2}(\.\d+)?Z?)?)?")
_WEEK = re.compile(r"(\d{4})-W(\d{2})")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")


@contextmanager
def _style() -> Iterator[None]:
    """The look of every picture, whatever the user's own settings of matplotlib."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tensorveil", "text.parse_math": False})
        matplotlib.rcParams.update({"axes.labelsize": TEXT, "font.size": TEXT})
        warnings.simplefilter("ignore", UserWarning)  # glyphs that matplotlib's font lacks: the browser has its own
        yield


@final
@dataclass(frozen=True)
class Drawing:
    """A picture: an ``<svg>`` element for a page, and what it shows in words."""

    svg: str
    description: str


@_style()
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
    figure, panel = _panel(220, (46, 14, 10, 40))
    panel.plot(*zip(*known, strict=True), "o-", color=ABOVE, markersize=4, drawstyle="steps-post")  # never too low
    description = (
        f"A falling curve: epsilon is {short(known[0][1])} at delta {short(known[0][0])} "
        f"and {short(known[-1][1])} at delta {short(known[-1][0])}."
    )
    if stated[0] > 0 or not powers:
        panel.plot([stated[0]], [stated[1]], "o", color=BELOW, markersize=7)
        _write(panel, "stated here", stated, (9, 6), color=BELOW)
        description += f" The pair stated here is marked: epsilon {short(stated[1])} at delta {short(stated[0])}."
    panel.set_ylim(0, 1.15 * max(epsilon for _, epsilon in [*known, (0.0, stated[1])]))
    if powers:
        panel.set_xscale("log")
        ends = [math.ceil(math.log10(known[0][0]) - 1e-9), math.floor(math.log10(known[-1][0]) + 1e-9)]
        exponents = range(ends[0], ends[1] + 1)
        shown = exponents[:: math.ceil(len(exponents) / 6) or 1]
        panel.set_xticks([10.0**exponent for exponent in shown], [f"1e{exponent}" for exponent in shown])
        panel.minorticks_off()
    panel.grid(color=HAIRLINE, linewidth=0.6)
    panel.set_xlabel("delta", color=QUIET)
    panel.set_ylabel("epsilon", color=QUIET)
    return _drawing(figure, description)


@_style()
def bar_plot(names: Sequence[str], values: Floats, hidden: int = 0, split: int = 0) -> Drawing:
    """One bar per label, from the highest value to the lowest, with its number.

    Parameters
    ----------
    names, values : what is shown, already in order
    hidden : how many labels are left out, between the first `split` and the others
    """
    shown = [clean(name, 22) for name in names]
    places = np.arange(len(shown), dtype=np.float64)
    if hidden:
        places[split:] += 1
    rows = len(shown) + bool(hidden)
    figure, panel = _panel(19 * rows + 10, (156, 52, 4, 4))
    panel.set_axis_off()
    reach = float(np.abs(values).max(initial=0.0)) or 1.0
    panel.barh(places, values, height=0.62, color=[ABOVE if value >= 0 else BELOW for value in values])
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    panel.set_xlim(low - 0.02 * reach, high + 0.02 * reach)
    panel.set_ylim(rows - 0.5, -0.5)
    panel.axvline(0, color=QUIET, linewidth=0.8)
    for place, name, value in zip(places, shown, values, strict=True):
        _write(panel, name, (0, place), (-8, 0), ha="right", va="center", across=True)
        _write(panel, signed(value), (1, place), (49, 0), ha="right", va="center", across=True, color=QUIET)
    if hidden:
        _write(panel, f"{hidden:,} more in between", (0, split), (-8, 0), "right", "center", QUIET, SMALL, across=True)
    top, last = shown[0], shown[-1]
    description = f"Bars from {top} ({signed(values[0])}) to {last} ({signed(values[-1])})"
    description += f"; {hidden:,} labels in between are not shown." if hidden else "."
    return _drawing(figure, description)


@_style()
def line_plot(times: NDArray[Any], values: Floats) -> Drawing:
    """A line over time; more points than `LINE_POINTS` are averaged in equal runs."""
    order = np.argsort(times, kind="stable")
    when, level = times[order].astype(_SECOND), values[order]
    runs = np.array_split(np.arange(len(when)), min(len(when), LINE_POINTS))
    description = (
        f"A line from {day(when[0])} to {day(when[-1])}: lowest {signed(level.min())} at {day(when[level.argmin()])}, "
        f"highest {signed(level.max())} at {day(when[level.argmax()])}."
    )
    if len(runs) < len(when):
        description += f" {len(when):,} points are averaged to {len(runs)}."
        level = np.array([level[run].mean() for run in runs])
        when = np.array([when[run[len(run) // 2]] for run in runs])
    figure, panel = _panel(150, (46, 12, 8, 24))
    panel.axhline(0, color=QUIET, linewidth=0.8)
    seconds = when.astype(np.float64)
    panel.plot(seconds, level, color=ABOVE, linewidth=1.5, marker="o" if len(level) < 30 else "", markersize=3)
    marks = when[[0, len(when) // 2, -1]] if len(when) > 2 else when
    edges = ("left", "center", "right") if len(marks) == 3 else ("left", "right")
    panel.set_xticks([])
    for mark, edge in zip(marks, edges, strict=False):
        _write(
            panel, day(mark), (float(mark.astype(np.float64)), 0), (0, -16), edge, color=QUIET, size=SMALL, down=True
        )
    panel.locator_params(axis="y", nbins=5)
    panel.grid(axis="y", color=HAIRLINE, linewidth=0.6)
    return _drawing(figure, description)


@_style()
def heat_map(rows: Sequence[str], columns: Sequence[str], values: Floats, low: float, high: float) -> Drawing:
    """A table of numbers as colours between `low` and `high`, with a scale below.

    Parameters
    ----------
    rows, columns : labels
    values : one row per label of `rows`
    low, high : the ends of the colour scale, to be shared by maps that are compared
    """
    if not high > low:
        low, high = low - 0.5, high + 0.5
    left, right, side = 112, 8, WIDTH - 120
    depth = max(8, round(side * len(rows) / max(len(columns), 1)))
    depth = min(depth, 300, max(16 * len(rows), 24))
    below_names = [clean(name, 13) for name in columns]
    above, below = 8, 52 + 6 * max(map(len, below_names))  # room for the longest name, upright, and for the scale
    figure, panel = _panel(above + depth + below, (left, right, above, below))
    tiles: dict[str, Any] = {"cmap": COLOUR_MAP, "vmin": low, "vmax": high, "linewidth": 0.7}
    panel.set_axis_off()
    panel.pcolormesh(values, edgecolors="white", **tiles)
    panel.set_ylim(len(rows), 0)
    for place, name in enumerate(rows):
        _write(panel, clean(name, 17), (0, place + 0.5), (-5, 0), "right", "center", QUIET, SMALL)
    for place, name in enumerate(below_names):
        _write(panel, name, (place + 0.5, len(rows)), (0, -5), "right", "center", QUIET, SMALL, 90)
    height = above + depth + below
    scale = figure.add_axes((left / WIDTH, 20 / height, side / WIDTH, 9 / height))
    scale.set_axis_off()
    scale.pcolormesh(np.linspace(low, high, STEPS)[None, :], edgecolors="face", **tiles)
    for share, edge in ((0.0, "left"), (0.5, "center"), (1.0, "right")):
        _write(scale, short(low + share * (high - low)), (share * STEPS, 0), (0, -11), edge, color=QUIET, size=SMALL)
    highest, lowest = (divmod(int(place), len(columns)) for place in (values.argmax(), values.argmin()))
    description = (
        f"A heat map of {len(rows)} by {len(columns)} predictions from {short(values.min())} "
        f"({clean(rows[lowest[0]], 40)}, {clean(columns[lowest[1]], 40)}) to {short(values.max())} "
        f"({clean(rows[highest[0]], 40)}, {clean(columns[highest[1]], 40)})."
    )
    return _drawing(figure, description)


def times_of(labels: NDArray[Any] | Sequence[Any] | None) -> NDArray[Any] | None:
    """The labels as points in time, where all are dates, times, months or ISO weeks; else None."""
    if labels is None or len(labels) < 2:
        return None
    array = np.asarray(labels)
    try:
        if array.dtype.kind != "M":
            texts = [_week_start(str(label)) for label in array.tolist()]
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


def short(number: float) -> str:
    """A number in three digits."""
    return f"{float(number):.3g}".replace("-", "\N{MINUS SIGN}", 1) if number < 0 else f"{float(number):.3g}"


def signed(number: float) -> str:
    """A number in two decimals or three digits, with its sign."""
    text = f"{abs(number):.2f}" if 0.005 <= abs(number) < 1000 or number == 0 else f"{abs(number):.2g}"
    return ("\N{MINUS SIGN}" if number < 0 else "+") + text


def _panel(height: float, margins: tuple[float, float, float, float]) -> tuple[Figure, Axes]:
    """An empty picture with one panel; margins left, right, above and below, all in CSS pixels."""
    from matplotlib.figure import Figure

    left, right, above, below = margins
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    panel = figure.add_axes(
        (left / WIDTH, below / height, (WIDTH - left - right) / WIDTH, (height - above - below) / height)
    )
    panel.patch.set_visible(False)
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0, labelsize=SMALL, labelcolor=QUIET)
    return figure, panel


def _write(
    panel: Axes,
    text: str,
    at: tuple[float, float],
    shift: tuple[float, float],
    ha: str = "left",
    va: str = "baseline",
    color: str = INK,
    size: float = TEXT,
    rotation: float = 0,
    *,
    across: bool = False,
    down: bool = False,
) -> None:
    """Text beside a point, shifted by pixels; `across` counts x in widths of the panel, `down` y in heights."""
    place: Any = panel.get_yaxis_transform() if across else panel.get_xaxis_transform() if down else "data"
    panel.annotate(
        text,
        at,
        shift,
        xycoords=place,
        textcoords="offset points",
        ha=ha,
        va="center_baseline" if va == "center" else va,
        color=color,
        fontsize=size,
        rotation=rotation,
        rotation_mode="anchor",
        parse_math=False,
        annotation_clip=False,
    )


def _drawing(figure: Figure, description: str) -> Drawing:
    """The picture as one element that fits into any page."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return Drawing(_element(written.getvalue(), description), description)


def _element(text: str, description: str) -> str:
    """Matplotlib's SVG without what a page must not have twice (ids, style sheets) and what makes it long."""
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata", "}clipPath")):  # nothing is drawn outside its panel
                parent.remove(child)
    prefix = "p" + hashlib.sha256(text.encode()).hexdigest()[:12]  # pictures on one page never share a name
    referred = set(re.findall(r"#([\w-]+)", " ".join(value for part in root.iter() for value in part.attrib.values())))
    for part in root.iter():
        part.tag = part.tag.rpartition("}")[2]
        part.tail = None
        if part.tag != "text":
            part.text = None
        part.attrib = {
            name.rpartition("}")[2]: _attribute(name, value, prefix)
            for name, value in part.attrib.items()
            if name != "clip-path" and (name != "id" or value in referred)
        }
    title = ElementTree.Element("title")
    title.text = description
    root.insert(0, title)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "width": root.attrib["width"].removesuffix("pt"),
        "height": root.attrib["height"].removesuffix("pt"),
        "role": "img",
        "aria-label": description,
        "font-family": "system-ui, sans-serif",
        "stroke-linejoin": "round",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    value = re.sub(r"#(?=[\w-]+\)?$)(?![0-9a-f]{6}$)", f"#{prefix}-", value)
    if name == "style":
        return re.sub(r"font-family: [^;]*; ", "", re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value))
    if name == "d":
        value = " ".join(value.split())
    return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
