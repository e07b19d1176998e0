"""`tensorveil complete`: from a file to a release with its certificate and report."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorveil.cli.console import print_json, progress_bar, say
from tensorveil.cli.job import READERS, Job, job_of
from tensorveil.errors import InputError, SpentError

if TYPE_CHECKING:
    from tensorveil.data.observations import Observations
    from tensorveil.privacy.plan import Plan
    from tensorveil.release.ledger.ledger import Ledger
    from tensorveil.release.release import Release


def complete(
    context: typer.Context,
    input: Annotated[
        Path | None, typer.Argument(help="Input file: CSV, TSV, Parquet (file or folder), .tns, .npz or .mat.")
    ] = None,
    modes: Annotated[
        str | None, typer.Option(help="Names of the columns that are the modes, e.g. user,film,day.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="Name of the column that holds the values.")] = None,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(help="The public range of the values (low and high). Do not derive it from the data."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="What is protected: value, entry, slice:MODE or slice_values:MODE.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The privacy budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="0 for pure privacy (the default), or for example 1e-6.")] = None,
    at_most: Annotated[
        int | None, typer.Option(help="With a slice unit: the number of observations kept per slice.")
    ] = None,
    expected_count: Annotated[
        int | None,
        typer.Option(help="A public guess of the number of observations. A wrong guess only costs accuracy."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="cp (the default), tucker, or auto: the one that released numbers favour.")] = None,
    rank: Annotated[
        str | None,
        typer.Option(help="Default: 12 for the units value and slice_values, 5 otherwise. For Tucker, e.g. 4,4,2."),
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="auto (the default), input, gradient, output, statistic or sums.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="The ledger that pays for the release (see tensorveil ledger create).")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The data set's name in the ledger.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to create, with model, labels, certificate and report.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="csv, tsv, parquet, tns, npz or mat. Default: taken from the file name.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Column names, for a file without a header.")] = None,
    bin: Annotated[
        list[str] | None, typer.Option(help="MODE=hour|day|week|month|year groups a column of times into bins.")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option(help="MODE=FILE, where FILE lists the public labels, one per line.")
    ] = None,
    public_labels: Annotated[
        list[str] | None,
        typer.Option(
            help="Declare that the labels of MODE found in the data are public. The certificate records this."
        ),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="MODE=FILE, a table of public features, one row per label. Do not derive them from the values."
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Public sizes of the modes, e.g. 943,1682. The columns then hold integer indices."),
    ] = None,
    first_index: Annotated[
        int | None, typer.Option(help="With --shape: the smallest index, 0 (the default) or 1.")
    ] = None,
    duplicates: Annotated[
        str | None, typer.Option(help="What to do with several values in one cell: error (the default), keep or mean.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for experiments. A seeded release must not be published.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the same names. Options on the command line take precedence.")
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Show the plan and its privacy cost, then stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Complete the tensor in a file under differential privacy and write a release folder.

    The command shows the plan and its privacy cost, runs it, and writes the model, its certificate and a report.

    Examples:

    tensorveil complete ratings.csv --modes user,film,day --value rating --bounds 1 5 --unit value --epsilon 1 --out DIR

    tensorveil complete ua.base --format tsv --columns user,film,rating,day --bin day=day --modes user,film,day
    --value rating --bounds 1 5 --unit value --epsilon 5 --out DIR --features film=films.csv

    tensorveil complete visits.parquet --modes patient,diagnosis --value cost --bounds 0 1000 --unit slice:patient
    --at-most 50 --labels patient=patients.txt --labels diagnosis=codes.txt --epsilon 1 --delta 1e-6
    --ledger L.sqlite --dataset clinic --out DIR

    Exit status: 0, done; 2, invalid input, nothing was spent; 3, refused by the ledger, nothing was spent; 4, failed
    after the budget was reserved, so it counts as spent; 130, interrupted.
    """
    options = {name: found for name, found in context.params.items() if name in READERS}
    job = job_of(options, config)
    if job.out is None and not plan_only:
        raise InputError("--out must be given, got none; name the folder to create, or use --plan-only")
    run_job(job, plan_only=plan_only, as_json=as_json)


