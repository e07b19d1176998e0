"""`tensorveil audit`."""

from pathlib import Path
from typing import Annotated

import typer


def audit(
    mechanism: Annotated[
        str,
        typer.Argument(
            help="input, gradient, output, objective, statistic, sums, published-input, published-gradient or "
            "published-output.",
            metavar="MECHANISM",
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="The epsilon that the mechanism states.")],
    model: Annotated[str, typer.Option(help="The model to audit: cp or tucker.")] = "cp",
    unit: Annotated[
        str,
        typer.Option(
            help="The privacy unit: value, entry, slice:MODE or slice_values:MODE, where MODE is user, item or day."
        ),
    ] = "value",
    delta: Annotated[
        float | None,
        typer.Option(
            help="The delta of the mechanism. Default: 0, or 1e-5 if the mechanism needs a positive delta.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(help="Number of runs per data set. Default: as many as take about a minute.", show_default=False),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    workers: Annotated[int, typer.Option(help="Number of worker processes.")] = 2,
    picture: Annotated[
        Path | None, typer.Option(help="Write a plot of the two score distributions to this SVG file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Run a mechanism on two neighbouring tensors and estimate a lower bound on its epsilon.

    The command exits with status 1 if the lower bound exceeds the stated epsilon. An audit can refute a guarantee but
    cannot prove one.

    Example: tensorveil audit published-gradient --epsilon 0.1
    """
    from tensorveil.audit.worlds import audit_mechanism
    from tensorveil.cli.console import print_json, print_table, progress_bar, say

    with progress_bar(threads=False) as progress:  # no thread beside forks
        found = audit_mechanism(
            mechanism,
            model,
            unit,
            epsilon=epsilon,
            delta=delta,
            runs=runs,
            confidence=confidence,
            workers=workers,
            progress=progress,
        )
    if picture is not None:
        from tensorveil.audit.pictures import draw_scores

        title = f"{found.mechanism} perturbation, {found.model}, unit {found.unit}"
        draw_scores(found.bound, title.replace("published-", "published "), picture, found.stated_epsilon)
    if json:
        print_json(found.to_json())
    else:
        bound = found.bound
        seen = f"{bound.hits:,} of {bound.counted:,} runs, against {bound.false_positives:,} on the other data set"
        form = "Gaussian (valid only for purely Gaussian noise)" if bound.claim == "gaussian" else "any mechanism"
        rows = (
            ("stated epsilon", f"{found.stated_epsilon:g}" + (f", delta {found.delta:g}" if found.delta else "")),
            ("lower bound", f"{bound.epsilon:.3f}"),
            ("confidence", f"{100 * bound.confidence:.10g} %"),
            ("runs", f"{bound.runs:,} per data set; half of them are counted"),
            ("event", f"{bound.event}"),
            ("seen", seen),
            ("form", form),
            ("verdict", found.verdict),
        )
        print_table(rows, title=f"audit of {found.mechanism} ({found.model}, unit {found.unit})")
        if not found.refuted:
            say("Not refuted does not mean proven: the guarantee rests on a theorem; an audit only finds mistakes.")
        if picture is not None:
            say(f"picture: {picture}")
    if found.refuted:
        raise typer.Exit(1)
