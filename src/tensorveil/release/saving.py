"""A release in a folder: model.safetensors, labels.json, certificate.json, report.html; all files or none."""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorveil.data.readers.time_bins import BINS
from tensorveil.errors import InputError, SpentError, TensorveilError
from tensorveil.models.completion import Completion
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.release.certificate.certificate import Certificate

if TYPE_CHECKING:
    from tensorveil.release.release import Release

Labels = NDArray[Any]

MODEL, LABELS, CERTIFICATE, REPORT = "model.safetensors", "labels.json", "certificate.json", "report.html"
HASHED = (LABELS, MODEL, REPORT)  # by the certificate
FILES = (CERTIFICATE, *HASHED)
LABELS_VERSION = 1
DRAWS = "draws."  # before the names of arrays of posterior draws
DTYPE = re.compile(r"text|\|b1|[<>|][iu][1248]|<U[0-9]{1,6}|<M8\[(?:[1-9][0-9]{0,4})?(?:Y|M|W|D|h|m|s|ms|us|ns)\]")


def check_target(directory: str | Path) -> Path:
    """The folder to write. Raises an error if it exists or cannot be created; called before any budget is spent."""
    target = Path(directory)
    if os.path.lexists(target):
        raise InputError(f"the folder to write must not exist yet, got {target}; choose another name or move it away")
    if target.name in ("", ".", ".."):
        raise InputError(f"the folder to write must have a name, got {str(directory)!r}; give one")
    parent = target.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"the folder to write must be in a writable folder, got {target}; choose another")
    _remove_leftovers(target)
    return target


def check_space(directory: str | Path, size: int) -> None:
    """Refuse a target whose disk does not take so many bytes: a file of that size is made there and removed again."""
    parent = Path(directory).absolute().parent
    while not parent.is_dir():
        parent = parent.parent
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.write(b"tensorveil")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        free = shutil.disk_usage(parent).free
        raise InputError(
            f"the disk of {directory} must take about {size / 1e6:,.1f} MB, got {error.strerror} with "
            f"{free / 1e6:,.1f} MB free; nothing was spent: make room, or choose another folder"
        ) from error


def _remove_leftovers(target: Path) -> None:
    """Remove folders that killed runs of this machine left beside the target; name those of other machines."""
    for found in target.absolute().parent.glob(f"{glob.escape(_aside_prefix(target))}*.part"):
        machine, _, process = found.name.removesuffix(".part").split(".")[-2].partition("-")
        if machine == _machine() and process.isdigit() and not _is_running(int(process)):
            shutil.rmtree(found, ignore_errors=True)
        elif machine != _machine():
            logging.getLogger("tensorveil").warning(
                "left by a run on another machine, to be removed if it ended: %s", found
            )


def _aside_prefix(target: Path) -> str:
    return f".{target.name[:100]}."


