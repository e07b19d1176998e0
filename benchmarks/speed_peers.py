"""Peers from the package index, each as seconds of one pass on a workload; one that is not installed is left out.

Two-way libraries get the first two modes of the same entries.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import time
import warnings
from collections.abc import Callable

import numpy as np
from workloads import Workload

REPEATS = 2
LARGEST_DENSE = 10**7  # cells of a tensor that peers without sparse observations are given


def tensorly(data: Workload, passes: int) -> float | None:
    """Masked CP by expectation and maximisation on the dense tensor."""
    from tensorly.decomposition import parafac

    if np.prod(data.shape) > LARGEST_DENSE:
        return None
    dense, mask = np.zeros(data.shape), np.zeros(data.shape)
    dense[tuple(data.coordinates.T)] = data.values
    mask[tuple(data.coordinates.T)] = 1.0

    def fit(iterations: int) -> object:
        return parafac(dense, data.rank, n_iter_max=iterations, tol=0, init="random", mask=mask, random_state=0)

    return _slope(fit, passes)


def pyttb(data: Workload, passes: int) -> float | None:
    """CP-ALS of a sparse tensor, in which what is not observed counts as zero."""
    import pyttb

    if len(data) > 10**6:
        return None
    cells, first = np.unique(data.coordinates, axis=0, return_index=True)
    tensor = pyttb.sptensor(cells.astype(np.int64), data.values[first][:, None], data.shape)

    def fit(iterations: int) -> object:
        return pyttb.cp_als(tensor, data.rank, stoptol=0, maxiters=iterations, printitn=0)

    return _slope(fit, passes)


def implicit(data: Workload, passes: int) -> float | None:
    """Two-way ALS of implicit feedback."""
    from implicit.cpu.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    where = (data.coordinates[:, 0].astype(np.int64), data.coordinates[:, 1].astype(np.int64))
    matrix = csr_matrix((np.abs(data.values).astype(np.float32), where), shape=data.shape[:2])

    def fit(iterations: int) -> None:
        model = AlternatingLeastSquares(factors=data.rank, iterations=iterations, num_threads=2, random_state=0)
        model.fit(matrix, show_progress=False)

    return _slope(fit, passes)


def cornac(data: Workload, passes: int) -> float | None:
    """Two-way SGD matrix factorisation."""
    from cornac.data import Dataset
    from cornac.models import MF

    entries = Dataset.build(
        list(zip(data.coordinates[:, 0].tolist(), data.coordinates[:, 1].tolist(), data.values.tolist(), strict=True))
    )

    def fit(iterations: int) -> None:
        MF(k=data.rank, max_iter=iterations, num_threads=2, seed=0, verbose=False).fit(entries)

    return _slope(fit, passes)


def myfm(data: Workload, passes: int) -> float | None:
    """Two-way Gibbs sampling of a factorisation machine."""
    import myfm
    from scipy.sparse import csr_matrix

    if len(data) > 10**6:
        return None
    ones = np.ones(2 * len(data))
    columns = np.column_stack([data.coordinates[:, 0], data.coordinates[:, 1].astype(np.int64) + data.shape[0]])
    table = csr_matrix(
        (ones, columns.ravel(), np.arange(0, 2 * len(data) + 1, 2)), shape=(len(data), sum(data.shape[:2]))
    )

    def fit(iterations: int) -> None:
        model = myfm.MyFMRegressor(rank=data.rank, random_seed=0)
        model.fit(table, data.values, n_iter=iterations, n_kept_samples=1)

    return _slope(fit, passes)


PEERS: dict[str, tuple[str, Callable[[Workload, int], float | None]]] = {
    "tensorly": ("als", tensorly),
    "pyttb": ("als", pyttb),
    "implicit": ("als", implicit),
    "cornac": ("sgd", cornac),
    "myfm": ("gibbs", myfm),
}
UNADAPTED = ("cmfrec",)


def installed(name: str) -> bool:
    """Whether a peer is here."""
    return importlib.util.find_spec(name) is not None


def _slope(fit: Callable[[int], object], passes: int) -> float:
    """Seconds of a pass: what more passes take, so that setting up does not count; the least of some repeats."""
    seconds: dict[int, list[float]] = {2: [], 2 + passes: []}
    for _ in range(REPEATS):
        for iterations, found in seconds.items():
            start = time.perf_counter()
            with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # their progress bars
                warnings.simplefilter("ignore")
                fit(iterations)
            found.append(time.perf_counter() - start)
    few, many = (min(found) for found in seconds.values())
    return max(many - few, 0.0) / passes
