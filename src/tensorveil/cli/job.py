"""The job that `tensorveil complete` runs: options and configuration file combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from tensorveil.errors import InputError

if TYPE_CHECKING:
    from tensorveil.models.factor_model import ModelFamily

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
            raise InputError(f"--rank must be one number for cp, got {self.rank}; write --rank 5")
        return CP(self.rank[0])


def _names(found: Any) -> tuple[str, ...]:
    parts = found.split(",") if isinstance(found, str) else found
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) and part.strip() for part in parts):
        raise ValueError("names separated by commas, e.g. user,film,day")
    return tuple(part.strip() for part in parts)


def _names_of_all(found: Any) -> tuple[str, ...]:
    """Names from an option that may be repeated; each occurrence may list several, separated by commas."""
    return _names(found) if isinstance(found, str) else tuple(name for part in _names(found) for name in _names(part))


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


NAMES_OF_READERS: dict[Callable[[Any], Any], str] = {
    _path: "input ledger out",
    _names: "modes columns",
    _text: "value unit model mechanism dataset format duplicates",
    _two_numbers: "bounds",
    _number: "epsilon delta",
    _whole: "at_most expected_count first_index seed",
    _sizes: "rank shape",
    _pairs: "bin labels features",
    _names_of_all: "public_labels",
}
READERS = {name: reader for reader, names in NAMES_OF_READERS.items() for name in names.split()}


def job_of(given: Mapping[str, Any], config: Path | None = None) -> Job:
    """The job from the options that were given and a configuration file; an option takes precedence over the file."""
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
        raise InputError("--ledger and --dataset must be given together, got only one of them; add the other")
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
        raise InputError(f"--config must be a valid TOML file, got an error: {error}; correct {path}") from error
    named = {name.replace("-", "_"): part for name, part in found.items()}
    unknown = sorted(set(named) - set(READERS))
    if unknown:
        raise InputError(f"the names in {path} must be options of complete, got {', '.join(unknown)}; remove them")
    return named
