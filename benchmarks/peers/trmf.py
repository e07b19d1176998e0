"""TRMF: a matrix of places and times, factorised with rows of times that follow an autoregression.

Yu, Rao and Dhillon, "Temporal regularized matrix factorization for high-dimensional time series prediction", NeurIPS
2016. With rows w of places, rows x of times and weights theta of the lags,

    min sum over observed cells of (value - w_place . x_time)^2 + lambda |W|^2 + lambda |Theta|^2
        + lambda (sum over times of |x_time - sum over lags of theta_lag * x_(time - lag)|^2 + eta |X|^2)

is lowered by turns: rows of places by ridge regressions, all rows of times together by conjugate gradients, weights by
a ridge regression per column. Values are centred and scaled to a variance of one, so that lambda has no unit. The paper
takes its constants from a grid search on the data; here lambda is chosen on a held-out tenth of the observed cells.

A tensor becomes a matrix: modes of time, in the order of `time`, are its columns, and all others its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from peers.cells import Floats, Indices, checked, chosen, normal_equations

RANK = 20  # that its users publish for Birmingham's car parks
LAMBDAS = (0.01, 0.1, 1.0, 10.0)
ETA = 0.03
PASSES, STEPS = 60, 30  # of all blocks, and of conjugate gradients in each
START = 0.1  # standard deviation of the first factors


def complete(
    coordinates: Any,
    values: Any,
    shape: Sequence[int],
    asked: Any,
    seed: int = 0,
    *,
    time: Sequence[int] = (-1,),
    lags: Sequence[int] | None = None,
    rank: int = RANK,
) -> Floats:
    """Predictions of asked cells; see `peers`.

    `time` lists the modes of time, the slowest first (day, hour). `lags` are counted in steps of the last; without them
    they are 1, 2 and, where time has several modes, the sizes of all but the first: a day of hours, for example.
    """
    where, numbers, wanted = checked(coordinates, values, shape, asked)
    modes = [mode % len(shape) for mode in time]
    places = [mode for mode in range(len(shape)) if mode not in modes]
    sizes = [shape[mode] for mode in modes]
    if lags is None:
        lags = (1, 2, *np.cumprod(sizes[:0:-1]).tolist())
    steps = int(np.prod(sizes))
    lags = np.unique([lag for lag in lags if lag < steps])
    count = int(np.prod([shape[mode] for mode in places], dtype=np.int64))

    def cells(tensor_cells: Indices) -> Indices:
        """Place and time of cells of the tensor."""
        return np.column_stack(
            [
                np.ravel_multi_index(tuple(tensor_cells[:, chosen_modes].T), [shape[mode] for mode in chosen_modes])
                if chosen_modes
                else np.zeros(len(tensor_cells), dtype=np.int64)
                for chosen_modes in (places, modes)
            ]
        )

    mean, scale = numbers.mean(), numbers.std() or 1.0
    standard = (numbers - mean) / scale

    def predict(seen: Indices, what: Floats, to: Indices, penalty: float) -> Floats:
        return _fitted(seen, what, to, (count, steps), lags, min(rank, steps, count), penalty, seed)

    seen, to = cells(where), cells(wanted)
    penalty = chosen(LAMBDAS, predict, seen, standard, seed)
    return np.asarray(mean + scale * predict(seen, standard, to, penalty))


def _fitted(
    seen: Indices,
    what: Floats,
    to: Indices,
    size: tuple[int, int],
    lags: Indices,
    rank: int,
    penalty: float,
    seed: int,
) -> Floats:
    random = np.random.default_rng(seed)
    rows, times = (START * random.standard_normal((length, rank)) for length in size)
    weights = np.zeros((len(lags), rank))
    by_place, by_time = (np.argsort(seen[:, column], kind="stable") for column in (0, 1))
    for _ in range(PASSES):
        matrices, sides = normal_equations(times[seen[by_place, 1]], what[by_place], seen[by_place, 0], size[0])
        rows = np.linalg.solve(matrices + penalty * np.eye(rank), sides[:, :, None])[:, :, 0]
        matrices, sides = normal_equations(rows[seen[by_time, 0]], what[by_time], seen[by_time, 1], size[1])
        times = _times(matrices, sides, times, weights, lags, penalty)
        weights = _lag_weights(times, lags)
    return np.einsum("wr,wr->w", rows[to[:, 0]], times[to[:, 1]])


def innovations(times: Floats, weights: Floats, lags: Indices) -> Floats:
    """What the autoregression leaves of every time that has all lags before it."""
    first = lags[-1]
    predicted = sum(weight * times[first - lag : len(times) - lag] for weight, lag in zip(weights, lags, strict=True))
    return np.asarray(times[first:] - predicted)


def _times(matrices: Floats, sides: Floats, times: Floats, weights: Floats, lags: Indices, penalty: float) -> Floats:
    """All rows of times together, from the old ones by preconditioned conjugate gradients."""
    shape, first = times.shape, lags[-1]

    def product(flat: Floats) -> Floats:
        rows = flat.reshape(shape)
        left = penalty * innovations(rows, weights, lags)
        result = (matrices @ rows[:, :, None])[:, :, 0] + penalty * ETA * rows
        result[first:] += left
        for weight, lag in zip(weights, lags, strict=True):
            result[first - lag : shape[0] - lag] -= weight * left
        return result.ravel()

    # the part of the autoregression on the diagonal, exact but for the ends of the series
    diagonal = penalty * (1 + ETA + (weights**2).sum(axis=0))
    inverses = np.linalg.inv(matrices + np.diag(diagonal))
    operator = LinearOperator((times.size, times.size), matvec=product, dtype=np.float64)
    near = LinearOperator(
        (times.size, times.size),
        matvec=lambda flat: (inverses @ flat.reshape(*shape, 1)).ravel(),
        dtype=np.float64,
    )
    solved, _ = cg(operator, sides.ravel(), x0=times.ravel(), rtol=1e-6, maxiter=STEPS, M=near)
    return np.asarray(solved.reshape(shape))


def _lag_weights(times: Floats, lags: Indices) -> Floats:
    """Weights of the lags, by a ridge regression per column: lambda divides both terms, so its penalty is one."""
    first = lags[-1]
    weights = np.empty((len(lags), times.shape[1]))
    for column in range(times.shape[1]):
        series = times[:, column]
        before = np.column_stack([series[first - lag : len(series) - lag] for lag in lags])
        weights[:, column] = np.linalg.solve(before.T @ before + np.eye(len(lags)), before.T @ series[first:])
    return weights
