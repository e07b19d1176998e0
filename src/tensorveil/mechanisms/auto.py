"""`mechanism="auto"`: which mechanism, from what is public about a request, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tensorveil import checks
from tensorveil.mechanisms.base import Mechanism
from tensorveil.mechanisms.gradient import GradientPerturbation
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.output import OutputPerturbation
from tensorveil.mechanisms.planning.information import sums_are_better
from tensorveil.mechanisms.planning.levels import channel_levels, made_channel
from tensorveil.mechanisms.statistic import StatisticPerturbation
from tensorveil.mechanisms.sums import SumPerturbation
from tensorveil.mechanisms.with_offsets import WithOffsets
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.plan import Request
from tensorveil.privacy.units import Unit

MECHANISMS: dict[str, type[Mechanism]] = {
    "input": InputPerturbation,
    "gradient": GradientPerturbation,
    "output": OutputPerturbation,
    "statistic": StatisticPerturbation,
    "sums": SumPerturbation,
}
OURS = (*MECHANISMS.values(), WithOffsets)
LONG_ROWS = 500  # observations of an index from which on gradients tell more than sums: 54 on MovieLens, 5,000 on 100^3
NAMES = ("auto", *MECHANISMS)
FAMILIES = ("cp", "tucker")
RANK_OF_POSTERIOR, RANK_OF_OTHERS = 12, 5  # more than 12 gained nothing on MovieLens, and fewer lost 0.006 stars


@final
@dataclass(frozen=True)
class Choice:
    """A mechanism and the reason for it."""

    mechanism: Mechanism
    reason: str


def family_of(model: ModelFamily | str, shape: tuple[int, ...], unit: Unit, mechanism: Mechanism | str) -> ModelFamily:
    """The model that was given, or for "cp" and "tucker" one whose rank follows a rule; reads what is public.

    Many factors where the posterior shrinks those that are too many, else few: there each one costs noise.

    Examples
    --------
    >>> family_of("cp", (943, 1682, 8), Unit.value(), "auto"), family_of("tucker", (943, 1682, 4), Unit.entry(), "sums")
    (CP(rank=12), Tucker(ranks=(5, 5, 4)))
    """
    if not isinstance(model, str):
        return model
    if checks.choice("model", model, FAMILIES) == "tucker":
        return Tucker(tuple(min(RANK_OF_OTHERS, size) for size in shape))
    name = mechanism.name if isinstance(mechanism, Mechanism) else mechanism
    shrunk = unit.coordinates_public and name in ("auto", InputPerturbation.name)
    return CP(min(RANK_OF_POSTERIOR if shrunk else RANK_OF_OTHERS, sorted(shape)[-2]))


def foreign_mechanisms(mechanism: Mechanism) -> tuple[str, ...]:
    """Names of the mechanisms, this one and those that it runs inside, that are not this library's own."""
    inside = tuple(name for one in mechanism.inner_mechanisms for name in foreign_mechanisms(one))
    return inside if type(mechanism) in OURS else (type(mechanism).__qualname__, *inside)


def choose(name: str, request: Request) -> Choice:
    """The mechanism of that name, or for "auto" the one that is expected to err least; reads the request alone.

    Examples
    --------
    >>> from tensorveil.privacy.bounds import Bounds
    >>> ratings = Request.checked(CP(5), Bounds(1, 5), "value", 5.0, 0.0, (943, 1682), None, 90_000, None)
    >>> choose("auto", ratings).mechanism.name
    'input'
    """
    checks.choice("mechanism", name, NAMES)
    if name != "auto":
        return Choice(MECHANISMS[name](), "asked for")
    kind = request.unit.kind
    if kind == "value":
        channel = made_channel(channel_levels(None, request.bounds), request.epsilon)
        if sums_are_better(request, channel.information):
            return Choice(
                SumPerturbation(), "at this epsilon single values tell next to nothing, and sums over many of them more"
            )
        return Choice(
            InputPerturbation(),
            "under 'value' the coordinates are public, so that every value is perturbed once and all inference is free",
        )
    if request.delta > 0 and kind != "slice" and request.count_or_guess >= LONG_ROWS * max(request.shape):
        return Choice(
            WithOffsets(GradientPerturbation()),
            "there are enough observations of every index for noisy gradients to find factors besides offsets",
        )
    return Choice(
        SumPerturbation(),
        "under 'slice' only sums over slices are released, and each slice keeps its own rows (joint privacy)"
        if kind == "slice"
        else f"under {kind!r} sums over many observations hide one unit best",
    )