def _machine() -> str:
    """A short name for this machine that does not tell its own name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        return True
    return True


def save_release(release: Release, directory: str | Path, about: Mapping[str, str] | None = None) -> Path:
    """Write the release to a temporary folder, then rename it."""
    from tensorveil.release.report.report import report_html

    target = check_target(directory)
    _check_whole(release)
    contents = {MODEL: _model_bytes(release.model), LABELS: _labels_bytes(release)}
    certificate = Certificate.of(release, about).with_files({name: sha256(part) for name, part in contents.items()})
    contents[REPORT] = report_html(release, certificate).encode()
    certificate = certificate.with_files({name: sha256(part) for name, part in contents.items()})
    contents[CERTIFICATE] = certificate.to_json().encode()
    _write_folder(target, contents)
    if release.ledger is not None and release.paid_by is not None and release.paid_by.path.is_file():
        try:
            release.paid_by.saved(certificate)
        except TensorveilError as error:  # the folder is kept
            raise SpentError(
                f"{target} was written completely, but the ledger could not record it: {error}; "
                "run: tensorveil ledger record LEDGER DIR"
            ) from error
    return target


def load_parts(directory: str | Path) -> dict[str, Any]:
    """What a release in a folder is made of, by name; every file is checked against the certificate first."""
    contents = read_folder(directory)
    certificate = Certificate.from_json(contents[CERTIFICATE])
    if certificate.computed_digest() != certificate.digest:
        raise InputError(f"{CERTIFICATE} must have the digest that it states, got another; it was changed")
    for name in HASHED:
        if certificate.files.get(name) != sha256(contents[name]):
            raise InputError(f"{name} must have the SHA-256 that the certificate states, got another; it was changed")
    return parts_of(contents, certificate)


def parts_of(contents: Mapping[str, bytes], certificate: Certificate) -> dict[str, Any]:
    """The parts of a release from these files and the certificate; hashes are not checked here."""
    labels, bins = read_labels(contents[LABELS], certificate)
    return {
        "model": read_model(contents[MODEL], certificate),
        "guarantee": certificate.guarantee,
        "mode_names": certificate.mode_names,
        "labels": labels,
        "bins": bins,
        "value_name": certificate.value_name,
        "ledger": None if certificate.ledger is None else certificate.ledger.model_dump(),
        "generator": certificate.randomness.generator,
        "certificate": certificate,
        "contributions": None
        if certificate.contributions is None
        else tuple(one.model_dump() for one in certificate.contributions),
    }


def release_folder(directory: str | Path) -> Path:
    """The folder, which must exist."""
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"a release must be a folder, got {folder}; give a folder that tensorveil complete wrote")
    return folder


def read_folder(directory: str | Path) -> dict[str, bytes]:
    """The bytes of the four files; anything else in the folder is an error, links included."""
    folder = release_folder(directory)
    found = sorted(path.name for path in folder.iterdir())
    missing, more = sorted(set(FILES) - set(found)), sorted(set(found) - set(FILES))
    if missing or more:
        told = [f"no {', '.join(missing)}"] if missing else []
        told += [f"also {', '.join(more[:5])}"] if more else []
        raise InputError(f"a release must hold {', '.join(FILES)} and nothing else, got {'; '.join(told)}; in {folder}")
    contents = {}
    for name in FILES:
        mode = os.lstat(folder / name).st_mode
        if not stat.S_ISREG(mode):
            raise InputError(f"{name} must be a regular file, got a link or something else; in {folder}")
        if mode & 0o111:
            raise InputError(f"{name} must not be executable, got one that is; in {folder}")
        try:
            contents[name] = (folder / name).read_bytes()
        except OSError as error:
            raise InputError(f"{name} must be readable, got {error.strerror}; in {folder}") from error
    return contents


def read_model(data: bytes, certificate: Certificate) -> Completion:
    """The model of model.safetensors; its arrays must be those that the certificate's shape and ranks call for."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{MODEL} must be a safetensors file, got something else ({error}); it was changed") from error
    family, shape, order = certificate.family, certificate.shape, len(certificate.shape)
    if family.ranks_for(shape) != certificate.model.ranks:
        raise InputError("the certificate's ranks must suit its family and shape, got others; it was changed")
    shapes: dict[str, tuple[int, ...]] = {
        "core" if place == order else f"factors.{place}": block
        for place, block in enumerate(family.block_shapes(shape))
    }
    blocks = list(shapes)
    if certificate.bounds is not None:
        shapes["offsets.mean"] = (1,)
        shapes |= {f"offsets.{mode}": (shape[mode],) for mode in range(order) if f"offsets.{mode}" in arrays}
    drawn = {name: arrays.pop(name) for name in list(arrays) if name.startswith(DRAWS)}
    if set(arrays) != set(shapes):
        raise InputError(f"{MODEL} must hold {', '.join(shapes)}, got {', '.join(sorted(arrays)) or 'nothing'}")
    for name, wanted in shapes.items():
        if arrays[name].shape != wanted or arrays[name].dtype != np.float64:
            raise InputError(
                f"{name} in {MODEL} must be float64 of shape {wanted}, "
                f"got {arrays[name].dtype} of {arrays[name].shape}; it was changed"
            )
        if not np.isfinite(arrays[name]).all():
            raise InputError(f"{name} in {MODEL} must be finite, got NaN or an infinity; it was changed")
    factors = family.model([arrays[name] for name in blocks])
    if certificate.bounds is None:
        if drawn:
            raise InputError(f"{MODEL} must hold draws with bounds only, got some without; it was changed")
        return Completion.unclipped(factors)
    offsets = Offsets(float(arrays["offsets.mean"][0]), [arrays.get(f"offsets.{mode}") for mode in range(order)])
    withheld = None if certificate.personalize is None else certificate.personalize.mode
    draws = _read_draws(drawn, family, certificate)
    low, high = certificate.bounds.low, certificate.bounds.high
    model = Completion(offsets, factors, low, high, withheld, draws=draws)
    if withheld is not None and _tells_of(model, withheld):
        raise InputError(f"{MODEL} must not hold rows of mode {withheld}, which belong to their owners, got some")
    return model


