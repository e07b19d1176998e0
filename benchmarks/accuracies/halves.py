"""Real data in two halves: what a method may read, and what it has to predict.

The folder is named by TENSORVEIL_DATA; without it, `shared/data` beside the checkout is tried. Splits that the data do
not bring with them are drawn by a fixed seed, so that every run has the same halves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import tensorveil as tv
from tensorveil.data.readers.files import read_table
from tensorveil.privacy.bounds import VALUE_STEPS

Floats = NDArray[np.float64]

SPLIT_SEED = 20_240  # of splits that the data do not bring with them
DEVELOPMENT_SEED = 7  # of the split of a train half in two, where choices are made
TEST_CELLS = 50_000  # of the cells that are not seen, where nearly all of many are not
TENTHS = 10


@dataclass(frozen=True)
class Halves:
    """The train half, and the cells of the test half with what was measured there.

    Attributes
    ----------
    train : tv.Observations
    where : array, coordinates of the test half
    measured : array, values at these coordinates
    bounds : tv.Bounds, public
    truth : array or None
        The values without noise, where they are known: then errors are taken against them, as a fraction of `spread`.
    spread : float, what errors are divided by
    """

    train: tv.Observations
    where: NDArray[np.uint32]
    measured: Floats
    bounds: tv.Bounds
    truth: Floats | None = None
    spread: float = 1.0

    def errors(self, predicted: Floats) -> dict[str, float]:
        """RMSE and MAE, with predictions clipped to the bounds."""
        expected = self.measured if self.truth is None else self.truth
        difference = np.clip(predicted, self.bounds.low, self.bounds.high) - expected
        return {
            "rmse": float(np.sqrt(np.mean(difference**2))) / self.spread,
            "mae": float(np.abs(difference).mean()) / self.spread,
        }

    def coverage(self, predicted: Floats, low: Floats, high: Floats) -> list[float]:
        """Shares of measured values between the ends: one for every tenth of the predictions, the smallest first.

        Values are compared up to one step of the grid that the bounds are divided into. An end that is a level may
        differ from the same level in the data by rounding: strictly, 5 % of MIMIC would be inside where 99.9 % are.
        """
        step = (self.bounds.high - self.bounds.low) / (2 * VALUE_STEPS)
        inside = (low - step <= self.measured) & (self.measured <= high + step)
        tenths = np.array_split(inside[np.argsort(predicted, kind="stable")], TENTHS)
        return [float(tenth.mean()) for tenth in tenths if len(tenth)]

    def for_development(self) -> Halves:
        """A tenth of the train half to predict and the rest to read: the test half stays unseen."""
        train, test = permuted_split(self.train, 0.9, DEVELOPMENT_SEED)
        return replace(self, train=train, where=test.coordinates, measured=test.values, truth=None, spread=1.0)

    def with_bounds(self, low: float, high: float) -> Halves:
        """The same data, other public bounds."""
        return replace(self, bounds=tv.Bounds(low, high))

    def permuted(self) -> Halves:
        """The same data, rows of the train half in another order."""
        order = np.random.default_rng(SPLIT_SEED).permutation(len(self.train))
        return replace(self, train=self.train.take(order))


def permuted_split(data: tv.Observations, share: float, seed: int) -> tuple[tv.Observations, tv.Observations]:
    """Cells in a random order, cut at an exact share: the halves that all measured errors are of.

    For errors on public data alone. Of private data, split with `Observations.split`: here one observation more moves
    many others from one side to the other.
    """
    cells, inverse, counts = np.unique(data.coordinates, axis=0, return_inverse=True, return_counts=True)
    shuffled = np.random.default_rng(seed).permutation(len(cells))
    first = np.searchsorted(np.cumsum(counts[shuffled]), round(share * len(data)), side="right")
    mask = np.isin(inverse.ravel(), shuffled[:first])
    return data.take(mask), data.take(~mask)


def folder_of(name: str) -> Path | None:
    """The folder of a data set, or None if it is not here."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(os.environ.get("TENSORVEIL_DATA") or beside) / name
    return folder if folder.is_dir() else None


def required(name: str) -> Path:
    folder = folder_of(name)
    if folder is None:
        raise FileNotFoundError(
            f"the folder of TENSORVEIL_DATA must hold {name}, got none; set it, or leave {name} out"
        )
    return folder


def _labelled(name: str, files: tuple[str, str], modes: tuple[str, ...], value: str, bounds: tv.Bounds) -> Halves:
    """Two CSV files with labels; the labels of both together are public."""
    paths = [required(name) / file for file in files]
    tables = [read_table(path) for path in paths]
    labels = {mode: sorted({str(label) for table in tables for label in table[mode].to_pylist()}) for mode in modes}
    train, test = (tv.read(path, modes, value, labels=labels) for path in paths)
    return Halves(train, test.coordinates, test.values, bounds)


