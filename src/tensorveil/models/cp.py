"""CP (CANDECOMP/PARAFAC): a sum of rank-one tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError
from tensorveil.models import algebra
from tensorveil.models.factor_model import FactorModel, ModelFamily, import_tensorly
from tensorveil.models.tucker import Tucker, TuckerModel, check_core


@final
@dataclass(frozen=True)
class CP(ModelFamily):
    """CP models of a rank: xhat[i, j, k] = sum_r a[i, r] b[j, r] c[k, r], for 2 to 6 modes.

    Parameters
    ----------
    rank : number of rank-one components
    nonnegative : whether no number of a factor may be below zero. Components can then only add to each other, so that
        each one can be read as a part of the whole; for counts and amounts.

    Examples
    --------
    >>> CP(rank=3).block_shapes((20, 20, 20))
    ((20, 3), (20, 3), (20, 3))
    >>> CP(rank=3, nonnegative=True)
    CP(rank=3, nonnegative=True)
    """

    rank: int
    nonnegative: bool = False
    name: ClassVar[str] = "cp"

    def __post_init__(self) -> None:
        checks.positive_integer("rank", self.rank)
        if not isinstance(self.nonnegative, bool):
            raise InputError(f"nonnegative must be True or False, got {self.nonnegative!r}; give one of them")

    def __repr__(self) -> str:
        return f"CP(rank={self.rank}{', nonnegative=True' if self.nonnegative else ''})"

    def ranks_for(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (self.rank,) * len(checks.shape(shape))

    def block_shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(zip(checks.shape(shape), self.ranks_for(shape), strict=True))

    def model(self, blocks: Sequence[ArrayLike]) -> "CPModel":
        return CPModel(blocks, self.nonnegative)

    def to_tucker(self) -> Tucker:
        """The Tucker family that holds every CP model of this rank."""
        return Tucker(ranks=self.rank)


@final
class CPModel(FactorModel):
    """A CP model with its numbers: one factor matrix per mode, all with `rank` columns.

    With `nonnegative`, a number below zero is an error.
    """

    def __init__(self, factors: Sequence[ArrayLike], nonnegative: bool = False) -> None:
        super().__init__(factors)
        self.nonnegative = nonnegative
        if nonnegative and (self.parameters < 0).any():
            raise InputError(
                f"the factors of a non-negative model must not be below 0, got {self.parameters.min():g}; "
                "leave out nonnegative, or clip them"
            )
        if len(set(self.ranks)) != 1:
            raise InputError(
                f"the factors of a CP model must have one common number of columns, got {self.ranks}; "
                "for different ranks use a Tucker model"
            )

    @property
    def rank(self) -> int:
        """Number of rank-one components."""
        return self.ranks[0]

    @property
    def family(self) -> CP:
        return CP(self.rank, self.nonnegative)

    def _reconstruct(self, factors: Sequence[Floats]) -> Floats:
        shape = tuple(factor.shape[0] for factor in factors)
        return (factors[0] @ algebra.khatri_rao(factors[1:]).T).reshape(shape)

    def to_tucker(self) -> TuckerModel:
        """The same tensor as a Tucker model, whose core is one on the superdiagonal and zero elsewhere."""
        check_core((self.rank,) * self.order)  # before it is built
        core = np.zeros((self.rank,) * self.order)
        core[(np.arange(self.rank),) * self.order] = 1.0
        return TuckerModel(core, self.factors)

    def to_tensorly(self) -> Any:
        """The same model as `tensorly.cp_tensor.CPTensor`, with weights of one."""
        import_tensorly()
        from tensorly.cp_tensor import CPTensor

        return CPTensor((np.ones(self.rank), [np.array(factor) for factor in self.factors]))

    @classmethod
    def from_tensorly(cls, tensor: Any) -> "CPModel":
        """From a `tensorly.cp_tensor.CPTensor` or a (weights, factors) pair; weights go into the first factor."""
        weights, factors = tensor
        first = np.asarray(factors[0], dtype=np.float64)
        if weights is not None and np.shape(weights) != first.shape[1:]:
            raise InputError(f"weights must be {first.shape[1]}, one per component, got shape {np.shape(weights)}")
        return cls([first if weights is None else first * np.asarray(weights, dtype=np.float64), *factors[1:]])
