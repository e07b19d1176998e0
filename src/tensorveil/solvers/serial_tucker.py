"""Passes of descent over a Tucker model, one entry after the other; with the same interface as `Strata`."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats
from tensorveil.kernels.fast import tucker
from tensorveil.kernels.reference.blocks import Blocks
from tensorveil.kernels.vectors import aligned_zeros, padded
from tensorveil.models.factor_model import FactorModel


@final
@dataclass(frozen=True)
class SerialTucker:
    """Entries as they are, with scale * value + shift as values; every pass has a fresh order."""

    coordinates: NDArray[np.uint32]
    values: Floats
    scale: float
    shift: float

    @property
    def entries(self) -> int:
        """How many there are."""
        return len(self.values)

    def passes_at_once(self) -> int:
        """How many passes are made between two looks at the loss."""
        return 1

    def pack(self, model: FactorModel) -> NDArray[Any]:
        """Rows of the core, filled up to whole vectors; then the factors, then room for a partly contracted core."""
        size, length = _sizes(model)
        packed = aligned_zeros(model.ranks[0] * length + model.parameters.size - size + length, np.float64)
        core = packed[: model.ranks[0] * length].reshape(-1, length)
        core[:, : size // model.ranks[0]] = model.parameters[-size:].reshape(model.ranks[0], -1)
        packed[core.size : len(packed) - length] = model.parameters[:-size]
        return packed

    @staticmethod
    def unpack(packed: NDArray[Any], model: FactorModel) -> Floats:
        """The model's numbers: factors, then the core."""
        size, length = _sizes(model)
        core = packed[: model.ranks[0] * length].reshape(-1, length)
        return np.concatenate([packed[core.size : len(packed) - length], core[:, : size // model.ranks[0]].ravel()])

    def visit(
        self,
        packed: NDArray[Any],
        model: FactorModel,
        rates: Floats,
        penalty: float,
        generator: np.random.Generator,
    ) -> Floats:
        """One pass for each of the learning rates; returns the sums of squared residuals."""
        size, length = _sizes(model)
        core = packed[: model.ranks[0] * length]
        numbers = Blocks(packed[core.size :], model.block_starts, np.array([*model.ranks, size // model.ranks[0]]))
        entries = (self.coordinates, self.values, self.scale, self.shift)
        visits = ((generator.permutation(self.entries), float(rate), penalty) for rate in rates)
        return np.array([tucker.tucker_pass(numbers, core, length, *entries, *visit) for visit in visits])


def _sizes(model: FactorModel) -> tuple[int, int]:
    """Cells of the core, and the padded length of its rows."""
    size = int(model.block_widths[-1])
    return size, padded(size // model.ranks[0], np.float64)
