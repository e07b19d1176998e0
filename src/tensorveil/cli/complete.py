"""`tensorveil complete`: from a file to a release with its certificate and report."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorveil.cli.console import print_json, progress_bar, say
from tensorveil.cli.job import ENGINES, OPTIONS, Job, job_of, signature_with
from tensorveil.errors import InputError

if TYPE_CHECKING:
    from tensorveil.data.observations import Observations
    from tensorveil.data.shards import Sharded
    from tensorveil.engines.local import Engine
    from tensorveil.mechanisms.base import Mechanism
    from tensorveil.privacy.coupled import Coupled
    from tensorveil.privacy.plan import Plan
    from tensorveil.release.ledger.ledger import Ledger


def complete(
    *,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file of these options (docs/configuration.md). Options on the command line win."),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Show the plan and its privacy cost, then stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
    **options: Any,
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

    tensorveil complete visits.csv --modes patient,ward --value days --bounds 0 60 --unit value --epsilon 4 --out DIR
    --coupled people.csv --coupled-modes patient,about --coupled-value share --coupled-bounds 0 1

    tensorveil complete answers.parquet --modes user,film --protocol protocol.json --person user --out DIR

    Exit status: 0, done; 2, invalid input, nothing was spent; 3, refused by the ledger, nothing was spent; 4, failed
    after the budget was reserved, so it counts as spent; 130 and 143, interrupted or terminated.
    """
    job = job_of(options, config)
    if job.out is None and not plan_only:
        raise InputError("--out must be given, got none; name the folder to create, or use --plan-only")
    run_job(job, plan_only=plan_only, as_json=as_json)


vars(complete)["__signature__"] = signature_with(complete, OPTIONS)


def run_job(job: Job, *, plan_only: bool, as_json: bool) -> None:
    """Read the data, plan, show the cost, fit, save and report."""
    from tensorveil import checks
    from tensorveil.data.shards import Sharded
    from tensorveil.mechanisms.auto import FAMILIES, NAMES
    from tensorveil.mechanisms.local.answers import LocalAnswers
    from tensorveil.mechanisms.local.protocols import expected_of
    from tensorveil.privacy.bounds import Bounds
    from tensorveil.privacy.units import Unit
    from tensorveil.release.advice.advisor import outlook
    from tensorveil.release.certificate.certificate import Certificate
    from tensorveil.release.certificate.records import checked_about
    from tensorveil.release.fitting import fit, plan
    from tensorveil.release.ledger.ledger import Ledger
    from tensorveil.release.ledger.paying import counted_as_spent
    from tensorveil.release.memory import needed_space, traffic
    from tensorveil.release.report.meaning import added_up
    from tensorveil.release.report.variation import sentence, variation_of
    from tensorveil.release.saving import check_space, check_target

    started = time.monotonic()
    checks.choice("model", job.model, FAMILIES)  # errors now rather than after reading
    mechanism = _mechanism(job)
    if isinstance(mechanism, str):
        checks.choice("mechanism", mechanism, NAMES)
    checks.choice("engine", job.engine, ENGINES)
    family, bounds, unit = job.family, Bounds(*job.bounds), Unit.of(job.unit)
    ledger = None if job.ledger is None else Ledger(job.ledger)
    if job.out is not None:
        check_target(job.out)
    checked_about(job.about)
    observations, coupled = read_input(job), _coupled(job)
    if job.people is not None and job.people not in observations.mode_names:
        raise InputError(f"--people must be one of the modes {list(observations.mode_names)}, got {job.people!r}")
    if job.engine == "dask" and not isinstance(observations, Sharded):
        raise InputError("--engine dask must be for a folder of shards, got a file; write one with tensorveil shard")
    if math.isinf(job.epsilon):
        _without_privacy(job, observations, ledger, plan_only, as_json)
        return
    planned = plan(
        observations,
        family,
        bounds,
        unit,
        job.epsilon,
        job.delta,
        mechanism=mechanism,
        levels=job.levels,
        expected_count=job.expected_count,
        at_most=job.at_most,
        features=job.features,
        smooth=job.smooth,
        coupled=coupled,
    )
    say(str(planned), aside=as_json)
    expected = str(expected_of(mechanism.protocol)) if isinstance(mechanism, LocalAnswers) else outlook(planned)
    say(expected, aside=as_json)
    if isinstance(observations, Sharded):
        say(traffic(planned, observations), aside=as_json)
    if plan_only or job.out is None:
        if as_json:
            print_json(_told(planned) | {"expected": expected})
        return
    check_space(job.out, needed_space(planned, observations.labels))
    with _engine(job, observations) as engine, progress_bar() as progress:
        release = fit(
            observations,
            planned,
            seed=job.seed,
            progress=progress,
            ledger=ledger,
            dataset=job.dataset,
            engine=engine,
            coupled=coupled,
        )
        progress("writing model, certificate and report", 0, 1)
        with counted_as_spent(release.ledger):
            release.save(job.out, job.about)
    seconds = time.monotonic() - started
    say(f"\n{release.guarantee}", aside=as_json)
    whole = added_up(Certificate.of(release, job.about))
    if whole:
        say(whole, aside=as_json)
    constant = variation_of(release.model)
    if constant is not None and constant["nearly_constant"]:
        say(sentence(constant), aside=as_json)
    if not release.guarantee.publishable:
        say("Not for publication.", aside=as_json)
    say(f"{seconds:.1f} s; wrote {job.out}: open {job.out / 'report.html'}", aside=as_json)
    if as_json:
        found = {**_told(planned), "expected": expected, "status": release.guarantee.status}
        found |= {"publishable": release.guarantee.publishable, "out": str(job.out), "seconds": round(seconds, 3)}
        print_json(found)


