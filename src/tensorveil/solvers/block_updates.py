"""One block of a model at a time: exact ridge updates, and the start values that such updates improve on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.cores import available_cores
from tensorveil.kernels.fast import tucker
from tensorveil.kernels.reference import least_squares
from tensorveil.kernels.vectors import aligned_zeros, padded
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.tucker import MAX_CORE_CELLS, Tucker
from tensorveil.solvers.layouts.strata import CHUNK, index_counts, run_apart

CORE_STEPS = 15  # of conjugate gradients a sweep; it starts from the old core
CORE_PRECISION = 1e-5
SMALL_STARTS = 6  # random starts of the CP model of the small core
SMALL_SWEEPS = 60
ENTRIES_PER_PART, MOST_PARTS = 2**14, 16  # of the rows of a mode that threads share
DENSE_MODE = 500  # modes up to this size get their eigenvectors from a dense matrix


@final
@dataclass
class Entries:
    """Coordinates and values, and for every mode their order by index.

    The entries of index i are orders[mode][begins[mode][i] : begins[mode][i + 1]].
    """

    coordinates: Coordinates
    values: Floats
    begins: list[Integers]

    @classmethod
    def of(cls, coordinates: Coordinates, values: Floats, shape: tuple[int, ...]) -> Self:
        begins = [
            np.concatenate([[0], np.cumsum(index_counts(coordinates, mode, size))]) for mode, size in enumerate(shape)
        ]
        return cls(np.ascontiguousarray(coordinates), np.ascontiguousarray(values), begins)

    @cached_property
    def orders(self) -> list[Integers]:
        """For every mode the order of the entries by index, made when first asked for."""
        return [np.argsort(column, kind="stable") for column in self.coordinates.T]

    @cached_property
    def variance(self) -> float:
        """Variance of the values, without a copy of them."""
        mean = float(self.values.mean())
        parts = (self.values[begin : begin + CHUNK] - mean for begin in range(0, len(self.values), CHUNK))
        return sum(float(part @ part) for part in parts) / len(self.values)

    def counts(self, mode: int) -> Integers:
        """Entries of each index."""
        return np.diff(self.begins[mode])


def update_blocks(data: Entries, targets: Floats, model: FactorModel, parameters: Floats, ridge: float) -> float:
    """One exact update of every factor matrix, and of the core; returns the effective number of parameters."""
    effective = 0.0
    numbers = model.numbers._replace(parameters=parameters)
    for mode in range(model.order):
        if model.core is not None:
            effective += solve_tucker_rows(data, targets, model, parameters, mode, ridge)
            continue
        order, begins = data.orders[mode], data.begins[mode]
        effective += least_squares.solve_rows(numbers, data.coordinates, targets, order, begins, mode, ridge)
    if model.core is not None:
        solve_core(data, targets, model, parameters, ridge)
        effective += min(model.core.size, len(targets) / 4)
    return effective


def solve_tucker_rows(
    data: Entries, targets: Floats, model: FactorModel, parameters: Floats, mode: int, ridge: float
) -> float:
    """The rows of one factor matrix of a Tucker model, in threads; returns their effective number of parameters."""
    core_start = model.block_starts[-1]
    turned = np.moveaxis(parameters[core_start:].reshape(model.ranks), mode, 0).reshape(model.ranks[mode], -1)
    length = padded(turned.shape[1], np.float64)
    core = aligned_zeros(len(turned) * length, np.float64)
    core.reshape(len(turned), length)[:, : turned.shape[1]] = turned
    begins = data.begins[mode]
    parts = min(max(len(targets) // ENTRIES_PER_PART, 1), MOST_PARTS)
    cuts = np.searchsorted(begins, np.linspace(0, len(targets), parts + 1)[1:-1])
    ends = [0, *(int(cut) for cut in cuts), len(begins) - 1]
    found = [0.0] * parts
    numbers, entries = model.numbers._replace(parameters=parameters), (data.coordinates, targets, data.orders[mode])
    threads = min(parts, available_cores())

    def work(thread: int) -> None:
        for part in range(thread, parts, threads):
            first, last = ends[part], ends[part + 1]
            found[part] = tucker.solve_rows(numbers, core, length, *entries, begins, mode, ridge, first, last)

    run_apart(work, threads)
    return sum(found)  # by parts, whatever the number of threads


def solve_core(
    data: Entries,
    targets: Floats,
    model: FactorModel,
    parameters: Floats,
    ridge: float,
    steps: int = CORE_STEPS,
    precision: float = CORE_PRECISION,
) -> None:
    """Conjugate gradients for (H + ridge I) core = g from the old core, the diagonal as preconditioner."""
    numbers = model.numbers._replace(parameters=parameters)
    core = parameters[model.block_starts[-1] :]  # a view: what is written here is in the parameters
    right, diagonal, product = np.empty(core.size), np.empty(core.size), np.empty(core.size)

    def multiply(direction: Floats, result: Floats) -> None:
        rows = data.orders[0], data.begins[0]
        least_squares.core_product(numbers, data.coordinates, targets, *rows, direction, result, diagonal)

    multiply(np.empty(0), right)
    multiply(core.copy(), product)
    diagonal += ridge
    scale = diagonal.copy()
    remainder = right - product - ridge * core
    conditioned = remainder / scale
    direction = conditioned.copy()
    size = float(remainder @ conditioned)
    enough = precision**2 * float(right @ (right / scale))
    for _ in range(steps):
        if not size > enough:
            return
        multiply(direction, product)
        product += ridge * direction
        step = size / float(direction @ product)
        core += step * direction
        remainder -= step * product
        conditioned = remainder / scale
        size, before = float(remainder @ conditioned), size
        direction = conditioned + size / before * direction


def prior_variance(model: FactorModel, signal: float) -> float:
    """s^2 with which independent N(0, s^2) numbers in all blocks give predictions of variance `signal`.

    CP: R s^(2N) = signal. Tucker: (r_1 ... r_N) s^(2N + 2) = signal.
    """
    terms = model.ranks[0] if model.core is None else model.core.size
    return float((signal / terms) ** (1 / len(model.block_starts)))


def spectral_start(
    data: Entries,
    targets: Floats,
    model: FactorModel,
    signal: float,
    residual: float,
    generator: np.random.Generator,
) -> Floats:
    """Start values: the leading eigenvectors of every mode, the core that fits them best, and for CP its CP model.

    From random start values, fits of noisy tensors of three and more modes stay at the trivial solution. The
    eigenvectors of the pairwise products avoid this. Their noise averages out, since no entry is paired with itself.
    """
    largest = int(MAX_CORE_CELLS ** (1 / model.order) + 1e-9)
    shape, wanted = model.shape, model.ranks
    is_tucker = model.core is not None
    ranks = tuple(rank if is_tucker else min(rank, size, largest) for rank, size in zip(wanted, shape, strict=True))
    bases = [_eigenvectors(data, targets, mode, rank, shape, generator) for mode, rank in enumerate(ranks)]
    spread = math.sqrt(prior_variance(model, signal))
    scaled = [basis * (spread * math.sqrt(len(basis))) for basis in bases]
    small = Tucker(ranks).model([*scaled, np.zeros(ranks)])
    parameters = small.parameters.copy()
    ridge = residual / prior_variance(small, signal)
    solve_core(data, targets, small, parameters, 1e-3 * ridge, steps=60)
    if is_tucker:
        return parameters
    core = parameters[small.block_starts[-1] :].reshape(ranks)
    parts = _small_cp(core, wanted[0], generator)
    factors = [basis @ part for basis, part in zip(scaled, parts, strict=True)]
    norms = np.array([np.linalg.norm(factor, axis=0) for factor in factors])
    norms = np.maximum(norms, 1e-9 * max(float(norms.max()), np.finfo(np.float64).tiny))
    level = np.exp(np.log(norms).mean(axis=0))  # each component's length is shared equally by the modes
    factors = [factor * (level / norm) for factor, norm in zip(factors, norms, strict=True)]
    return np.concatenate(
        [(factor + 0.01 * spread * generator.standard_normal(factor.shape)).ravel() for factor in factors]
    )


def _small_cp(core: Floats, rank: int, generator: np.random.Generator) -> Sequence[Floats]:
    """Factors of the best of several CP models of a small dense tensor."""
    spread = float(np.sqrt((core**2).mean()))
    if spread == 0:
        return [generator.standard_normal((size, rank)) for size in core.shape]
    coordinates = np.argwhere(np.ones(core.shape)).astype(np.uint32)
    data = Entries.of(coordinates, (core / spread).ravel(), core.shape)
    best, least = None, math.inf
    for _ in range(SMALL_STARTS):
        model = CP(rank).model([generator.standard_normal((size, rank)) for size in core.shape])
        parameters = model.parameters.copy()
        for sweep in range(SMALL_SWEEPS):
            update_blocks(data, data.values, model, parameters, 10.0 ** -min(1 + sweep / 5, 6))
        fitted = model.replace_parameters(parameters)
        error = float(((data.values - fitted.predict(coordinates)) ** 2).mean())
        if error < least:
            best, least = fitted, error
    factors = [np.array(factor) for factor in (best if best is not None else model).factors]
    factors[0] *= spread
    return factors


def _eigenvectors(
    data: Entries, targets: Floats, mode: int, rank: int, shape: tuple[int, ...], generator: np.random.Generator
) -> Floats:
    """Orthonormal leading eigenvectors of X X^T without its diagonal part, X the unfolding along a mode."""
    from scipy import sparse
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    size = shape[mode]
    guess = generator.standard_normal((size, rank))
    guess[:, 0] = 1.0
    fibres = np.zeros(len(targets), dtype=np.uint64)
    for other, other_size in enumerate(shape):
        if other != mode:  # may wrap around: two fibres taken for one do no harm to a start value
            fibres = fibres * np.uint64(other_size) + data.coordinates[:, other]
    _, columns = np.unique(fibres, return_inverse=True)
    index = data.coordinates[:, mode].astype(np.int64)
    unfolding = sparse.csr_matrix((targets, (index, columns)), shape=(size, int(columns.max()) + 1))
    own = np.bincount(index, targets**2, minlength=size)
    if unfolding.shape[1] == len(targets) or not own.any():  # no two entries to compare: a constant and random columns
        return np.asarray(np.linalg.qr(guess)[0])
    if size <= max(DENSE_MODE, 2 * rank + 2):
        matrix = (unfolding @ unfolding.T).toarray() - np.diag(own)
        return np.ascontiguousarray(np.linalg.eigh(matrix)[1][:, : -rank - 1 : -1])
    operator = LinearOperator(
        (size, size), matvec=lambda v: unfolding @ (unfolding.T @ np.ravel(v)) - own * np.ravel(v), dtype=np.float64
    )
    try:
        vectors = eigsh(operator, rank, which="LA", v0=guess.sum(axis=1), tol=1e-3, maxiter=300)[1]
    except ArpackNoConvergence as failure:
        vectors = np.column_stack([failure.eigenvectors, guess])[:, :rank]
    return np.asarray(np.linalg.qr(vectors[:, ::-1])[0])
