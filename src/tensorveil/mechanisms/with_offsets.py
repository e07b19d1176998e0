"""Private offsets before any mechanism: mean and offsets of every mode first, then the mechanism on the residuals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.data.features import PublicInput
from tensorveil.errors import InputError
from tensorveil.mechanisms.base import Design, Mechanism, Progress, budget_with, no_progress
from tensorveil.mechanisms.gradient import GradientPerturbation
from tensorveil.mechanisms.parts.level import ask_level, default_level_share, level_coordinates, level_stage
from tensorveil.mechanisms.parts.offsets import ask_offsets, offset_coordinates, offset_modes, offset_stages
from tensorveil.models.completion import Completion
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.vault import Pattern, Vault

INNER = "residuals"  # what the names of the inner mechanism's stages begin with


@final
@dataclass(frozen=True)
class Settings:
    """The modes that get offsets, and the plan of the mechanism that runs on the residuals."""

    modes: tuple[int, ...]
    inner: Plan


@final
@dataclass(frozen=True)
class WithOffsets(Mechanism):
    """Private level and offsets, then another mechanism on the residuals.

    A residual is computed from one observation's own value and released numbers, and clipped to the same bounds.
    Neighbouring data therefore have neighbouring residuals, and the inner mechanism's theorem applies to them as it is.

    Parameters
    ----------
    mechanism : what runs on the residuals
    share : share of the budget for level and offsets
    """

    mechanism: Mechanism = field(default_factory=GradientPerturbation)
    share: float = 0.3
    name: ClassVar[str] = "offsets"

    def __post_init__(self) -> None:
        checks.fraction("share", self.share)
        if not isinstance(self.mechanism, Mechanism):
            raise InputError(
                f"mechanism must be an instance, e.g. GradientPerturbation(), got {self.mechanism!r}; create one"
            )

    @property
    def title(self) -> str:
        return f"offsets, then {self.mechanism.title}"

    @property
    def inner_mechanisms(self) -> tuple[Mechanism, ...]:
        return (self.mechanism,)

    @property
    def public_inputs(self) -> tuple[PublicInput, ...]:
        return self.mechanism.public_inputs

    def with_features(self, features: Mapping[str, ArrayLike]) -> WithOffsets:
        return replace(self, mechanism=self.mechanism.with_features(features))

    def design(self, request: Request) -> Design:
        modes = offset_modes(request, request.unit.mode_number if request.unit.kind == "slice" else None)
        level = default_level_share(request)
        shares = [self.share * level, *[self.share * (1 - level) / len(modes)] * len(modes)]
        own = level_coordinates(request) + offset_coordinates(request, modes)
        events, plan, coordinates = budget_with(request, self.mechanism, 1 - self.share, shares, own)
        stages = [level_stage(request, events[0]), *offset_stages(request, modes, events[1:])]
        stages += [replace(stage, name=f"{INNER}, {stage.name}") for stage in plan.stages]
        trusted = self.mechanism.design(plan.request).assumptions_trusted
        return Design(tuple(stages), Settings(modes, plan), coordinates, trusted)

    def check_pattern(self, pattern: Pattern, plan: Plan) -> None:
        self.mechanism.check_pattern(pattern, plan.settings.inner)

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        settings: Settings = plan.settings
        first, *others = plan.stages[: len(settings.modes) + 1]
        level = ask_level(vault, first.event)
        offsets = level.rescaled(ask_offsets(vault, level, settings.modes, others))
        inner = self.mechanism.run(vault.residuals(offsets).inner(INNER), settings.inner, progress)
        return replace(inner, offsets=offsets + inner.offsets)
