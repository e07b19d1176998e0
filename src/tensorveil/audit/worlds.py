"""Worlds for audits of the mechanisms: pairs of tiny tensors that differ in one unit, and the numbers released.

Every release is made by `fit` with fresh secret noise. The unit that differs is placed where it has the largest effect:
at the bounds, alone in its row of every mode, with a model that is flexible enough to fit it.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tensorveil import checks, published
from tensorveil.arrays import Floats, Integers
from tensorveil.audit.lower_bounds import LowerBound, lower_bound
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError, UnprovenError
from tensorveil.mechanisms.base import Mechanism, Progress, no_progress
from tensorveil.mechanisms.gradient import GradientPerturbation
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.output import OutputPerturbation
from tensorveil.mechanisms.statistic import StatisticPerturbation
from tensorveil.mechanisms.sums import SumPerturbation
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.accounting.events import GaussianEvent
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.plan import Plan
from tensorveil.privacy.units import Unit
from tensorveil.published import PublishedPlan
from tensorveil.release.fitting import fit
from tensorveil.solvers.als import ALS
from tensorveil.solvers.start import public_start

MODE_NAMES = ("user", "item", "day")
BOUNDS = Bounds(0.0, 1.0)
DELTA = 1e-5  # where a mechanism needs one and none is asked for

# Few steps and little smoothing: each step then has little noise, and the model follows the unit that differs.
PROVEN: dict[str, Mechanism] = {
    "input": InputPerturbation(solver=ALS(sweeps=6, regularization=1e-3)),
    "gradient": GradientPerturbation(steps=2),
    "output": OutputPerturbation(),
    "objective": OutputPerturbation(perturbed="objective", blocks=(0,), ridge=1e-3),
    "statistic": StatisticPerturbation(sweeps=1),
    "sums": SumPerturbation(),
}
PUBLISHED: dict[str, published.Published] = {
    "published-input": published.PublishedInput(),
    "published-gradient": published.PublishedGradient(),
    "published-output": published.PublishedOutput(),
}
MECHANISMS = (*PROVEN, *PUBLISHED)
MODELS: dict[str, ModelFamily] = {"cp": CP(rank=2), "tucker": Tucker(ranks=(2, 2, 2))}
PUBLISHED_MODELS: dict[str, ModelFamily] = {"cp": CP(rank=3), "tucker": Tucker(ranks=(2, 2, 2))}
SHAPE, PUBLISHED_SHAPE = (4, 3, 3), (6, 6, 6)
SLICE_SIZE = 2  # observations of the slice that differs
NARROW = (0.4, 0.5, 0.7)  # where the range is read off the data: the others' range, and the value that widens it
RUNS = 1000  # of a world, unless asked for: some ten seconds on two free cores
DELTA_NEEDED = {("gradient", "slice_values"), ("gradient", "slice"), ("statistic", "entry"), ("statistic", "slice")}
MOST_PARAMETERS = 64  # of a model whose every number is a feature


@final
@dataclass(frozen=True)
class World:
    """One data set and what is done with it; a call is one release, with fresh secret noise.

    Attributes
    ----------
    canary : the cell where the worlds differ
    """

    observations: Observations
    plan: Plan | PublishedPlan
    canary: tuple[int, ...] = (0, 0, 0)

    def __call__(self) -> Floats:
        """All numbers of one release that may depend on the canary."""
        return released_numbers(fit(self.observations, self.plan).model, self.canary)


@final
@dataclass(frozen=True)
class Audit:
    """A stated guarantee and the lower bound measured on two worlds."""

    mechanism: str
    model: str
    unit: str
    stated_epsilon: float
    delta: float
    bound: LowerBound

    @property
    def refuted(self) -> bool:
        """Whether the stated epsilon is shown to be false."""
        return self.bound.refutes(self.stated_epsilon)

    @property
    def verdict(self) -> str:
        """ "refuted" or "not refuted"; an audit can never say "proven"."""
        return "refuted" if self.refuted else "not refuted"

    def to_json(self) -> dict[str, str | float | int]:
        """Plain values."""
        return {
            "mechanism": self.mechanism,
            "model": self.model,
            "unit": self.unit,
            "stated_epsilon": self.stated_epsilon,
            "delta": self.delta,
            "lower_bound": self.bound.epsilon,
            "confidence": self.bound.confidence,
            "runs": self.bound.runs,
            "verdict": self.verdict,
        }


def audit_mechanism(
    mechanism: str,
    model: str = "cp",
    unit: str = "value",
    *,
    epsilon: float,
    delta: float | None = None,
    runs: int | None = None,
    confidence: float = 0.95,
    workers: int = 2,
    progress: Progress = no_progress,
) -> Audit:
    """Audit one of the mechanisms of this package, proven or published, on a tiny tensor.

    Parameters
    ----------
    mechanism : one of MECHANISMS
    model : "cp" or "tucker"
    unit : e.g. "value", "entry", "slice:user", "slice_values:item"; the modes are user, item, day
    epsilon, delta : what the mechanism is asked for; delta None: 0, or 1e-5 where pure privacy is impossible
    runs : number of runs per world; None: as many as take some ten seconds
    confidence, workers, progress : as for `lower_bound`

    Raises
    ------
    UnprovenError : if no theorem covers the combination and no paper claims it
    """
    world_0, world_1 = two_worlds(mechanism, model, unit, epsilon, delta)
    plan = world_0.plan
    claim, named, stated, promised = "pure", "value", plan.epsilon, 0.0
    if isinstance(plan, Plan):  # what was asked for: the price of a plan may be a little below
        asked, gaussian = plan.request, all(isinstance(event, GaussianEvent) for event in plan.events)
        claim = "gaussian" if gaussian else "pure"
        named, stated, promised = asked.unit_text, asked.epsilon, asked.delta
    bound = lower_bound(
        world_0,
        world_1,
        runs=RUNS if runs is None else runs,
        delta=promised,
        confidence=confidence,
        claim=claim,
        workers=workers,
        progress=progress,
    )
    return Audit(mechanism, model, named, stated, promised, bound)


def two_worlds(
    mechanism: str, model: str, unit: str, epsilon: float, delta: float | None = None
) -> tuple[World, World]:
    """Neighbouring data sets, with one plan for both."""
    checks.choice("mechanism", mechanism, MECHANISMS)
    checks.choice("model", model, tuple(MODELS))
    kind = Unit.of(unit).resolved(MODE_NAMES)
    if mechanism in PUBLISHED:
        return _published_worlds(mechanism, model, kind, epsilon, delta)
    whole = kind.whole_slices
    if delta is None:
        delta = DELTA if (mechanism, kind.kind) in DELTA_NEEDED else 0.0
    made = PROVEN[mechanism]
    if mechanism == "objective" and isinstance(made, OutputPerturbation):
        made = replace(made, frozen=public_start(MODELS[model], SHAPE, std=1.0))  # rows get the whole budget
    plan = made.plan(
        MODELS[model],
        BOUNDS,
        kind,
        epsilon,
        delta,
        shape=SHAPE,
        mode_names=MODE_NAMES,
        at_most=SLICE_SIZE if whole else None,
    )
    own = np.array([[0, 0, 0], [1, 1, 1]][: SLICE_SIZE if whole else 1])
    if whole:
        own[:, kind.mode_number] = 0
    rest = np.argwhere(np.ones(SHAPE))
    rest = rest[(rest > 0).all(axis=1)]
    middle = np.full(len(rest), BOUNDS.middle)
    high = _observed(rest, middle, own, BOUNDS.high, SHAPE)
    if kind.coordinates_public:
        return World(_observed(rest, middle, own, BOUNDS.low, SHAPE), plan), World(high, plan)
    return World(_observed(rest, middle, own[:0], BOUNDS.high, SHAPE), plan), World(high, plan)


def _published_worlds(
    mechanism: str, model: str, unit: Unit, epsilon: float, delta: float | None
) -> tuple[World, World]:
    """Check that the unit is value and delta is 0, as the paper claims."""
    if unit.kind != "value":
        raise UnprovenError(
            f"unit must be value for a published algorithm, whose claim is for nothing else, got {unit.kind!r}; "
            "leave it out"
        )
    if delta:
        raise InputError(f"delta must be 0 for a published algorithm, whose claim is pure, got {delta!r}; leave it out")
    plan = PUBLISHED[mechanism].plan(PUBLISHED_MODELS[model], epsilon)
    generator = np.random.default_rng(0)  # of the data set, which is the same in every audit
    rest = np.argwhere(generator.random(PUBLISHED_SHAPE) < 0.5)
    rest = rest[(rest > 0).all(axis=1)]
    values, ends = generator.random(len(rest)), (BOUNDS.low, BOUNDS.high)
    if mechanism == "published-input":  # the noise is scaled by the range of the data: one value at its end moves it
        values, ends = NARROW[0] + (NARROW[1] - NARROW[0]) * values, NARROW[1:]
    own = np.zeros((1, 3), dtype=np.int64)
    first, second = (World(_observed(rest, values, own, end, PUBLISHED_SHAPE), plan) for end in ends)
    return first, second


def _observed(rest: Integers, values: Floats, own: Integers, value: float, shape: tuple[int, ...]) -> Observations:
    """The rest with the unit's own cells, all of one value, at the end."""
    where = np.concatenate([rest, own])
    whole = np.concatenate([values, np.full(len(own), value)])
    return Observations(where, whole, shape, mode_names=MODE_NAMES, duplicates="keep")


