"""`mechanism="auto"`: the choice of a mechanism from public facts, with the reason."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.mechanisms.base import Mechanism
from tensorveil.mechanisms.gradient import GradientPerturbation
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.local.answers import LocalAnswers
from tensorveil.mechanisms.output import OutputPerturbation
from tensorveil.mechanisms.parts.cells import cells_fit
from tensorveil.mechanisms.planning.information import channel_information, sums_are_better, weakened
from tensorveil.mechanisms.planning.input_stages import MAX_CELLS
from tensorveil.mechanisms.statistic import StatisticPerturbation
from tensorveil.mechanisms.sums import SumPerturbation
from tensorveil.mechanisms.with_offsets import WithOffsets
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.local.client import LocalProtocol
from tensorveil.privacy.plan import Request
from tensorveil.privacy.units import Unit

MECHANISMS: dict[str, type[Mechanism]] = {
    "input": InputPerturbation,
    "gradient": GradientPerturbation,
    "output": OutputPerturbation,
    "statistic": StatisticPerturbation,
    "sums": SumPerturbation,
}
OURS: tuple[type, ...] = (*MECHANISMS.values(), WithOffsets, LocalAnswers)
LONG_ROWS = 500  # observations of an index from which on gradients tell more than sums: 54 on MovieLens, 5,000 on 100^3
# Information that symbols of all cells keep, from which on they are as good as gradients with a delta of 1e-6. Made-up
# 80 x 70 x 60, a quarter seen, unit entry, error over the truth's spread, symbols / gradients: at epsilon 2 (kept 0.05)
# amounts 0.32 / 0.37, counts 0.42 / 0.30, stars 0.57 / 0.18; at epsilon 4 (0.34) 0.24 / 0.32, 0.11 / 0.26, 0.18 / 0.18
CLEAR = 0.2
NAMES = ("auto", *MECHANISMS)
FAMILIES = ("cp", "nonnegative", "tucker", "auto")
RANK_OF_POSTERIOR, RANK_OF_OTHERS = 12, 5  # more than 12 gained nothing on MovieLens, and fewer lost 0.006 stars


@final
@dataclass(frozen=True)
class Choice:
    """A mechanism and the reason for it."""

    mechanism: Mechanism
    reason: str


def family_of(model: ModelFamily | str, shape: tuple[int, ...], unit: Unit, mechanism: Mechanism | str) -> ModelFamily:
    """The given model, or for the name of a kind of models one whose rank follows a rule based on public facts.

    "nonnegative" is CP without numbers below zero.
    The rank is high if the posterior shrinks unneeded factors. Otherwise it is low, because each factor adds noise.
    With "auto" the CP model is planned for, and `compared_families` says what it is compared with. If the mechanism is
    not chosen yet ("auto"), one that samples a posterior is expected.

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
    sampled = unit.coordinates_public or (unit.kind == "entry" and math.prod(shape) <= MAX_CELLS)
    shrunk = sampled and name in ("auto", InputPerturbation.name, LocalAnswers.name)
    return CP(min(RANK_OF_POSTERIOR if shrunk else RANK_OF_OTHERS, sorted(shape)[-2]), model == "nonnegative")


def with_levels(mechanism: Mechanism | str, levels: Sequence[float], unit: Unit) -> InputPerturbation:
    """Input perturbation by a channel on these public levels, which no other mechanism uses."""
    if not unit.coordinates_public:
        raise InputError(
            f"levels must be for the unit value or slice_values, got the unit {unit}; leave them out: under this unit "
            "no mechanism uses them"
        )
    if mechanism in ("auto", InputPerturbation.name):
        return InputPerturbation(noise="channel", levels=levels)
    if not isinstance(mechanism, InputPerturbation) or mechanism.levels is not None:
        raise InputError(
            f"levels must be for input perturbation, and given once, got them with {mechanism!r}; leave one of them out"
        )
    return replace(mechanism, noise="channel", levels=levels)


