"""Algorithms 1, 2 and 3 of "Applying Differential Privacy to Tensor Completion" (Wei, Li, Mao, Wang), as printed.

They are reproduced for comparison. What they claim is not proven, and for Algorithms 2 and 3 it is not true: every
result carries a guarantee with status *claimed* and the reasons. Their noise comes from a fast generator that is not
cryptographic, here and nowhere else.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.solvers.sgd import SGD, SGDRun

Progress = Callable[[int, float], None]

PAPER = "Wei, Li, Mao, Wang, Applying Differential Privacy to Tensor Completion"
DEFAULT_CLIP_NORM = 0.1  # chosen by experiments/clipping.py; the paper gives no number
WEAK_NOISE = "the noise is drawn in floating point from a generator that is not cryptographic"


@final
@dataclass(frozen=True, eq=False)
class PublishedRun:
    """What a published algorithm gives.

    Attributes
    ----------
    guarantee : always *claimed*, with the reasons
    loss : mean squared residual of each iteration of SGD
    notes : numbers of the run: the noise scale, the constant L and where it came from, whether eta <= 2/beta held. Some
        are read off the data; none may be published.
    """

    model: FactorModel
    guarantee: Guarantee
    loss: Floats
    notes: Mapping[str, Any]


@final
@dataclass(frozen=True)
class _Job:
    """What a run is asked for, with the generator of its noise and the seed of its solver."""

    observations: Observations
    family: ModelFamily
    epsilon: float
    sgd: SGD
    generator: np.random.Generator
    solver_seed: int
    progress: Progress | None
    seed: int | None

    def solve(self, observations: Observations | None = None, **options: Any) -> SGDRun:
        """Descent on the observations, or on these instead."""
        data = self.observations if observations is None else observations
        return self.sgd.solve(data, self.family, seed=self.solver_seed, progress=self.progress, **options)

    def clip_norms(self, limits: Mapping[int, float]) -> list[float]:
        """One clip norm per block; infinite for those without a limit."""
        return [limits.get(block, np.inf) for block in range(len(self.family.block_shapes(self.observations.shape)))]

    def claim(self, what: str, reasons: list[str]) -> Guarantee:
        source = f"{PAPER}, {what}"
        return Guarantee(self.epsilon, 0.0, "value", "claimed", source, tuple(reasons), self.seed is not None)


class Published(ABC):
    """One of the paper's algorithms."""

    name: ClassVar[str]

    def run(
        self,
        observations: Observations,
        family: ModelFamily,
        epsilon: float,
        sgd: SGD | None = None,
        *,
        seed: int | None = None,
        progress: Progress | None = None,
    ) -> PublishedRun:
        """Complete the observations and claim epsilon."""
        budget = checks.positive_number("epsilon", epsilon)
        generator, solver_seed = _generators(seed)
        return self._run(_Job(observations, family, budget, sgd or SGD(), generator, solver_seed, progress, seed))

    @abstractmethod
    def _run(self, job: _Job) -> PublishedRun: ...

    def plan(self, model: ModelFamily, epsilon: float, sgd: SGD | None = None) -> PublishedPlan:
        """What `fit` needs to make a release of it, marked as claimed."""
        return PublishedPlan(self, model, checks.positive_number("epsilon", epsilon), SGD() if sgd is None else sgd)


@final
@dataclass(frozen=True)
class PublishedPlan:
    """A run of a published algorithm that is yet to be made: no price, for nothing is proven."""

    mechanism: Published
    family: ModelFamily
    epsilon: float
    sgd: SGD


def norm_exponential_noise(rows: int, width: int, scale: float, generator: np.random.Generator) -> Floats:
    """Vectors with density proportional to exp(-|n| / scale) (Lemma 2): radius Gamma(width, scale), uniform direction.

    A standard normal vector times sqrt(2 Y), Y from Gamma((width + 1) / 2), has exactly that law.
    """
    mixing = np.sqrt(2.0 * generator.standard_gamma((width + 1) / 2, rows))
    return np.asarray((scale * mixing)[:, None] * generator.standard_normal((rows, width)))


