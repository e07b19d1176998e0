"""The law of the noise on an answer: all that inference needs to know about privacy."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final


class Law(StrEnum):
    """Kinds of noise, in the words of plans and certificates."""

    LAPLACE = "discrete Laplace noise"
    GAUSSIAN = "discrete Gaussian noise"
    ROWS = "norm-exponential noise"
    CHANNEL = "channel"


@final
@dataclass(frozen=True)
class NoiseLaw:
    """Noise of one kind and scale on every number of an answer.

    Attributes
    ----------
    scale : of Laplace and norm-exponential noise the scale, of Gaussian noise the standard deviation
    width : of norm-exponential noise, how many numbers a row has
    """

    law: Law
    scale: float
    width: int = 1

    @property
    def variance(self) -> float:
        """The variance of the noise on one number."""
        if self.law is Law.LAPLACE:
            return 2 * self.scale**2
        if self.law is Law.ROWS:
            return (self.width + 1) * self.scale**2
        return self.scale**2
