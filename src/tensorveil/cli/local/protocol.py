"""`tensorveil protocol`."""

from pathlib import Path
from typing import Annotated

import typer


def protocol(
    bounds: Annotated[
        tuple[float, float], typer.Option(help="The public range of the values (low and high), not that of the data.")
    ],
    epsilon: Annotated[float, typer.Option(help="What each answer may cost.")],
    out: Annotated[Path, typer.Option(help="The JSON file to write.")],
    levels: Annotated[
        str | None,
        typer.Option(
            help="The public values that there are, e.g. 1,2,3,4,5. Default: whole numbers or halves if the bounds are "
            "such and there are 5 to 32 of them, otherwise 32 even cells of the bounds."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Design a local protocol: how clients randomize their values before anybody else sees them.

    The file holds a table of chances in whole numbers. Give the same file to all clients (tensorveil randomize) and to
    the server (tensorveil complete --protocol). The command shows the error to expect before anybody answers.

    Examples:

    tensorveil protocol --bounds 1 5 --epsilon 5 --out protocol.json

    tensorveil protocol --bounds 0 10 --levels 0,1,2,5,10 --epsilon 2 --out protocol.json
    """
    from tensorveil.cli.console import print_json, say
    from tensorveil.errors import InputError
    from tensorveil.mechanisms.local.protocols import design_protocol, expected_of
    from tensorveil.privacy.bounds import Bounds

    try:
        grid = None if levels is None else [float(part) for part in levels.split(",")]
    except ValueError:
        raise InputError(f"levels must be numbers separated by commas, got {levels!r}; write e.g. 1,2,3") from None
    made = design_protocol(Bounds(*bounds), epsilon, levels=grid)
    expected = expected_of(made)
    made.save(out)
    if as_json:
        print_json(
            {
                "out": str(out),
                "sha256": made.sha256,
                "epsilon": made.epsilon,
                "bounds": [made.low, made.high],
                "levels": None if made.levels is None else list(made.levels),
                "symbols": len(made.counts[0]),
                "kept_information": expected.kept,
                "noise_std": expected.noise_std,
            }
        )
        return
    told = f"{len(made.counts)} even cells" if made.levels is None else ", ".join(f"{level:g}" for level in made.levels)
    say(f"local protocol, epsilon {made.epsilon:g} per answer, bounds [{made.low:g}, {made.high:g}]")
    say(f"levels: {told}" + ("" if levels else " (chosen from the bounds; --levels names others)"))
    say(str(expected))
    say(f"wrote {out}, sha256 {made.sha256}")
