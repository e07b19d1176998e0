"""`tensorveil update`."""

from pathlib import Path
from typing import Annotated

import typer


def update(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the earlier release.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Later observations: CSV, TSV or Parquet, same columns.")],
    epsilon: Annotated[float, typer.Option(help="The privacy budget of the later data.")],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    delta: Annotated[float, typer.Option(help="0 for pure privacy, or for example 1e-6.")] = 0.0,
    time: Annotated[
        str | None,
        typer.Option(help="The mode that splits earlier from later data. Default: the one that holds binned times."),
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option(help="MODE=FILE, where FILE lists the public labels, one per line.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="The ledger that pays for the release.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The data set's name in the ledger.")] = None,
    format: Annotated[str | None, typer.Option(help="csv, tsv or parquet. Default: taken from the file name.")] = None,
    columns: Annotated[str | None, typer.Option(help="Column names, for a file without a header.")] = None,
    duplicates: Annotated[
        str, typer.Option(help="What to do with several values in one cell: error, keep or mean.")
    ] = "error",
    seed: Annotated[
        int | None, typer.Option(help="Seed for experiments, if the earlier release has one. Not for publication.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Release later data, starting from an earlier release. Unit, bounds and model are those of the earlier one.

    If no unit can be in both data sets, because the labels of the time mode split them, the later data have a budget of
    their own, and both releases together cost the larger epsilon. Otherwise the costs add up, and --ledger and
    --dataset must be those that paid for the earlier release. The certificate names both parts.

    Example: tensorveil update MAY june.csv --epsilon 1 --out JUNE

    Exit status: as of tensorveil complete.
    """
    from tensorveil.cli.console import print_json, progress_bar, say
    from tensorveil.errors import InputError
    from tensorveil.release.ledger.ledger import Ledger
    from tensorveil.release.ledger.paying import counted_as_spent
    from tensorveil.release.release import Release
    from tensorveil.release.saving import check_target
    from tensorveil.release.updates.update import read_later, time_mode
    from tensorveil.release.updates.update import update as release_later

    if (ledger is None) != (dataset is None):
        raise InputError("--ledger and --dataset must be given together, got only one of them; add the other")
    check_target(out)
    earlier = Release.load(directory)
    given = dict(part.partition("=")[::2] for part in labels or [])
    if not all(name and file for name, file in given.items()):
        raise InputError(f"--labels must be MODE=FILE, once per mode, got {labels}; correct it")
    files = {name: Path(file) for name, file in given.items()}
    names = None if columns is None else columns.split(",")
    number = time_mode(earlier, time)
    later = read_later(earlier, new, number, labels=files, format=format, columns=names, duplicates=duplicates)
    budget = None if ledger is None else Ledger(ledger)
    with progress_bar() as progress:
        found = release_later(
            earlier,
            later,
            epsilon,
            delta,
            time=number,
            seed=seed,
            progress=progress,
            ledger=budget,
            dataset=dataset,
        )
        with counted_as_spent(found.ledger):
            found.save(out)
    told = found.guarantee
    say(str(told), aside=as_json)
    if as_json:
        both, facts = told.with_earlier, told.earlier
        print_json(
            {
                "out": str(out),
                "epsilon": told.epsilon,
                "delta": told.delta,
                "together": {"epsilon": both[0], "delta": both[1]},
                "apart": facts is not None and facts.apart,
                "publishable": told.publishable,
            }
        )
    else:
        say(f"wrote {out}: open {out / 'report.html'}")
