"""`tensorveil demo`: the whole workflow on synthetic data."""

from pathlib import Path
from typing import Annotated

import typer

from tensorveil.cli.complete import run_job
from tensorveil.cli.console import print_table, say
from tensorveil.cli.job import Job
from tensorveil.errors import InputError


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the data and the release.")] = Path("demo-output"),
    data: Annotated[
        Path | None, typer.Option(help="Only write this CSV file of made-up ratings (user, film, rating).")
    ] = None,
) -> None:
    """Complete a synthetic tensor of taxi trips under differential privacy and compare the error with baselines.

    Example: tensorveil demo --out demo-output

    Example: tensorveil demo --data ratings.csv
    """
    import shutil

    from tensorveil import demo as demonstration
    from tensorveil.release.release import Release

    if data is not None:
        if data.exists():
            raise InputError(f"--data must be a new file, got {data}, which exists; choose another name")
        say(f"Made-up data: {demonstration.write_ratings(data)}, in {data}")
        return
    file, release_folder = out / "trips.csv", out / "release"
    if release_folder.exists() and not file.exists():
        raise InputError(f"--out must be new or the folder of an earlier demo, got {out}; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    trips = demonstration.make_data()
    demonstration.write_data(trips, file)
    if (release_folder / "certificate.json").exists():
        shutil.rmtree(release_folder)  # of an earlier demonstration
    say(f"Made-up data: {trips.train}, in {file}")
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
    rows = demonstration.compare(trips, Release.load(release_folder))
    print_table(
        ((row.approach, row.privacy, f"{row.error:.2f}") for row in rows),
        ("approach", "privacy", "RMSE"),
        title="Error at the unobserved cells (RMSE against the truth, in minutes)",
        numbers=("RMSE",),
    )
    say(f"report: {release_folder / 'report.html'}")
    say(f"check it: tensorveil verify {release_folder}")
