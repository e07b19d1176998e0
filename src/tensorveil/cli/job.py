"""The options of `tensorveil complete`: one table for the command line, the configuration file and their help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer

from tensorveil.errors import InputError

if TYPE_CHECKING:
    from tensorveil.models.factor_model import ModelFamily

Reader = Callable[[Any], Any]

STATED_BY_PROTOCOL = ("bounds", "unit", "epsilon", "delta", "at_most", "mechanism", "levels", "ledger", "dataset")
ENGINES = ("local", "dask")
ABOUT = ("title", "data", "purpose", "controller", "contact", "recipients", "legal_basis", "run_by", "people")
REQUIRED = ("input", "modes", "value", "bounds", "unit", "epsilon")


def _names(found: Any) -> tuple[str, ...]:
    parts = found.split(",") if isinstance(found, str) else found
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("names separated by commas, e.g. user,film,day")
    return tuple(part.strip() for part in parts)


def _modes(found: Any) -> tuple[str, ...] | dict[str, str]:
    """Names of columns, or mode=column for modes with other names; in a configuration file also a table of such."""
    if isinstance(found, Mapping):
        return _pairs(found)
    names = _names(found)
    if not any("=" in name for name in names):
        return names
    pairs = [(mode, column if equals else mode) for mode, equals, column in (name.partition("=") for name in names)]
    if len(dict(pairs)) != len(pairs):
        raise ValueError("names or NAME=COLUMN, each name once, e.g. user=userId,film=movieId")
    return _pairs(dict(pairs))


def _levels(found: Any) -> tuple[float, ...]:
    parts = found.split(",") if isinstance(found, str) else found
    try:
        if not isinstance(parts, list | tuple) or any(isinstance(part, bool) for part in parts):
            raise TypeError
        return tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise ValueError("numbers separated by commas, e.g. 1,2,3,4,5") from None


def _names_of_all(found: Any) -> tuple[str, ...]:
    """Names from an option that may be repeated; each occurrence may list several, separated by commas."""
    return _names(found) if isinstance(found, str) else tuple(name for part in _names(found) for name in _names(part))


def _smooth(found: Any) -> dict[str, str | None]:
    """Modes, or MODE:KIND where a kind is given; a configuration file may hold a table of them. none: no mode."""
    if isinstance(found, Mapping):
        return {**_pairs(found)}
    names = _names_of_all(found)
    parts = [name.partition(":") for name in names if names != ("none",)]
    return {mode: kind if colon else None for mode, colon, kind in parts}


def _sizes(found: Any) -> tuple[int, ...]:
    parts = found.split(",") if isinstance(found, str) else found if isinstance(found, list) else [found]
    try:
        if any(isinstance(part, float | bool) for part in parts):
            raise TypeError
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError):
        raise ValueError("whole numbers separated by commas, e.g. 4,4,2") from None


def _pairs(found: Any) -> dict[str, str]:
    if isinstance(found, Mapping):
        pairs = {str(name): str(text) for name, text in found.items()}
    else:
        pairs = dict(part.split("=", 1) if "=" in part else (part, "") for part in found)
    if not all(name and text for name, text in pairs.items()):
        raise ValueError("MODE=VALUE, at most once per mode")
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


TYPED: dict[Reader, Any] = {  # what the command line makes of an option before its reader gets it
    _path: Path | None,
    _names: str | None,
    _modes: str | None,
    _levels: str | None,
    _text: str | None,
    _two_numbers: tuple[float, float] | None,
    _number: float | None,
    _whole: int | None,
    _sizes: str | None,
    _pairs: list[str] | None,
    _names_of_all: list[str] | None,
    _smooth: list[str] | None,
}


def _option(reader: Reader, help: str, default: Any = None) -> Any:
    return field(default=default, metadata={"reader": reader, "help": help})


@final
@dataclass(frozen=True, kw_only=True)
class Job:
    """What the caller asked for, from the command line and the configuration file together.

    A field is an option and a name in the configuration file: its reader checks the value, wherever it comes from.
    """

    input: Path = _option(_path, "Input: CSV, TSV, Parquet (file or folder), .tns, .npz, .mat, or shards.", MISSING)  # noqa: RUF009
    modes: tuple[str, ...] | Mapping[str, str] | None = _option(
        _modes, "Columns that are the modes, e.g. user,film,day, or with other names: user=userId,film=movieId."
    )
    value: str | None = _option(_text, "Name of the column that holds the values.")
    bounds: tuple[float, float] = _option(
        _two_numbers, "The public range of the values (low and high). Do not derive it from the data.", MISSING
    )
    unit: str = _option(_text, "What is protected: value, entry, slice:MODE or slice_values:MODE.", MISSING)
    epsilon: float = _option(_number, "The privacy budget; inf for a model without privacy, to compare with.", MISSING)
    delta: float = _option(_number, "0 for pure privacy (the default), or for example 1e-6.", 0.0)
    at_most: int | None = _option(_whole, "With a slice unit: the number of observations kept per slice.")
    expected_count: int | None = _option(
        _whole, "A public guess of the number of observations. A wrong guess only costs accuracy."
    )
    model: str = _option(_text, "cp (the default), nonnegative (CP without negative factors), tucker, or auto.", "cp")
    rank: tuple[int, ...] | None = _option(
        _sizes, "Default: 12 for the units value and slice_values, 5 otherwise. For Tucker, e.g. 4,4,2."
    )
    mechanism: str = _option(_text, "auto (the default), input, gradient, output, statistic or sums.", "auto")
    levels: tuple[float, ...] | None = _option(
        _levels,
        "The 2 to 32 values that can occur, if they are public, e.g. 1,2,3,4,5: then nothing is paid to find them.",
    )
    ledger: Path | None = _option(_path, "The ledger that pays for the release (see tensorveil ledger create).")  # noqa: RUF009
    dataset: str | None = _option(_text, "The data set's name in the ledger.")
    out: Path | None = _option(_path, "The folder to create, with model, labels, certificate and report.")  # noqa: RUF009
    format: str | None = _option(_text, "csv, tsv, parquet, tns, npz or mat. Default: taken from the file name.")
    columns: tuple[str, ...] | None = _option(_names, "Column names, for a file without a header.")
    bin: Mapping[str, str] | None = _option(
        _pairs, "MODE=hour|day|week|month|year groups a column of times into bins; day+hour makes two modes."
    )
    labels: Mapping[str, str] | None = _option(_pairs, "MODE=FILE, where FILE lists the public labels, one per line.")
    public_labels: tuple[str, ...] = _option(
        _names_of_all, "Declare that the labels of MODE found in the data are public. The certificate records this.", ()
    )
    features: Mapping[str, str] | None = _option(
        _pairs, "MODE=FILE, a table of public features, one row per label. Do not derive them from the values."
    )
    smooth: Mapping[str, str | None] | None = _option(
        _smooth,
        "Modes whose neighbouring indices are alike, e.g. day or hour:periodic. Default: binned times. none: no mode.",
    )
    coupled: Path | None = _option(  # noqa: RUF009
        _path, "A second table, as private as INPUT, that shares a mode with it. With --unit value."
    )
    coupled_modes: tuple[str, ...] | Mapping[str, str] | None = _option(
        _modes, "With --coupled: the columns that are its modes; one has the name of a mode of INPUT."
    )
    coupled_value: str | None = _option(_text, "With --coupled: the column that holds its values.")
    coupled_bounds: tuple[float, float] | None = _option(
        _two_numbers, "With --coupled: the public range of its values (low and high)."
    )
    coupled_levels: tuple[float, ...] | None = _option(
        _levels, "With --coupled: the 2 to 32 values that can occur in it, if they are public."
    )
    shape: tuple[int, ...] | None = _option(
        _sizes, "Public sizes of the modes, e.g. 943,1682. The columns then hold integer indices."
    )
    first_index: int = _option(_whole, "With --shape: the smallest index, 0 (the default) or 1.", 0)
    duplicates: str = _option(
        _text, "What to do with several values in one cell: error (the default), keep or mean.", "error"
    )
    protocol: Path | None = _option(  # noqa: RUF009
        _path, "The protocol by which clients made INPUT (see tensorveil randomize): local privacy."
    )
    person: str | None = _option(
        _text, "With --protocol: the mode of people; the guarantee then covers all answers of one."
    )
    title: str | None = _option(_text, "For the report: its title.")
    data: str | None = _option(_text, "For the report: what the data are, and of which period.")
    purpose: str | None = _option(_text, "For the report: what the release is for.")
    controller: str | None = _option(_text, "For the report: who is responsible for the data.")
    contact: str | None = _option(_text, "For the report: whom to ask, e.g. the data protection officer.")
    recipients: str | None = _option(_text, "For the report: who will get the release.")
    legal_basis: str | None = _option(_text, "For the report: on which legal ground.")
    run_by: str | None = _option(_text, "For the report: who ran this.")
    people: str | None = _option(_text, "For the report: the mode whose indices are people. It shows none of them.")
    seed: int | None = _option(_whole, "Seed for experiments. A seeded release must not be published.")
    engine: str = _option(_text, "local (the default) or dask, for a folder of shards (see tensorveil shard).", "local")
    scheduler: str | None = _option(
        _text, "With --engine dask: the address of the scheduler. Default: a cluster here, with one worker per core."
    )

    @property
    def about(self) -> dict[str, str]:
        """What the report states for those who sign it."""
        return {name: getattr(self, name) for name in ABOUT if getattr(self, name) is not None}

    @property
    def family(self) -> ModelFamily | str:
        """The model; if no rank was given, only its name, so that `plan` chooses the rank."""
        from tensorveil.models.cp import CP
        from tensorveil.models.tucker import Tucker

        if self.rank is None:
            return self.model
        if self.model == "auto":
            raise InputError(f"--rank must be left out with --model auto, which chooses it, got {self.rank}")
        if self.model == "tucker":
            return Tucker(self.rank[0] if len(self.rank) == 1 else self.rank)
        if len(self.rank) != 1:
            raise InputError(f"--rank must be one number for {self.model}, got {self.rank}; write --rank 5")
        return CP(self.rank[0], nonnegative=self.model == "nonnegative")


OPTIONS = {option.name: option for option in fields(Job)}


def signature_with(command: Callable[..., None], names: Iterable[str]) -> inspect.Signature:
    """What the command line reads: some options of a job, then those of the command itself."""
    own = inspect.signature(command, eval_str=True)
    given = []
    for name in names:
        told = (typer.Argument if name == "input" else typer.Option)(None, help=OPTIONS[name].metadata["help"])
        typed = TYPED[OPTIONS[name].metadata["reader"]]
        given.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=told, annotation=typed))
    return own.replace(parameters=[*given, *list(own.parameters.values())[:-1]])


def typed(name: str) -> str:
    """The name of an option as it is typed, or of the argument as the help shows it."""
    return "INPUT" if name == "input" else f"--{name.replace('_', '-')}"


def parsed_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Options as their readers make them; those that were not given are left out."""
    parsed: dict[str, Any] = {}
    for name, found in asked.items():
        if found in (None, [], ()):
            continue
        try:
            parsed[name] = OPTIONS[name].metadata["reader"](found)
        except ValueError as error:
            raise InputError(f"{typed(name)} must be {error}, got {found!r}; correct it") from None
    return parsed


