"""Symbols of all cells, for units that hide which cells are observed: each goes through a channel, missing ones too."""

from __future__ import annotations

import math
from dataclasses import replace

from tensorveil.errors import UnprovenError
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.inference.values.cells import released_cells
from tensorveil.inference.values.marginal import Marginal
from tensorveil.inference.values.noisy import Target, fit_values, sample_values, symbol_numbers
from tensorveil.inference.values.scale import scale_of
from tensorveil.mechanisms.base import Progress
from tensorveil.mechanisms.local.protocols import MOST_LEVELS
from tensorveil.mechanisms.planning.channel_design import design_cell_channel
from tensorveil.mechanisms.planning.information import expected_error_of_cells, expected_error_of_sums
from tensorveil.mechanisms.planning.input_stages import MAX_CELLS
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.plan import Request
from tensorveil.privacy.queries.values.cell_symbols import CellSymbols
from tensorveil.privacy.stages import Stage
from tensorveil.privacy.vault import Vault
from tensorveil.solvers.als import ALS

CELLS = "cells"  # the stage
IN_WORDS = "a random symbol for every cell, observed or not"


def cells_fit(request: Request) -> bool:
    """Whether a symbol of every cell is proven, and the box is small enough to give one to each."""
    return request.unit.kind == "entry" and math.prod(request.shape) <= MAX_CELLS


def cells_are_better(request: Request, count: float, epsilon: float) -> bool:
    """Whether symbols of all cells are expected to be more accurate than sums, at so many observations.

    Reads public facts, the declared count or a released one, and what of epsilon is left for either.
    """
    known = replace(request, epsilon=epsilon, expected_count=max(round(count), 1))
    return cells_fit(request) and expected_error_of_cells(known) < expected_error_of_sums(known)


def pure_epsilon(stage: Stage) -> float:
    """What a stage pays for symbols."""
    if not isinstance(stage.event, PureEvent):
        raise UnprovenError(f"a channel must be paid by a pure stage, got {stage.event}; report this as a bug")
    return stage.event.epsilon


def complete_cells(
    vault: Vault,
    request: Request,
    marginal: Marginal,
    stage: Stage,
    solver: Posterior | ALS,
    progress: Progress,
) -> Completion:
    """The completion that follows from symbols of all cells, for which the stage pays."""
    shape, bounds = request.shape, request.bounds
    scale = scale_of(marginal, MOST_LEVELS, (bounds.low, bounds.high))
    density, each = marginal.total / math.prod(shape), marginal.total / sum(shape)
    channel = design_cell_channel(scale, pure_epsilon(stage), density, each)
    query = CellSymbols(shape, tuple(int(edge) for edge in scale.edges))
    symbols = vault.cells(stage.name, query, channel)
    progress("noise", 1, 1)
    where, released = released_cells(symbols, channel.chances, shape, scale, marginal.error)
    target = Target(request.family, shape, bounds.low, bounds.high)
    if len(where) == 0:  # chance may have it in a tiny box
        empty = Offsets(marginal.mean(), [None] * len(shape))
        return Completion(empty, request.family.zeros(shape), bounds.low, bounds.high)
    if isinstance(solver, Posterior):
        return sample_values(solver, released, where, target, progress)
    return fit_values(solver, symbol_numbers(released), where, target, progress)