def run_job(job: Job, *, plan_only: bool, as_json: bool) -> None:
    """Read the data, plan, show the cost, fit, save and report."""
    from tensorveil import checks
    from tensorveil.mechanisms.auto import FAMILIES, NAMES
    from tensorveil.privacy.bounds import Bounds
    from tensorveil.privacy.units import Unit
    from tensorveil.release.fitting import fit, plan
    from tensorveil.release.saving import check_target

    started = time.monotonic()
    checks.choice("model", job.model, FAMILIES)  # errors now rather than after reading
    checks.choice("mechanism", job.mechanism, NAMES)
    family, bounds, unit = job.family, Bounds(*job.bounds), Unit.of(job.unit)
    ledger = _ledger(job)
    if job.out is not None:
        check_target(job.out)
    observations = _read(job)
    planned = plan(
        observations,
        family,
        bounds,
        unit,
        job.epsilon,
        job.delta,
        mechanism=job.mechanism,
        expected_count=job.expected_count,
        at_most=job.at_most,
        features=job.features,
    )
    say(str(planned), aside=as_json)
    if plan_only or job.out is None:
        if as_json:
            print_json(_told(planned))
        return
    with progress_bar() as progress:
        release = fit(observations, planned, seed=job.seed, progress=progress, ledger=ledger, dataset=job.dataset)
        progress("writing model, certificate and report", 0, 1)
        _save(release, job.out)
    seconds = time.monotonic() - started
    say(f"\n{release.guarantee}", aside=as_json)
    if not release.guarantee.publishable:
        say("Not for publication.", aside=as_json)
    say(f"{seconds:.1f} s; wrote {job.out}: open {job.out / 'report.html'}", aside=as_json)
    if as_json:
        found = {**_told(planned), "status": release.guarantee.status}
        found |= {"publishable": release.guarantee.publishable, "out": str(job.out), "seconds": round(seconds, 3)}
        print_json(found)


def _save(release: Release, out: Path) -> None:
    """Save the release; if saving fails, the release and its budget are lost."""
    from tensorveil.release.ledger.paying import UNPAID, reason, spent_text

    spent = UNPAID if release.ledger is None else spent_text(release.ledger)
    try:
        release.save(out)
    except SpentError:
        raise
    except Exception as error:
        raise SpentError(f"{spent}: {reason(error)}") from error
    except KeyboardInterrupt as stop:
        stop.add_note(spent)
        raise


def _read(job: Job) -> Observations:
    from tensorveil.data.readers.files import read

    with progress_bar() as progress:
        progress(f"reading {job.input.name}", 0, 1)
        return read(
            job.input,
            job.modes,
            job.value,
            format=job.format,
            columns=job.columns,
            bins=job.bin,
            labels={mode: Path(file) for mode, file in job.labels.items()},
            shape=job.shape,
            first_index=job.first_index,
            public_labels=job.public_labels,
            duplicates=job.duplicates,
        )


def _ledger(job: Job) -> Ledger | None:
    if job.ledger is None:
        return None
    from tensorveil.release.ledger.ledger import Ledger

    if not job.ledger.is_file():
        raise InputError(
            f"--ledger must be an existing file, got {job.ledger}; create it with tensorveil ledger create"
        )
    return Ledger(job.ledger)


def _told(plan: Plan) -> dict[str, Any]:
    """The plan as a dictionary for JSON output."""
    return {
        "mechanism": plan.mechanism.name,
        "why": plan.reason,
        "model": str(plan.request.family),
        "shape": list(plan.request.shape),
        "unit": plan.request.unit_text,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "asked": {"epsilon": plan.request.epsilon, "delta": plan.request.delta},
        "stages": [stage.to_json() for stage in plan.stages],
        "public_inputs": [asdict(given) for given in plan.public_inputs],
    }
