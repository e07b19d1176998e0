"""Stages: the paid readings of the data that a plan consists of, in words and as plain values."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, final

from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent, event_from_json
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.queries.base import LAW_OF_NORM, Norm, PaidStage, Sensitivity

__all__ = ["LAW_OF_NORM", "Norm", "Sensitivity", "Stage"]


@final
@dataclass(frozen=True)
class Stage(PaidStage):
    """A paid stage with its texts, for plans and certificates."""

    @property
    def noise(self) -> str:
        """What is noised, by which law and scale, and how often, in words."""
        times = "" if self.event.count == 1 else f", {self.event.count} times"
        return self._once() + times

    @property
    def theorems(self) -> tuple[str, ...]:
        """The theorems that an answer may rest on."""
        return (self.theorem,) if self.instead is None else (self.theorem, self.instead)

    @property
    def proven_by(self) -> str:
        """The theorems, in words."""
        return ", or ".join(self.theorems)

    def to_json(self) -> dict[str, Any]:
        """Plain values, read back by `from_json`; the text of the noise is there for readers."""
        return {
            "name": self.name,
            "theorem": self.theorem,
            "event": self.event.to_json(),
            "sensitivity": asdict(self.sensitivity),
            "law": str(self.law),
            "what": self.what,
            "instead": self.instead,
            "noise": self.noise,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """The stage that `to_json` wrote. The text of the noise is made anew, and not read."""
        told = plain["sensitivity"]
        norm = None if told["norm"] is None else Norm(told["norm"])
        sensitivity = Sensitivity(told["bound"], norm, told["words"])
        event = event_from_json(plain["event"])
        law = Law(plain["law"])
        return cls(plain["name"], plain["theorem"], event, sensitivity, law, plain["what"], plain["instead"])

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
        told = f"{self.what} with {self.law} of {scale}"
        if self.instead is not None and isinstance(event, PureEvent):
            told += f"; or else a random symbol for every cell, observed or not, epsilon {event.epsilon:.4g}"
        return told
