"""The choices of a new release: file, columns, unit, range and budget. They become options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shiny import Inputs, Session, reactive, render, ui

from tensorveil.app.page import REPORTED, columns, details, error_box, hint, notice, number_field, shown_balance
from tensorveil.app.workspace import MOST_COLUMNS, Workspace
from tensorveil.data.readers.sources import column_names
from tensorveil.data.readers.time_bins import BINS
from tensorveil.data.shards import is_sharded
from tensorveil.errors import InputError, TensorveilError
from tensorveil.privacy.guarantee import factor_text
from tensorveil.release.ledger.ledger import Ledger

LABELS = {
    "data": "found in the data",
    "public": "found in the data, which I declare public",
    "file": "listed in a file",
}


def choosing(input: Inputs, session: Session, workspace: Workspace) -> Callable[[], dict[str, Any]]:
    """Steps 1 to 5 of the tab; returns a reactive function that gives the options of `tensorveil complete`."""
    taken: dict[str, Path] = {}

    def take_in(found: Any) -> Path | None:
        """The file of an upload, moved to the app's own folder."""
        if not found:
            return None
        given = found[0]["datapath"]
        if given not in taken:
            taken[given] = workspace.taken_in(Path(given), found[0]["name"])
        return taken[given]

    def forget() -> None:
        for place in taken.values():
            workspace.forget(place)

    session.on_ended(forget)

    @reactive.calc
    def chosen() -> Path | None:
        """The file, or None if none is named yet."""
        if input.where() == "upload":
            return take_in(input.upload())
        text = input.path().strip()
        return Path(text).expanduser() if text else None

    @reactive.calc
    def header() -> tuple[str, ...] | TensorveilError | None:
        """The names of the columns, None where there are none, or what is wrong."""
        path = chosen()
        if path is None or is_sharded(path):
            return None
        if input.columns().strip():
            return tuple(name.strip() for name in input.columns().split(",") if name.strip())
        try:
            names = column_names(path, input.format() or None)
        except TensorveilError as error:
            return error
        if names is not None and len(names) > MOST_COLUMNS:
            return InputError(f"a file must have at most {MOST_COLUMNS:,} columns here, got more; use the command line")
        return names

    @render.ui
    def file_state() -> Any:
        found, path = header(), chosen()
        if isinstance(found, TensorveilError):
            return error_box(found)
        return None if path is None else hint(f"{path.name}: values are never shown, only the names of columns.")

    @render.ui
    def column_choice() -> Any:
        found = header()
        if chosen() is None or isinstance(found, TensorveilError):
            return hint("Choose a file first.")
        if found is None:
            return ui.TagList(
                ui.tags.p("Such a file holds indices and no names. You may name its modes."),
                columns(
                    ui.input_text("modes_text", "Names of the modes", placeholder="user,film,day"),
                    ui.input_text("value_text", "Name of the values", placeholder="value"),
                ),
            )
        names = dict(zip(found, found, strict=True))
        return ui.TagList(
            ui.tags.p("Modes are the columns that say where a value belongs, such as user, film and day."),
            columns(
                ui.input_selectize("modes", "Modes, 2 to 6 columns", names, multiple=True, width="100%"),
                ui.input_selectize("value", "Values", {"": "", **names}, selected="", width="100%"),
            ),
        )

    @reactive.calc
    def modes() -> tuple[str, ...]:
        """The names of the modes, as far as they are chosen."""
        found = header()
        if chosen() is None or isinstance(found, TensorveilError):
            return ()
        if found is None:
            given = input.modes_text() if "modes_text" in input else ""
            return tuple(name.strip() for name in given.split(",") if name.strip())
        return tuple(name for name in (input.modes() if "modes" in input else ()) if name in found)

    @reactive.calc
    def value() -> str:
        found = header()
        if found is None or isinstance(found, TensorveilError):
            return (input.value_text() if "value_text" in input else "").strip()
        return (input.value() if "value" in input else "") or ""

    @render.ui
    def mode_settings() -> Any:
        names = modes()
        if not names or header() is None:
            return None
        bins = {"": "as they are", **{name: f"times, by {name}" for name in BINS}}
        rows = [
            ui.tags.div(
                ui.tags.strong(name),
                ui.input_select(f"bin_{number}", "Cells", bins),
                ui.input_select(f"labels_{number}", "Labels", LABELS),
                ui.panel_conditional(
                    f"input.labels_{number} === 'file'",
                    ui.input_file(f"labels_file_{number}", "One label per line", button_label="Choose"),
                ),
                class_="mode",
            )
            for number, name in enumerate(names)
        ]
        nobody = {"": "none", **{name: name for name in names}}
        people = ui.input_select("people", "Mode of people, whom the report must not name", nobody)
        return details("Times, public labels, people", *rows, people)

    def of_mode(kind: str, number: int) -> Any:
        name = f"{kind}_{number}"
        return input[name]() if name in input else None

    def label_files() -> dict[str, str]:
        """Mode -> the file with its labels, where one is given."""
        found = {}
        for number, name in enumerate(modes()):
            if of_mode("labels", number) == "file":
                place = take_in(of_mode("labels_file", number))
                if place is not None:
                    found[name] = str(place)
        return found

    @render.ui
    def unit_choice() -> Any:
        names, what = modes(), value() or "value"
        names = names if len(names) > 1 else ("user", "film")
        first, either = names[0], f"one {names[0]} (or one {names[1]})"
        others = ", ".join(names[:-1]) + f" and {names[-1]}"
        choices = {
            "value": _unit(
                f"One {what}",
                f"Nobody can tell whether one {what} was high or low. The {others} of every row are public.",
            ),
            "slice_values": _unit(
                f"Every {what} of {either}",
                f"Nobody can tell any {what} of a {first}. The {others} of every row are public.",
            ),
            "entry": _unit(
                "One row",
                f"Nobody can tell whether one row is in the file. A {first} with many rows is protected less: for k "
                "rows, epsilon is k times as large.",
            ),
            "slice": _unit(
                f"All rows of {either}",
                f"Nobody can tell whether a {first} is in the file. The labels of all modes must be public: list "
                "them in files, or declare them public (step 2).",
            ),
        }
        with reactive.isolate():
            before = input.unit() if "unit" in input else "value"
        return ui.input_radio_buttons("unit", None, choices, selected=before, width="100%")

    @render.ui
    def unit_settings() -> Any:
        if "unit" not in input or not input.unit().startswith("slice"):
            return None
        names = modes()
        return columns(
            ui.input_select("slice_mode", "Protected mode", {name: name for name in names}),
            number_field("at_most", "Rows kept of each, if limited"),
        )

    @reactive.calc
    def unit() -> str:
        kind = input.unit() if "unit" in input else ""
        if not kind.startswith("slice"):
            return str(kind)
        mode = input.slice_mode() if "slice_mode" in input else ""
        return f"{kind}:{mode}"

    @render.ui
    def budget_text() -> Any:
        epsilon = input.epsilon()
        if not isinstance(epsilon, int | float) or not 0 < epsilon < float("inf"):
            return hint("Epsilon is the privacy that one release costs.")
        return ui.tags.p(
            "With this epsilon, the probability of any conclusion about what is protected changes by a factor of at "
            "most ",
            ui.tags.strong(factor_text(float(epsilon))),
            ".",
        )

    @reactive.poll(lambda: _stamp(workspace.ledger), 1.0)
    def budgets() -> dict[str, dict[str, Any]] | TensorveilError:
        try:
            return workspace.budgets()
        except TensorveilError as error:
            return error

    @render.ui
    def dataset_choice() -> Any:
        found = budgets()
        names = () if isinstance(found, TensorveilError) else tuple(found)
        with reactive.isolate():
            before = input.dataset() if "dataset" in input else ""
        choices = {"": "no ledger", **{name: name for name in names}}
        return ui.input_select(
            "dataset", "Data set in the ledger that pays", choices, selected=before if before in names else ""
        )

    @render.ui
    def balance() -> Any:
        found = budgets()
        if isinstance(found, TensorveilError):
            return error_box(found)
        name = input.dataset() if "dataset" in input else ""
        if name not in found:
            return hint("Without a ledger, nobody adds up the epsilon of several releases.")
        return shown_balance(found[name])

    @render.ui
    @reactive.event(input.create)
    def created() -> Any:
        if workspace.run is not None and workspace.run.running:
            return error_box("the ledger must not be changed here during a run, got one; wait for its end")
        try:
            name, epsilon, delta = input.new_dataset(), input.new_epsilon(), input.new_delta()
            Ledger.create(workspace.ledger, name, unit(), epsilon, delta or 0.0)
        except TensorveilError as error:
            return error_box(error)
        return notice("good", f"Added {name}: choose it above")

    @reactive.calc
    def options() -> dict[str, Any]:
        """The options of the command line, as far as they are given."""
        path, low, high, names = chosen(), input.low(), input.high(), modes()
        settings = {name: of_mode("bin", number) for number, name in enumerate(names)}
        public = [name for number, name in enumerate(names) if of_mode("labels", number) == "public"]
        dataset = input.dataset() if "dataset" in input else ""
        sliced = unit().startswith("slice")
        return {
            "input": "" if path is None else str(path.absolute()),
            "modes": list(names),
            "value": value(),
            "bounds": None if low is None or high is None else [low, high],
            "unit": unit(),
            "at_most": input.at_most() if sliced and "at_most" in input else None,
            "epsilon": input.epsilon(),
            "delta": input.delta(),
            "model": input.model(),
            "rank": input.rank().strip(),
            "mechanism": input.mechanism(),
            "expected_count": input.expected_count(),
            "duplicates": input.duplicates(),
            "shape": input.shape().strip(),
            "format": input.format(),
            "columns": input.columns().strip(),
            "public_labels": public,
            "ledger": str(workspace.ledger) if dataset else "",
            "dataset": dataset,
            "out": str(workspace.folder / input.name()),
            "bin": {name: kind for name, kind in settings.items() if kind},
            "labels": label_files(),
            "people": input.people() if "people" in input else "",
            **{field: input[field]().strip() for _, field in REPORTED},
        }

    return options


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _unit(title: str, example: str) -> Any:
    return ui.tags.span(ui.tags.strong(title), ui.tags.span(example, class_="example"), class_="unit")
