"""The tab "Releases": past releases, and predictions, top lists, factors and heat maps of one of them.

Everything here is computed from a release, as by `tensorveil predict`. No data are read.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import numpy as np
from shiny import Inputs, Session, reactive, render, req, ui

from tensorveil.app.page import columns, error_box, facts, hint, notice, table
from tensorveil.app.workspace import Past, Workspace
from tensorveil.errors import InputError, TensorveilError
from tensorveil.release.cells.labels import PREDICTION, labelled
from tensorveil.release.cells.top import top_table
from tensorveil.release.predictions import ENDS, predicted_arrow
from tensorveil.release.release import Release
from tensorveil.release.report.pictures import label_names, mode_groups
from tensorveil.release.report.plots import clean, heat_map, short
from tensorveil.release.report.variation import sentence, variation_of
from tensorveil.release.saving import FILES, REPORT

MOST_CHOICES = 3000  # labels in one list; more are typed
ROWS = 15  # of a table of predictions
TILES = 14  # rows and columns of a heat map
EVERY = "every"  # the choice that averages over a mode


def exploring(input: Inputs, session: Session, workspace: Workspace) -> None:
    """Everything that the tab does."""

    @reactive.poll(workspace.stamps, 2.0)
    def found() -> list[Past]:
        return workspace.releases()

    @render.ui
    def past() -> Any:
        if not found():
            return hint("None yet. Releases appear here when they are made.")
        name = input.open() if "open" in input else ""
        return ui.tags.ul(*(_listed(one, one.name == name) for one in found()), class_="past")

    @reactive.effect
    @reactive.event(input.open)
    def _show() -> None:
        ui.update_navset("tab", selected="releases")

    @reactive.calc
    def release() -> Release | TensorveilError:
        """The release that was opened, its files checked against the certificate."""
        name = input.open()
        if name not in dict(workspace.stamps()):
            return InputError(f"a release must be one of the list, got {name!r:.60}; choose another")
        try:
            return Release.load(workspace.folder / name)
        except TensorveilError as error:
            return error

    def loaded() -> Release:
        got = release()
        req(isinstance(got, Release))
        if isinstance(got, TensorveilError):
            raise got
        return got

    @render.ui
    def opened() -> Any:
        req("open" in input)
        got, name = release(), input.open()
        if isinstance(got, TensorveilError):
            return ui.tags.section(ui.tags.h2(name), error_box(got), class_="step")
        return _opened(got, name)

    def at(mode: int) -> int | None:
        """The chosen index of a mode; None to average over it."""
        given, got = input[f"cell_{mode}"](), loaded()
        if given == EVERY or (isinstance(given, str) and not given.strip()):
            return None
        if got.shape[mode] <= MOST_CHOICES:
            return int(given)
        labels = got.labels[mode]
        texts = range(got.shape[mode]) if labels is None else labels.tolist()
        for place, text in enumerate(texts):
            if str(text) == given.strip():
                return place
        raise InputError(f"the label of {got.mode_names[mode]!r} must be known to the release, got {given!r:.60}")

    def fixed(*free: int) -> dict[int, int]:
        """Mode -> its chosen index, of all but some modes and those that are averaged over."""
        chosen = {mode: at(mode) for mode in range(len(loaded().shape)) if mode not in free}
        return {mode: index for mode, index in chosen.items() if index is not None}

    def around(*free: int) -> str:
        """The cell that a view is about, in words."""
        got, chosen = loaded(), fixed(*free)
        told = [f"{clean(got.mode_names[mode], 30)} {_label(got, mode, index)}" for mode, index in chosen.items()]
        means = [clean(got.mode_names[m], 30) for m in range(len(got.shape)) if m not in chosen and m not in free]
        return ", ".join([*told, *(f"averaged over {name}" for name in means)])

    def view(made: Any) -> Any:
        """What a function makes, or its error."""
        try:
            return made()
        except TensorveilError as error:
            return error_box(error)

    @render.ui
    def predictions() -> Any:
        def made() -> Any:
            got, mode, share = loaded(), int(input.along()), input.share() / 100
            indices = _window(input.first(), got.shape[mode], ROWS)
            cells = _cells(got, fixed(mode), {mode: indices})
            ends = got.model.draws is not None
            told = predicted_arrow(got, cells, interval=share if ends else None, averaged={})[0].to_pydict()
            names = label_names(got, mode, indices)
            low, high = got.model.low, got.model.high
            if not ends:
                rows: list[Any] = list(zip(names, map(short, told[PREDICTION]), strict=True))
                note = hint("This release has no intervals: its mechanism keeps no posterior draws.")
                return ui.TagList(hint(around(mode)), note, table((got.mode_names[mode], PREDICTION), rows, (1,)))
            middle, lower, upper = (told[name] for name in (PREDICTION, *ENDS))
            rows = [
                (name, short(m), [f"{short(a)} to {short(b)}", _whisker(a, m, b, low, high)])
                for name, m, a, b in zip(names, middle, lower, upper, strict=True)
            ]
            headings = (got.mode_names[mode], PREDICTION, f"{input.share()} % interval")
            return ui.TagList(hint(around(mode)), table(headings, rows, (1,)))

        return view(made)

    @render.ui
    def top_list() -> Any:
        def made() -> Any:
            got, mode = loaded(), int(input.ranked())
            chosen = fixed(mode)
            means = [got.mode_names[m] for m in range(len(got.shape)) if m != mode and m not in chosen]
            if not chosen:
                raise InputError("a label must be chosen for at least one other mode, got none; choose one above")
            known = _cells(got, chosen, {})
            told = top_table(got, known, input.most() or 10, averaged=dict.fromkeys(means))
            places = told.select(["rank", got.mode_names[mode], PREDICTION]).to_pylist()
            body = [(str(rank), clean(label, 60), short(level)) for rank, label, level in map(dict.values, places)]
            shown = table(("rank", got.mode_names[mode], PREDICTION), body, (0, 2))
            return ui.TagList(hint(around(mode)), shown)

        return view(made)

    @render.ui
    def tiles() -> Any:
        def made() -> Any:
            got, rows, across = loaded(), int(input.rows()), int(input.across())
            if rows == across:
                raise InputError(
                    f"rows and columns must be different modes, got {got.mode_names[rows]!r} twice; change one"
                )
            down = _window(input.first_row(), got.shape[rows], TILES)
            right = _window(input.first_column(), got.shape[across], TILES)
            cells = _cells(got, fixed(rows, across), {rows: down, across: right})
            told = predicted_arrow(got, cells, averaged={})[1].values.reshape(len(down), len(right))
            names = label_names(got, rows, down), label_names(got, across, right)
            drawing = heat_map(*names, told, float(told.min()), float(told.max()))
            caption = f"Predicted {clean(got.value_name, 30)}. {around(rows, across)}"
            return ui.tags.figure(ui.tags.figcaption(caption), ui.HTML(drawing.svg), class_="wide")

        return view(made)

    @render.ui
    def factors() -> Any:
        group = mode_groups(loaded())[int(input.factor())]
        pictures = [
            ui.tags.figure(ui.tags.figcaption(ui.tags.strong(one.title), f" {one.caption}"), ui.HTML(one.drawing.svg))
            for one in group.pictures
        ]
        return ui.TagList(hint(group.note), ui.tags.div(*pictures, class_="gallery"))


def _listed(past: Past, chosen: bool) -> Any:
    """One line of the list of releases."""
    if past.certificate is None:
        return ui.tags.li(ui.tags.strong(past.name), ui.tags.span(f"cannot be read: {past.error}", class_="bad"))
    told = past.certificate
    price = f"epsilon {told.epsilon:.4g}" + (f", delta {told.delta:.2g}" if told.delta else "")
    state = told.status if told.publishable else f"{told.status}, not for publication"
    return ui.tags.li(
        ui.tags.button(
            ui.tags.strong(past.name),
            ui.tags.span(f"{told.created}: {price}, unit {told.unit}, {state}"),
            type="button",
            data_open=past.name,
            aria_pressed=str(chosen).lower(),
        )
    )


def _opened(release: Release, name: str) -> Any:
    """A release and the ways to look at it."""
    panels = [ui.nav_panel("Guarantee", _guarantee(release, name)), ui.nav_panel("Report", _report(name))]
    if release.withheld_mode is None:
        names = {str(mode): clean(text, 30) for mode, text in enumerate(release.mode_names)}
        along = (
            ui.input_select("along", "One row per", names, selected=str(len(names) - 1)),
            ui.input_numeric("first", "From number", 1, min=1),
            ui.input_slider("share", "Interval, in per cent", 50, 99, 90, ticks=False),
        )
        ranked = (
            ui.input_select("ranked", "The highest of", names, selected="1"),
            ui.input_numeric("most", "How many", 10, min=1, max=100),
        )
        across = (
            ui.input_select("rows", "Rows", names, selected="0"),
            ui.input_numeric("first_row", "From number", 1, min=1),
            ui.input_select("across", "Columns", names, selected="1"),
            ui.input_numeric("first_column", "From number", 1, min=1),
        )
        panels += [
            ui.nav_panel("Predictions", columns(*along), ui.output_ui("predictions")),
            ui.nav_panel("Top list", columns(*ranked), ui.output_ui("top_list")),
            ui.nav_panel("Heat map", columns(*across, kind="four"), ui.output_ui("tiles")),
        ]
    modes = {str(place): group.title for place, group in enumerate(mode_groups(release))}
    panels.append(ui.nav_panel("Factors", ui.input_select("factor", "Mode", modes), ui.output_ui("factors")))
    views = ui.navset_pill(*panels, id="view", header=_cell(release))
    return ui.tags.section(ui.tags.h2(name), views, class_="step")


def _guarantee(release: Release, name: str) -> Any:
    told = release.certificate
    rows: list[tuple[str, Any]] = []
    if told is not None:
        paid = "no ledger" if told.ledger is None else f"{told.ledger.dataset}, reservation {told.ledger.reservation}"
        rows = [
            ("Made", f"{told.created} by {told.mechanism}"),
            ("Model", f"{told.model.kind} of rank {', '.join(map(str, dict.fromkeys(told.model.ranks)))}"),
            ("Modes", "; ".join(f"{size:,} {text}" for size, text in zip(told.shape, told.mode_names, strict=True))),
            ("May be released", told.may_be_released),
            ("Paid from", paid),
        ]
    links = [ui.tags.a(file, href=f"releases/{quote(name)}/{file}", download=file) for file in FILES]
    doubt = None if release.guarantee.publishable else notice("bad", "Not for publication")
    varied = variation_of(release.model)
    constant = sentence(varied) if varied is not None and varied["nearly_constant"] else ""
    return ui.TagList(
        doubt,
        notice("plain", "Little was learned", constant) if constant else None,
        ui.tags.p(str(release.guarantee)),
        facts(rows),
        ui.tags.h3("Downloads"),
        ui.tags.div(*links, class_="links"),
    )


def _report(name: str) -> Any:
    place = f"releases/{quote(name)}/{REPORT}"
    return ui.TagList(
        hint("The page that a privacy officer can sign."),
        ui.tags.p(ui.tags.a("Open it on a page of its own", href=place, target="_blank")),
        ui.tags.iframe(src=place, title="Report", sandbox="", class_="report"),
    )


def _cell(release: Release) -> Any:
    """One list of labels per mode: the cell that predictions, top lists and heat maps are about."""
    if release.withheld_mode is not None:
        name = release.mode_names[release.withheld_mode]
        text = f"Predictions for one {name} need the rows of that {name}: tensorveil predict DIR COORDS --own FILE"
        return notice("plain", f"This release holds nothing about a single {name}", text)
    parts = []
    for mode, name in enumerate(release.mode_names):
        if release.shape[mode] > MOST_CHOICES:
            part = ui.input_text(f"cell_{mode}", clean(name, 30), placeholder="a label; empty: every one, averaged")
        else:
            texts = {str(index): _label(release, mode, index) for index in range(release.shape[mode])}
            choices = {EVERY: f"every {clean(name, 30)}, averaged", **texts}
            part = ui.input_selectize(f"cell_{mode}", clean(name, 30), choices, selected="0")
        parts.append(part)
    return ui.panel_conditional("['Predictions', 'Top list', 'Heat map'].includes(input.view)", columns(*parts))


def _label(release: Release, mode: int, index: int) -> str:
    labels = release.labels[mode]
    return str(index) if labels is None else clean(labels[index], 60)


def _window(first: Any, size: int, most: int) -> Any:
    """Up to so many indices from a number counted from 1."""
    start = min(max(int(first or 1) - 1, 0), max(size - most, 0))
    return np.arange(start, min(start + most, size))


def _cells(release: Release, fixed: dict[int, int], free: dict[int, Any]) -> Any:
    """A table of labels: all combinations of the free indices at the fixed ones. Other modes have no column."""
    grid = np.meshgrid(*free.values(), indexing="ij")
    count = grid[0].size if grid else 1
    where = np.zeros((count, len(release.shape)), np.uint32)
    for mode, part in zip(free, grid, strict=True):
        where[:, mode] = part.ravel()
    for mode, index in fixed.items():
        where[:, mode] = index
    named = labelled(release, where, np.zeros(count))
    return named.select([name for mode, name in enumerate(release.mode_names) if mode in fixed or mode in free])


def _whisker(low: float, middle: float, high: float, least: float, most: float) -> Any:
    """An interval as a line with a dot, on the range of the values."""

    def place(number: float) -> float:
        return 4 + 112 * (number - least) / (most - least)

    a, m, b = place(low), place(middle), place(high)
    return ui.HTML(
        f'<svg class="whisker" viewBox="0 0 120 12" aria-hidden="true"><path class="range" d="M 4 6 H 116"/>'
        f'<path class="interval" d="M {a:.1f} 6 H {b:.1f}"/><circle cx="{m:.1f}" cy="6" r="3.5"/></svg>'
    )
