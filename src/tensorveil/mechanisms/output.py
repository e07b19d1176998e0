"""Output perturbation: least-squares rows of a block, released with noise fitted to their exact sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.kernels.reference.statistics import block_features
from tensorveil.mechanisms.base import (
    Design,
    Mechanism,
    Progress,
    budget_with,
    need_unit,
    no_progress,
    split_budget,
)
from tensorveil.mechanisms.statistic import StatisticPerturbation, with_block
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS, BoundedObservations
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Plan, Request, Stage
from tensorveil.privacy.theorems import proves

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

FLOAT_MARGIN = 1 + 2.0**-40  # covers the last bits of a division
LARGEST_MULTIPLIER = 2.0**20  # beyond it the grid would be too coarse
VALUE_CHANGE = 2.0  # one centred value, replaced, moves by at most this
RESIDUAL_VARIANCE = 0.05  # generic; weighs the ridge and the shrinking, promises nothing


@proves("output-exact")
def exact_sensitivity(inverse_roots: Floats, features: Floats, rows: Integers, size: int) -> Floats:
    """How far one value moves each row's statistic, in the shape of its noise: 2 * max over the row of |S^-1 phi|.

    `inverse_roots` is S^-1 of each row. It is reached, by the entry that attains the maximum, when its value goes
    from one bound to the other.
    """
    lengths = np.linalg.norm(np.einsum("kij,kj->ki", inverse_roots[rows], features), axis=1)
    largest = np.zeros(size)
    np.maximum.at(largest, rows, lengths)
    return VALUE_CHANGE * largest * FLOAT_MARGIN  # [L1]


@final
@dataclass(frozen=True)
class OutputPerturbation(Mechanism):
    """Rows of one or several blocks by ridge regression on frozen blocks, with exact sensitivity.

    The proof is docs/proofs/output_perturbation.md.

    The frozen blocks are public (`frozen`) or bought by a private `first` stage, whose cost is in the same guarantee.
    What is solved for is the correction of the block to what is there already, so that a noisy result can be shrunk.
    Unit `value` only: elsewhere the matrices of the regression change, too.

    Parameters
    ----------
    blocks : what is noised, one after the other: a mode's number (its factor matrix), "core", or "offsets:MODE" with
        the number of a mode; default: offsets and factor matrix of the largest mode
    first : the mechanism that buys the frozen blocks
    first_share : its share of the budget
    frozen : a public model to start from instead of a first stage
    ridge : lambda, public; default: a rule from released numbers
    """

    blocks: tuple[int | str, ...] | None = None
    first: Mechanism = field(default_factory=StatisticPerturbation)
    first_share: float = 0.5
    frozen: FactorModel | None = None
    ridge: float | None = None
    name: ClassVar[str] = "output"

    def __post_init__(self) -> None:
        checks.fraction("first_share", self.first_share)
        if not isinstance(self.first, Mechanism):
            raise InputError(f"first must be a mechanism, e.g. StatisticPerturbation(), got {self.first!r}; make one")
        if self.frozen is not None and not isinstance(self.frozen, FactorModel):
            raise InputError(f"frozen must be a CPModel or TuckerModel, got {type(self.frozen).__name__}; make one")
        if self.ridge is not None:
            checks.positive_number("ridge", self.ridge)

    def design(self, request: Request) -> Design:
        need_unit("output perturbation", request.unit, ("value",), "for other units use statistic perturbation")
        blocks = self._blocks(request)
        shapes = request.family.block_shapes(request.shape)
        coordinates = sum(_numbers(shapes, kind, mode) for kind, mode in blocks)
        shares = [(1 - self.first_share) / len(blocks)] * len(blocks)
        stages: list[Stage] = []
        settings: dict[str, Any] = {"blocks": blocks}
        if self.frozen is not None:
            if self.frozen.family.block_shapes(self.frozen.shape) != shapes:
                raise InputError(
                    f"frozen must be a model of {request.family} and shape {request.shape}, got {self.frozen!r}"
                )
            events = split_budget(request, shares, coordinates)
        else:
            events, plan, coordinates = budget_with(request, self.first, self.first_share, shares, coordinates)
            stages += [replace(stage, name=f"first stage, {stage.name}") for stage in plan.stages]
            settings["first"] = plan
        for (kind, mode), event in zip(blocks, events, strict=True):
            name = {"core": "the core", "offsets": f"offsets of {request.mode_names[mode]}"}.get(
                kind, f"factor of {request.mode_names[mode]}"
            )
            if isinstance(event, GaussianEvent) and event.noise_multiplier > LARGEST_MULTIPLIER:
                raise InputError(
                    f"epsilon must give noise of at most {LARGEST_MULTIPLIER:,.0f} sensitivities, "
                    f"got {event.noise_multiplier:,.0f}; use more epsilon"
                )
            law = (
                f"norm-exponential noise, scale sensitivity / {event.epsilon:.4g},"
                if isinstance(event, PureEvent)
                else f"discrete Gaussian noise, std {event.noise_multiplier:.4g} times the sensitivity,"
            )
            stages.append(
                Stage(
                    name,
                    "output-exact",
                    event,
                    "2 max |H^-1/2 phi| over a row's own entries, from public coordinates and released blocks",
                    f"{law} on every row with data, shaped by H^-1/2",
                )
            )
        trusted = () if self.frozen is None else ("the frozen model was chosen without looking at the data",)
        return Design(tuple(stages), settings, coordinates, trusted)

    def run(
        self, data: BoundedObservations, plan: Plan, noise: NoiseSource, progress: Progress = no_progress
    ) -> Completion:
        request = plan.request
        if self.frozen is not None:
            start = Completion(Offsets.none(len(request.shape)), self.frozen, request.bounds.low, request.bounds.high)
        else:
            start = self.first.run(data, plan.settings["first"], noise, progress)
        offsets, model = start.offsets, start.factors
        blocks = plan.settings["blocks"]
        events = plan.events[-len(blocks) :]
        for place, ((kind, mode), event) in enumerate(zip(blocks, events, strict=True)):
            known_part = np.clip(offsets.at(data.coordinates) + model.predict(data.coordinates), -1e6, 1e6)
            if kind == "offsets":
                features = np.ones((len(data), 1))
                rows, size = data.index(mode), request.shape[mode]
                typical = 0.1
            else:
                block = len(request.shape) if kind == "core" else mode
                features = np.empty((len(data), int(model.block_widths[block])))
                block_features(
                    model.parameters, model.block_starts, model.block_widths, data.coordinates, block, features
                )
                rows = np.zeros(len(data), dtype=np.int64) if kind == "core" else data.index(mode)
                size = 1 if kind == "core" else request.shape[mode]
                known = model.core if kind == "core" else model.factors[mode]
                typical = float(np.mean(np.square(known))) if known is not None else 0.0
            ridge = self.ridge if self.ridge is not None else RESIDUAL_VARIANCE / max(typical, 1e-6)
            change = release_rows(features, data.steps, known_part, rows, size, ridge, event, noise)
            if kind == "offsets":
                before = offsets.modes[mode]
                offsets = offsets.with_mode(mode, change[:, 0] + (0.0 if before is None else before))
            else:
                whole = model.core if kind == "core" else model.factors[mode]
                if whole is not None:
                    model = with_block(model, block, whole + change.reshape(whole.shape))
            progress("blocks", place + 1, len(blocks))
        return Completion(offsets, model, request.bounds.low, request.bounds.high)

    def _blocks(self, request: Request) -> tuple[tuple[str, int], ...]:
        """(kind, mode) of what is noised."""
        order = len(request.shape)
        if self.blocks is None:
            largest = max(range(order), key=lambda mode: request.shape[mode])
            return (("offsets", largest), ("factor", largest))
        found: list[tuple[str, int]] = []
        for block in self.blocks:
            if block == "core":
                if request.family.name != "tucker":
                    raise InputError("blocks must be of the model, got 'core' for CP, which has none; drop it")
                found.append(("core", 0))
            elif isinstance(block, str):
                kind, _, mode = block.partition(":")
                if kind != "offsets" or not mode.isdigit():
                    raise InputError(f"blocks must be modes, 'core' or 'offsets:MODE', got {block!r}; correct it")
                found.append(("offsets", checks.mode(int(mode), order)))
            else:
                found.append(("factor", checks.mode(block, order)))
        if not found:
            raise InputError("blocks must name at least one block, got none; leave it out for the default")
        return tuple(found)


def release_rows(
    features: Floats,
    steps: Integers,
    known_part: Floats,
    rows: Integers,
    size: int,
    ridge: float,
    event: Event,
    noise: NoiseSource,
) -> Floats:
    """Rows c = H^-1 g with noise, shrunk by what is known of it; rows without data stay zero, without noise.

    H = sum phi phi^T + ridge I, the features and the known part q read no values. [L2] Of g = sum phi (y - q) only sum
    phi y does: it is whitened by S^-1 = H^-1/2, divided by its sensitivity, and summed in whole numbers; what is public
    is subtracted after the noise.
    """
    width = features.shape[1]
    H = np.zeros((size, width, width))
    np.add.at(H, rows, features[:, :, None] * features[:, None, :])
    H += ridge * np.eye(width)
    values, vectors = np.linalg.eigh(H)
    values = np.maximum(values, ridge)
    roots = np.einsum("kij,kj,klj->kil", vectors, np.sqrt(values), vectors)
    inverse_roots = np.einsum("kij,kj,klj->kil", vectors, 1 / np.sqrt(values), vectors)
    sensitivity = exact_sensitivity(inverse_roots, features, rows, size)
    known = sensitivity > 0  # [L3] rows with data: public, and no row is left out because of its values
    scales = np.where(known, sensitivity, 1.0)
    std = event.noise_multiplier if isinstance(event, GaussianEvent) else 1.0
    reach = 32 * width / event.epsilon if isinstance(event, PureEvent) else std  # of noise that the grid must hold
    bits = _feature_bits(int(np.bincount(rows, minlength=size).max()), reach)
    white = np.einsum("kij,kj->ki", inverse_roots[rows], features) / scales[rows, None]
    pieces = np.trunc(white * 2.0**bits).astype(np.int64)  # [L4] at most half of 2^bits long, read from no value
    totals = np.zeros((size, width), dtype=np.int64)
    np.add.at(totals, rows, pieces * steps[:, None])  # [L5] a value moves by at most 2 * 2^20 steps: 1 in the end
    grid = 2.0**-bits / VALUE_STEPS
    released = np.zeros((size, width))
    noise_variance = std**2
    if isinstance(event, PureEvent):
        noise_variance = (width + 1) / event.epsilon**2
        if known.any():
            released[known] = noise.rows(totals[known], grid=grid, sensitivity=1.0, epsilon=event.epsilon)  # [L6]
    elif known.any():
        released[known] = noise.gaussian(totals[known], grid=grid, sensitivity=1.0, noise_std=std)  # [L6]
    public = np.zeros((size, width))
    np.add.at(public, rows, features * known_part[:, None])
    g = np.einsum("kij,kj->ki", roots, released * scales[:, None]) - public
    rotated = np.einsum("kij,ki->kj", vectors, np.where(known[:, None], g, 0.0)) / values
    spread = (RESIDUAL_VARIANCE + noise_variance * scales**2)[:, None] / values
    kept = np.broadcast_to(known[:, None], rotated.shape)
    weights = np.where(kept, 1 / spread**2, 0.0)
    prior = max(float((weights * (rotated**2 - spread)).sum() / max(weights.sum(), 1e-300)), 0.0)
    return np.asarray(np.einsum("kij,kj->ki", vectors, rotated * prior / (prior + spread)))


def _feature_bits(most_in_a_row: int, std: float) -> int:
    """Bits of whitened features: as fine as int64 sums and the grid of the noise allow; reads public counts."""
    sums = 61 - 20 - max(1, most_in_a_row).bit_length()
    noise = 50 - 20 - math.ceil(math.log2(max(std, 1.0)))
    return max(4, min(24, sums, noise))


def _numbers(shapes: tuple[tuple[int, ...], ...], kind: str, mode: int) -> int:
    """How many numbers a noised block has."""
    if kind == "offsets":
        return shapes[mode][0]
    return math.prod(shapes[-1] if kind == "core" else shapes[mode])
