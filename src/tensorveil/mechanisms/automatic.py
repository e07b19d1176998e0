"""`mechanism="auto"`: which mechanism, from what is public about a request, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.mechanisms.base import Mechanism
from tensorveil.mechanisms.gradient_perturbation import GradientPerturbation
from tensorveil.mechanisms.input_perturbation import InputPerturbation
from tensorveil.mechanisms.output_perturbation import OutputPerturbation
from tensorveil.mechanisms.statistic_perturbation import StatisticPerturbation
from tensorveil.mechanisms.with_offsets import WithOffsets
from tensorveil.privacy.units import Unit

MECHANISMS: dict[str, type[Mechanism]] = {
    "input": InputPerturbation,
    "gradient": GradientPerturbation,
    "output": OutputPerturbation,
    "statistic": StatisticPerturbation,
}
NAMES = ("auto", *MECHANISMS)


@final
@dataclass(frozen=True)
class Choice:
    """A mechanism and the reason for it."""

    mechanism: Mechanism
    reason: str


def choose(name: str, unit: str | Unit | None, delta: float = 0.0) -> Choice:
    """The mechanism of that name, or for "auto" the one that was measured to be best for the unit; reads no data.

    Examples
    --------
    >>> choose("auto", "value").mechanism.name
    'input'
    """
    checks.choice("mechanism", name, NAMES)
    if name != "auto":
        return Choice(MECHANISMS[name](), "asked for")
    kind = Unit.of(unit).kind
    if kind == "value":
        return Choice(
            InputPerturbation(),
            "under 'value' the coordinates are public, so that every value is perturbed once and all inference is free",
        )
    if kind == "entry":
        return Choice(
            WithOffsets(GradientPerturbation()),
            "under 'entry' which cells are observed is private; sums over all observations hide one entry best",
        )
    if kind == "slice_values":
        return Choice(
            WithOffsets(GradientPerturbation()) if delta else StatisticPerturbation(),
            "under 'slice_values' a whole slice may change; clipping its summed gradient bounds it whatever its size"
            if delta
            else "under 'slice_values' with delta = 0 only sums over many observations can hide a whole slice",
        )
    if delta == 0:
        raise InputError(
            "delta must be above 0 for the unit slice with mechanism auto, got 0; "
            "give e.g. 1e-6, below one over the number of slices"
        )
    return Choice(
        StatisticPerturbation(),
        "under 'slice' each slice keeps its own rows (joint privacy) and only sums over slices are released",
    )