def _without_privacy(
    job: Job, observations: Observations | Sharded, ledger: Ledger | None, plan_only: bool, as_json: bool
) -> None:
    """`--epsilon inf`: the same model without noise, marked as not private wherever it is shown."""
    from tensorveil.release.fitting import complete as completed
    from tensorveil.release.without_privacy import NO_PRIVACY

    if job.seed is not None or job.levels is not None:
        raise InputError("--seed and --levels must be left out with --epsilon inf, got one of them; no noise is drawn")
    if job.coupled is not None:
        raise InputError("--coupled must be left out with --epsilon inf, got a table; complete the first one alone")
    say(str(NO_PRIVACY), aside=as_json)
    facts: dict[str, Any] = {"epsilon": None, "status": "none", "publishable": False}
    if not plan_only and job.out is not None:
        with progress_bar() as progress:
            release = completed(
                observations,
                job.family,
                job.bounds,
                job.unit,
                job.epsilon,
                features=job.features,
                smooth=job.smooth,
                progress=progress,
                ledger=ledger,
                dataset=job.dataset,
            )
            release.save(job.out, job.about)
        facts["out"] = str(job.out)
        say(f"wrote {job.out}, which is NOT private: for comparison inside your organisation only", aside=as_json)
    if as_json:
        print_json(facts)


def _mechanism(job: Job) -> Mechanism | str:
    """The name of the mechanism, or the completion of local answers."""
    if job.protocol is None:
        return job.mechanism
    from tensorveil.mechanisms.local.answers import LocalAnswers
    from tensorveil.privacy.local.client import LocalProtocol

    return LocalAnswers(LocalProtocol.load(job.protocol), job.person)


def _coupled(job: Job) -> Coupled | None:
    """The second table that a job names, if it names one."""
    if job.coupled is None:
        return None
    from tensorveil.privacy.coupled import Coupled

    levels, modes, value = job.coupled_levels, job.coupled_modes, job.coupled_value
    return Coupled(job.coupled, job.coupled_bounds, levels=levels, modes=modes, value=value)


def _engine(job: Job, data: Observations | Sharded) -> AbstractContextManager[Engine | None]:
    if job.engine == "local":
        return nullcontext()
    from tensorveil.engines.dask import cluster

    return cluster(job.scheduler, len(data) * (8 + 4 * len(data.shape)))


def read_input(job: Job) -> Observations | Sharded:
    """The observations that a job names: a file, or a folder of shards."""
    from tensorveil.data.readers.files import read
    from tensorveil.data.shards import is_sharded, opened

    if is_sharded(job.input):
        given = [name for name in ("format", "columns", "bin", "labels", "public_labels") if getattr(job, name)]
        if given:
            raise InputError(f"--{given[0]} must be left out for a folder of shards, got one; the manifest states it")
        return opened(job.input, job.modes, job.value, shape=job.shape)
    with progress_bar() as progress:
        progress(f"reading {job.input.name}", 0, 1)
        return read(
            job.input,
            job.modes,
            job.value,
            format=job.format,
            columns=job.columns,
            bins=job.bin,
            labels={mode: Path(file) for mode, file in (job.labels or {}).items()},
            shape=job.shape,
            first_index=job.first_index,
            public_labels=job.public_labels,
            duplicates=job.duplicates,
        )


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
        "coupled": None if plan.request.coupled is None else asdict(plan.request.coupled),
    }