def compared_families(mechanism: Mechanism, shape: tuple[int, ...], unit: Unit) -> Mechanism:
    """The mechanism, which also fits a Tucker model if it samples a posterior, and keeps the better of the two.

    Which one is better is judged by the released symbols, at no cost in privacy (`PosteriorRun.expected_fit`). Other
    mechanisms would have to pay for a second model, so they keep the CP model.
    """
    if not isinstance(mechanism, InputPerturbation):
        return mechanism
    return mechanism.compared_with((family_of("tucker", shape, unit, mechanism),), unit)


def foreign_parts(mechanism: Mechanism, *others: object) -> tuple[str, ...]:
    """Names of what is not this library's own among a mechanism, those that it runs inside, and other parts of a run.

    Their code runs beside private values: a mechanism holds the vault, a query reads models of the family, bounds clip
    values, and the unit says what is public. The protocol of local answers checks its own table.
    """
    known = (CP, Tucker, Bounds, Unit, LocalProtocol)
    return (*_foreign_mechanisms(mechanism), *(name for one in others for name in _foreign(one, known)))


def _foreign_mechanisms(mechanism: Mechanism) -> tuple[str, ...]:
    inside = tuple(name for one in mechanism.inner_mechanisms for name in _foreign_mechanisms(one))
    return (*_foreign(mechanism, OURS), *inside)


def _foreign(one: object, known: tuple[type, ...]) -> tuple[str, ...]:
    """The name of a part whose class is not known, or that has more than its fields: they may stand before methods."""
    kind = type(one)
    if kind not in known:
        return (kind.__qualname__,)
    own = set(getattr(one, "__dict__", {})) - set(getattr(kind, "__dataclass_fields__", {}))
    return (f"{kind.__qualname__} with attributes of its own ({', '.join(sorted(own))})",) if own else ()


def choose(name: str, request: Request) -> Choice:
    """The mechanism of that name, or for "auto" the one with the smallest expected error; reads only the request.

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
    if request.family.nonnegative and not request.unit.coordinates_public:
        return Choice(GradientPerturbation(), "gradients can be followed by factors that stay above zero")
    if request.family.nonnegative:
        return Choice(InputPerturbation(), "a posterior of factors above zero follows from values perturbed once each")
    if kind == "value":
        if sums_are_better(request):
            return Choice(
                SumPerturbation(),
                "at this epsilon, sums over many values carry more information than noisy single values",
            )
        return Choice(
            InputPerturbation(),
            "under 'value' coordinates are public, so each value is perturbed once and inference costs nothing",
        )
    sums = SumPerturbation(cells=kind == "entry")
    gradients = WithOffsets(GradientPerturbation())
    long_rows = request.count_or_guess >= LONG_ROWS * max(request.shape) and not (sums.cells and _clear_cells(request))
    if request.delta > 0 and kind != "slice" and long_rows and _affordable(gradients, request):
        return Choice(
            gradients, "there are enough observations per index for noisy gradients to find factors beside offsets"
        )
    return Choice(
        sums,
        "under 'slice' only sums over slices are released, and each slice keeps its own rows (joint privacy)"
        if kind == "slice"
        else f"under {kind!r}, sums over many observations need the least noise to protect one unit"
        + (", unless enough cells turn out to be observed for a random symbol of every cell" if sums.cells else ""),
    )


def _clear_cells(request: Request) -> bool:
    """Whether symbols of all cells tell so much that gradients, which need a delta, are not better."""
    density = request.count_or_guess / math.prod(request.shape)
    return cells_fit(request) and channel_information(weakened(request.epsilon, density)) > CLEAR


def _affordable(mechanism: Mechanism, request: Request) -> bool:
    """Whether the budget covers a mechanism: at a large epsilon, a small delta does not cover its finite precision."""
    try:
        mechanism.design(request)
    except InputError:
        return False
    return True
