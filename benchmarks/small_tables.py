"""Small tables of many kinds against the private mean: `python benchmarks/small_tables.py [--seeds N] [--unit UNIT]`.

Made-up tables of 60 and 240 values of eight kinds, among them values in bounds that are far too wide. The budget is
given as values times epsilon: 10 to 1,000. For every case, the root mean square over the seeds of the error of
`tensorveil.complete` with its defaults on the cells that are not seen, over that of the mean with Laplace noise for the
whole budget, clipped to the bounds. The table is printed as Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import tensorveil as tv

Floats = NDArray[np.float64]

SIZES = (((12, 10), 60), ((30, 12, 4), 240))
BUDGETS = (10, 50, 200, 400, 1000)
MEANS = 2000  # draws of the private mean
REPORTED = 1000  # added to seeds of tables and of noise: choices were made with the seeds without it
SMALLEST = 1e-3  # error that counts, in half widths of the bounds: a constant has no spread


def kinds(shape: tuple[int, ...], seed: int) -> Iterator[tuple[str, NDArray[np.int64], Floats, tuple[float, float]]]:
    """Name, all cells in random order, their values, and bounds."""
    rng = np.random.default_rng(REPORTED + seed)
    where = rng.permutation(np.argwhere(np.ones(shape)))
    effects = [rng.normal(0, 1 / np.sqrt(len(shape)), size) for size in shape]
    latent = sum(effect[where[:, mode]] for mode, effect in enumerate(effects)) + rng.normal(0, 0.7, len(where))
    counts = np.where(latent < 0.3, 0, rng.poisson(np.exp(latent)))
    yield "half stars", where, np.clip(np.rint(2 * (3.5 + 0.9 * latent)) / 2, 0.5, 5), (0.5, 5)
    yield "five stars", where, np.clip(np.rint(3.6 + latent), 1, 5), (1, 5)
    yield "normal", where, np.clip(0.4 * latent, -1, 1), (-1, 1)
    yield "two values, at both bounds", where, np.where(latent > 0, 1.0, -1.0), (-1, 1)
    yield "normal, bounds 80 spreads wide", where, np.clip(20 + 2 * latent, -100, 100), (-100, 100)
    yield "lognormal, bounds 100 spreads wide", where, np.minimum(np.exp(1 + 0.8 * latent), 1000), (0, 1000)
    yield "counts, mostly zero", where, np.minimum(counts, 200).astype(np.float64), (0, 200)
    yield "a constant", where, np.full(len(where), 3.3), (0, 50)


def private_means(values: Floats, unit: str, epsilon: float, rng: np.random.Generator) -> Floats:
    """Means of centred values with noise for the whole budget, clipped."""
    noise = rng.laplace(0, 1 / epsilon, (MEANS, 2))
    if unit == "value":
        return np.clip(values.mean() + 2 * noise[:, 0] / len(values), -1, 1)
    high, low = (np.sum((1 + sign * values) / 2) + noise[:, place] for place, sign in ((0, 1), (1, -1)))
    return np.clip((high - low) / np.maximum(high + low, 1.0), -1, 1)


def ratio(
    where: NDArray[np.int64], values: Floats, bounds: tv.Bounds, case: tuple[tuple[int, ...], int, str, float, int]
) -> float:
    """The error of the defaults over that of the private mean."""
    shape, count, unit, epsilon, seeds = case
    seen = tv.Observations(where[:count], values[:count], shape)
    hidden = bounds.centred(values[count:])
    errors = [
        np.mean(
            (bounds.centred(tv.complete(seen, "cp", bounds, unit, epsilon, seed=seed).predict(where[count:])) - hidden)
            ** 2
        )
        for seed in range(REPORTED, REPORTED + seeds)
    ]
    means = private_means(bounds.centred(values[:count]), unit, epsilon, np.random.default_rng(0))
    floor = np.mean((means - hidden.mean()) ** 2) + hidden.var()
    return float(np.sqrt((np.mean(errors) + SMALLEST**2) / (floor + SMALLEST**2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--unit", default="value", choices=["value", "entry"])
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS, help="values times epsilon")
    options = parser.parse_args()
    names = [name for name, *_ in kinds(*SIZES[0])]
    print("| values | values x epsilon | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    for shape, count in SIZES:
        for budget in options.budgets:
            case = (shape, count, options.unit, budget / count, options.seeds)
            found = [ratio(where, values, tv.Bounds(*ends), case) for _, where, values, ends in kinds(shape, count)]
            print(f"| {count} | {budget:g} | " + " | ".join(f"{one:.2f}" for one in found) + " |", flush=True)


if __name__ == "__main__":
    main()