def _read_draws(
    arrays: Mapping[str, NDArray[Any]], family: ModelFamily, certificate: Certificate
) -> PosteriorDraws | None:
    """Draws from a posterior, as many as the certificate tells."""
    if not arrays and certificate.model.draws == 0:
        return None
    named = {name.removeprefix(DRAWS): array for name, array in arrays.items()}
    draws = PosteriorDraws.from_arrays(family, certificate.shape, named)
    ours = draws.arrays()
    if set(ours) != set(named) or any(ours[name].dtype != array.dtype for name, array in named.items()):
        raise InputError(f"the draws in {MODEL} must have the names and types that they were saved with, got others")
    if len(draws) != certificate.model.draws:
        raise InputError(f"{MODEL} must hold {certificate.model.draws} draws, got {len(draws)}; it was changed")
    return draws


def read_labels(data: bytes, certificate: Certificate) -> tuple[tuple[Labels | None, ...], tuple[str | None, ...]]:
    """Labels and bins of every mode, from labels.json."""
    try:
        found = json.loads(data)
        if (found["schema_version"], found["value_name"]) != (LABELS_VERSION, certificate.value_name):
            raise ValueError("another schema_version or value_name than the certificate")
        if sorted(found) != ["modes", "schema_version", "value_name"]:
            raise ValueError("other keys")
        if tuple(mode["name"] for mode in found["modes"]) != certificate.mode_names:
            raise ValueError("other names of modes than the certificate")
        labels = tuple(_label_array(mode, size) for mode, size in zip(found["modes"], certificate.shape, strict=True))
        return labels, tuple(mode["bin"] for mode in found["modes"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{LABELS} must hold the labels of every mode, got something else ({error})") from error


def _label_array(mode: Mapping[str, Any], size: int) -> Labels | None:
    if sorted(mode) != ["bin", "dtype", "labels", "name"] or mode["bin"] not in (None, *BINS):
        raise ValueError(f"other keys or bins for {mode['name']}")
    if mode["labels"] is None:
        return None
    kind = mode["dtype"]
    if not isinstance(kind, str) or not DTYPE.fullmatch(kind) or not isinstance(mode["labels"], list):
        raise ValueError(f"no known type of labels for {mode['name']}")
    wanted: type = bool if kind == "|b1" else int if kind[1] in "iu" else str
    if not all(type(label) is wanted for label in mode["labels"]):
        raise ValueError(f"labels of mixed types for {mode['name']}")
    if len(mode["labels"]) != size or len(set(mode["labels"])) != size:
        raise ValueError(f"not {size} different labels for {mode['name']}")
    array = np.array(mode["labels"], dtype=object if kind == "text" else np.dtype(kind))
    array.setflags(write=False)
    return array


def _labels_bytes(release: Release) -> bytes:
    modes = []
    for name, labels, bins in zip(release.mode_names, release.labels, release.bins, strict=True):
        kind, plain = _plain_labels(name, labels)
        modes.append({"name": name, "bin": bins, "dtype": kind, "labels": plain})
    found = {"schema_version": LABELS_VERSION, "value_name": release.value_name, "modes": modes}
    return (json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _plain_labels(name: str, labels: Labels | None) -> tuple[str | None, list[Any] | None]:
    """The type of the labels, and the labels as JSON has them; times as ISO 8601."""
    if labels is None:
        return None, None
    array = np.asarray(labels)
    if array.dtype.kind == "M" and not np.isnat(array).any() and DTYPE.fullmatch(array.dtype.newbyteorder("<").str):
        return array.dtype.newbyteorder("<").str, np.datetime_as_string(array).tolist()
    if array.dtype.kind in "biuU":
        return array.dtype.newbyteorder("<").str, array.tolist()
    texts = [str(label) for label in array.tolist()]  # what is neither of these becomes a text: a release is not lost
    if len(set(texts)) != len(texts):
        raise InputError(f"labels of {name!r} must be different when written, got repeated ones; use texts")
    return "text", texts


def _model_bytes(model: Completion) -> bytes:
    from safetensors.numpy import save

    factors = model.factors
    arrays: dict[str, NDArray[Any]] = {f"factors.{mode}": factor for mode, factor in enumerate(factors.factors)}
    if factors.core is not None:
        arrays["core"] = factors.core
    if model.clipped:
        arrays["offsets.mean"] = np.array([model.offsets.mean])
        arrays |= {f"offsets.{mode}": part for mode, part in enumerate(model.offsets.modes) if part is not None}
        if model.draws is not None:
            arrays |= {f"{DRAWS}{name}": array for name, array in model.draws.arrays().items()}
    return bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def _check_whole(release: Release) -> None:
    """Refuse to write a personal model, or rows that must be withheld."""
    model = release.model
    if model.owned_index is not None or model.personal:
        raise InputError("a release must be for everybody, got the model of one owner; save the joint release instead")
    if model.withheld_mode is not None and _tells_of(model, model.withheld_mode):
        raise InputError(f"a joint release must not hold rows of mode {model.withheld_mode}, got some; do not save it")


def _tells_of(model: Completion, mode: int) -> bool:
    """Whether any number of this mode's rows or offsets is not zero, in the model or in a draw."""
    part = model.offsets.modes[mode]
    return (
        (model.draws is not None and model.draws.tells_of(mode))
        or bool(np.any(model.factors.factors[mode]))
        or (part is not None and bool(np.any(part)))
    )


def sha256(data: bytes) -> str:
    """The hash by which a certificate names a file."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to inside the block; the file takes its place only if the block succeeds."""
    aside = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    try:
        yield aside
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _write_folder(target: Path, contents: Mapping[str, bytes]) -> None:
    """All files in a folder aside, on disk, then one rename."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f"{_aside_prefix(target)}{_machine()}-{os.getpid()}."
        aside = Path(tempfile.mkdtemp(prefix=prefix, suffix=".part", dir=target.parent))
    except OSError as error:
        raise InputError(f"{target} must be in a folder that can be written to, got {error.strerror}") from error
    try:
        for name, part in contents.items():
            with (aside / name).open("xb") as file:
                file.write(part)
                file.flush()
                os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        aside.chmod(0o777 & ~mask)  # mkdtemp's folder is for its owner alone
        _sync_folder(aside)
        aside.rename(target)
    except OSError as error:
        raise InputError(
            f"{target} must not exist and its disk must be writable, got {error.strerror}; nothing was written"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):  # the folder is whole by now; some disks cannot sync a folder
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
