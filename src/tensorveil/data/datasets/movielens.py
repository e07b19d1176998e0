"""MovieLens 100K (Harper and Konstan 2015): users x films x days, with its ua and ub splits.

The data may be used for research but not redistributed, so they are read from a folder, or downloaded and checked.
"""

import hashlib
import http.client
import io
import os
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from tensorveil import checks
from tensorveil.data.observations import Observations
from tensorveil.errors import DownloadError, InputError

SPLITS = ("ua", "ub")
USERS, FILMS = 943, 1682
SECONDS_PER_DAY = 86_400
DATA_VARIABLE = "TENSORVEIL_DATA"
URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
SHA256 = {
    "ua.base": "67b5bcdb380c29f85d56a012ecd88612ae020f30a6730d117a334ee8203b91f2",
    "ua.test": "d0497e202417720f57a184ec8c66be2d1afa4ff41bb53787c57b28d6bf79bc42",
    "ub.base": "237254d253b6ad7de84f919d041055428646254f34ed8f562703c899430cd881",
    "ub.test": "d54a72d05730d5892062734b2bec73e976f9b713d18c828a18b968d6cce442da",
    "u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
    "u.item": "553841ebc7de3a0fd0d6b62a204ea30c1e651aacfb2814c7a6584ac52f2c5701",
    "u.user": "f120e114da2e8cf314fd28f99417c94ae9ddf1cb6db8ce0e4b5995d40e90e62c",
    "u.genre": "9757e0d3e6b298159a80dd48eaf938114690e911e39af97a76949ef1663610bb",
    "README": "4883b8cf340ed0059971b33f56ad3adc88a40792108ebca3d24aafc4c82e8b52",
}


@final
@dataclass(frozen=True)
class MovieLens:
    """One split of MovieLens 100K, as tensors of users x films x days."""

    split: str
    train: Observations
    test: Observations


def find_movielens(path: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder with ua.base and its companions: `path` itself or its ml-100k, or the same below TENSORVEIL_DATA.

    Returns None if neither is given; raises an error if the given folder does not hold these files.
    """
    given = path if path is not None else os.environ.get(DATA_VARIABLE) or None
    if given is None:
        return None
    for folder in (Path(given), Path(given) / "ml-100k"):
        if (folder / "ua.base").is_file():
            return folder
    source = "path" if path is not None else DATA_VARIABLE
    raise InputError(
        f"{source} must be a folder that holds ml-100k/ua.base or ua.base, got {os.fspath(given)!r}; "
        "unpack ml-100k.zip there, or call download_movielens"
    )


def load_movielens(split: str = "ua", path: str | os.PathLike[str] | None = None) -> MovieLens:
    """Read one split; days are the distinct UTC days over train and test together (213; the paper says 212).

    Days are read off the ratings and stated to be public, because the data set is.

    Parameters
    ----------
    split : "ua" or "ub", the canonical partitions with ten test ratings per user
    path : the folder ml-100k or the one that holds it; default: the folder named by TENSORVEIL_DATA
    """
    checks.choice("split", split, SPLITS)
    folder = find_movielens(path)
    if folder is None:
        raise InputError(
            f"path must name the folder of MovieLens 100K, got None and no {DATA_VARIABLE} is set; "
            "give a path, set the variable, or call download_movielens(folder)"
        )
    tables = [_read(folder / f"{split}.{part}") for part in ("base", "test")]
    days = np.unique(np.concatenate([table[:, 3] // SECONDS_PER_DAY for table in tables]))
    labels = (np.arange(1, USERS + 1), np.arange(1, FILMS + 1), days.astype("datetime64[D]"))
    train, test = (
        Observations(
            np.column_stack([table[:, 0] - 1, table[:, 1] - 1, np.searchsorted(days, table[:, 3] // SECONDS_PER_DAY)]),
            table[:, 2],
            (USERS, FILMS, len(days)),
            mode_names=("user", "film", "day"),
            labels=labels,
        )._described(inferred_modes=["day"], public=["day"])
        for table in tables
    )
    return MovieLens(split, train, test)


def download_movielens(folder: str | os.PathLike[str], url: str = URL) -> Path:
    """Fetch MovieLens 100K into folder/ml-100k, every file checked against its SHA-256; returns that folder.

    The folder is created complete or not at all. Mind the terms in its README: research use, no redistribution.
    """
    parent = Path(folder)
    target = parent / "ml-100k"
    if target.exists():
        raise InputError(f"folder must not hold ml-100k yet, got {os.fspath(target)!r}; remove it or read it as it is")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            archive = zipfile.ZipFile(io.BytesIO(answer.read()))
        contents = {name: archive.read(f"ml-100k/{name}") for name in SHA256}
    except (OSError, ValueError, http.client.HTTPException, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DownloadError(
            f"MovieLens 100K could not be fetched ({error}); download ml-100k.zip by hand and give its folder as path"
        ) from error
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != SHA256[name]:
            raise DownloadError(
                f"{name} of the downloaded archive does not match its checksum; try again, or use a trusted copy"
            )
    parent.mkdir(parents=True, exist_ok=True)
    aside = parent / f".ml-100k-{os.getpid()}"
    aside.mkdir()
    try:
        for name, content in contents.items():
            (aside / name).write_bytes(content)
        aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def _read(path: Path) -> NDArray[Any]:
    """Lines of user, film, rating, timestamp, separated by tabs."""
    names = ["user", "film", "rating", "timestamp"]
    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=names),
            parse_options=csv.ParseOptions(delimiter="\t"),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(names, pa.int64())),
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(
            f"{path.name} must hold lines of user, film, rating and timestamp separated by tabs, got something else; "
            f"use the file of the original archive ({error})"
        ) from error
    return np.column_stack([table.column(name).to_numpy() for name in names])
