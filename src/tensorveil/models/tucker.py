"""Tucker: a small core tensor multiplied by a matrix along each mode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError, SizeError
from tensorveil.models import algebra
from tensorveil.models.factor_model import FactorModel, ModelFamily, import_tensorly

MAX_CORE_CELLS = 4096


@final
@dataclass(frozen=True)
class Tucker(ModelFamily):
    """Tucker models of given ranks, one number for all modes or one per mode; the core has at most 4,096 cells.

    Examples
    --------
    >>> Tucker(ranks=(4, 4, 2)).block_shapes((20, 20, 20))
    ((20, 4), (20, 4), (20, 2), (4, 4, 2))
    """

    ranks: int | tuple[int, ...]
    name: ClassVar[str] = "tucker"

    def __post_init__(self) -> None:
        if isinstance(self.ranks, (Sequence, np.ndarray)) and np.ndim(self.ranks) == 1:
            checks.order(len(self.ranks))
            numbers = tuple(checks.positive_integer(f"ranks[{mode}]", rank) for mode, rank in enumerate(self.ranks))
            object.__setattr__(self, "ranks", numbers)
            check_core(numbers)
        else:
            checks.positive_integer("ranks", self.ranks, "give a whole number or one per mode, e.g. (4, 4, 2)")

    def ranks_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        sizes = checks.shape(shape)
        ranks = self.ranks if isinstance(self.ranks, tuple) else (self.ranks,) * len(sizes)
        if len(ranks) != len(sizes):
            raise InputError(
                f"ranks must be one number per mode, got {len(ranks)} for a tensor of {len(sizes)} modes; "
                "give as many ranks as modes"
            )
        for mode, (rank, size) in enumerate(zip(ranks, sizes, strict=True)):
            if rank > size:
                raise InputError(f"ranks[{mode}] must be at most the mode's size {size}, got {rank}; lower it")
        check_core(ranks)
        return ranks

    def block_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        ranks = self.ranks_for(shape)
        return (*zip(checks.shape(shape), ranks, strict=True), ranks)

    def model(self, blocks: Sequence[ArrayLike]) -> "TuckerModel":
        return TuckerModel(blocks[-1], blocks[:-1])


@final
class TuckerModel(FactorModel):
    """A Tucker model with its numbers: the core and one factor matrix per mode."""

    core: Floats

    def __init__(self, core: ArrayLike, factors: Sequence[ArrayLike]) -> None:
        cells = np.asarray(core, dtype=np.float64)
        columns = tuple(np.shape(factor)[-1] if np.ndim(factor) else 0 for factor in factors)
        if cells.shape != columns:
            raise InputError(
                f"core must have the shape of the factors' numbers of columns {columns}, got {cells.shape}; "
                "give core and factors of the same model"
            )
        check_core(cells.shape)
        super().__init__(factors, cells)

    @property
    def family(self) -> Tucker:
        return Tucker(self.ranks)

    def _reconstruct(self, factors: Sequence[Floats]) -> Floats:
        tensor = self.core
        for mode, factor in enumerate(factors):
            tensor = algebra.mode_product(tensor, factor, mode)
        return tensor

    def to_tensorly(self) -> Any:
        """The same model as `tensorly.tucker_tensor.TuckerTensor`."""
        import_tensorly()
        from tensorly.tucker_tensor import TuckerTensor

        return TuckerTensor((np.array(self.core), [np.array(factor) for factor in self.factors]))

    @classmethod
    def from_tensorly(cls, tensor: Any) -> "TuckerModel":
        """From a `tensorly.tucker_tensor.TuckerTensor` or a (core, factors) pair."""
        core, factors = tensor
        return cls(core, factors)


def check_core(ranks: tuple[int, ...]) -> None:
    """Refuse a core of more than 4,096 cells."""
    cells = math.prod(ranks)
    if cells > MAX_CORE_CELLS:
        raise SizeError(
            f"the core of a Tucker model must have at most {MAX_CORE_CELLS:,} cells, "
            f"ranks {ranks} give {cells:,}; lower the ranks or use CP"
        )
