"""Start values of a solver."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.errors import InputError
from tensorveil.models.factor_model import FactorModel, ModelFamily


class Start(ABC):
    """A rule that draws the first model; it reads the shape and the family only, never the data."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
        """Start values of one block."""

    def model(self, family: ModelFamily, shape: tuple[int, ...], generator: np.random.Generator) -> FactorModel:
        """The first model of a family."""
        return family.model([self.draw(block, generator) for block in family.block_shapes(shape)])


@final
@dataclass(frozen=True)
class UniformStart(Start):
    """Independent uniform numbers in [low, high] in every factor and in the core.

    The default, [0, 1], lets SGD converge at the paper's step sizes on both of its generators and on MovieLens: all
    products start positive, near the level of data scaled to [0, 1].
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if checks.finite_number("low", self.low) >= checks.finite_number("high", self.high):
            raise InputError(f"low must be below high, got {self.low} and {self.high}; swap them")

    def draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
        return generator.uniform(self.low, self.high, shape)


@final
@dataclass(frozen=True)
class NormalStart(Start):
    """Independent normal numbers in every factor and in the core."""

    mean: float = 0.0
    std: float = 0.1

    def __post_init__(self) -> None:
        checks.finite_number("mean", self.mean)
        checks.positive_number("std", self.std)

    def draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
        return generator.normal(self.mean, self.std, shape)


def public_start(family: ModelFamily, shape: tuple[int, ...], std: float) -> FactorModel:
    """A first model that is the same for everybody: normal numbers from a fixed, public stream.

    Start values of a private mechanism are public; secret ones would gain nothing.
    """
    return NormalStart(std=std).model(family, shape, np.random.default_rng(20260101))
