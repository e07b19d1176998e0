"""One block of a model at a time: exact ridge updates, and the start values that such updates improve on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeVar, final

import numpy as np

from tensorveil.arrays import Coordinates, Floats, Integers
from tensorveil.kernels.cores import available_cores
from tensorveil.kernels.fast import tucker
from tensorveil.kernels.reference import least_squares
from tensorveil.kernels.vectors import Constants, aligned_zeros, padded
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.tucker import MAX_CORE_CELLS, Tucker
from tensorveil.solvers.directions import leading_directions
from tensorveil.solvers.layouts.strata import CHUNK, index_counts, run_parts

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

T = TypeVar("T")

CORE_STEPS = 15  # of conjugate gradients a sweep; it starts from the old core
CORE_PRECISION = 1e-5
SMALL_STARTS = 6  # random starts of the CP model of the small core
SMALL_SWEEPS = 60
ENTRIES_PER_PART, MOST_PARTS = 2**14, 16  # of the rows of a mode that threads share
CORE_ENTRIES = 2**17  # drawn at random where a CP model is started from a core: 75 for each of its cells at rank 12
SPECTRAL_SPACE = 192  # basis vectors for eigenvectors; of 10^7 values they had converged with 128
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
        entries = data.coordinates, targets, order, begins
        effective += least_squares.solve_rows(numbers, *entries, mode, ridge, model.family.nonnegative)
    if model.core is not None:
        solve_core(data, targets, model, parameters, ridge)
        effective += min(model.core.size, len(targets) / 4)
    return effective


def solve_tucker_rows(
    data: Entries, targets: Floats, model: FactorModel, parameters: Floats, mode: int, ridge: float
) -> float:
    """The rows of one factor matrix of a Tucker model, in threads; returns their effective number of parameters."""
    numbers = model.numbers._replace(parameters=parameters)
    chosen = min((m for m in range(model.order) if m != mode), key=lambda m: model.shape[m])
    rest = [m for m in range(model.order) if m not in (mode, chosen)]
    core = parameters[model.block_starts[-1] :].reshape(model.ranks).transpose(chosen, *rest, mode)
    product = _factor(model, parameters, chosen) @ core.reshape(model.ranks[chosen], -1)
    matrices = _padded(product.reshape(-1, model.ranks[mode]))
    terms, length = len(matrices) // model.shape[chosen], matrices.shape[1]
    entries = data.coordinates, targets, data.orders[mode], data.begins[mode]
    arguments = numbers, matrices.ravel(), terms, chosen, *entries, mode, ridge
    kinds = Constants(model.order, length, 0), Constants(length)

    def one(first: int, last: int) -> float:
        return tucker.solve_rows(*arguments, *kinds, length, first, last)

    return sum(_by_rows(data, mode, one))


def _factor(model: FactorModel, parameters: Floats, mode: int) -> Floats:
    """A factor matrix whose numbers are among these parameters."""
    first, size = model.block_starts[mode], model.shape[mode] * model.ranks[mode]
    return parameters[first : first + size].reshape(model.shape[mode], -1)


def _padded(rows: Floats) -> Floats:
    """Rows, filled up with zeros to whole vectors."""
    length = padded(rows.shape[1], np.float64)
    found = aligned_zeros(len(rows) * length, np.float64).reshape(len(rows), length)
    found[:, : rows.shape[1]] = rows
    return found


def _by_rows(data: Entries, mode: int, work: Callable[[int, int], T]) -> list[T]:
    """Results for parts of the rows of a mode, by threads; the parts do not depend on how many threads there are."""
    begins = data.begins[mode]
    parts = min(max(len(data.coordinates) // ENTRIES_PER_PART, 1), MOST_PARTS)
    cuts = np.searchsorted(begins, np.linspace(0, len(data.coordinates), parts + 1)[1:-1])
    ends = [0, *(int(cut) for cut in cuts), len(begins) - 1]
    return run_parts(lambda part: work(ends[part], ends[part + 1]), parts, min(parts, available_cores()))


def core_product(
    data: Entries, targets: Floats, model: FactorModel, parameters: Floats, direction: Floats | None
) -> tuple[Floats, Floats]:
    """H times a direction; without one, the right side of the normal equations of the core and the diagonal of H.

    phi_w = a (x) k_w, with a the entry's row of the first factor and k_w the Kronecker product of its other rows. The
    entries of one row share a, so the long products are products of matrices, for all rows at once:

        phi_w . d = (d contracted with a) . k_w,        sum_w t_w phi_w = a (x) sum_w t_w k_w.
    """
    first_rank, last_rank = model.ranks[0], model.ranks[-1]
    tail, factor = _padded(_factor(model, parameters, model.order - 1)), _factor(model, parameters, 0)
    length = tail.shape[1]
    terms = math.prod(model.ranks[1:-1])
    width = terms * length
    turned = None if direction is None else _padded(direction.reshape(-1, last_rank)).reshape(first_rank, width)
    numbers = model.numbers._replace(parameters=parameters)
    entries = data.coordinates, targets, data.orders[0], data.begins[0]

    def one(first: int, last: int) -> Floats:
        rows, none = factor[first:last], np.empty(0)
        totals = np.zeros((last - first) * width)
        contracted, squares = (none, np.zeros_like(totals)) if turned is None else ((rows @ turned).ravel(), none)
        given = numbers, tail.ravel(), terms, *entries, contracted, totals, squares
        tucker.core_rows(*given, Constants(length), length, first, last)
        found = [rows.T @ totals.reshape(-1, width)]
        found.append((rows**2).T @ squares.reshape(-1, width) if turned is None else np.zeros_like(found[0]))
        return np.array(found)

    both = np.sum(_by_rows(data, 0, one), axis=0).reshape(2, -1, length)[:, :, :last_rank]
    return both[0].ravel(), both[1].ravel()


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
    core = parameters[model.block_starts[-1] :]  # a view: what is written here is in the parameters

    def multiply(direction: Floats) -> Floats:
        return core_product(data, targets, model, parameters, direction)[0] + ridge * direction

    right, diagonal = core_product(data, targets, model, parameters, None)
    scale = diagonal + ridge
    remainder = right - multiply(core.copy())
    conditioned = remainder / scale
    direction = conditioned.copy()
    size = float(remainder @ conditioned)
    enough = precision**2 * float(right @ (right / scale))
    for _ in range(steps):
        if not size > enough:
            return
        product = multiply(direction)
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
    if not is_tucker and len(targets) > CORE_ENTRIES:
        chosen = np.sort(generator.choice(len(targets), CORE_ENTRIES, replace=False))
        data, targets = Entries.of(data.coordinates[chosen], data.values[chosen], shape), targets[chosen]
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
    size = shape[mode]
    guess = generator.standard_normal((size, rank))
    guess[:, 0] = 1.0
    unfolding, own = _unfolding(data, targets, mode, shape)
    if not unfolding.data.any():  # no two entries to compare: a constant and random columns
        return np.asarray(np.linalg.qr(guess)[0])
    if size <= max(DENSE_MODE, 2 * rank + 2):
        matrix = (unfolding @ unfolding.T).toarray() - np.diag(own)
        return np.ascontiguousarray(np.linalg.eigh(matrix)[1][:, : -rank - 1 : -1])
    return np.ascontiguousarray(leading_directions([unfolding], rank, own, SPECTRAL_SPACE)[1][:, ::-1])


def _unfolding(data: Entries, targets: Floats, mode: int, shape: tuple[int, ...]) -> "tuple[csr_matrix, Floats]":
    """One row per index of a mode and one column per fibre, and the part of X X^T in which entries meet themselves.

    Entries that are alone in their fibre are in that part only, and left out.
    """
    from scipy.sparse import csr_matrix

    fibres = np.zeros(len(targets), dtype=np.uint64)
    for other, other_size in enumerate(shape):
        if other != mode:  # may wrap around: two fibres taken for one do no harm to a start value
            fibres = fibres * np.uint64(other_size) + data.coordinates[:, other]
    _, columns, sizes = np.unique(fibres, return_inverse=True, return_counts=True)
    del fibres
    paired, count = sizes[columns] > 1, len(sizes)
    columns, index = columns[paired].astype(np.int32), data.coordinates[paired, mode].astype(np.int32)
    values = targets[paired]
    own = np.bincount(index, values**2, minlength=shape[mode]).astype(np.float64)
    return csr_matrix((values, (index, columns)), shape=(shape[mode], count)), own
