"""`tensorveil compare`."""

import math
from pathlib import Path
from typing import Annotated

import typer


def compare(
    first: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a release.")],
    second: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the other release.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Compare two releases: privacy unit, cost, mechanism, and the difference of their predictions.

    Example: tensorveil compare DIR OTHER_DIR
    """
    from dataclasses import asdict

    from tensorveil.cli.console import print_json, print_table, say
    from tensorveil.release.certificate.certificate import Certificate
    from tensorveil.release.evaluation import difference
    from tensorveil.release.release import Release

    releases = [Release.load(path) for path in (first, second)]
    certificates = [Certificate.of(release) for release in releases]
    apart = difference(*releases)
    left, right = certificates
    warnings = []
    if (left.unit, left.at_most) != (right.unit, right.at_most):
        warnings.append("the units differ, so their epsilons protect different things and cannot be compared")
    elif left.delta != right.delta:
        warnings.append("the deltas differ; use the curves in the reports to compare the epsilons at the same delta")
    if not all(certificate.publishable for certificate in certificates):
        warnings.append("at least one release is not for publication; a claimed or seeded epsilon guarantees nothing")
    rows: dict[str, list[str] | list[float] | list[float | None]] = {
        "status": [one.status + (", seeded" if one.seeded else "") for one in certificates],
        "unit": [one.unit + (f", at most {one.at_most}" if one.at_most else "") for one in certificates],
        "epsilon": [None if math.isinf(one.epsilon) else one.epsilon for one in certificates],
        "delta": [one.delta for one in certificates],
        "mechanism": [one.mechanism for one in certificates],
        "model": [f"{one.model.kind} {'x'.join(map(str, one.model.ranks))}" for one in certificates],
        "shape": [" x ".join(map(str, one.shape)) for one in certificates],
        "modes": [", ".join(one.mode_names) for one in certificates],
        "bounds": [
            "none" if one.bounds is None else f"{one.bounds.low:g} to {one.bounds.high:g}" for one in certificates
        ],
        "created": [one.created for one in certificates],
    }
    if as_json:
        print_json({"releases": [str(first), str(second)], **rows, "difference": asdict(apart), "warnings": warnings})
        return
    shown = ([_shown(text) for text in texts] for texts in rows.values())
    print_table(([name, *texts] for name, texts in zip(rows, shown, strict=True)), ("", str(first), str(second)))
    if apart.rms is None:
        say(f"predictions not compared: {apart.why}")
    else:
        say(f"root mean square difference of predictions: {apart.rms:.4g} on {apart.cells:,} common cells")
    for warning in warnings:
        say(f"warning: {warning}")


def _shown(text: str | float | None) -> str:
    if text is None:
        return "infinite"
    return f"{text:.6g}" if isinstance(text, float) else text
