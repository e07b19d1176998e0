"""The data of the accuracy benchmark: real ones from TENSORVEIL_DATA, synthetic ones drawn by a seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import tensorveil as tv
from tensorveil.data.readers.files import read_table

if TYPE_CHECKING:
    from methods import Method

VALUE_EPSILONS = (10.0, 5.0, 2.0, 1.0, 0.5)


@dataclass(frozen=True)
class Drawn:
    """One training set and what is to be predicted."""

    train: tv.Observations
    where: np.ndarray
    truth: np.ndarray
    bounds: tv.Bounds
    scale: float = 1.0  # errors are divided by it
    observed: np.ndarray | None = None  # what was measured there, where that is not the truth: intervals are for it

    def coverage(self, low: np.ndarray, high: np.ndarray) -> float:
        """Share of measured values between the ends."""
        measured = self.truth if self.observed is None else self.observed
        return float(((low <= measured) & (measured <= high)).mean())

    def error(self, predicted: np.ndarray) -> float:
        """RMSE, with predictions clipped to the bounds."""
        return tv.rmse(self.truth, np.clip(predicted, self.bounds.low, self.bounds.high)) / self.scale


@dataclass(frozen=True)
class Case:
    """A data set under a unit, with the epsilons to try."""

    data: str
    split: str
    unit: str
    draw: Callable[[int], Drawn]
    epsilons: tuple[float, ...]
    family: object
    delta: float = 0.0
    options: dict = field(default_factory=dict)  # of `tv.complete`
    features: dict | None = None  # public side information, by mode
    reference: str = "ml-100k"  # the paper's parameters that its algorithms take

    def delta_of(self, method: Method) -> float:
        """The delta of a row."""
        return self.delta if method.private else 0.0


def cases(quick: bool) -> Iterator[Case]:
    """All cases that the data here allow."""
    if _folder("ml-100k"):
        for split in ("ua", "ub"):
            draw = partial(_movielens, split)
            yield Case("ml-100k", split, "value", draw, VALUE_EPSILONS, tv.CP(12))
        if not quick:
            for split in ("ua", "ub"):
                draw = partial(_movielens, split)
                side, count = _side_information(), {"expected_count": 90_000}
                yield Case("ml-100k", split, "entry", draw, (5.0, 1.0), tv.CP(10), options=count, features=side)
                films = {"film": side["film"]}  # under slices, users' own rows stay with them
                yield Case("ml-100k", split, "slice:user", draw, (10.0, 5.0, 1.0), tv.CP(24), 1e-5, features=films)
    if quick:
        return
    if _folder("ml-latest-small"):
        halves = {"mechanism": tv.InputPerturbation(levels=[half / 2 for half in range(1, 11)])}  # of stars: public
        yield Case("ml-latest-small", "90/10", "value", _latest_small, (5.0,), tv.CP(12), options=halves)
    for truth, epsilons in (("cp", (10.0, 5.0, 2.0, 1.0)), ("tucker", (5.0, 1.0))):
        family = tv.CP(3) if truth == "cp" else tv.Tucker(3)
        draw = partial(_synthetic, truth, 100, "variances")
        yield Case(f"100^3 {truth}", "variances", "value", draw, epsilons, family, reference="synthetic")
    for kind in ("variances", "norms"):
        draw = partial(_synthetic, "cp", 20, kind)
        yield Case("20^3 cp", kind, "value", draw, (10.0, 5.0, 1.0, 0.1), tv.CP(3), reference="synthetic")
    if _folder("nyc-taxi"):
        yield Case("nyc-taxi", "half", "value", _taxi, (5.0, 1.0), tv.CP(12))


def left_out() -> list[str]:
    """What is not here, named."""
    names = ("ml-100k", "ml-latest-small", "nyc-taxi")
    return [f"left out: {name} is not in the folder of TENSORVEIL_DATA" for name in names if not _folder(name)]


def _folder(name: str) -> Path | None:
    root = os.environ.get("TENSORVEIL_DATA")
    return Path(root) / name if root and (Path(root) / name).is_dir() else None


@lru_cache
def _movielens(split: str, seed: int) -> Drawn:
    """Users x films; all test lines."""
    folder = _folder("ml-100k")
    columns = ("user", "film", "rating", "time")
    options = {"format": "tsv", "columns": columns, "modes": ("user", "film"), "value": "rating"}
    shape = {"shape": (943, 1682), "first_index": 1}
    train = tv.read(folder / f"{split}.base", **options, **shape)
    test = tv.read(folder / f"{split}.test", **options, **shape)
    return Drawn(train, test.coordinates, test.values, tv.Bounds(1, 5))


@lru_cache
def _side_information() -> dict[str, np.ndarray]:
    """Of films genres and decade, of users age, gender and occupation: what MovieLens 100K tells besides ratings."""
    folder = _folder("ml-100k")
    films = [line.split("|") for line in (folder / "u.item").read_text(encoding="latin-1").splitlines()]
    genres = np.array([[float(mark) for mark in film[5:]] for film in films])
    years = np.array([float(film[2][-4:]) if film[2] else np.nan for film in films])
    years = np.where(np.isnan(years), np.nanmean(years), years)
    users = [line.split("|") for line in (folder / "u.user").read_text().splitlines()]
    ages = np.array([float(user[1]) for user in users])
    women = np.array([user[2] == "F" for user in users], dtype=float)
    work = np.array(
        [[user[3] == name for name in sorted({other[3] for other in users})] for user in users], dtype=float
    )
    return {"film": np.column_stack([genres, years]), "user": np.column_stack([ages, women, work])}


def _latest_small(seed: int) -> Drawn:
    """Users x films x years, half stars; a random tenth is predicted."""
    table = read_table(_folder("ml-latest-small") / "ratings.csv")
    years = np.asarray(table["timestamp"].to_numpy(), dtype="datetime64[s]").astype("datetime64[Y]").astype(int) + 1970
    table = table.append_column("year", pa.array(years))
    whole = tv.Observations.from_table(table, ["userId", "movieId", "year"], "rating")
    train, test = whole.split(0.9, seed=seed)
    return Drawn(train, test.coordinates, test.values, tv.Bounds(0.5, 5))


def _synthetic(truth: str, size: int, kind: str, seed: int) -> Drawn:
    """The paper's generator: half observed, signal-to-noise ratio 1; error as a fraction of the truth's spread."""
    generate = tv.synthetic.cp_tensor if truth == "cp" else tv.synthetic.tucker_tensor
    data = tv.synthetic.observe(generate((size,) * 3, 3, seed=seed), snr_kind=kind, seed=10_000 + seed)
    # bounds of the generator's law, not of the data
    bounds = tv.Bounds(-0.5, 1.5) if kind == "variances" else tv.Bounds(-1, 2)
    where = data.test.coordinates
    return Drawn(data.train, where, data.truth_at(where), bounds, float(data.truth.std()), data.test.values)


def _taxi(seed: int) -> Drawn:
    """log(1 + trips) by pickup zone x drop-off zone x hour, zeros observed; half the cells are hidden."""
    counts = tv.read(_folder("nyc-taxi") / "NYC-data-set_tensor.mat")
    whole = counts.with_values(np.log1p(counts.values))
    train, test = whole.split(0.5, seed=seed)
    return Drawn(train, test.coordinates, test.values, tv.Bounds(0, 6))  # up to 400 trips an hour
