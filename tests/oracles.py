"""Other ways to the same numbers: slow, plain, and written from the paper's formulas rather than from the package."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ORDERS = (2, 3, 4, 5, 6)
SHAPES: dict[int, tuple[int, ...]] = {
    2: (4, 5),
    3: (4, 3, 5),
    4: (3, 4, 2, 3),
    5: (3, 2, 4, 2, 3),
    6: (2, 3, 2, 3, 2, 2),
}
RANKS: dict[int, tuple[int, ...]] = {  # different from mode to mode, with ones among them
    2: (2, 3),
    3: (2, 1, 3),
    4: (3, 2, 1, 2),
    5: (2, 1, 3, 2, 2),
    6: (2, 3, 1, 2, 2, 1),
}


def random_blocks(shapes: Iterable[tuple[int, ...]], seed: int) -> list[Floats]:
    """Standard normal arrays of these shapes."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape) for shape in shapes]


def all_coordinates(shape: Sequence[int]) -> NDArray[np.int64]:
    """Every cell of a tensor, the last mode fastest."""
    return np.array(list(product(*map(range, shape))))


def dense_cp(factors: Sequence[Floats]) -> Floats:
    """Sum of rank-one tensors by one einsum."""
    modes = "abcdef"[: len(factors)]
    return np.einsum(",".join(f"{mode}z" for mode in modes) + "->" + modes, *factors)


def dense_tucker(core: Floats, factors: Sequence[Floats]) -> Floats:
    """Core times a matrix along each mode by one einsum."""
    modes, columns = "abcdef"[: len(factors)], "uvwxyz"[: len(factors)]
    pairs = ",".join(mode + column for mode, column in zip(modes, columns, strict=True))
    return np.einsum(f"{columns},{pairs}->{modes}", core, *factors)


def dense(model: Any) -> Floats:
    """The tensor of a model of the package, by einsum."""
    return dense_cp(model.factors) if model.core is None else dense_tucker(model.core, model.factors)


def entry_objective(
    factors: Sequence[Floats],
    core: Floats | None,
    index: Sequence[int],
    value: float,
    regularization: float,
    core_regularization: float = 0.0,
) -> float:
    """The objective of one entry, (x - xhat)^2 and the penalties of what it touches, from the dense tensor."""
    tensor = dense_cp(factors) if core is None else dense_tucker(core, factors)
    total = (value - tensor[tuple(index)]) ** 2
    for factor, i in zip(factors, index, strict=True):
        total += regularization * sum(number**2 for number in factor[i])
    return float(total if core is None else total + core_regularization * (core**2).sum())


def numeric_gradient(function: Callable[[], float], array: Floats, step: float = 1e-5) -> Floats:
    """Central differences of a function by each number of an array that the function reads; the array is restored."""
    gradient = np.zeros(array.shape)
    for position in np.ndindex(*array.shape):
        before = array[position]
        array[position] = before + step
        above = function()
        array[position] = before - step
        below = function()
        array[position] = before
        gradient[position] = (above - below) / (2 * step)
    return gradient


@dataclass
class SlowRun:
    """A slow run of SGD: final blocks (a, b, c, perhaps the core), loss of each pass, largest norms of each block."""

    blocks: list[Floats]
    loss: list[float] = field(default_factory=list)
    largest_gradient: list[float] = field(default_factory=list)
    largest_feature: list[float] = field(default_factory=list)


