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
    average: Annotated[
        str | None, typer.Option(help="Modes to average over with equal weights, e.g. day. TEST needs no such columns.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Also rank all items for each person, and report recall and NDCG of the first K.")
    ] = None,
    person: Annotated[
        str | None, typer.Option(help="With --top: the mode of the people. Default: the first other than --mode.")
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="With --top: the mode of the ranked items. Default: the second mode.")
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(help="With --top: a file of known cells: not ranked again, and the source of popularity."),
    ] = None,
    relevant: Annotated[
        float | None,
        typer.Option(help="With --top: items with at least this value are relevant. Default: above the mean."),
    ] = None,
    format: Annotated[str | None, typer.Option(help="csv, tsv or parquet. Default: taken from the file name.")] = None,
    columns: Annotated[str | None, typer.Option(help="Column names, for a file without a header.")] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="MODE=COLUMN,... for columns that have other names than the modes, e.g. user=userId."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Compare the predictions of a release with true values. For internal use only: do not publish the errors.

    Rows with labels that the release does not know are predicted from the offsets of their known labels and counted.

    Examples:

    tensorveil evaluate DIR test.csv

    tensorveil evaluate DIR ua.test --format tsv --columns user,film,rating,day

    tensorveil evaluate DIR users_and_films.csv --average day

    tensorveil evaluate DIR test.csv --top 10 --mode film --known train.csv --relevant 4

    Coverage is the share of values inside of their 90 % intervals. Recall is the share of a person's relevant items
    among the first K of all items that are not known already, averaged over people.
    """
    from dataclasses import asdict

    from tensorveil.cli.console import counted, print_json, print_table, say
    from tensorveil.cli.releases.predict import own_observations, with_mode_names
    from tensorveil.data.readers.files import read_table
    from tensorveil.errors import InputError
    from tensorveil.release.cells.ranking import rank_items
    from tensorveil.release.evaluation import evaluate_table
    from tensorveil.release.predictions import everybody
    from tensorveil.release.release import Release

    release = Release.load(directory)
    names = None if columns is None else columns.split(",")
    table = with_mode_names(read_table(test, format=format, columns=names), modes)
    mine = None if own is None else own_observations(release, own, format, names, value, modes)
    if top is None and any(option is not None for option in (person, mode, known, relevant)):
        raise InputError("--person, --mode, --known and --relevant must be used with --top, got no --top; add --top K")
    if top is not None and average is not None:
        raise InputError("--average must be used without --top, got both; run the command twice")
    averaged = [name.strip() for name in average.split(",")] if average else []
    found = evaluate_table(release, table, value, mine, averaged)
    ranking = None
    if top is not None:
        model = release.model if mine is None else everybody(release, mine)
        cells = None if known is None else with_mode_names(read_table(known, format=format, columns=names), modes)
        options = {"value": value, "person": person, "item": mode, "known": cells, "relevant": relevant}
        ranking = rank_items(release, model, table, top, **options)  # type: ignore[arg-type]
    if as_json:
        ranks = {} if ranking is None else {"ranking": asdict(ranking)}
        print_json({"directory": str(directory), **asdict(found), **ranks, "warning": WARNING})
        return
    errors = (
        ("the release", found.rmse, found.mae),
        ("the release, known labels only", found.known_rmse if found.unknown_rows else None, None),
        ("the release's mean everywhere", found.release_mean_rmse, found.release_mean_mae),
        ("its mean and offsets alone", found.offsets_rmse, found.offsets_mae),
        ("the mean of the test values", found.test_mean_rmse, None),
    )
    print_table(
        ((name, f"{rmse:.4f}", "" if mae is None else f"{mae:.4f}") for name, rmse, mae in errors if rmse is not None),
        ("prediction", "RMSE", "MAE"),
        title=counted(found.rows, "row") + (f", {found.personal}" if found.personal else ""),
        caption=WARNING,
        numbers=("RMSE", "MAE"),
    )
    if found.coverage is not None and found.interval_width is not None:
        width = f"mean width {found.interval_width:.3g}"
        say(f"{100 * found.coverage:.1f} % of the values lie inside of their 90 % intervals ({width})")
    if ranking is not None:
        headings = ("ranked by", f"recall@{ranking.k}", f"NDCG@{ranking.k}")
        print_table(
            ((name, f"{hits:.4f}", f"{gain:.4f}") for name, (hits, gain) in ranking.scores.items()),
            headings,
            title=f"first {ranking.k} of {ranking.item} for {counted(ranking.people, ranking.person)}",
            numbers=headings[1:],
        )
        sample = "; a sample of the people" if ranking.sampled else ""
        say(f"relevant: {release.value_name} of at least {ranking.relevant:g}{sample}")
    if found.unknown_rows:
        told = ", ".join(f"{count:,} {name}" for name, count in found.unknown.items())
        unknown = counted(found.unknown_rows, "row") + " with labels unknown to the release"
        say(f"{unknown} ({told}): predicted from the offsets of their known labels")
