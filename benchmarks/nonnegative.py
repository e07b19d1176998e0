"""Non-negative factors against free ones on counts: `python benchmarks/nonnegative.py`.

RMSE of both on held-out cells of made-up Poisson counts with non-negative patterns, and on the test half of MIMIC if
TENSORVEIL_DATA names its folder; unit value, input perturbation, rank 12. Noise is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from accuracies import halves

import tensorveil as tv

SHAPE, RANK, SEEN = (60, 50, 8), 4, 6000
EPSILONS = (math.inf, 5.0, 1.0)


def made_up(seed: int) -> halves.Halves:
    """Poisson counts with mean one, whose rates are a sum of products of gamma numbers."""
    generator = np.random.default_rng(seed)
    factors = [generator.gamma(0.5, 1.0, (size, RANK)) for size in SHAPE]
    rates = np.einsum("ir,jr,kr->ijk", *factors)
    counts = generator.poisson(rates / rates.mean()).astype(float)
    where = np.array(np.unravel_index(generator.permutation(rates.size), SHAPE)).T.astype(np.uint32)
    train, test = where[:SEEN], where[SEEN:]
    data = tv.Observations(train, counts[tuple(train.T)], SHAPE)
    return halves.Halves(data, test, counts[tuple(test.T)], tv.Bounds(0, 20))


def data_sets() -> Iterator[tuple[str, int, halves.Halves]]:
    """Name, seed of the noise, and halves."""
    if halves.folder_of("mimic-demo") is not None:
        yield "mimic", 0, halves.mimic()
    for seed in (0, 1):
        yield "made-up counts", seed, made_up(seed)


def main() -> None:
    """Print one line per data set and epsilon."""
    for name, seed, data in data_sets():
        for epsilon in EPSILONS:
            private = {} if math.isinf(epsilon) else {"mechanism": "input", "seed": seed}
            free, nonnegative = (
                data.errors(
                    tv.complete(data.train, family, data.bounds, "value", epsilon, **private).predict(data.where)
                )
                for family in (tv.CP(12), tv.CP(12, nonnegative=True))
            )
            ratio = nonnegative["rmse"] / free["rmse"]
            print(
                f"{name}, seed {seed}, epsilon {epsilon:g}: RMSE {free['rmse']:.4f} free, {nonnegative['rmse']:.4f} "
                f"non-negative, {ratio:.3f} times that",
                flush=True,
            )


if __name__ == "__main__":
    main()
