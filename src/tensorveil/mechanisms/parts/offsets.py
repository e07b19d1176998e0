"""Mean and offsets of every mode as a private first stage that other mechanisms can start with."""

from collections.abc import Sequence

import numpy as np

from tensorveil.inference.level import Level
from tensorveil.inference.offsets import NoisySums, add_offsets
from tensorveil.mechanisms.planning.noise_range import check_noise
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, PureEvent
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.contributions import slice_weights
from tensorveil.privacy.queries.sums.row_sums import Rows, RowSums
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.vault import Vault


def offset_modes(request: Request, withheld: int | None = None) -> tuple[int, ...]:
    """The modes that get offsets, smallest first, because its sums give the mean with the least noise."""
    modes = [mode for mode in range(len(request.shape)) if mode != withheld]
    return tuple(sorted(modes, key=lambda mode: (request.shape[mode], mode)))


def offset_stages(request: Request, modes: Sequence[int], events: Sequence[Event]) -> list[Stage]:
    """One paid stage per mode."""
    stages = []
    for mode, event in zip(modes, events, strict=True):
        none = ScoreReading.linear(0.0, 1.0, Offsets.none(len(request.shape)), own=False)
        query = RowSums(Rows.of_mode(mode, request.shape[mode]), none, isinstance(event, PureEvent))
        (change,) = query.sensitivity(request.unit)
        check_noise(event, change.bound)
        name, theorem = f"offsets of {request.mode_names[mode]}", query.theorem(request.unit)
        sensitivity = Sensitivity(change.bound, change.norm, "centred values")
        what = "sums" if request.unit.coordinates_public else "paired sums"
        stages.append(Stage(name, theorem, event, sensitivity, LAW_OF_NORM[change.norm], what))
    return stages


def offset_coordinates(request: Request, modes: Sequence[int]) -> int:
    """How many numbers the stages release."""
    return sum(request.shape[mode] for mode in modes) * (1 if request.unit.coordinates_public else 2)


def ask_offsets(vault: Vault, level: Level, modes: Sequence[int], stages: Sequence[Stage]) -> Offsets:
    """Mean and offsets of the modes, for values scaled to the level; one stage per mode.

    Later modes use the residuals of the earlier ones.
    """
    offsets = Offsets.none(len(vault.shape))
    for place, (mode, stage) in enumerate(zip(modes, stages, strict=True)):
        reading = ScoreReading.linear(level.mean, level.scale, offsets, own=False)
        query = RowSums(Rows.of_mode(mode, vault.shape[mode]), reading, isinstance(stage.event, PureEvent))
        answer = vault.answer(stage.name, query)
        if vault.unit.coordinates_public:
            rows = vault.pattern.index(mode)
            weights = slice_weights(vault.pattern, rows, query.pure)
            counts = np.bincount(rows, weights=weights, minlength=vault.shape[mode]).astype(np.float64)
            released = NoisySums(answer.values, counts, answer.law.variance, 0.0)
        else:
            released = NoisySums.of_pairs(answer.values, answer.law.variance)
        offsets = add_offsets(offsets, mode, released, with_mean=place == 0)
    return offsets
