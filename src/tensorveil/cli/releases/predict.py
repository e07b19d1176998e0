"""`tensorveil predict`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorveil.errors import InputError

if TYPE_CHECKING:
    from tensorveil.data.observations import Observations
    from tensorveil.release.release import Release

ENDINGS = (".csv", ".parquet", ".pq")


def predict(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a release.")],
    coordinates: Annotated[
        Path, typer.Argument(metavar="COORDS", help="CSV, TSV or Parquet file with one column of labels per mode.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write: .csv or .parquet.")],
    top: Annotated[
        int | None,
        typer.Option(
            help="Write the K cells with the highest predictions per row of COORDS, which then names only some modes."
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="With --top: list each index of this mode at most once, with its best cell.")
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            help="A file with your own rows and values, also if the release does not know you. The predictions are for "
            "you alone."
        ),
    ] = None,
    average: Annotated[
        str | None, typer.Option(help="With --top: modes to average over, e.g. day, instead of trying their labels.")
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="MODE=FILE, a table with the columns MODE and weight, for modes to average over. Default: equal."
        ),
    ] = None,
    exclude: Annotated[
        Path | None, typer.Option(help="With --top: a file of cells to leave out, e.g. those known already.")
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="With --own: the mode that the own rows belong to. Default: the mode that a joint release withholds, "
            "or the mode that is a column of neither file."
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(help="Also write low and high, between which a value lies with this probability, e.g. 0.9."),
    ] = None,
    unknown: Annotated[
        str,
        typer.Option(help="For labels unknown to the release: error, or offsets (predict from the known labels)."),
    ] = "error",
    format: Annotated[
        str | None, typer.Option(help="Format of COORDS: csv, tsv or parquet. Default: taken from the file name.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Column names of COORDS, if it has no header.")] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="MODE=COLUMN,... for columns that have other names than the modes, e.g. user=userId."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Predict values for the labels in a file, or find the cells with the highest predictions.

    Examples:

    tensorveil predict DIR cells.csv --out predictions.csv

    tensorveil predict DIR users_and_films.csv --weights day=days.csv --out predictions.csv

    tensorveil predict DIR users.csv --top 10 --mode film --average day --exclude ratings.csv --out best_films.csv

    tensorveil predict DIR films.csv --own my_ratings.csv --interval 0.9 --out mine.csv

    With --own, the predictions are for whoever the own rows belong to, by the release and these rows alone. The release
    need not know you: leave your mode out of both files, and all rows of the own file are yours. With a column of that
    mode, the own file may hold the rows of several people.

    A mode that is a column of neither COORDS nor --own is averaged over: with user and film alone, a model by user,
    film and day predicts the average of all days.

    With --top K, COORDS has columns for only some of the modes. For each of its rows, all labels of the other modes are
    tried, and the K cells with the highest predictions are written with their rank. With --mode film, each film is
    listed at most once, with its best cell.
    """
    from tensorveil.cli.console import counted, print_json, say
    from tensorveil.data.readers.files import read_table
    from tensorveil.release.cells.labels import PREDICTION
    from tensorveil.release.cells.open_modes import OpenModes, open_modes
    from tensorveil.release.cells.top import top_table
    from tensorveil.release.people.views import view_of
    from tensorveil.release.predictions import predicted_arrow
    from tensorveil.release.release import Release

    if out.suffix.lower() not in ENDINGS:
        raise InputError(f"--out must end in .csv or .parquet, got {out.name}; rename it")
    if os.path.lexists(out):
        raise InputError(f"--out must be a new file, got {out}, which exists; choose another name or move it away")
    if top is None and (exclude is not None or average is not None):
        raise InputError("--exclude and --average must be used together with --top, got no --top; add --top K")
    if interval is not None and top is not None:
        raise InputError("--interval must be used without --top, got both; leave one out")
    if mode is not None and top is None:
        raise InputError("--mode must be used together with --top, got only --mode; add --top K")
    if top is not None and top < 1:
        raise InputError(f"--top must be at least 1, got {top}; give the number of cells per row")
    release = Release.load(directory)
    if own is None and release.withheld_mode is not None:
        name = release.mode_names[release.withheld_mode]
        raise InputError(f"--own must be given for a joint release, got none; name a file with the rows of one {name}")
    if own is None and person is not None:
        raise InputError("--person must be used together with --own, got only --person; add --own")
    table = read_table(coordinates, format=format, columns=None if columns is None else columns.split(","))
    table = with_mode_names(table, modes)
    view = None
    if own is not None:
        view = view_of(release, with_mode_names(read_table(own), modes), table.column_names, person)
        release, table = view.release, view.completed(table)
    about: list[str] = []
    weighed = _weights(release, weights or [])
    found: Any
    if top is not None:
        chosen = [] if average is None else [name.strip() for name in average.split(",")]
        hidden = None if exclude is None else with_mode_names(read_table(exclude), modes)
        means = {name: weighed.get(name) for name in chosen}
        found = top_table(release, table, top, distinct=mode, averaged=means, exclude=hidden)
        unknown_rows = 0
        about.append(_ties(found))
    else:
        found, predicted = predicted_arrow(release, table, unknown, interval=interval, averaged=weighed)
        left_open = open_modes(release, table.column_names)
        if left_open:
            about.append(f"{PREDICTION}s are {OpenModes.of(release, left_open, weighed).told(release)}")
        unknown_rows = int((~predicted.known).sum())
    for_whom = "for anybody who may see the release"
    if view is not None:
        found, for_whom = view.marked(found)
    write_table(found, out)
    if as_json:
        facts = {"out": str(out), "rows": found.num_rows, "unknown_rows": unknown_rows, "use": for_whom}
        print_json({**facts, "about": list(filter(None, about))})
        return
    say(f"wrote {counted(found.num_rows, 'row')} to {out}: {for_whom}")
    for line in filter(None, about):
        say(line)
    if unknown_rows:
        told = counted(unknown_rows, "row") + " with labels that the release does not know"
        say(f"{told}: predicted from the offsets of their known labels")