def filmtrust() -> Halves:
    """Half stars by user and film."""
    return _labelled("filmtrust", ("train.csv", "test.csv"), ("user", "film"), "rating", tv.Bounds(0.5, 4))


def mimic() -> Halves:
    """Counts by patient, diagnosis and procedure."""
    modes = ("patient", "diagnosis", "procedure")
    return _labelled("mimic-demo", ("train.csv", "test.csv"), modes, "count", tv.Bounds(0, 20))


def birmingham() -> Halves:
    """Cars by car park, day and half hour; 10 % of the cells are seen."""
    folder, modes = required("birmingham-parking"), ("park", "day", "time")
    train, test = (tv.read(folder / file, modes, "value", shape=(30, 77, 18)) for file in ("train10.csv", "test90.csv"))
    return Halves(train, test.coordinates, test.values, tv.Bounds(0, 5000))


def birmingham_log() -> Halves:
    """log10(1 + cars)."""
    cars = birmingham()
    train = cars.train.with_values(np.log10(1 + cars.train.values))
    return replace(cars, train=train, measured=np.log10(1 + cars.measured), bounds=tv.Bounds(0, 4))


def _movielens(split: str) -> Halves:
    folder = required("ml-100k")
    train, test = (
        tv.read(
            folder / f"{split}.{half}",
            ("user", "film"),
            "rating",
            format="tsv",
            columns=("user", "film", "rating", "time"),
            shape=(943, 1682),
            first_index=1,
        )
        for half in ("base", "test")
    )
    return Halves(train, test.coordinates, test.values, tv.Bounds(1, 5))


def movielens_ua() -> Halves:
    """MovieLens 100K, split ua: stars by user and film, all test lines."""
    return _movielens("ua")


def movielens_ub() -> Halves:
    """MovieLens 100K, split ub."""
    return _movielens("ub")


@cache
def movielens_features() -> Mapping[str, Floats]:
    """Of films genres and year, of users age, gender and occupation: what MovieLens 100K tells besides ratings."""
    folder = required("ml-100k")
    films = [line.split("|") for line in (folder / "u.item").read_text(encoding="latin-1").splitlines()]
    genres = np.array([[float(mark) for mark in film[5:]] for film in films])
    years = np.array([float(film[2][-4:]) if film[2] else np.nan for film in films])
    years = np.where(np.isnan(years), np.nanmean(years), years)
    users = [line.split("|") for line in (folder / "u.user").read_text().splitlines()]
    occupations = sorted({user[3] for user in users})
    facts = [[float(user[1]), user[2] == "F", *(user[3] == name for name in occupations)] for user in users]
    return {"film": np.column_stack([genres, years]), "user": np.array(facts, dtype=np.float64)}


def latest_small() -> Halves:
    """MovieLens latest-small: half stars by user, film and year; a random tenth is predicted."""
    modes = ("userId", "movieId", "year")
    table = read_table(required("ml-latest-small") / "ratings.csv")
    years = np.asarray(table["timestamp"].to_numpy(), dtype="datetime64[s]").astype("datetime64[Y]").astype(int) + 1970
    table = table.append_column("year", pa.array(years))
    whole = tv.Observations.from_table(table, modes, "rating", public_labels=modes)
    train, test = permuted_split(whole, 0.9, SPLIT_SEED)
    return Halves(train, test.coordinates, test.values, tv.Bounds(0.5, 5))


def taxi() -> Halves:
    """Trips by pickup zone, drop-off zone and hour, zeros included; 10 % of the cells are seen."""
    whole = tv.read(required("nyc-taxi") / "NYC-data-set_tensor.mat", modes=("pickup", "dropoff", "hour"))
    train, hidden = permuted_split(whole, 0.1, SPLIT_SEED)
    chosen = np.random.default_rng(SPLIT_SEED).choice(len(hidden), TEST_CELLS, replace=False)
    test = hidden.take(np.sort(chosen))
    return Halves(train, test.coordinates, test.values, tv.Bounds(0, 500))


# name -> its reader, the folder that it needs, and the mode of its slices
REAL: Mapping[str, tuple[Callable[[], Halves], str, str]] = {
    "ml-100k ua": (movielens_ua, "ml-100k", "user"),
    "ml-100k ub": (movielens_ub, "ml-100k", "user"),
    "filmtrust": (filmtrust, "filmtrust", "user"),
    "birmingham": (birmingham, "birmingham-parking", "park"),
    "mimic": (mimic, "mimic-demo", "patient"),
    "ml-latest-small": (latest_small, "ml-latest-small", "userId"),
    "nyc-taxi": (taxi, "nyc-taxi", "pickup"),
    "birmingham log": (birmingham_log, "birmingham-parking", "park"),
}


def left_out() -> list[str]:
    """Sentences that name the data sets that are not here."""
    folders = dict.fromkeys(folder for _, folder, _ in REAL.values())
    return [f"left out: {name} is not in the folder of TENSORVEIL_DATA" for name in folders if folder_of(name) is None]
