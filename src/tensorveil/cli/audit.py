"""`tensorveil audit`."""

from pathlib import Path
from typing import Annotated

import typer


def audit(
    mechanism: Annotated[
        str,
        typer.Argument(
            help="input, gradient, output, statistic, sums, published-input, published-gradient or published-output.",
            metavar="MECHANISM",
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="The epsilon that the mechanism states.")],
    model: Annotated[str, typer.Option(help="cp or tucker.")] = "cp",
    unit: Annotated[
        str, typer.Option(help="value, entry, slice:MODE or slice_values:MODE; modes are user, item, day.")
    ] = "value",
    delta: Annotated[
        float | None, typer.Option(help="Default 0, or 1e-5 where the mechanism cannot do without.", show_default=False)
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Runs of each world; by default what takes about a minute.", show_default=False)
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound.")] = 0.95,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
    picture: Annotated[Path | None, typer.Option(help="Write the two distributions of scores as SVG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON alone.")] = False,
) -> None:
    """Run a mechanism on two neighbouring tensors, bound its epsilon from below, and compare with what it states.

    Exit status 1 if the stated epsilon is refuted. An audit can refute, never prove.

    Example: tensorveil audit published-gradient --epsilon 0.1
    """
    from json import dumps

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from tensorveil.audit.worlds import audit_mechanism

    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:  # no thread beside forks
        line = bar.add_task("releases", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(line, completed=done, total=total, refresh=True)

        found = audit_mechanism(
            mechanism,
            model,
            unit,
            epsilon=epsilon,
            delta=delta,
            runs=runs,
            confidence=confidence,
            workers=workers,
            progress=show,
        )
    if picture is not None:
        from tensorveil.audit.pictures import draw_scores

        title = f"{found.mechanism} perturbation, {found.model}, unit {found.unit}"
        draw_scores(found.bound, title.replace("published-", "published "), picture, found.stated_epsilon)
    if json:
        typer.echo(dumps(found.to_json(), indent=2))
    else:
        console = Console()
        table = Table(show_header=False, title=f"audit of {found.mechanism} ({found.model}, unit {found.unit})")
        bound = found.bound
        for name, text in (
            ("stated epsilon", f"{found.stated_epsilon:g}" + (f", delta {found.delta:g}" if found.delta else "")),
            ("lower bound", f"{bound.epsilon:.3f}"),
            ("confidence", f"{100 * bound.confidence:.10g} %"),
            ("runs", f"{bound.runs:,} a world, half of them counted"),
            ("event", f"{bound.event}"),
            ("seen", f"{bound.hits:,} of {bound.counted:,} there, {bound.false_positives:,} in the other world"),
            ("form", "Gaussian: valid against Gaussian noise alone" if bound.claim == "gaussian" else "any mechanism"),
            ("verdict", found.verdict),
        ):
            table.add_row(name, text)
        console.print(table)
        if not found.refuted:
            console.print("Not refuted is not proven: a guarantee rests on its theorem, an audit looks for mistakes.")
        if picture is not None:
            console.print(f"picture: {picture}", soft_wrap=True)
    if found.refuted:
        raise typer.Exit(1)
