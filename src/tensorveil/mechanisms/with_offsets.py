"""Private offsets before any mechanism: mean and offsets of every mode first, then the mechanism on the residuals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, final

from numpy.typing import ArrayLike

from tensorveil import checks
from tensorveil.data.features import PublicInput
from tensorveil.errors import InputError
from tensorveil.inference.level import Level
from tensorveil.mechanisms.base import Design, Mechanism, Progress, budget_with, no_progress
from tensorveil.mechanisms.gradient import GradientPerturbation
from tensorveil.mechanisms.parts.marginal import ask_marginal, marginal_coordinates, marginal_shares, marginal_stages
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
    """Private marginal and offsets, then another mechanism on the residuals.

    A residual is computed from one observation's own value and released numbers, and clipped to the same bounds.
    Neighbouring data therefore have neighbouring residuals, and the inner mechanism's theorem applies to them as it is.

    Parameters
    ----------
    mechanism : what runs on the residuals; sum perturbation and the posterior of input perturbation learn offsets
        themselves, and are refused
    share : share of the budget for marginal and offsets
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

    def with_features(self, features: Mapping[str, ArrayLike]) -> Self:
        return replace(self, mechanism=self.mechanism.with_features(features))

    def design(self, request: Request) -> Design:
        if self.mechanism.learns_offsets(request.unit):
            raise InputError(
                f"mechanism must not learn offsets itself, got {self.mechanism.title}; use it without WithOffsets"
            )
        modes = offset_modes(request, request.unit.mode_number if request.unit.kind == "slice" else None)
        marginal = marginal_shares(request)
        each = (1 - math.fsum(marginal)) / len(modes)
        shares = [self.share * part for part in (*marginal, *[each] * len(modes))]
        own = marginal_coordinates(request) + offset_coordinates(request, modes)
        events, plan, coordinates = budget_with(request, self.mechanism, 1 - self.share, shares, own)
        first = len(marginal)
        stages = [*marginal_stages(request, events[:first]), *offset_stages(request, modes, events[first:])]
        stages += [replace(stage, name=f"{INNER}, {stage.name}") for stage in plan.stages]
        trusted = self.mechanism.design(plan.request).assumptions_trusted
        return Design(tuple(stages), Settings(modes, plan), coordinates, trusted)

    def check_pattern(self, pattern: Pattern, plan: Plan) -> None:
        self.mechanism.check_pattern(pattern, plan.settings.inner)

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        settings: Settings = plan.settings
        first = len(marginal_shares(plan.request))
        level = Level.of(ask_marginal(vault, plan.stages[:first], plan.request.bounds))
        others = plan.stages[first : first + len(settings.modes)]
        offsets = level.rescaled(ask_offsets(vault, level, settings.modes, others))
        kind = type(self.mechanism)  # its method, and no attribute of an instance
        inner = kind.run(self.mechanism, vault.residuals(offsets).inner(INNER), settings.inner, progress)
        return replace(inner, offsets=offsets + inner.offsets)
