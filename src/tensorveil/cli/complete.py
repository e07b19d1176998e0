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
        Path | None, typer.Argument(help="CSV, TSV, Parquet (file or folder), .tns, .npz or .mat.")
    ] = None,
    modes: Annotated[str | None, typer.Option(help="Columns that are the modes, e.g. user,film,day.")] = None,
    value: Annotated[str | None, typer.Option(help="Column that holds the values.")] = None,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(help="The public range of values: low and high, not read off the data."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="Whose privacy: value, entry, slice:MODE or slice_values:MODE.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    delta: Annotated[float | None, typer.Option(help="0 (pure privacy, the default) or e.g. 1e-6.")] = None,
    at_most: Annotated[int | None, typer.Option(help="With slices: how many observations of each are kept.")] = None,
    expected_count: Annotated[
        int | None, typer.Option(help="A public guess of the number of observations; a wrong one costs accuracy only.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="cp (the default) or tucker.")] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            help="Default: 12 where the posterior shrinks factors (value, slice_values), else 5. Tucker: 4,4,2."
        ),
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="auto (the default), input, gradient, output, statistic, sums.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="The account to pay from: tensorveil ledger create.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The data set's name in the ledger.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to make: model, labels, certificate, report.")] = None,
    format: Annotated[str | None, typer.Option(help="csv, tsv, parquet, tns, npz, mat; else by the ending.")] = None,
    columns: Annotated[str | None, typer.Option(help="Names of the columns of a file without a header.")] = None,
    bin: Annotated[list[str] | None, typer.Option(help="MODE=hour|day|week|month|year, for a column of times.")] = None,
    labels: Annotated[list[str] | None, typer.Option(help="MODE=FILE with one public label a line.")] = None,
    public_labels: Annotated[
        list[str] | None,
        typer.Option(help="MODE whose labels, though read off the data, are public: you say so, the certificate too."),
    ] = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="MODE=FILE with public facts, a row a label: numbers, or texts. Not derived from the values."
        ),
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Public sizes, e.g. 943,1682; columns then hold indices.")] = None,
    first_index: Annotated[int | None, typer.Option(help="With --shape: 0 (the default) or 1.")] = None,
    duplicates: Annotated[str | None, typer.Option(help="error (the default), keep, or mean.")] = None,
    seed: Annotated[int | None, typer.Option(help="For experiments: the release is then not for publication.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same names; options win over it.")] = None,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Show the plan and its price and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")] = False,
) -> None:
    """Complete the tensor in a file under differential privacy: plan, price, run, certificate, report.

    Examples:

    tensorveil complete ratings.csv --modes user,film,day --value rating --bounds 1 5 --unit value --epsilon 1 --out DIR

    tensorveil complete ua.base --format tsv --columns user,film,rating,day --bin day=day --modes user,film,day
    --value rating --bounds 1 5 --unit value --epsilon 5 --out DIR --features film=films.csv

    tensorveil complete visits.parquet --modes patient,diagnosis --value cost --bounds 0 1000 --unit slice:patient
    --at-most 50 --labels patient=patients.txt --labels diagnosis=codes.txt --epsilon 1 --delta 1e-6
    --ledger L.sqlite --dataset clinic --out DIR

    Exit status: 0 done; 2 wrong input, nothing spent; 3 the ledger refused, nothing spent; 4 failed after the budget
    was reserved, which counts as spent; 130 interrupted.
    """
    options = {name: found for name, found in context.params.items() if name in READERS}
    job = job_of(options, config)
    if job.out is None and not plan_only:
        raise InputError("--out must be given, got none; name the folder to make, or use --plan-only")
    run_job(job, plan_only=plan_only, as_json=as_json)


def run_job(job: Job, *, plan_only: bool, as_json: bool) -> None:
    """Read, plan, show the price, fit, save, tell."""
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
    """Save; what fails here is lost with this process, and its budget with it."""
    from tensorveil.release.ledger.paying import spent_text

    unpaid = "the noise was drawn: the budget of this release counts as spent"
    spent = unpaid if release.ledger is None else spent_text(release.ledger)
    try:
        release.save(out)
    except SpentError:
        raise
    except Exception as error:
        raise SpentError(f"{spent}: {error}") from error
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
        raise InputError(f"--ledger must be an existing file, got {job.ledger}; make it with tensorveil ledger create")
    return Ledger(job.ledger)


def _told(plan: Plan) -> dict[str, Any]:
    """The plan as a program reads it."""
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
