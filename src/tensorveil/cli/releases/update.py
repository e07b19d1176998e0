"""`tensorveil update`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tensorveil.cli.job import ABOUT, parsed_options, signature_with

SHARED = ("delta", "labels", "modes", "ledger", "dataset", "format", "columns", "duplicates", "seed", *ABOUT)


def update(
    *,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the earlier release.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Later observations: CSV, TSV or Parquet, same columns.")],
    epsilon: Annotated[float, typer.Option(help="The privacy budget of the later data.")],
    out: Annotated[Path, typer.Option(help="The folder to create.")],
    time: Annotated[
        str | None,
        typer.Option(help="The mode that splits earlier from later data. Default: the one that holds binned times."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
    **options: Any,
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
    from tensorveil.release.certificate.records import checked_about
    from tensorveil.release.ledger.ledger import Ledger
    from tensorveil.release.ledger.paying import counted_as_spent
    from tensorveil.release.release import Release
    from tensorveil.release.saving import check_space, check_target
    from tensorveil.release.updates.update import read_later, time_mode
    from tensorveil.release.updates.update import update as release_later

    given = parsed_options(options)
    if ("ledger" in given) != ("dataset" in given):
        raise InputError("--ledger and --dataset must be given together, got only one of them; add the other")
    about = {name: given[name] for name in ABOUT if name in given}
    checked_about(about)
    check_target(out)
    earlier = Release.load(directory)
    if "people" in about and about["people"] not in earlier.mode_names:
        raise InputError(f"--people must be one of the modes {list(earlier.mode_names)}, got {about['people']!r}")
    number = time_mode(earlier, time)
    read = {name: given[name] for name in ("modes", "format", "columns", "duplicates") if name in given}
    files = {name: Path(file) for name, file in given.get("labels", {}).items()}
    later = read_later(earlier, new, number, labels=files, **read)
    check_space(out, 2 * sum(file.stat().st_size for file in directory.iterdir()))
    ledger = Ledger(given["ledger"]) if "ledger" in given else None
    with progress_bar() as progress:
        found = release_later(
            earlier,
            later,
            epsilon,
            given.get("delta", 0.0),
            time=number,
            seed=given.get("seed"),
            progress=progress,
            ledger=ledger,
            dataset=given.get("dataset"),
        )
        with counted_as_spent(found.ledger):
            found.save(out, about)
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


vars(update)["__signature__"] = signature_with(update, SHARED)