@final
@dataclass(frozen=True)
class PublishedInput(Published):
    """Algorithm 1: Laplace((max - min) / epsilon) on each observed value, then SGD.

    Parameters
    ----------
    bounds : public (low, high) instead of the smallest and largest value of the data, which the paper prints
    clamp : clamp the noisy values to this range before training; the paper's option
    zero_filled : treat every missing cell as an observed zero, the dense form that the paper's text mentions
    """

    bounds: tuple[float, float] | None = None
    clamp: tuple[float, float] | None = None
    zero_filled: bool = False
    name: ClassVar[str] = "input"

    def __post_init__(self) -> None:
        for name, pair in (("bounds", self.bounds), ("clamp", self.clamp)):
            if pair is not None and len(pair) != 2:
                raise InputError(f"{name} must be (low, high), got {pair}; give two numbers")
            if pair is not None and not checks.finite_number(name, pair[0]) < checks.finite_number(name, pair[1]):
                raise InputError(f"{name} must be (low, high) with low below high, got {pair}; swap them")

    def _run(self, job: _Job) -> PublishedRun:
        """Perturb the values and complete."""
        observations, budget = job.observations, job.epsilon
        if self.zero_filled:
            if self.bounds is not None and not self.bounds[0] <= 0 <= self.bounds[1]:
                raise InputError(f"bounds must hold 0 where missing cells are zeros, got {self.bounds}; widen them")
            observations = Observations.from_dense(observations.to_dense(missing=0.0))
        values = observations.values
        low, high = self.bounds if self.bounds is not None else (float(values.min()), float(values.max()))
        if low == high:
            raise InputError(
                "the observed values must not all be equal where their range gives the noise, got a constant; "
                "pass bounds=(low, high)"
            )
        noisy = np.clip(values, low, high) + job.generator.laplace(0.0, (high - low) / budget, len(values))
        if self.clamp is not None:
            noisy = np.clip(noisy, *self.clamp)
        result = job.solve(observations.with_values(noisy))
        reasons = [WEAK_NOISE]
        if self.bounds is None:
            reasons.insert(0, "the range max - min is read off the data, so the noise scale itself gives values away")
        if not self.zero_filled:
            reasons.append("only observed cells get noise, so which cells are observed is not hidden")
        notes = {"noise_scale": (high - low) / budget, "bounds": (low, high), "bounds_from_data": self.bounds is None}
        return PublishedRun(result.model, job.claim("Algorithm 1, Theorem 1", reasons), result.loss, notes)


@final
@dataclass(frozen=True)
class PublishedGradient(Published):
    """Algorithm 2: at every step of SGD, clip the gradient of one factor's row and add noise to it.

    The noise has density exp(-epsilon |n| / (2 m)) at each of iterations x entries steps, the budget undivided.

    Parameters
    ----------
    clip_norm : m, the largest norm of the noised factor's gradient, its regulariser's part included
    mode : the factor that is clipped and noised, the last one by default
    """

    clip_norm: float = DEFAULT_CLIP_NORM
    mode: int = -1
    name: ClassVar[str] = "gradient"

    def __post_init__(self) -> None:
        checks.positive_number("clip_norm", self.clip_norm)

    def _run(self, job: _Job) -> PublishedRun:
        """Complete by SGD with a noisy gradient."""
        mode = checks.mode(self.mode, job.observations.order)
        scale = 2 * self.clip_norm / job.epsilon
        noise = _RowNoise(mode, scale, job.generator)
        result = job.solve(clip_norms=job.clip_norms({mode: self.clip_norm}), noise=noise)
        reasons = [
            "the other factors and the core are computed from raw values and released without noise",
            "every step after an entry's first visit depends on it through the other blocks, "
            "yet the budget is not divided by the steps: only (steps left) x epsilon is proven for the noised factor",
            WEAK_NOISE,
        ]
        notes = {"noise_scale": scale, "clip_norm": self.clip_norm, "mode": mode}
        return PublishedRun(result.model, job.claim("Algorithm 2, Theorem 2", reasons), result.loss, notes)


