"""`tensorveil evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

WARNING = "for internal use only: these errors are computed from private values without noise; do not publish them"


def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a release.")],
    test: Annotated[Path, typer.Argument(metavar="TEST", help="CSV, TSV or Parquet with labels and true values.")],
    value: Annotated[
        str | None, typer.Option(help="Name of the value column. Default: the same as in the release.")
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(help="For a joint release: a file with all owners' own rows, to evaluate personal predictions."),
    ] = None,
    format: Annotated[str | None, typer.Option(help="csv, tsv or parquet. Default: taken from the file name.")] = None,
    columns: Annotated[str | None, typer.Option(help="Column names, for a file without a header.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Compare the predictions of a release with true values. For internal use only: do not publish the errors.

    Rows with labels that the release does not know are predicted from the offsets of their known labels and counted.

    Examples:

    tensorveil evaluate DIR test.csv

    tensorveil evaluate DIR ua.test --format tsv --columns user,film,rating,day
    """
    from dataclasses import asdict

    from tensorveil.cli.console import counted, print_json, print_table, say
    from tensorveil.cli.releases.predict import own_observations
    from tensorveil.data.readers.files import read_table
    from tensorveil.release.evaluation import evaluate_table
    from tensorveil.release.release import Release

    release = Release.load(directory)
    names = None if columns is None else columns.split(",")
    table = read_table(test, format=format, columns=names)
    mine = None if own is None else own_observations(release, own, format, names, value)
    found = evaluate_table(release, table, value, mine)
    if as_json:
        print_json({"directory": str(directory), **asdict(found), "warning": WARNING})
        return
    errors = (
        ("the release", found.rmse, found.mae),
        ("the release, known labels only", found.known_rmse if found.unknown_rows else None, None),
        ("the release's mean everywhere", found.release_mean_rmse, found.release_mean_mae),
        ("the mean of the test values", found.test_mean_rmse, None),
    )
    print_table(
        ((name, f"{rmse:.4f}", "" if mae is None else f"{mae:.4f}") for name, rmse, mae in errors if rmse is not None),
        ("prediction", "RMSE", "MAE"),
        title=counted(found.rows, "row") + (f", {found.personal}" if found.personal else ""),
        caption=WARNING,
        numbers=("RMSE", "MAE"),
    )
    if found.unknown_rows:
        told = ", ".join(f"{count:,} {name}" for name, count in found.unknown.items())
        unknown = counted(found.unknown_rows, "row") + " with labels unknown to the release"
        say(f"{unknown} ({told}): predicted from the offsets of their known labels")
