"""Released histograms of generated values: what marginals and scales are tested on."""

import numpy as np

from tensorveil.inference.values.marginal import Counted, refined
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds

STARS = np.array([0.06, 0.11, 0.27, 0.34, 0.22])
HALF_STARS = np.array([0.03, 0.04, 0.03, 0.12, 0.09, 0.25, 0.16, 0.28])


def kinds(rng: np.random.Generator, n: int) -> dict[str, tuple[np.ndarray, tuple[float, float]]]:
    """Values of many kinds, with their public bounds."""
    return {
        "stars": (rng.choice(np.arange(1.0, 6.0), n, p=STARS), (1, 5)),
        "half stars": (rng.choice(np.arange(1, 9) / 2, n, p=HALF_STARS), (0.5, 4)),
        "half stars, wide": (rng.choice(np.arange(1, 9) / 2, n, p=HALF_STARS), (-10, 30)),
        "two values": (rng.choice([0.0, 1.0], n, p=[0.3, 0.7]), (0, 1)),
        "constant": (np.full(n, 3.0), (0, 10)),
        "counts with zeros": (rng.poisson(rng.gamma(0.5, 10, n)).astype(float), (0, 100)),
        "amounts with zeros": (np.where(rng.random(n) < 0.6, 0.0, rng.gamma(2, 5, n)), (0, 100)),
        "normal": (rng.normal(0, 1, n), (-5, 5)),
        "normal, wide": (rng.normal(0, 1, n), (-50, 50)),
        "normal, very wide": (rng.normal(0.3, 1, n), (-3000, 3000)),
        "lognormal": (rng.lognormal(0, 1, n), (0, 50)),
        "skewed to the left": (100 - rng.gamma(2, 5, n), (0, 100)),
        "uniform": (rng.uniform(0, 1, n), (0, 1)),
    }


def steps_of(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    return Bounds(*bounds).steps(values)


def released(steps: np.ndarray, epsilon: float, rng: np.random.Generator, stages: int = 3) -> list[Counted]:
    """Histograms of all stages with Laplace noise, for the replacement of one value."""
    edges = np.linspace(-VALUE_STEPS, VALUE_STEPS, 17).astype(np.int64)
    first, last = edges[:-1], np.append(edges[1:-1], VALUE_STEPS + 1)
    scale = 2 * stages / epsilon
    ordered = np.sort(steps)
    histograms: list[Counted] = []
    while len(histograms) < stages and len(first):
        counts = np.searchsorted(ordered, last) - np.searchsorted(ordered, first)
        noisy = counts + np.rint(rng.laplace(0, scale, len(counts)))
        histograms.append(Counted(first, last, noisy, 2 * scale**2))
        first, last = refined(histograms, 16)
    return histograms