def with_mode_names(table: Any, modes: str | None) -> Any:
    """The table with its columns renamed by MODE=COLUMN,...; columns that it does not have are left to later checks.

    One column may be named by several modes, e.g. a column of times by day and hour.
    """
    if modes is None:
        return table
    from tensorveil.cli.job import parsed_options

    pairs = parsed_options({"modes": modes})["modes"]
    pairs = pairs if isinstance(pairs, dict) else {name: name for name in pairs}
    sources = [(mode, name) for name in table.column_names for mode in _named(name, pairs)]
    found = [mode for mode, _ in sources]
    repeated = sorted({name for name in found if found.count(name) > 1})
    if repeated:
        raise InputError(f"--modes must give every column a name of its own, got {repeated} twice; correct it")
    return table.select([name for _, name in sources]).rename_columns(found)


def _named(column: str, pairs: dict[str, str]) -> list[str]:
    """The modes of a column, e.g. day and hour of a column of times, or its own name."""
    return [mode for mode, name in pairs.items() if name == column] or [column]


def _weights(release: "Release", given: list[str]) -> dict[str, Any]:
    """Mode name -> weights of its indices, by MODE=FILE."""
    from tensorveil.data.readers.files import read_table
    from tensorveil.release.cells.open_modes import weights_of

    found = {}
    for part in given:
        name, equals, file = part.partition("=")
        if not equals or not file or name in found:
            raise InputError(f"--weights must be MODE=FILE, once per mode, got {part!r}; correct it")
        found[name] = weights_of(release, release.mode_number(name), read_table(file))
    return found


def _ties(found: Any) -> str:
    """What to say about equal predictions, if there are any."""
    tied = sum(count > 1 for count in found.column("tied").to_pylist())
    if not tied:
        return ""
    return f"{tied:,} listed cells have the same prediction as others (column tied); ties go to the smaller index"


def own_observations(
    release: "Release",
    path: Path,
    format: str | None = None,
    columns: list[str] | None = None,
    value: str | None = None,
    modes: str | None = None,
) -> "Observations":
    """Rows of one or several owners, by the labels of a release."""
    from tensorveil.data.observations import Observations
    from tensorveil.data.readers.files import read_table
    from tensorveil.release.cells.labels import coordinates_in, unknown_labels, values_in

    table = with_mode_names(read_table(path, format=format, columns=columns), modes)
    values = values_in(release, table, value)
    where = coordinates_in(release, table)
    missing = unknown_labels(release, where)
    mode = release.withheld_mode
    if mode is not None and release.mode_names[mode] in missing:
        raise InputError(
            f"the {release.mode_names[mode]} of {path.name} must be known to the release, got an unknown one"
        )
    known = (where >= 0).all(axis=1)  # others say nothing that the release could use
    if not known.any():
        raise InputError(f"{path.name} must have at least one row whose labels the release knows, got none")
    return Observations(where[known], values[known], release.shape, mode_names=release.mode_names, duplicates="keep")


def write_table(table: Any, path: Path) -> None:
    """A table as CSV or Parquet by the ending, written aside and renamed."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    from tensorveil.release.saving import written_aside

    try:
        with written_aside(path) as aside:
            (csv.write_csv if path.suffix.lower() == ".csv" else parquet.write_table)(table, aside)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"--out must be a file in a writable folder, got {error}; choose another file") from error
