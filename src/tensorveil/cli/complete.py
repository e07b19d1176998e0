"""`tensorveil complete`: from a file to a release with its certificate and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from tensorveil.cli.console import print_json, progress_bar, say
from tensorveil.errors import InputError

if TYPE_CHECKING:
    from tensorveil.data.observations import Observations
    from tensorveil.models.factor_model import ModelFamily
    from tensorveil.privacy.plan import Plan
    from tensorveil.privacy.units import Unit
    from tensorveil.release.ledger.ledger import Ledger

FAILED_AFTER_SPENDING = 4
MODELS = ("cp", "tucker")
RANK_OF_POSTERIOR, RANK_OF_OTHERS = 12, 5
REQUIRED = ("input", "modes", "value", "bounds", "unit", "epsilon")


@final
@dataclass(frozen=True)
class Job:
    """What the caller asked for, from the command line and the configuration file together."""

    input: Path
    unit: str
    epsilon: float
    bounds: tuple[float, float]
    modes: tuple[str, ...] | None = None
    value: str | None = None
    delta: float = 0.0
    at_most: int | None = None
    expected_count: int | None = None
    model: str = "cp"
    rank: tuple[int, ...] | None = None
    mechanism: str = "auto"
    ledger: Path | None = None
    dataset: str | None = None
    out: Path | None = None
    format: str | None = None
    columns: tuple[str, ...] | None = None
    bin: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    public_labels: tuple[str, ...] = ()
    features: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    first_index: int = 0
    duplicates: str = "error"
    seed: int | None = None

    def family(self, shape: tuple[int, ...], unit: Unit) -> ModelFamily:
        """The model, its rank by rule where none was given; reads what is public."""
        from tensorveil import checks
        from tensorveil.models.cp import CP
        from tensorveil.models.tucker import Tucker

        checks.choice("model", self.model, MODELS)
        if self.rank is None:
            few = tuple(min(RANK_OF_OTHERS, size) for size in shape)
            return CP(default_rank(shape, unit, self.mechanism)) if self.model == "cp" else Tucker(few)
        if self.model == "cp":
            if len(self.rank) != 1:
                raise InputError(f"rank must be one number for cp, got {self.rank}; write --rank 5")
            return CP(self.rank[0])
        return Tucker(self.rank[0] if len(self.rank) == 1 else self.rank)


def default_rank(shape: tuple[int, ...], unit: Unit, mechanism: str) -> int:
    """Rank of a CP model that nobody gave: many factors where the posterior shrinks what is too much, else few.

    More factors than 12 gained nothing on MovieLens, and fewer lost 0.006 stars; elsewhere each one costs noise.
    """
    shrunk = unit.coordinates_public and mechanism in ("auto", "input")
    most = RANK_OF_POSTERIOR if shrunk else RANK_OF_OTHERS
    return min(most, sorted(shape)[-2])


def _names(found: Any) -> tuple[str, ...]:
    parts = found.split(",") if isinstance(found, str) else found
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("names with commas between, e.g. user,film,day")
    return tuple(part.strip() for part in parts)


def _names_of_all(found: Any) -> tuple[str, ...]:
    """Names of an option that may come several times, each time with commas or without."""
    return _names(found) if isinstance(found, str) else tuple(name for part in _names(found) for name in _names(part))


def _sizes(found: Any) -> tuple[int, ...]:
    parts = found.split(",") if isinstance(found, str) else found if isinstance(found, list) else [found]
    try:
        if any(isinstance(part, float | bool) for part in parts):
            raise TypeError
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        raise ValueError("whole numbers with commas between, e.g. 4,4,2") from None


def _pairs(found: Any) -> dict[str, str]:
    if isinstance(found, Mapping):
        pairs = {str(name): str(text) for name, text in found.items()}
    else:
        pairs = dict(part.split("=", 1) if "=" in part else (part, "") for part in found)
    if not all(name and text for name, text in pairs.items()):
        raise ValueError("MODE=SOMETHING, once a mode")
    return pairs


def _two_numbers(found: Any) -> tuple[float, float]:
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise ValueError("two numbers, low and high")
    return _number(found[0]), _number(found[1])


def _number(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError("a number")
    return float(found)


def _whole(found: Any) -> int:
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError("a whole number")
    return found


def _text(found: Any) -> str:
    if not isinstance(found, str) or not found:
        raise ValueError("a text")
    return found


def _path(found: Any) -> Path:
    return found if isinstance(found, Path) else Path(_text(found))


READERS: dict[str, Callable[[Any], Any]] = {
    "input": _path,
    "modes": _names,
    "value": _text,
    "bounds": _two_numbers,
    "unit": _text,
    "epsilon": _number,
    "delta": _number,
    "at_most": _whole,
    "expected_count": _whole,
    "model": _text,
    "rank": _sizes,
    "mechanism": _text,
    "ledger": _path,
    "dataset": _text,
    "out": _path,
    "format": _text,
    "columns": _names,
    "bin": _pairs,
    "labels": _pairs,
    "public_labels": _names_of_all,
    "features": _pairs,
    "shape": _sizes,
    "first_index": _whole,
    "duplicates": _text,
    "seed": _whole,
}


def job_of(given: Mapping[str, Any], config: Path | None = None) -> Job:
    """The job from the options that were given and a configuration file; an option wins over the file."""
    asked = {**_config(config), **{name: found for name, found in given.items() if found not in (None, [], ())}}
    parsed: dict[str, Any] = {}
    for name, found in asked.items():
        try:
            parsed[name] = READERS[name](found)
        except ValueError as error:
            raise InputError(f"{name.replace('_', '-')} must be {error}, got {found!r}; correct it") from None
    dense = parsed.get("format") in ("npz", "mat", "tns") or (
        "input" in parsed and parsed["input"].suffix.lower() in (".npz", ".mat", ".tns")
    )
    for name in REQUIRED:
        if name not in parsed and not (dense and name in ("modes", "value")):
            raise InputError(f"--{name} must be given, got none; see tensorveil complete --help")
    if ("ledger" in parsed) != ("dataset" in parsed):
        raise InputError("--ledger and --dataset must be given together, got one of them; name the data set's account")
    return Job(**parsed)


def _config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config must be a file that can be read, got {path} ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config must be TOML, got something else ({error}); correct {path}") from error
    named = {name.replace("-", "_"): part for name, part in found.items()}
    unknown = sorted(set(named) - set(READERS))
    if unknown:
        raise InputError(f"the names in {path} must be options of complete, got {', '.join(unknown)}; remove them")
    return named


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
    from tensorveil.data.features import features_for
    from tensorveil.mechanisms.auto import NAMES, choose
    from tensorveil.privacy.bounds import Bounds, check_public
    from tensorveil.privacy.units import Unit
    from tensorveil.release.fitting import fit, request_for
    from tensorveil.release.saving import check_target

    started = time.monotonic()
    checks.choice("mechanism", job.mechanism, NAMES)
    bounds, unit = Bounds(*job.bounds), Unit.of(job.unit)
    if job.rank is not None:
        job.family((), unit)  # an error now rather than after reading
    ledger = _ledger(job)
    if job.out is not None:
        check_target(job.out)
    observations = _read(job)
    check_public(observations, unit)  # a plan that is shown must not tell a private shape
    family = job.family(observations.shape, unit)
    asked = request_for(observations, family, bounds, job.unit, job.epsilon, job.delta, job.expected_count, job.at_most)
    choice = choose(job.mechanism, asked)
    mechanism = choice.mechanism
    if job.features:
        mechanism = mechanism.with_features(features_for(observations, job.features))
    plan = mechanism.plan(
        family,
        bounds,
        job.unit,
        job.epsilon,
        job.delta,
        shape=observations.shape,
        mode_names=observations.mode_names,
        expected_count=job.expected_count,
        at_most=job.at_most,
    )
    say(f"{plan}\nwhy this mechanism: {choice.reason}", aside=as_json)
    if plan_only or job.out is None:
        if as_json:
            print_json(_told(plan, choice.reason))
        return
    with progress_bar() as progress, _told_what_is_spent():
        release = fit(observations, plan, seed=job.seed, progress=progress, ledger=ledger, dataset=job.dataset)
        progress("writing model, certificate and report", 0, 1)
        try:
            release.save(job.out)
        except (Exception, KeyboardInterrupt) as error:
            error.add_note("the noise was drawn: the budget of this release counts as spent")
            raise
    seconds = time.monotonic() - started
    say(f"\n{release.guarantee}", aside=as_json)
    if not release.guarantee.publishable:
        say("Not for publication.", aside=as_json)
    say(f"{seconds:.1f} s; wrote {job.out}: open {job.out / 'report.html'}", aside=as_json)
    if as_json:
        found = {**_told(plan, choice.reason), "status": release.guarantee.status}
        found |= {"publishable": release.guarantee.publishable, "out": str(job.out), "seconds": round(seconds, 3)}
        print_json(found)


@contextmanager
def _told_what_is_spent() -> Iterator[None]:
    """What fails after the budget was reserved says so, and ends with a status of its own."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        from tensorveil.release.ledger.ledger import SPENT

        notes = [note for note in getattr(error, "__notes__", ()) if note.endswith(SPENT)]
        for note in notes:
            say(note, aside=True)
        if not notes or isinstance(error, KeyboardInterrupt):
            raise
        say(f"error: {error}", aside=True)
        raise typer.Exit(FAILED_AFTER_SPENDING) from error


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


def _told(plan: Plan, reason: str) -> dict[str, Any]:
    """The plan as a program reads it."""
    return {
        "mechanism": plan.mechanism.name,
        "why": reason,
        "model": str(plan.request.family),
        "shape": list(plan.request.shape),
        "unit": plan.request.unit_text,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "asked": {"epsilon": plan.request.epsilon, "delta": plan.request.delta},
        "stages": [
            {"name": stage.name, "theorem": stage.theorem, "sensitivity": stage.sensitivity, "noise": stage.noise}
            for stage in plan.stages
        ],
        "public_inputs": [asdict(given) for given in plan.public_inputs],
    }
