"""`tensorveil predict`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorveil.errors import InputError

if TYPE_CHECKING:
    from tensorveil.data.observations import Observations
    from tensorveil.models.completion import Completion
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
            help="For a joint release: a file with your own rows and values. The predictions are for you alone."
        ),
    ] = None,
    unknown: Annotated[
        str,
        typer.Option(help="For labels unknown to the release: error, or offsets (predict from the known labels)."),
    ] = "error",
    format: Annotated[
        str | None, typer.Option(help="Format of COORDS: csv, tsv or parquet. Default: taken from the file name.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Column names of COORDS, if it has no header.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Predict values for the labels in a file, or find the cells with the highest predictions.

    Examples:

    tensorveil predict DIR cells.csv --out predictions.csv

    tensorveil predict DIR users.csv --top 10 --mode film --out best_films.csv

    tensorveil predict DIR cells.csv --own my_ratings.csv --out mine.csv

    With --top K, COORDS has columns for only some of the modes. For each of its rows, all labels of the other modes are
    tried, and the K cells with the highest predictions are written with their rank. With --mode film, each film is
    listed at most once, with its best cell.
    """
    from tensorveil.cli.console import counted, print_json, say
    from tensorveil.data.readers.files import read_table
    from tensorveil.release.predictions import predicted_arrow, top_table
    from tensorveil.release.release import Release

    if out.suffix.lower() not in ENDINGS:
        raise InputError(f"--out must end in .csv or .parquet, got {out.name}; rename it")
    if mode is not None and top is None:
        raise InputError("--mode must be used together with --top, got only --mode; add --top K")
    if top is not None and top < 1:
        raise InputError(f"--top must be at least 1, got {top}; give the number of cells per row")
    release = Release.load(directory)
    if own is None and release.withheld_mode is not None:
        name = release.mode_names[release.withheld_mode]
        raise InputError(f"--own must be given for a joint release, got none; name a file with the rows of one {name}")
    table = read_table(coordinates, format=format, columns=None if columns is None else columns.split(","))
    model, whom = None, ""
    if own is not None:
        model, whom, table = _as_owner(release, own, table)
    found: Any
    if top is not None:
        found = top_table(release, table, top, distinct=mode, model=model)
        unknown_rows = 0
    else:
        found, predicted = predicted_arrow(release, table, unknown, model=model)
        unknown_rows = int((~predicted.known).sum())
    for_whom = f"for {whom} alone, not part of the public release" if whom else "for anybody who may see the release"
    if whom:
        import pyarrow as pa

        found = found.append_column("for_whom", pa.array([f"{whom} alone"] * found.num_rows, pa.string()))
    write_table(found, out)
    if as_json:
        print_json({"out": str(out), "rows": found.num_rows, "unknown_rows": unknown_rows, "use": for_whom})
        return
    say(f"wrote {counted(found.num_rows, 'row')} to {out}: {for_whom}")
    if unknown_rows:
        told = counted(unknown_rows, "row") + " with labels that the release does not know"
        say(f"{told}: predicted from the offsets of their known labels")


def _as_owner(release: "Release", own: Path, table: Any) -> tuple["Completion", str, Any]:
    """The owner's model, who that is, and the table, with the owner filled in where it does not say."""
    import pyarrow as pa

    from tensorveil.release.predictions import indices_of

    mode = release.withheld_mode
    if mode is None:
        raise InputError("--own must be left out, because this is not a joint release (unit slice); predict without it")
    mine = own_observations(release, own)
    owners = len(set(mine.coordinates[:, mode].tolist()))
    if owners != 1:
        raise InputError(
            f"{own.name} must have rows of one {release.mode_names[mode]} only, got {owners}; keep only your own rows"
        )
    model = release.personalize(mine)
    name, labels, owner = release.mode_names[mode], release.labels[mode], model.owned_index
    label = owner if labels is None else labels[owner].item() if hasattr(labels[owner], "item") else labels[owner]
    if name in table.column_names and (indices_of(release, mode, table.column(name)) != owner).any():
        raise InputError(
            f"COORDS must contain only the {name} of {own.name}, got others; each owner can predict only for itself"
        )
    if name not in table.column_names:
        table = table.append_column(name, pa.array([label] * table.num_rows))
    return model, f"{name} {label}", table


def own_observations(
    release: "Release",
    path: Path,
    format: str | None = None,
    columns: list[str] | None = None,
    value: str | None = None,
) -> "Observations":
    """Rows of one or several owners, by the labels of a release."""
    from tensorveil.data.observations import Observations
    from tensorveil.data.readers.files import read_table
    from tensorveil.release.predictions import coordinates_in, unknown_labels, values_in

    table = read_table(path, format=format, columns=columns)
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
