"""Bayesian completion that knows the noise: Gibbs sampling over latent values, rows, offsets, core and their priors.

    latent value of entry w ~ N(m_w, sigma^2),    m_w = mean + offsets_w + xhat_w,
    row i of mode n with its offset ~ N(F_i beta_n, 1 / lambda_n),    beta_n ~ N(0, weights / kappa_n),

F are the features of the mode (a constant and side information). There is one lambda per column, and one kappa per
column and group of features (those of the pattern and those given), all with weak priors. The released data depend on
the latent values through a known noise law (laws.py). Each sweep draws every variable in turn, conditionally on all
others. The average prediction of the draws is the posterior mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.inference.posterior.chain import BURN_IN, PART, Chain
from tensorveil.inference.posterior.diagnostics import effective_size, split_rhat
from tensorveil.inference.posterior.laws import USUAL_SIGMA, NoiseLaw
from tensorveil.inference.posterior.pattern import Links, given_features, pattern_features
from tensorveil.kernels.cores import available_cores
from tensorveil.kernels.reference import posterior
from tensorveil.models.draws import PosteriorDraws
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.offsets import Offsets

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

FEWEST_SWEEPS, MOST_SWEEPS = 48, 320
ENTRIES_A_SWEEP = 5  # small data get fewer sweeps: entries / this, between the two
WATCHED = 64
CHECK_EVERY = 20
ENOUGH_DRAWS = 400  # effective ones, of the median watched entry
MOST_RHAT = 1.05
MOST_NUMBERS = 5 * 10**7  # of all draws kept
FEWEST_KEPT = 8
MOST_SLOWNESS = 2.0


@final
@dataclass(frozen=True)
class PosteriorRun:
    """The result of sampling.

    Attributes
    ----------
    offsets : Offsets
        Posterior means.
    model : FactorModel
        Mean of the draws' factors, for display only; predictions come from the draws.
    draws : PosteriorDraws
    sweeps : int
    rhat, effective : float
        Of the watched entries: the 95th percentile of split R-hat, the median number of effective draws.
    """

    offsets: Offsets
    model: FactorModel
    draws: PosteriorDraws
    sweeps: int
    rhat: float
    effective: float


@final
@dataclass(frozen=True)
class Posterior:
    """Gibbs sampling for CP and Tucker models of any order.

    Parameters
    ----------
    sweeps : largest number of sweeps. None: a fifth of the number of entries, but 48 to 320, and up to twice as many
        if symbols carry little information about ordered levels, because the chain then mixes slowly. The first
        quarter is discarded. Sampling stops early if R-hat and the effective number of draws allow it.
    draws : largest number of draws that the model keeps; fewer for very large models
    threads : number of threads; None: one per core. The result does not depend on it.
    pattern : whether to use the positions of the observed values as side information (pattern.py)
    features : further side information, one public matrix per mode (one row per index), or None for a mode

    Examples
    --------
    >>> from tensorveil.data.datasets.synthetic import cp_tensor, observe
    >>> from tensorveil.models.cp import CP
    >>> from tensorveil.inference.posterior.laws import NoisyNumbers
    >>> data = observe(cp_tensor(seed=0), snr=10, seed=1)
    >>> run = Posterior().solve(data.train.coordinates, NoisyNumbers(data.train.values), CP(rank=3), (20, 20, 20))
    >>> errors = run.draws.predict(data.test.coordinates, run.offsets) - data.truth_at(data.test.coordinates)
    >>> bool(errors.std() < 0.5 * data.noise_std)
    True
    """

    sweeps: int | None = None
    draws: int = 160
    threads: int | None = None
    pattern: bool = True
    features: Sequence[ArrayLike | None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("sweeps", "threads"):
            if getattr(self, name) is not None:
                checks.positive_integer(name, getattr(self, name))
        checks.positive_integer("draws", self.draws)

    def planned_sweeps(self, entries: int, slowness: float = 1.0) -> int:
        """The largest number of sweeps for a given number of entries."""
        if self.sweeps is not None:
            return self.sweeps
        usual = min(max(entries // ENTRIES_A_SWEEP, FEWEST_SWEEPS), MOST_SWEEPS)
        return round(usual * min(max(slowness, 1.0), MOST_SLOWNESS))

    def solve(
        self,
        coordinates: Coordinates,
        law: NoiseLaw,
        family: ModelFamily,
        shape: tuple[int, ...],
        *,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> PosteriorRun:
        """Sample the posterior of a model of the family.

        Parameters
        ----------
        coordinates : of the released values, checked
        law : the released values on the centred scale, and their noise; it is modified by sampling
        seed : None is 0, so that a run can be repeated
        progress : called after each sweep with its number and the planned one
        """
        if len(law) != len(coordinates) or not len(law):
            raise InputError(
                f"there must be one value per row of coordinates and at least one row, got {len(law)} values"
            )
        threads = self.threads or available_cores()
        if len(law) <= PART:
            threads = 1
        known = self._side_information(coordinates, shape)
        links = [Links(groups, size) for groups, size in zip(known, shape, strict=True)]
        chain = Chain(coordinates, law, family, shape, links, checks.seed(seed) or 0, threads)
        slowness = 1 + chain.noise / USUAL_SIGMA**2 if len(law.levels) else 1.0
        planned = self.planned_sweeps(len(law), slowness)
        kept = _Kept(self, chain, planned)
        for sweep in range(planned):
            chain.sweep(sweep, planned)
            if progress is not None:
                progress(sweep + 1, planned)
            if kept.enough_after(sweep):
                break
        return kept.finish(chain, sweep + 1)

    def _side_information(self, coordinates: Coordinates, shape: tuple[int, ...]) -> list[list[Floats]]:
        """Groups of features of every mode: those of the pattern, and those that the caller gave."""
        found = pattern_features(coordinates, shape) if self.pattern else [np.empty((size, 0)) for size in shape]
        given = [None] * len(shape) if self.features is None else self.features
        return [list(both) for both in zip(found, given_features(given, shape), strict=True)]


class _Kept:
    """The draws that the run keeps, evenly spread over the sweeps, and the predictions of the watched entries."""

    def __init__(self, solver: Posterior, chain: Chain, planned: int) -> None:
        self.chain, self.planned = chain, planned
        self.burn_in = int(BURN_IN * planned)
        numbers = chain.parameters.size + chain.offsets.size
        self.most = min(solver.draws, max(FEWEST_KEPT, MOST_NUMBERS // numbers))
        self.every = max(1, -(-(planned - self.burn_in) // self.most))
        count = len(chain.law)
        self.watched = np.unique(np.linspace(0, count - 1, min(WATCHED, count)).astype(np.int64))
        self.where = np.ascontiguousarray(chain.data.coordinates[self.watched])
        self.history: list[Floats] = []
        self.parameters: list[NDArray[np.float32]] = []
        self.offsets: list[Floats] = []
        self.sigmas: list[float] = []
        self.extra: list[float] = []
        self.cuts: list[Floats] = []

    def enough_after(self, sweep: int) -> bool:
        """Record the draw of a sweep; returns True if no more sweeps are needed."""
        if sweep < self.burn_in:
            return False
        self.history.append(self._watch(self.chain.parameters, self.chain.offsets))
        if (sweep - self.burn_in) % self.every == 0:
            self._keep()
        done = len(self.history)
        if done % CHECK_EVERY or done < (self.planned - self.burn_in) / 2:
            return False
        rhat, effective = self._diagnose()
        return rhat < MOST_RHAT and effective >= ENOUGH_DRAWS

    def _watch(self, parameters: Floats, offsets: Floats) -> Floats:
        """Means of the watched entries."""
        chain, means = self.chain, np.empty(len(self.where))
        arguments = parameters, chain.starts, chain.widths, offsets, chain.offset_starts, self.where
        posterior.predict_means(*arguments, chain.mean, means, 0, len(means))
        return means

    def _keep(self) -> None:
        """Keep the state, the rows drawn last replaced by their mean given the rest: the same average, less spread."""
        chain = self.chain
        parameters, offsets = chain.parameters.copy(), chain.offsets.copy()
        if chain.model.core is None:
            mode = chain.last_mode
            centres = chain.centres[mode]
            first, size = chain.starts[mode], chain.shape[mode]
            parameters[first : first + size * (centres.shape[1] - 1)] = centres[:, :-1].ravel()
            offsets[chain.offset_starts[mode] : chain.offset_starts[mode] + size] = centres[:, -1]
            change = self.history[-1] - self._watch(parameters, offsets)
            self.extra.append(float((change**2).mean()))
        else:
            self.extra.append(0.0)
        self.parameters.append(parameters.astype(np.float32))
        self.offsets.append(np.append(chain.mean, offsets))
        self.sigmas.append(chain.law.sigma)
        self.cuts.append(chain.law.cuts[1:-1].copy() if len(chain.law.levels) else np.empty(0))

    def _diagnose(self) -> tuple[float, float]:
        draws = np.array(self.history)
        if len(draws) < 4:
            return math.inf, float(len(draws))
        return float(np.quantile(split_rhat(draws), 0.95)), float(np.median(effective_size(draws)))

    def finish(self, chain: Chain, sweeps: int) -> PosteriorRun:
        """All of it, the offsets as deviations from their means."""
        offsets = np.array(self.offsets)
        middle = offsets.mean(axis=0)
        draws = PosteriorDraws(
            chain.model.family,
            chain.shape,
            np.array(self.parameters),
            (offsets - middle).astype(np.float32),
            np.array(self.sigmas),
            np.array(self.extra),
            np.array(self.cuts),
            chain.law.levels,
        )
        modes = np.split(middle[1:], chain.offset_starts[1:])
        model = chain.model.replace_parameters(np.mean(self.parameters, axis=0, dtype=np.float64))
        rhat, effective = self._diagnose()
        return PosteriorRun(Offsets(float(middle[0]), modes), model, draws, sweeps, rhat, effective)