def job_of(given: Mapping[str, Any], config: Path | None = None) -> Job:
    """The job from the options that were given and a configuration file; an option takes precedence over the file."""
    from tensorveil.data.shards import is_sharded

    asked = {**_config(config), **{name: found for name, found in given.items() if found not in (None, [], ())}}
    parsed = parsed_options(asked)
    dense = parsed.get("format") in ("npz", "mat", "tns") or (
        "input" in parsed
        and (parsed["input"].suffix.lower() in (".npz", ".mat", ".tns") or is_sharded(parsed["input"]))
    )
    if "protocol" in parsed:
        _fill_in(parsed)
    elif "person" in parsed:
        raise InputError("--person must be used together with --protocol, got it alone; leave it out")
    for name in REQUIRED:
        if name not in parsed and not (dense and name in ("modes", "value")):
            raise InputError(f"{typed(name)} must be given, got none; see tensorveil complete --help")
    _check_coupled(parsed)
    if ("ledger" in parsed) != ("dataset" in parsed):
        raise InputError("--ledger and --dataset must be given together, got only one of them; add the other")
    return Job(**parsed)


def _check_coupled(parsed: Mapping[str, Any]) -> None:
    """The options of a second table belong together."""
    given = [name for name in OPTIONS if name.startswith("coupled_") and name in parsed]
    needed = [name for name in ("coupled_modes", "coupled_value", "coupled_bounds") if name not in parsed]
    if "coupled" not in parsed and given:
        raise InputError(f"{typed(given[0])} must be used together with --coupled, got it alone; add it")
    if "coupled" in parsed and needed:
        raise InputError(f"{typed(needed[0])} must be given with --coupled, got none; add it")


def _fill_in(parsed: dict[str, Any]) -> None:
    """What the protocol of local answers states, and the column of the answers."""
    from tensorveil.cli.local.randomize import answers_column
    from tensorveil.privacy.local.client import LocalProtocol

    stated = [name for name in (*STATED_BY_PROTOCOL, "seed") if name in parsed]
    if stated:
        options = ", ".join(map(typed, stated))
        raise InputError(f"{options} must be left out with --protocol, got some; the protocol and its clients fix that")
    agreed = LocalProtocol.load(parsed["protocol"])
    parsed |= {"bounds": (agreed.low, agreed.high), "unit": "value", "epsilon": agreed.epsilon, "mechanism": "local"}
    if "value" not in parsed and "input" in parsed:
        path, columns = parsed["input"], parsed.get("columns")
        parsed["value"] = answers_column(path, parsed.get("format"), columns, agreed.sha256)


def _config(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config must be a file that can be read, got {path} ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config must be a valid TOML file, got an error: {error}; correct {path}") from error
    named = {name.replace("-", "_"): part for name, part in found.items()}
    unknown = sorted(set(named) - set(OPTIONS))
    if unknown:
        raise InputError(f"the names in {path} must be options of complete, got {', '.join(unknown)}; remove them")
    return named
