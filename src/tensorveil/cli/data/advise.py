"""`tensorveil advise`: how accurate a release will be, before anything is spent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from tensorveil.cli.console import print_json, progress_bar, say
from tensorveil.cli.job import Job, parsed_options, signature_with, typed
from tensorveil.errors import InputError

SIZES = re.compile(r"\d+(x\d+)+")
READ = ("format", "columns", "bin", "labels", "public_labels", "shape", "first_index", "duplicates")
OPTIONS = ("input", "modes", "value", "bounds", "unit", "delta", "at_most", "expected_count", "mechanism", *READ)


def advise(
    *,
    epsilons: Annotated[str, typer.Option(help="The budgets to try, separated by commas.")] = "0.1,0.3,1,3,10",
    models: Annotated[str, typer.Option(help="cp (the default), tucker, or cp,tucker.")] = "cp",
    ranks: Annotated[
        str | None, typer.Option(help="The ranks to try, e.g. 4,8,12. Default: the rank that complete would take.")
    ] = None,
    wanted: Annotated[
        float | None, typer.Option(help="A wanted error, as a share of the values' spread, e.g. 0.6.")
    ] = None,
    spread: Annotated[
        float | None, typer.Option(help="A public guess of the values' standard deviation. Default: a sixth of bounds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
    **options: Any,
) -> None:
    """Say how accurate a release will be, for several budgets, before anything is spent.

    INPUT is a file, or the public sizes of the modes, e.g. 943x1682. The plan that complete would take is run on
    made-up tensors of the same shape and count, with a weak, a middling and a strong signal. Of a file only the shape
    and, under value and slice_values, the number of observations are read. Results are kept in the user's cache folder.

    Examples:

    tensorveil advise 943x1682 --expected-count 90570 --unit value --wanted 0.85

    tensorveil advise ratings.csv --modes user,film --value rating --unit value --models cp,tucker --ranks 4,12

    tensorveil advise 88x539x164 --modes patient,diagnosis,procedure --unit slice:patient --delta 1e-6
    --expected-count 7000
    """
    from tensorveil.privacy.bounds import Bounds
    from tensorveil.release.advice.advisor import advise as advised

    given = parsed_options(options)
    for name in ("input", "unit"):
        if name not in given:
            raise InputError(f"{typed(name)} must be given, got none; see tensorveil advise --help")
    bounds = Bounds(*given["bounds"]) if "bounds" in given else None
    source, names = _source(given)
    with progress_bar() as progress:
        advice = advised(
            source,
            bounds,
            given["unit"],
            _numbers("epsilons", epsilons),
            given.get("delta", 0.0),
            models=[name.strip() for name in models.split(",")],
            ranks=None if ranks is None else [_whole(rank) for rank in _numbers("ranks", ranks)],
            mechanism=given.get("mechanism", "auto"),
            expected_count=given.get("expected_count"),
            at_most=given.get("at_most"),
            mode_names=names,
            spread=spread,
            wanted=wanted,
            progress=progress,
        )
    say(str(advice), aside=as_json)
    if as_json:
        print_json(advice.to_json())


vars(advise)["__signature__"] = signature_with(advise, OPTIONS)


def _source(given: dict[str, Any]) -> tuple[Any, tuple[str, ...] | None]:
    """The sizes with the names of the modes, or the observations of a file, whose names are its own."""
    from tensorveil.cli.complete import read_input

    if SIZES.fullmatch(str(given["input"])) and not Path(given["input"]).exists():
        unused = [name for name in ("value", *READ) if name in given]
        if unused:
            raise InputError(f"{typed(unused[0])} must be left out with sizes, got it; it is for reading a file")
        return [int(size) for size in str(given["input"]).split("x")], given.get("modes")
    job = {name: given[name] for name in ("input", "modes", "value", "unit", *READ) if name in given}
    return read_input(Job(**job, bounds=given.get("bounds", (0.0, 1.0)), epsilon=1.0)), None


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{typed(name)} must be numbers separated by commas, got {text!r}; correct it") from None


def _whole(number: float) -> int:
    if number != int(number):
        raise InputError(f"ranks must be whole numbers, got {number:g}; correct it")
    return int(number)
