"""`tensorveil demo`: the whole workflow on synthetic data."""

from pathlib import Path
from typing import Annotated

import typer

from tensorveil.cli.complete import run_job
from tensorveil.cli.job import Job
from tensorveil.errors import InputError


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the data and the release.")] = Path("demo-output"),
) -> None:
    """Complete a synthetic tensor of taxi trips under differential privacy and compare the error with baselines.

    Example: tensorveil demo --out demo-output
    """
    import shutil

    from rich.console import Console
    from rich.table import Table

    from tensorveil import demo as demonstration
    from tensorveil.release.release import Release

    console = Console()
    file, release_folder = out / "trips.csv", out / "release"
    if release_folder.exists() and not file.exists():
        raise InputError(f"--out must be new or the folder of an earlier demo, got {out}; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    data = demonstration.make_data()
    demonstration.write_data(data, file)
    if (release_folder / "certificate.json").exists():
        shutil.rmtree(release_folder)  # of an earlier demonstration
    console.print(f"Made-up data: {data.train}, in {file}", soft_wrap=True)
    job = Job(
        input=file,
        modes=demonstration.MODES,
        value=demonstration.VALUE,
        bounds=(demonstration.LOW, demonstration.HIGH),
        unit="value",
        epsilon=demonstration.EPSILON,
        rank=(demonstration.RANK,),
        out=release_folder,
    )
    run_job(job, plan_only=False, as_json=False)
    table = Table(title="Error at the unobserved cells (RMSE against the truth, in minutes)")
    table.add_column("approach")
    table.add_column("privacy")
    table.add_column("RMSE", justify="right")
    for row in demonstration.compare(data, Release.load(release_folder)):
        table.add_row(row.approach, row.privacy, f"{row.error:.2f}")
    console.print(table)
    console.print(f"report: {release_folder / 'report.html'}", soft_wrap=True)
    console.print(f"check it: tensorveil verify {release_folder}", soft_wrap=True)
