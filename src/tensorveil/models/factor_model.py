"""What CP and Tucker models have in common: blocks of numbers that predict entries of a tensor."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError, MissingDependencyError
from tensorveil.kernels.reference import descent
from tensorveil.kernels.reference.blocks import Blocks

LARGEST_PARAMETER = 2.0**8  # models whose numbers keep to it have finite predictions and gradients


class ModelFamily(ABC):
    """A kind of model and its rank, before any number is known: `CP(rank=3)`, `Tucker(ranks=(4, 4, 2))`."""

    name: ClassVar[str]
    nonnegative: bool = False  # whether no number of a model may be below zero

    @abstractmethod
    def ranks_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Number of columns of each mode's factor matrix; raises InputError if the ranks do not fit the shape."""

    @abstractmethod
    def block_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Shapes of the factor matrices in the order of the modes, then of the core if there is one."""

    @abstractmethod
    def model(self, blocks: Sequence[ArrayLike]) -> "FactorModel":
        """The model made of these blocks."""

    def zeros(self, shape: tuple[int, ...]) -> "FactorModel":
        """The model whose numbers are all zero."""
        return self.model([np.zeros(block) for block in self.block_shapes(shape)])


class FactorModel(ABC):
    """Factor matrices, one per mode, and perhaps a core: immutable, and able to predict any entry.

    Attributes
    ----------
    factors : one matrix per mode, one row per index of the mode; read-only
    core : the core of a Tucker model
    parameters : all numbers of the model in one read-only vector: factors in the order of the modes, then the core
    block_starts, block_widths : where each block begins in the vector, and the length of one of its rows (the core is a
        single row)
    """

    def __init__(self, factors: Sequence[ArrayLike], core: ArrayLike | None = None) -> None:
        matrices = [np.asarray(factor, dtype=np.float64) for factor in factors]
        checks.order(len(matrices))
        for number, matrix in enumerate(matrices):
            if matrix.ndim != 2 or 0 in matrix.shape:
                raise InputError(
                    f"factors[{number}] must be a matrix with one row per index and one column per component, "
                    f"got shape {matrix.shape}; reshape it"
                )
        whole = [*matrices] if core is None else [*matrices, np.asarray(core, dtype=np.float64)]
        self.parameters: Floats = np.concatenate([block.ravel() for block in whole])
        if not np.isfinite(self.parameters).all():
            raise InputError(
                "factors and core must be finite, got NaN or an infinity; the solver that made them may have diverged"
            )
        self.parameters.setflags(write=False)
        sizes = np.array([block.size for block in whole], dtype=np.int64)
        self.block_starts: Integers = np.cumsum(sizes) - sizes
        self.block_widths: Integers = np.array([*(matrix.shape[1] for matrix in matrices), *sizes[len(matrices) :]])
        self.block_starts.setflags(write=False)
        self.block_widths.setflags(write=False)
        views = [
            part.reshape(block.shape)
            for part, block in zip(np.split(self.parameters, self.block_starts[1:]), whole, strict=True)
        ]
        self.factors: tuple[Floats, ...] = tuple(views[: len(matrices)])
        self.core: Floats | None = None if core is None else views[-1]

    @property
    def numbers(self) -> Blocks:
        """All numbers and where they are, as kernels read them."""
        return Blocks(self.parameters, self.block_starts, self.block_widths)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the modes."""
        return tuple(factor.shape[0] for factor in self.factors)

    @property
    def order(self) -> int:
        """Number of modes."""
        return len(self.factors)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Number of components of each mode."""
        return tuple(factor.shape[1] for factor in self.factors)

    @property
    @abstractmethod
    def family(self) -> ModelFamily:
        """The specification this model is an instance of."""

    @property
    def blocks(self) -> tuple[Floats, ...]:
        """The factor matrices in the order of the modes, then the core if there is one."""
        return self.factors if self.core is None else (*self.factors, self.core)

    def replace_parameters(self, parameters: Floats) -> "FactorModel":
        """A model of the same family and shape with other numbers."""
        shapes = self.family.block_shapes(self.shape)
        parts = np.split(parameters, self.block_starts[1:])
        return self.family.model([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])

    def with_block(self, block: int, values: Floats) -> "FactorModel":
        """The model with one block replaced: the factor matrix of a mode, or the core after the last mode."""
        whole = self.blocks
        return self.family.model([*whole[:block], values.reshape(whole[block].shape), *whole[block + 1 :]])

    def predict(self, coordinates: ArrayLike) -> Floats:
        """Predicted values at integer coordinates, one row per entry."""
        where = checks.coordinates(coordinates, self.shape)
        predictions = np.empty(len(where))
        descent.predict(self.numbers, where, predictions)
        return predictions

    def features(self, coordinate: ArrayLike) -> tuple[Floats, ...]:
        """Derivatives of one entry's prediction by its row of each factor matrix, then by the core."""
        where = checks.coordinates(np.atleast_2d(np.asarray(coordinate)), self.shape)
        if len(where) != 1:
            raise InputError(f"coordinate must be one entry's indices, got {len(where)} rows; call once per entry")
        phi = np.empty(int(self.block_widths.sum()))
        descent.features_at(self.numbers, where, phi)
        parts = np.split(phi, np.cumsum(self.block_widths)[:-1])
        return (*parts[: self.order], *(part.reshape(self.ranks) for part in parts[self.order :]))

    def gradient(
        self, coordinate: ArrayLike, value: float, regularization: float = 0.0, core_regularization: float = 0.0
    ) -> tuple[Floats, ...]:
        """Gradient of one entry's objective by its row of each factor matrix, then by the core.

        The objective is (x - xhat)^2 + regularization * sum of squared norms of the entry's rows
        + core_regularization * |core|^2, the paper's Eq. (cp) and Eq. (tucker) for one entry.
        """
        phi = self.features(coordinate)
        index = np.asarray(coordinate).ravel()
        residual = checks.finite_number("value", value) - float(self.predict(index[None, :])[0])
        rows = [factor[i] for factor, i in zip(self.factors, index, strict=True)]
        penalties = [regularization] * self.order
        if self.core is not None:
            rows.append(self.core)
            penalties.append(core_regularization)
        return tuple(
            -2.0 * residual * part + 2.0 * penalty * row
            for part, penalty, row in zip(phi, penalties, rows, strict=True)
        )

    def to_dense(self, max_cells: int = checks.MAX_DENSE_CELLS) -> Floats:
        """The whole reconstructed tensor; refuses to build more than `max_cells` cells."""
        checks.dense_size(self.shape, max_cells, "predict the coordinates you need, or take a slice")
        return self._reconstruct(self.factors)

    def slice(self, mode: int, index: int, max_cells: int = checks.MAX_DENSE_CELLS) -> Floats:
        """The reconstructed slice at one index of one mode: a tensor without that mode."""
        number = checks.mode(mode, self.order)
        if isinstance(index, bool) or not isinstance(index, Integral) or not 0 <= index < self.shape[number]:
            raise InputError(
                f"index must be from 0 to {self.shape[number] - 1} in mode {number}, got {index!r}; choose another"
            )
        picked = list(self.factors)
        picked[number] = picked[number][index : index + 1]
        checks.dense_size([len(factor) for factor in picked], max_cells, "predict the coordinates you need")
        return np.squeeze(self._reconstruct(picked), axis=number)

    @abstractmethod
    def _reconstruct(self, factors: Sequence[Floats]) -> Floats:
        """Dense tensor made of these factors and this model's core."""

    @abstractmethod
    def to_tensorly(self) -> Any:
        """The same model as a TensorLy object."""

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, FactorModel)
            and self.shape == other.shape
            and self.ranks == other.ranks
            and np.array_equal(self.parameters, other.parameters)
        )

    __hash__ = None  # type: ignore[assignment]  # equal by value, and large

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle and copy would give writeable arrays that share no memory
        return self.family.model, (list(self.blocks),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, ranks={self.ranks})"


def import_tensorly() -> Any:
    """TensorLy's base module with its NumPy backend, or one clear error."""
    try:
        import tensorly
    except ImportError as error:
        raise MissingDependencyError(
            "converting to TensorLy needs the tensorly package, which is not installed; "
            'install it with pip install "tensorveil[tensorly]"'
        ) from error
    return tensorly
