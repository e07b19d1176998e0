"""The promise that comes with a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tensorveil import checks

STATUSES = ("proven", "claimed", "none")


@final
@dataclass(frozen=True)
class Guarantee:
    """What is said about the privacy of a model, and on what ground.

    Attributes
    ----------
    epsilon, delta : float
        The stated parameters of differential privacy.
    unit : str
        What one change between neighbouring data sets is: "value" = one value replaced by any other.
    status : str
        "proven": a theorem of this project covers the run. "claimed": a publication states it and it is reproduced
        as printed, without a valid proof. "none": no privacy.
    source : str
        Where the statement comes from.
    reasons : tuple of str
        For a claim: why it is not proven.
    seeded : bool
        Whether the noise came from a seed, which anybody who knows it can subtract.
    """

    epsilon: float
    delta: float
    unit: str
    status: str
    source: str
    reasons: tuple[str, ...] = ()
    seeded: bool = False

    def __post_init__(self) -> None:
        checks.choice("status", self.status, STATUSES)

    @property
    def publishable(self) -> bool:
        """Whether the model may leave the house on the strength of this guarantee."""
        return self.status == "proven" and not self.seeded

    def __str__(self) -> str:
        if self.status == "none":
            return "No privacy: the model may tell everything about the data. Not for publication."
        stated = f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else "")
        if self.status == "proven":
            text = f"Proven: {stated} for the unit {self.unit!r} ({self.source})."
            return text + (" Seeded: not for release." if self.seeded else "")
        lines = [f"Claimed, not proven: {stated} for the unit {self.unit!r}, after {self.source}. Not for publication."]
        return "\n".join([*lines, *(f"- {reason}" for reason in self.reasons)])