def released_numbers(model: Completion, canary: tuple[int, ...]) -> Floats:
    """Numbers of a release that may tell about the canary: predictions, its rows, offsets, core, what they measure.

    Predictions come first: at the canary, then the mean of each of its rows. Sizes and products of rows do not depend
    on the order of components, which a random start makes arbitrary. Of a small completion all numbers follow. What a
    joint release withholds is constant in it, and tells nothing.
    """
    factors = model.factors
    rows = [factor[index] for factor, index in zip(factors.factors, canary, strict=True)]
    dense = factors.to_dense()
    numbers: list[float] = []
    whole: list[Floats] = []
    if model.clipped:
        cells = np.indices(model.shape, dtype=np.uint32).reshape(len(model.shape), -1).T
        dense = model.centred(np.ascontiguousarray(cells)).reshape(model.shape)
        numbers.append(model.offsets.mean)
        whole = [part for part in model.offsets.modes if part is not None]
        if factors.parameters.size <= MOST_PARAMETERS:
            whole.append(factors.parameters)
    near = [np.take(dense, index, axis=mode).mean() for mode, index in enumerate(canary)]
    around = [np.delete(factor, index, axis=0) for factor, index in zip(factors.factors, canary, strict=True)]
    numbers += [dense.mean(), np.log1p(np.square(dense).mean())]
    numbers += [float(row.sum()) for row in rows] + [float(row @ row) for row in rows]
    numbers += [float(np.square(part).mean()) for part in around] + [float(part.mean()) for part in around]
    if factors.core is None:  # rows of CP live in one space
        numbers += [float(np.prod(rows[:2], axis=0).sum()), float(rows[0] @ rows[-1]), float(rows[1] @ rows[-1])]
    else:
        numbers += [float(factors.core.mean()), float(np.square(factors.core).mean())]
    return np.concatenate([[dense[canary], *near, *numbers], *whole])
