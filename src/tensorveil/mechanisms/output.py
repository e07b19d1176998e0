"""Output perturbation: least-squares rows of a block, released with noise scaled to their exact sensitivity."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.inference.rows import RidgeMatrices
from tensorveil.mechanisms import base
from tensorveil.mechanisms.planning.noise_range import check_change
from tensorveil.mechanisms.statistic import StatisticPerturbation
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CPModel
from tensorveil.models.factor_model import FactorModel
from tensorveil.models.offsets import Offsets
from tensorveil.models.tucker import TuckerModel
from tensorveil.privacy.accounting.events import Event, GaussianEvent, PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS
from tensorveil.privacy.noise.source import GRID_BITS
from tensorveil.privacy.plan import Plan, Request
from tensorveil.privacy.queries.rows.exact_rows import MOST_BITS, ExactRows, row_features
from tensorveil.privacy.queries.rows.own_rows import check_width
from tensorveil.privacy.stages import LAW_OF_NORM, Norm, Sensitivity, Stage
from tensorveil.privacy.vault import Pattern, Vault

FIRST = "first stage"  # what the names of the first mechanism's stages begin with
FLOAT_MARGIN = 1 + 2.0**-40  # covers the last bits of a division
VALUE_BITS = VALUE_STEPS.bit_length() - 1
LARGEST_MULTIPLIER = 2.0**20  # beyond it the grid would be too coarse
VALUE_CHANGE = 2.0  # one centred value, replaced, moves by at most this
PERTURBED = ("solution", "objective")  # the shape S of the noise: H^1/2, or the identity
TYPICAL_OFFSET = 0.1  # mean square of the offsets of a mode; generic
RIDGE_VARIANCE = 0.05  # generic; weighs the ridge and the shrinking, promises nothing


@final
@dataclass(frozen=True)
class Block:
    """A block that gets noise: "factor" or "offsets" of a mode, or the "core", numbered after the last mode."""

    kind: str
    number: int


@final
@dataclass(frozen=True)
class Settings:
    """The blocks that get noise, in order, and the plan of the first mechanism, if there is one."""

    blocks: tuple[Block, ...]
    first: Plan | None


@final
@dataclass(frozen=True)
class OutputPerturbation(base.Mechanism):
    """Rows of one or several blocks by ridge regression on frozen blocks, with exact sensitivity.

    The proof is docs/proofs/exact_rows.md.

    The frozen blocks are public (`frozen`) or come from a private `first` stage, whose cost is part of the same
    guarantee. The regression solves for a correction to the current block, so that a noisy result can be shrunk to
    zero. Only the unit `value` is supported; under other units the matrices of the regression change as well.

    Parameters
    ----------
    blocks : the blocks that get noise, in order: a mode's number (its factor matrix), "core", or "offsets:MODE" with
        the number of a mode; default: offsets and factor matrix of the largest mode
    first : the mechanism that releases the frozen blocks
    first_share : its share of the budget
    frozen : a public model to start from instead of a first stage
    ridge : lambda, public: rows are then the plain minimisers; by default lambda, and how far rows are shrunk, are
        computed from released numbers
    perturbed : "solution" shapes the noise like the uncertainty of the solved rows, "objective" adds it to the linear
        term of the objective that each row minimises (objective perturbation, docs/proofs/objective.md)
    """

    blocks: tuple[int | str, ...] | None = None
    first: base.Mechanism = field(default_factory=StatisticPerturbation)
    first_share: float = 0.5
    frozen: FactorModel | None = None
    ridge: float | None = None
    perturbed: str = "solution"
    name: ClassVar[str] = "output"

    def __post_init__(self) -> None:
        checks.fraction("first_share", self.first_share)
        if not isinstance(self.first, base.Mechanism):
            raise InputError(f"first must be a mechanism, e.g. StatisticPerturbation(), got {self.first!r}; make one")
        if self.frozen is not None and type(self.frozen) not in (CPModel, TuckerModel):
            raise InputError(f"frozen must be a CPModel or TuckerModel, got {type(self.frozen).__name__}; make one")
        if self.ridge is not None:
            checks.positive_number("ridge", self.ridge)
        checks.choice("perturbed", self.perturbed, PERTURBED)

    def design(self, request: Request) -> base.Design:
        base.need_unit("output perturbation", request.unit, ("value",), "for other units use statistic perturbation")
        blocks = self._blocks(request)
        shapes = request.family.block_shapes(request.shape)
        coordinates = sum(math.prod(_rows_and_width(request, block)) for block in blocks)
        check_width(max(_rows_and_width(request, block)[1] for block in blocks))
        shares = [(1 - self.first_share) / len(blocks)] * len(blocks)
        stages: list[Stage] = []
        first = None
        if self.frozen is not None:
            if self.frozen.family.block_shapes(self.frozen.shape) != shapes:
                raise InputError(
                    f"frozen must be a model of {request.family} and shape {request.shape}, got {self.frozen!r}"
                )
            events = base.split_budget(request, shares, coordinates)
        else:
            events, first, coordinates = base.budget_with(request, self.first, self.first_share, shares, coordinates)
            stages += [replace(stage, name=f"{FIRST}, {stage.name}") for stage in first.stages]
        stages += [self._stage(request, block, event) for block, event in zip(blocks, events, strict=True)]
        trusted: tuple[str, ...] = ("the frozen model was chosen without looking at the data",)
        if first is not None:
            trusted = self.first.design(first.request).assumptions_trusted
        return base.Design(tuple(stages), Settings(blocks, first), coordinates, trusted)

    def run(self, vault: Vault, plan: Plan, progress: base.Progress = base.no_progress) -> Completion:
        settings: Settings = plan.settings
        bounds = (plan.request.bounds.low, plan.request.bounds.high)
        if settings.first is not None:
            kind = type(self.first)  # its method, and no attribute of an instance
            start = kind.run(self.first, vault.inner(FIRST), settings.first, progress)
            offsets, model = start.offsets, start.factors
        elif self.frozen is not None:
            offsets, model = Offsets.none(len(vault.shape)), self.frozen
        stages = plan.stages[-len(settings.blocks) :]
        for place, (block, stage) in enumerate(zip(settings.blocks, stages, strict=True)):
            if block.kind == "offsets":
                before = offsets.modes[block.number]
                change = self._change(vault, stage, block, offsets, model, TYPICAL_OFFSET)[:, 0]
                offsets = offsets.with_mode(block.number, change + (0.0 if before is None else before))
            else:
                whole = model.blocks[block.number]
                change = self._change(vault, stage, block, offsets, model, float(np.mean(np.square(whole))))
                model = model.with_block(block.number, whole + change.reshape(whole.shape))
            progress("blocks", place + 1, len(settings.blocks))
        return Completion(offsets, model, *bounds)

    def _change(
        self, vault: Vault, stage: Stage, block: Block, offsets: Offsets, model: FactorModel, typical: float
    ) -> Floats:
        """The correction of the rows of a block, by default shrunk according to the noise; zero for rows without data.

        Row k's correction is c = H^-1 g with H = sum phi phi^T + ridge I and g = sum phi (y - q), q the prediction so
        far. Only sum phi y reads values: it is asked for, multiplied by S^-1 and divided by twice the largest length.
        S is H^1/2, or for a perturbed objective the identity.
        """
        pattern = vault.pattern
        features_of = None if block.kind == "offsets" else model
        rows, features = row_features(pattern, features_of, block.number)
        size, width = 1 if block.kind == "core" else pattern.shape[block.number], features.shape[1]
        ridge = RIDGE_VARIANCE / max(typical, 1e-6) if self.ridge is None else self.ridge
        matrices = RidgeMatrices.of(rows, features, size, ridge)
        shaping, whitening, spread = matrices.roots, matrices.inverse_roots, np.ones((size, 1))
        if self.perturbed == "objective":
            shaping = whitening = np.broadcast_to(np.eye(width), (size, width, width))
            spread = 1 / matrices.values  # of noise S n on H^-1/2 g, along each eigenvector of H
        largest = largest_lengths(whitening, features, rows, size)
        known = largest > 0  # rows with data and features: public, and no row is left out because of its values
        scales = np.where(known, VALUE_CHANGE * largest * FLOAT_MARGIN, 1.0)
        released, noise_variance = np.zeros((size, width)), 0.0
        if known.any():
            bits = feature_bits(int(np.bincount(rows).max()), width, stage.event)
            pure = isinstance(stage.event, PureEvent)
            asked = np.flatnonzero(known)
            query = ExactRows(features_of, block.number, whitening, scales, asked, bits, pure)
            answer = vault.answer(stage.name, query)
            released[asked], noise_variance = answer.values, answer.law.variance
        predicted = np.clip(offsets.at(pattern.coordinates) + model.predict(pattern.coordinates), -1e6, 1e6)
        public = np.zeros((size, width))
        np.add.at(public, rows, features * predicted[:, None])
        g = np.einsum("kij,kj->ki", shaping, released * scales[:, None]) - public
        if self.ridge is not None:
            return matrices.solutions(g, known)
        noise = noise_variance * scales[:, None] ** 2 * spread
        return matrices.shrunk_solutions(g, known, noise, RIDGE_VARIANCE)

    def check_pattern(self, pattern: Pattern, plan: Plan) -> None:
        settings: Settings = plan.settings
        if settings.first is not None:
            self.first.check_pattern(pattern, settings.first)
        for block, stage in zip(settings.blocks, plan.stages[-len(settings.blocks) :], strict=True):
            most = len(pattern) if block.kind == "core" else int(pattern.counts(block.number).max())
            count, width = _rows_and_width(plan.request, block)
            bits, pure = feature_bits(most, width, stage.event), isinstance(stage.event, PureEvent)
            if bits + most.bit_length() > MOST_BITS:
                raise InputError(
                    f"epsilon must leave more noise where a row has {most:,} values, got {stage.event}; lower epsilon"
                )
            any_row = ExactRows(None, block.number, np.zeros((1, 1, 1)), np.ones(1), np.arange(1), bits, pure)
            check_change(stage.event, any_row.sensitivity(pattern.unit)[0], count, width)

    @property
    def inner_mechanisms(self) -> tuple[base.Mechanism, ...]:
        return () if self.frozen is not None else (self.first,)

    def _stage(self, request: Request, block: Block, event: Event) -> Stage:
        """The paid stage of one block."""
        if isinstance(event, GaussianEvent) and event.noise_multiplier > LARGEST_MULTIPLIER:
            raise InputError(
                f"epsilon must give noise of at most {LARGEST_MULTIPLIER:,.0f} sensitivities, "
                f"got {event.noise_multiplier:,.0f}; use a larger epsilon"
            )
        norm = Norm.ROWS if isinstance(event, PureEvent) else Norm.L2
        feature, what = "|H^-1/2 phi|", "rows with data, whitened by H^-1/2,"
        if self.perturbed == "objective":
            feature, what = "|phi|", "linear terms of the objectives of rows with data"
        words = f"in units of 2 max {feature} over a row's own entries, from public coordinates and released blocks"
        name = "the core" if block.kind == "core" else f"{block.kind} of {request.mode_names[block.number]}"
        return Stage(name, "output-exact", event, Sensitivity(1.0, norm, words), LAW_OF_NORM[norm], what)

    def _blocks(self, request: Request) -> tuple[Block, ...]:
        """The blocks that get noise, in order."""
        order = len(request.shape)
        if self.blocks is None:
            largest = max(range(order), key=lambda mode: request.shape[mode])
            return (Block("offsets", largest), Block("factor", largest))
        found: list[Block] = []
        for block in self.blocks:
            if block == "core":
                if request.family.name != "tucker":
                    raise InputError("blocks must be of the model, got 'core' for CP, which has none; drop it")
                found.append(Block("core", order))
            elif isinstance(block, str):
                kind, _, mode = block.partition(":")
                if kind != "offsets" or not mode.isdigit():
                    raise InputError(f"blocks must be modes, 'core' or 'offsets:MODE', got {block!r}; correct it")
                found.append(Block("offsets", checks.mode(int(mode), order)))
            else:
                found.append(Block("factor", checks.mode(block, order)))
        if not found:
            raise InputError("blocks must name at least one block, got none; leave it out for the default")
        return tuple(found)


def largest_lengths(whitening: Floats, features: Floats, rows: Integers, size: int) -> Floats:
    """The largest |S^-1 phi| of every row, S^-1 = `whitening`; 0 for rows without entries."""
    lengths = np.linalg.norm(np.einsum("kij,kj->ki", whitening[rows], features), axis=1)
    largest = np.zeros(size)
    np.maximum.at(largest, rows, lengths)
    return largest


def _rows_and_width(request: Request, block: Block) -> tuple[int, int]:
    """Number of rows of a block, and of numbers per row."""
    if block.kind == "offsets":
        return request.shape[block.number], 1
    return base.rows_and_width(request, block.number)


def feature_bits(most_in_a_row: int, width: int, event: Event) -> int:
    """Bits of whitened features: as many as int64 sums and the grid of the noise allow; reads public counts."""
    coarsest, reach = 4, 1.0
    if isinstance(event, GaussianEvent):
        reach = event.noise_multiplier
        coarsest = GRID_BITS - VALUE_BITS + 1 - math.frexp(reach)[1]  # the vault need not make the grid finer
    elif isinstance(event, PureEvent):
        reach = 32 * width / event.epsilon
    finest = 50 - VALUE_BITS - math.ceil(math.log2(max(reach, 1.0)))
    return max(coarsest, min(24, MOST_BITS - most_in_a_row.bit_length(), finest))
