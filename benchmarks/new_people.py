"""How well people are predicted who were not in the data: `python benchmarks/new_people.py [value] [slice:user]`.

MovieLens 100K by user and film, epsilon 5, seed 0. A release is fitted to four fifths of the users. Half of the ratings
of the others are folded in, and the rest of their ratings predicted. Beside it stand as many users inside of the
release, of whom it read the first half of the ratings: folded in as if they were new, and predicted by the release
(under slices it withholds their rows, so that there is no other way). Last, the time for 10^5 new people with 20
ratings each. TENSORVEIL_DATA names the folder of ml-100k.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import tensorveil as tv
from tensorveil.release.people.newcomers import newcomers

USERS, FILMS = 943, 1682
OUTSIDE = USERS // 5 + 1
MANY, EACH = 10**5, 20


def ratings() -> tuple[np.ndarray, np.ndarray]:
    """Coordinates by user and film, and stars."""
    rows = np.loadtxt(Path(os.environ["TENSORVEIL_DATA"]) / "ml-100k" / "u.data", dtype=np.int64)
    return rows[:, :2] - 1, rows[:, 2].astype(float)


def rmse(found: np.ndarray, values: np.ndarray) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((found - values) ** 2)))


def main() -> None:
    """Print one line per unit."""
    rng = np.random.default_rng(0)
    where, values = ratings()
    people = rng.permutation(USERS)
    group = np.zeros(USERS, dtype=np.int64)  # 0: inside, all ratings read; 1: inside, one half read; 2: outside
    group[people[:OUTSIDE]], group[people[OUTSIDE : 2 * OUTSIDE]] = 2, 1
    first_half = rng.random(len(values)) < 0.5
    mine = group[where[:, 0]]
    read = (mine == 0) | ((mine == 1) & first_half)
    data = tv.Observations(where[read], values[read], (USERS, FILMS), mode_names=("user", "film"))
    means = np.bincount(where[read, 1], values[read] - values[read].mean(), FILMS)
    means = values[read].mean() + means / (np.bincount(where[read, 1], minlength=FILMS) + 5)
    for unit in sys.argv[1:] or ("value", "slice:user"):
        release = tv.complete(data, "cp", (1, 5), unit, 5.0, 1e-5 if unit != "value" else 0.0, seed=0)
        errors, covered, floors = [], [], []
        for number in (1, 2):
            own, rest = (mine == number) & first_half, (mine == number) & ~first_half
            model = newcomers(release, tv.Observations(where[own], values[own], (USERS, FILMS)), "user")
            cells = where[rest].astype(np.uint32)
            errors.append(rmse(model.predict(cells), values[rest]))
            low, high = model.interval(cells, 0.9)
            covered.append(float(np.mean((low <= values[rest]) & (values[rest] <= high))))
            floors.append(rmse(means[where[rest, 1]], values[rest]))
            if number == 1 and release.withheld_mode is None:
                print(
                    f"{unit}: RMSE {rmse(release.predict(cells), values[rest]):.4f} of {OUTSIDE} users by the release"
                )
        print(
            f"{unit}: RMSE {errors[0]:.4f} of {OUTSIDE} users inside of the release from their own rows, "
            f"{errors[1]:.4f} of {OUTSIDE} users who were not inside; film means {floors[0]:.4f} and {floors[1]:.4f}; "
            f"coverage {covered[0]:.3f} and {covered[1]:.3f}",
            flush=True,
        )
        newcomer_rows = np.repeat(np.arange(MANY), EACH)
        cells = np.column_stack([newcomer_rows, rng.integers(FILMS, size=len(newcomer_rows))])
        stars = rng.integers(1, 6, size=len(cells)).astype(float)
        began, spent = time.perf_counter(), time.process_time()
        newcomers(release, tv.Observations(cells, stars, (MANY, FILMS), duplicates="keep"), "user")
        print(
            f"{unit}: {MANY} new people with {EACH} ratings each in {time.perf_counter() - began:.1f} s, "
            f"{time.process_time() - spent:.1f} s of processor time",
            flush=True,
        )


if __name__ == "__main__":
    main()
