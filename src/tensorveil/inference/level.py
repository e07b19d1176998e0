"""The level and spread of the values, as a released marginal tells them."""

from dataclasses import dataclass
from typing import Self, final

from tensorveil.inference.values.marginal import Marginal
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets

WIDE = 3.0  # values beyond three standard deviations are clipped


@final
@dataclass(frozen=True)
class Level:
    """A centre and a scale on the centred scale: values are read as clip((y - mean) / scale, -1, 1)."""

    mean: float
    scale: float

    @classmethod
    def of(cls, marginal: Marginal) -> Self:
        """The mean of a marginal, and three of its standard deviations."""
        mean = marginal.mean()
        return cls(mean, min(1.0 + abs(mean), max(WIDE * marginal.std(), 1e-6)))

    def rescaled(self, offsets: Offsets) -> Offsets:
        """Offsets of values brought to this level, on the centred scale."""
        parts = [None if part is None else self.scale * part for part in offsets.modes]
        return Offsets(self.mean + self.scale * offsets.mean, parts)

    def completion(
        self, offsets: Offsets, model: FactorModel, bounds: tuple[float, float], withheld: int | None = None
    ) -> Completion:
        """The completion on the centred scale, from offsets and a model of values brought to this level."""
        block = next(mode for mode in range(model.order) if mode != withheld) if model.core is None else model.order
        whole = model.factors[block] if model.core is None else model.core
        return Completion(self.rescaled(offsets), model.with_block(block, whole * self.scale), *bounds, withheld)
