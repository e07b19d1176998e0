"""The page of the app: its two tabs, and pieces of it that several parts use. Nothing on it comes from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shiny import ui

from tensorveil.app.runs import Run
from tensorveil.data.readers.sources import ENDINGS, FORMATS
from tensorveil.mechanisms.auto import FAMILIES, NAMES
from tensorveil.release.report.meaning import ABOUT

ASSETS = Path(__file__).parent / "assets"
EPSILONS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20)  # where the slider stops
START = EPSILONS.index(2)
REPORTED = (("Title", "title"), *ABOUT)  # what those who sign the report want to know: label, option
SIGNALS = {"weak": "#b4521b", "middling": "#6b7785", "strong": "#2b6496"}  # of made-up tensors, with their colours


def page(upload_limit: int) -> Any:
    """The whole page."""
    return ui.page_fluid(
        ui.tags.head(
            ui.tags.meta(name="viewport", content="width=device-width, initial-scale=1"),
            ui.tags.link(rel="stylesheet", href="assets/app.css"),
            ui.tags.script(src="assets/app.js", defer=""),
        ),
        ui.tags.header(
            ui.tags.h1("tensorveil"),
            ui.tags.p("Complete a partly observed tensor under differential privacy, on this computer alone."),
            class_="top",
        ),
        ui.navset_underline(
            ui.nav_panel("New release", _new_release(upload_limit), value="new"),
            ui.nav_panel("Releases", _releases(), value="releases"),
            id="tab",
        ),
        title="tensorveil",
        lang="en",
    )


def _new_release(upload_limit: int) -> Any:
    return ui.tags.main(
        step(
            1,
            "The file",
            ui.input_radio_buttons(
                "where", None, {"upload": "Upload a copy", "path": "Name a file on this computer"}, inline=True
            ),
            ui.panel_conditional(
                "input.where === 'upload'",
                ui.tags.div(
                    ui.input_file("upload", None, accept=list(ENDINGS), button_label="Choose a file", width="100%"),
                    data_limit=str(upload_limit),
                ),
                hint(f"At most {upload_limit / 10**6:,.0f} MB. The copy stays here and is deleted at the end."),
            ),
            ui.panel_conditional(
                "input.where === 'path'",
                ui.input_text("path", "Path", placeholder="/home/ann/ratings.csv", width="100%"),
            ),
            details(
                "The file has no header, or an unusual ending",
                columns(
                    ui.input_text("columns", "Names of all columns", placeholder="user,film,rating,day"),
                    ui.input_select("format", "Format", {"": "by its ending", **{name: name for name in FORMATS}}),
                ),
            ),
            ui.output_ui("file_state"),
        ),
        step(2, "Its columns", ui.output_ui("column_choice"), ui.output_ui("mode_settings")),
        step(3, "What is protected", ui.output_ui("unit_choice"), ui.output_ui("unit_settings")),
        step(
            4,
            "The range of the values",
            ui.tags.p(
                "Values outside are clipped. The range must be public: take it from the meaning of the values, as 1 to "
                "5 stars, and not from the data."
            ),
            columns(number_field("low", "Lowest"), number_field("high", "Highest")),
        ),
        step(
            5,
            "The budget",
            ui.output_ui("budget_text"),
            _epsilon(),
            ui.output_ui("curve"),
            ui.output_ui("advice_button"),
            hint(
                "Made-up tensors of the same public shape are completed at several epsilons: no private value is read."
            ),
            columns(
                ui.input_numeric("delta", "Delta (0 for pure privacy)", 0, min=0, max=1, step=1e-6),
                ui.output_ui("dataset_choice"),
            ),
            ui.output_ui("balance"),
            details(
                "Add a data set to the ledger",
                ui.tags.p("A ledger refuses releases beyond a total budget. Its unit is the one chosen in step 3."),
                columns(
                    ui.input_text("new_dataset", "Name", placeholder="ratings"),
                    ui.input_numeric("new_epsilon", "Total epsilon", 10, min=0),
                    ui.input_numeric("new_delta", "Total delta", 0, min=0, max=1, step=1e-6),
                ),
                ui.input_action_button("create", "Add it", class_="btn-outline-primary"),
                ui.output_ui("created"),
            ),
        ),
        step(
            6,
            "Plan and price",
            ui.tags.p("Planning reads no private value and spends nothing."),
            ui.input_text("name", "Name of the release", width="100%"),
            details("For the report", columns(*(ui.input_text(field, name) for name, field in REPORTED))),
            details("More settings", _settings()),
            ui.input_action_button("plan", "Plan", class_="btn-outline-primary"),
            ui.output_ui("planned"),
        ),
        step(7, "Run", ui.output_ui("progress"), ui.output_ui("start")),
        class_="steps",
    )


def _epsilon() -> Any:
    """A slider of fixed stops beside a number, which is what counts; assets/app.js keeps them together."""
    return ui.tags.div(
        ui.tags.div(
            ui.tags.label("Epsilon", for_="stops"),
            ui.tags.input(
                type="range", class_="form-range", id="stops", min="0", max=str(len(EPSILONS) - 1), value=str(START)
            ),
            ui.tags.div(ui.tags.span("stronger privacy"), ui.tags.span("more accuracy"), class_="ends"),
            data_stops=" ".join(map(str, EPSILONS)),
            class_="slider",
        ),
        ui.input_numeric("epsilon", ui.tags.span("Epsilon as a number", class_="visually-hidden"), EPSILONS[START]),
        class_="epsilon",
    )


def _settings() -> Any:
    return columns(
        ui.input_select("model", "Model", {name: name for name in FAMILIES}, selected="cp"),
        ui.input_text("rank", "Rank", placeholder="chosen by a rule"),
        ui.input_select("mechanism", "Mechanism", {name: name for name in NAMES}, selected="auto"),
        number_field("expected_count", "Number of rows, roughly, if public"),
        ui.input_select(
            "duplicates",
            "Several values in one cell",
            {"error": "are an error", "keep": "are all kept", "mean": "are averaged"},
        ),
        ui.input_text("shape", "Public sizes, if columns hold indices", placeholder="943,1682"),
    )


def _releases() -> Any:
    return ui.tags.main(
        ui.tags.section(ui.tags.h2("Past releases"), ui.output_ui("past"), class_="step"),
        ui.output_ui("opened"),
        class_="steps",
    )


def step(number: int, title: str, *parts: Any) -> Any:
    """A numbered part of the way to a release."""
    heading = ui.tags.h2(ui.tags.span(str(number), class_="number"), title)
    return ui.tags.section(heading, *parts, class_="step", id=f"step-{number}")


def columns(*parts: Any, kind: str = "") -> Any:
    """Parts side by side, or below each other on a narrow screen; four in a row with the kind "four"."""
    return ui.tags.div(*parts, class_=f"columns {kind}")


def number_field(name: str, label: str, start: Any = None) -> Any:
    """A field for a number, empty unless it starts with one."""
    return ui.input_numeric(name, label, start)


def details(title: str, *parts: Any) -> Any:
    """Parts that are hidden until they are asked for."""
    return ui.tags.details(ui.tags.summary(title), *parts)


def hint(text: str) -> Any:
    """A remark in small letters."""
    return ui.tags.p(text, class_="hint")


def notice(kind: str, title: str, text: str = "") -> Any:
    """A box with a message: "good", "bad" or "plain"."""
    lines = [ui.tags.p(line) for line in text.split("\n") if line.strip()]
    role = "alert" if kind == "bad" else "status"
    return ui.tags.div(ui.tags.strong(title), *lines, class_=f"notice {kind}", role=role)


def error_box(error: object) -> Any:
    """An error, in the words of the command line."""
    return notice("bad", "Please correct this", str(error))


def facts(rows: Iterable[tuple[str, Any]]) -> Any:
    """Names and what they stand for, in two columns."""
    pairs = [part for name, found in rows for part in (ui.tags.dt(name), ui.tags.dd(found))]
    return ui.tags.dl(*pairs, class_="facts")


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()) -> Any:
    """A table that scrolls by itself on a narrow screen; columns in `numbers` are aligned to the right."""

    def kind(place: int) -> str:
        return "n" if place in numbers else ""

    head = ui.tags.tr(*(ui.tags.th(text, class_=kind(place), scope="col") for place, text in enumerate(headings)))
    body = [ui.tags.tr(*(ui.tags.td(cell, class_=kind(place)) for place, cell in enumerate(row))) for row in rows]
    return ui.tags.div(ui.tags.table(ui.tags.thead(head), ui.tags.tbody(*body)), class_="scroll")


def shown_balance(told: dict[str, Any]) -> Any:
    """The unit, the budget, and what is spent and remains of a data set."""
    left, share = told["remaining"], told["spent"]["share"]
    offers = f"epsilon {left['pure_epsilon']:.4g}"
    if told["delta"] > 0:
        offers += f", or a Gaussian one of epsilon {left['epsilon']:.4g} at delta {left['delta']:g}"
    rows = [
        ("Unit", told["unit"]),
        ("Budget", f"epsilon {told['epsilon']:g}" + (f", delta {told['delta']:g}" if told["delta"] else "")),
        ("Used", f"{100 * share:.1f} %"),
        ("Left for one release", offers),
    ]
    return ui.tags.div(bar(share), facts(rows), class_="balance")


def bar(share: float) -> Any:
    """A bar that is filled to this share."""
    percent = f"{100 * min(max(share, 0.0), 1.0):.1f}"
    return ui.tags.div(
        ui.tags.div(style=f"width: {percent}%"),
        class_="bar",
        role="progressbar",
        aria_valuenow=percent,
        aria_valuemin="0",
        aria_valuemax="100",
    )


def shown_plan(told: dict[str, Any], job: str) -> Any:
    """A plan and its price, as the command line prints them as JSON."""
    asked = told["asked"]
    price = f"epsilon {told['epsilon']:.6g}" + (f", delta {told['delta']:.3g}" if told["delta"] else "")
    wanted = f"epsilon {asked['epsilon']:g}" + (f", delta {asked['delta']:g}" if asked["delta"] else "")
    rows = [
        ("Price", ui.tags.strong(price)),
        ("Asked for", wanted),
        ("Mechanism", told["mechanism"]),
        ("Why", told["why"]),
        ("Model", told["model"]),
        ("Shape", " x ".join(f"{size:,}" for size in told["shape"])),
        ("Unit", told["unit"]),
        ("Outlook", told["expected"]),
    ]
    stages = [(stage["name"], stage["noise"], stage["theorem"]) for stage in told["stages"]]
    return ui.tags.div(
        facts(rows),
        details("Every step that reads data", table(("Step", "Noise", "Theorem"), stages)),
        details("The same on the command line", hint("tensorveil complete --config job.toml"), ui.tags.pre(job)),
        class_="plan",
    )


def shown_progress(run: Run) -> Any:
    """How far a run is."""
    share = run.done / run.total if run.total > 1 else 0.0
    steps = f" {run.done:,} of {run.total:,}" if run.total > 1 else ""
    minutes, seconds = divmod(int(run.seconds), 60)
    words = "cancelling" if run.cancelled else f"{run.task}{steps}"
    return ui.tags.div(
        bar(share),
        ui.tags.p(f"{words}, {minutes}:{seconds:02} so far"),
        class_="running",
    )


def shown_advice(told: dict[str, Any], epsilon: Any) -> Any:
    """The expected error against epsilon, as `tensorveil advise` tells it, with a mark at the chosen epsilon."""
    charts = []
    for model in dict.fromkeys(row["model"] for row in told["rows"]):
        rows = [row for row in told["rows"] if row["model"] == model]
        budgets = np.array([row["epsilon"] for row in rows])
        lines = {signal: np.array([row["errors"][signal] for row in rows]) for signal in SIGNALS}
        caption = ui.tags.figcaption(
            ui.tags.strong(model), " error as a share of the spread of the values, against epsilon"
        )
        parts = [caption, _legend(), ui.HTML(_curve(budgets, lines, epsilon))]
        if isinstance(epsilon, int | float) and budgets[0] <= epsilon <= budgets[-1]:
            at = {name: np.interp(np.log(epsilon), np.log(budgets), line) for name, line in lines.items()}
            words = ", ".join(f"{level:.2f} for a {name} signal" for name, level in at.items())
            parts.append(ui.tags.p(f"At epsilon {epsilon:g}: about {words}. 1 is the error of the mean."))
        charts.append(ui.tags.figure(*parts, class_="wide curve"))
    return ui.tags.div(*charts, *(hint(text) for text in told["sentences"]))


def _legend() -> Any:
    keys = [ui.tags.span(ui.tags.i(style=f"background: {colour}"), name) for name, colour in SIGNALS.items()]
    return ui.tags.div(*keys, class_="legend")


def _curve(budgets: Any, lines: dict[str, Any], epsilon: Any) -> str:
    """Lines over a logarithmic axis of epsilon."""
    left, right, top, bottom = 34.0, 330.0, 8.0, 150.0
    low, high = np.log(EPSILONS[0]), np.log(EPSILONS[-1])
    most = max(1.1, *(float(line.max()) for line in lines.values()))

    def across(number: float) -> float:
        return left + (right - left) * float((np.log(number) - low) / (high - low))

    def down(error: float) -> float:
        return bottom - (bottom - top) * min(max(error / most, 0.0), 1.0)

    parts = []
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = down(level)
        parts.append(f'<path class="{"mean" if level == 1 else "grid"}" d="M {left} {y:.1f} H {right}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{level:g}</text>')
    for number in (0.1, 0.3, 1, 3, 10):
        parts.append(f'<text x="{across(number):.1f}" y="{bottom + 16}" text-anchor="middle">{number:g}</text>')
    for name, line in lines.items():
        points = " L ".join(f"{across(x):.1f} {down(y):.1f}" for x, y in zip(budgets, line, strict=True))
        parts.append(f'<path d="M {points}" style="fill: none; stroke: {SIGNALS[name]}; stroke-width: 2"/>')
    if isinstance(epsilon, int | float) and EPSILONS[0] <= epsilon <= EPSILONS[-1]:
        parts.append(f'<path class="mark" d="M {across(epsilon):.1f} {top} V {bottom}"/>')
    words = "; ".join(f"{name}: " + ", ".join(f"{y:.2f}" for y in line) for name, line in lines.items())
    tried = ", ".join(f"{number:g}" for number in budgets)
    label = f"Expected errors at epsilon {tried}. {words}."
    return f'<svg viewBox="0 0 340 172" role="img" aria-label="{label}">{"".join(parts)}</svg>'