def slow_sgd(
    blocks: Sequence[Floats],
    coordinates: NDArray[Any],
    values: Floats,
    passes: Sequence[Sequence[int]],
    *,
    eta: float,
    penalties: Sequence[float],
    clip_norms: Sequence[float] | None = None,
    noise_block: int | None = None,
    noise: Sequence[Floats] = (),
) -> SlowRun:
    """SGD on three modes, one entry a step, entry by entry and number by number, as the paper's Algorithm 2 prints it.

    `passes` holds the order of the entries of each pass; `noise` one vector a step, counted over all passes. Three
    blocks are CP, four are Tucker with the core last. All gradients of a step come from the same old values.
    """
    run = SlowRun([np.array(block, dtype=np.float64) for block in blocks])
    run.largest_gradient = [0.0] * len(blocks)
    run.largest_feature = [0.0] * len(blocks)
    limits = [np.inf] * len(blocks) if clip_norms is None else list(clip_norms)
    step = 0
    for order in passes:
        squares = 0.0
        for w in order:
            i, j, k = (int(number) for number in coordinates[w])
            rows = [run.blocks[0][i], run.blocks[1][j], run.blocks[2][k]]
            if len(blocks) == 3:
                derivatives, estimate = _cp_derivatives(*rows)
            else:
                rows.append(run.blocks[3])
                derivatives, estimate = _tucker_derivatives(*rows)
            residual = float(values[w]) - estimate
            squares += residual**2
            updated = []
            for block, (row, derivative) in enumerate(zip(rows, derivatives, strict=True)):
                gradient = -2 * residual * derivative + 2 * penalties[block] * row
                norm = float(np.sqrt(sum(number**2 for number in gradient.ravel())))
                run.largest_gradient[block] = max(run.largest_gradient[block], norm)
                squared_feature = float(sum(number**2 for number in derivative.ravel()))
                run.largest_feature[block] = max(run.largest_feature[block], squared_feature)
                if norm > limits[block]:
                    gradient = gradient * limits[block] / norm
                if block == noise_block:
                    gradient = gradient + np.reshape(noise[step], gradient.shape)
                updated.append(row - eta * gradient)
            for row, new in zip(rows, updated, strict=True):
                row[...] = new
            step += 1
        run.loss.append(squares / len(order))
    return run


def _cp_derivatives(a: Floats, b: Floats, c: Floats) -> tuple[list[Floats], float]:
    """Derivatives of sum_r a_r b_r c_r by a, b and c, and the sum itself."""
    by_a, by_b, by_c, total = np.zeros(len(a)), np.zeros(len(a)), np.zeros(len(a)), 0.0
    for r in range(len(a)):
        by_a[r], by_b[r], by_c[r] = b[r] * c[r], a[r] * c[r], a[r] * b[r]
        total += a[r] * b[r] * c[r]
    return [by_a, by_b, by_c], float(total)


def _tucker_derivatives(a: Floats, b: Floats, c: Floats, core: Floats) -> tuple[list[Floats], float]:
    """Derivatives of sum_pqt g_pqt a_p b_q c_t by a, b, c and g, and the sum itself."""
    by_a, by_b, by_c, by_core, total = np.zeros(len(a)), np.zeros(len(b)), np.zeros(len(c)), np.zeros(core.shape), 0.0
    for p, q, t in product(range(len(a)), range(len(b)), range(len(c))):
        by_a[p] += core[p, q, t] * b[q] * c[t]
        by_b[q] += core[p, q, t] * a[p] * c[t]
        by_c[t] += core[p, q, t] * a[p] * b[q]
        by_core[p, q, t] = a[p] * b[q] * c[t]
        total += core[p, q, t] * a[p] * b[q] * c[t]
    return [by_a, by_b, by_c, by_core], float(total)


def model_blocks(model: Any) -> list[Floats]:
    """Factors of a model of the package, then its core if it has one."""
    return [*model.factors] if model.core is None else [*model.factors, model.core]


class WatchedSolver:
    """A solver that keeps what it was given and what it gave."""

    def __init__(self, solver: Any) -> None:
        self.solver = solver
        self.observations: list[Any] = []
        self.arguments: list[dict[str, Any]] = []
        self.runs: list[Any] = []

    def solve(self, observations: Any, family: Any, **arguments: Any) -> Any:
        self.observations.append(observations)
        self.arguments.append(arguments)
        self.runs.append(self.solver.solve(observations, family, **arguments))
        return self.runs[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.solver, name)


class UncalledSolver:
    """A solver that must not be called."""

    def solve(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the solver ran")


def nearest_level(values, levels):
    """The number of the nearest level of each value, by brute force."""
    return np.abs(np.subtract.outer(values, np.asarray(levels))).argmin(axis=-1)