@final
@dataclass(frozen=True)
class PublishedOutput(Published):
    """Algorithm 3: SGD, then noise of density exp(-epsilon |n| / (2 tau L eta)) on every row of the result.

    Parameters
    ----------
    lipschitz : L; the gradients of the noised blocks are clipped to it, so that it is a bound. None: gradients are not
        clipped and L is the largest gradient that was seen, which is read from the data
    shares : how the budget is split, a share for each noised block: modes by number, the core as "core". Shares are
        positive and add up to one. Default: everything on the last mode
    """

    lipschitz: float | None = DEFAULT_CLIP_NORM
    shares: Mapping[int | str, float] | None = None
    name: ClassVar[str] = "output"

    def __post_init__(self) -> None:
        if self.lipschitz is not None:
            checks.positive_number("lipschitz", self.lipschitz)
        if self.shares is not None:
            total = sum(checks.positive_number(f"shares[{block!r}]", share) for block, share in self.shares.items())
            object.__setattr__(self, "shares", dict(self.shares))
            if abs(total - 1) > 1e-9:
                raise InputError(f"shares must add up to 1, got {total:g}; divide each by {total:g}")

    @classmethod
    def on_all_blocks(
        cls, family: ModelFamily, shape: tuple[int, ...], lipschitz: float | None = DEFAULT_CLIP_NORM
    ) -> PublishedOutput:
        """The budget in equal shares on every factor and, for Tucker, the core."""
        number = len(family.block_shapes(shape))
        names: list[int | str] = [*range(len(shape)), "core"][:number]
        return cls(lipschitz, dict.fromkeys(names, 1 / number))

    def _run(self, job: _Job) -> PublishedRun:
        """Complete by SGD and perturb the result."""
        shares = self._shares_of_blocks(job.family, job.observations)
        limits = {} if self.lipschitz is None else dict.fromkeys(shares, self.lipschitz)
        result = job.solve(clip_norms=job.clip_norms(limits), watched=tuple(shares))
        noisy = [np.array(block) for block in result.model.blocks]
        sensitivities, scales = {}, {}
        for block, share in shares.items():
            constant = float(result.largest_gradient[block]) if self.lipschitz is None else self.lipschitz
            sensitivities[block] = 2 * job.sgd.iterations * constant * job.sgd.learning_rate
            scales[block] = sensitivities[block] / (job.epsilon * share)
            width = int(result.model.block_widths[block])
            noise = norm_exponential_noise(noisy[block].size // width, width, scales[block], job.generator)
            noisy[block] += noise.reshape(noisy[block].shape)
        reasons = [
            "Lemma 3 needs one convex, smooth, Lipschitz objective; with several factors the objective is not convex",
            "noise drawn row by row needs a bound on the sum of the row norms of the change, "
            "the lemma bounds the norm of the whole",
            WEAK_NOISE,
        ]
        if len(shares) < len(noisy):
            reasons.insert(0, "the blocks without noise are computed from raw values and released as they are")
        if self.lipschitz is None:
            reasons.insert(0, "L is the largest gradient that was seen, read from the data")
        notes = {"noise_scales": scales, "sensitivities": sensitivities, "lipschitz_from_data": self.lipschitz is None}
        notes |= _smoothness(job.sgd, result, tuple(shares))
        claim = job.claim("Algorithm 3, Theorem 3", reasons)
        return PublishedRun(job.family.model(noisy), claim, result.loss, notes)

    def _shares_of_blocks(self, family: ModelFamily, observations: Observations) -> dict[int, float]:
        """Shares by the number of the block."""
        if self.shares is None:
            return {observations.order - 1: 1.0}
        number_of_blocks = len(family.block_shapes(observations.shape))
        result: dict[int, float] = {}
        for block, share in self.shares.items():
            if block == "core":
                if number_of_blocks == observations.order:
                    raise InputError("shares must name blocks of the model, got 'core' for CP, which has none; drop it")
                position = observations.order
            else:
                position = checks.mode(block, observations.order)
            if position in result:
                raise InputError(f"shares must name every block once, got {block!r} twice; mode -1 is the last mode")
            result[position] = share
        return result


@final
@dataclass(frozen=True)
class _RowNoise:
    """Fresh norm-exponential noise for one block at every step."""

    block: int
    scale: float
    generator: np.random.Generator

    def draw(self, steps: int, width: int) -> Floats:
        return norm_exponential_noise(steps, width, self.scale, self.generator)


def _generators(seed: int | None) -> tuple[np.random.Generator, int]:
    """The noise's generator and the solver's seed: with one seed, start and order are those of every other run."""
    number = checks.seed(seed)
    entropy = secrets.randbits(128) if number is None else number
    return np.random.default_rng(np.random.SeedSequence(entropy).spawn(1)[0]), entropy


def _smoothness(solver: SGD, result: SGDRun, noised: tuple[int, ...]) -> dict[str, Any]:
    """beta of the noised blocks, as met on the run, and whether Lemma 3's condition eta <= 2 / beta held.

    In one row the objective (x - phi . c)^2 + lambda |c|^2 has the second derivative 2 phi phi^T + 2 lambda I.
    """
    penalties = solver.penalties(result.model)
    beta = max(2 * float(result.largest_feature[block]) + 2 * float(penalties[block]) for block in noised)
    return {"beta": beta, "smoothness_condition_held": solver.learning_rate * beta <= 2}
