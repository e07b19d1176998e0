"""`tensorveil demo`."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo-output"),
) -> None:
    """Complete the paper's benchmark tensor with each approach and show the errors beside the trivial floor.

    Example: tensorveil demo --out demo-output
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from tensorveil import demo as demonstration

    console = Console()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("completing", total=demonstration.number_of_fits())
        shown, rows, guarantee = demonstration.run_demo(lambda: bar.advance(line))
    table = Table(title="RMSE against the noise-free truth: 20 x 20 x 20, rank 3, half missing, SNR 1 (variances)")
    for heading in ("approach", "privacy", "CP", "Tucker"):
        table.add_column(heading, justify="left" if heading in ("approach", "privacy") else "right", no_wrap=True)
    for row in (row for row in rows if row.model == "cp"):
        keys = ("tucker", row.approach, row.status, row.epsilon)
        twin = next(other for other in rows if (other.model, other.approach, other.status, other.epsilon) == keys)
        privacy = "none" if row.epsilon is None else f"{row.status}, epsilon {row.epsilon:g}"
        name = row.approach if row.epsilon is None else f"{row.approach} perturbation"
        table.add_row(name, privacy, row.text, twin.text)
    console.print(table)
    picture = out / "demo.svg"
    demonstration.draw_demo(shown, rows, picture)
    console.print("The guarantee of the last proven release, in a sentence:")
    console.print(str(guarantee))
    console.print(
        "What is marked 'claimed' is a paper's claim, reproduced as printed and not true: not for publication."
    )
    console.print(f"picture: {picture}", soft_wrap=True)
