"""Stages: the paid readings of the data that a plan consists of, with typed prices, sensitivities and noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, final

from tensorveil.errors import InputError
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent, event_from_json
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.theorems import THEOREMS


class Norm(StrEnum):
    """How the change of a statistic is measured; noise is made for one norm."""

    L1 = "L1"  # discrete Laplace noise
    L2 = "L2"  # discrete Gaussian noise
    ROWS = "sum of row norms"  # norm-exponential noise on every row


LAW_OF_NORM = {Norm.L1: Law.LAPLACE, Norm.L2: Law.GAUSSIAN, Norm.ROWS: Law.ROWS}


@final
@dataclass(frozen=True)
class Sensitivity:
    """How far one privacy unit moves a statistic, as far as the plan knows.

    Attributes
    ----------
    bound : float or None
        The number, where it is fixed in the plan. None: it follows in the run from public facts and released numbers.
    norm : Norm or None
        None where no norm applies, as for symbols.
    words : str
        What is measured or, without a number, the rule.
    """

    bound: float | None
    norm: Norm | None
    words: str

    def __str__(self) -> str:
        if self.bound is None:
            return self.words
        return f"{self.bound:.4g} ({', '.join(filter(None, (self.norm, self.words)))})"


@final
@dataclass(frozen=True)
class Stage:
    """One paid reading of the data, or several equal ones.

    Attributes
    ----------
    name : str
        Different for every stage of a plan; the vault knows stages by their names.
    theorem : str
        The theorem that bounds its sensitivity.
    event : Event
        What it costs.
    sensitivity : Sensitivity
    law : Law
        The kind of noise; its scale follows from the event and the sensitivity.
    what : str
        What is noised; for channels, all that is to be said.
    """

    name: str
    theorem: str
    event: Event
    sensitivity: Sensitivity
    law: Law
    what: str

    def __post_init__(self) -> None:
        if self.theorem not in THEOREMS:
            raise InputError(f"theorem must be one of {sorted(THEOREMS)}, got {self.theorem!r}; prove it first")

    @property
    def noise(self) -> str:
        """What is noised, by which law and scale, and how often, in words."""
        times = "" if self.event.count == 1 else f", {self.event.count} times"
        return self._once() + times

    def to_json(self) -> dict[str, Any]:
        """Plain values, read back by `from_json`; the text of the noise is there for readers."""
        return {
            "name": self.name,
            "theorem": self.theorem,
            "event": self.event.to_json(),
            "sensitivity": asdict(self.sensitivity),
            "law": str(self.law),
            "what": self.what,
            "noise": self.noise,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Stage:
        """The stage that `to_json` wrote. The text of the noise is made anew, and not read."""
        told = plain["sensitivity"]
        norm = None if told["norm"] is None else Norm(told["norm"])
        sensitivity = Sensitivity(told["bound"], norm, told["words"])
        event = event_from_json(plain["event"])
        return cls(plain["name"], plain["theorem"], event, sensitivity, Law(plain["law"]), plain["what"])

    def _once(self) -> str:
        event, bound = self.event, self.sensitivity.bound
        if self.law is Law.CHANNEL and isinstance(event, PureEvent):
            return f"{self.what}, epsilon {event.epsilon:.4g}"
        if isinstance(event, PureEvent):
            scale = f"scale {bound / event.epsilon:.4g}" if bound else f"scale sensitivity / {event.epsilon:.4g}"
        elif isinstance(event, GaussianEvent):
            std = event.noise_multiplier
            scale = f"std {bound * std:.4g}" if bound else f"std {std:.4g} times the sensitivity"
        else:
            scale = f"std {event.noise_multiplier:.4g} times the clip norm"
        return f"{self.what} with {self.law} of {scale}"
