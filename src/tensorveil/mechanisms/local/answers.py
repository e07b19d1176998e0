"""Completion of answers that clients drew at the source: everything at the server is post-processing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.data.features import Features, PublicInput, public_inputs, standardised
from tensorveil.errors import InputError
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.noisy import Target, sample_values
from tensorveil.mechanisms.base import Design, Mechanism, Progress, no_progress, one_unit
from tensorveil.mechanisms.local.protocols import released_answers
from tensorveil.models.completion import Completion
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.local.client import LocalProtocol
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.stages import Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault

ANSWERS = "answers"  # the stage that the clients paid


@final
@dataclass(frozen=True)
class LocalAnswers(Mechanism):
    """Completion of the answers of clients, by the posterior that input perturbation has.

    The observations of its plan hold symbols in the place of values. Nothing private reaches it, so no vault is made.

    Parameters
    ----------
    protocol : the protocol by which the clients answered
    person : the mode whose indices are people, if the guarantee should say what all answers of one person cost
    solver : the sampler; None: its defaults
    features : public features of the indices of some modes, mode name -> matrix
    smooth : waves along the smooth modes, mode name -> what `smooth_features` makes

    Guarantee
    ---------
    `value`: local-channel. It holds whatever the server does, as long as the clients followed the protocol.
    """

    protocol: LocalProtocol
    person: str | None = None
    solver: Posterior | None = None
    features: Mapping[str, ArrayLike] | None = field(default=None, compare=False, repr=False)
    smooth: Mapping[str, Features] | None = field(default=None, compare=False, repr=False)
    name: ClassVar[str] = "local"

    @property
    def public_inputs(self) -> tuple[PublicInput, ...]:
        return public_inputs(self.features, self.smooth)

    def with_features(self, features: Mapping[str, ArrayLike]) -> LocalAnswers:
        return replace(self, features=features)

    def can_smooth(self, unit: Unit) -> bool:
        return True

    def with_smooth(self, smooth: Mapping[str, Features]) -> LocalAnswers:
        return replace(self, smooth=smooth)

    def design(self, request: Request) -> Design:
        agreed = self.protocol
        if (request.bounds.low, request.bounds.high) != (agreed.low, agreed.high) or request.epsilon != agreed.epsilon:
            raise InputError(
                f"bounds and epsilon must be those of the protocol, [{agreed.low:g}, {agreed.high:g}] and "
                f"{agreed.epsilon:g}, got [{request.bounds.low:g}, {request.bounds.high:g}] and {request.epsilon:g}; "
                "leave them out"
            )
        if self.person is not None and self.person not in request.mode_names:
            raise InputError(f"person must be one of the modes {list(request.mode_names)}, got {self.person!r}")
        standardised(self.features, request.mode_names, request.shape)
        what = f"channel of the protocol on {len(agreed.counts)} levels, at the source"
        sensitivity = Sensitivity(None, None, "1 value")
        stage = Stage(ANSWERS, "local-channel", PureEvent(agreed.epsilon), sensitivity, Law.CHANNEL, what)
        return Design((stage,), agreed.sha256)

    def checked(self, request: Request) -> tuple[str, ...]:
        return checked_locally(request)

    def trusted(self, request: Request) -> tuple[str, ...]:
        return trusted_locally(request)

    def learns_offsets(self, unit: Unit) -> bool:
        return True

    def keeps_nonnegative(self, unit: Unit) -> bool:
        return True

    def run(self, vault: Vault, plan: Plan, progress: Progress = no_progress) -> Completion:
        raise InputError("local answers must not be put into a vault, got one; call completed(coordinates, symbols)")

    def completed(
        self, coordinates: NDArray[np.uint32], symbols: NDArray[np.int64], plan: Plan, progress: Progress = no_progress
    ) -> Completion:
        """The posterior of the model given the answers, which come in the order of their cells."""
        request = plan.request
        names, shape = request.mode_names, request.shape
        solver = (self.solver or Posterior()).knowing(self.features, self.smooth, names, shape)
        target = Target(request.family, request.shape, request.bounds.low, request.bounds.high)
        return sample_values(solver, released_answers(self.protocol, symbols), coordinates, target, progress)


def checked_locally(request: Request) -> tuple[str, ...]:
    """What server and clients check, as guarantees state it."""
    return (
        "the table of the protocol keeps its epsilon: client and server check it in whole numbers",
        f"values beyond [{request.bounds.low:g}, {request.bounds.high:g}] belong to the outer levels of the table",
    )


def trusted_locally(request: Request) -> tuple[str, ...]:
    """What the server cannot check, as guarantees state it."""
    return (
        "every client drew its answers by this protocol, from the operating system's randomness, and repeated its "
        "first answer whenever it was asked again",
        "bounds and levels of the protocol were chosen without looking at the values",
        one_unit(request.unit),
        "running time and memory of the clients are not observed",
    )
