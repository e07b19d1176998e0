"""Bayesian completion that knows the noise: Gibbs sampling over latent values, rows, offsets, core and their priors.

    latent value of entry w ~ N(m_w, sigma^2),    m_w = mean + offsets_w + xhat_w,
    row i of mode n with its offset ~ N(F_i beta_n, 1 / lambda_n),    beta_n ~ N(0, weights / kappa_n),

F the features of the mode (a constant, and side information), lambda and kappa one number a column, with weak priors.
What was released tells of the latent values through its law of noise (noise_laws.py). Each sweep draws all of them in
turn, each from its law given the rest; what the draws predict, averaged, is the posterior mean.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.kernels import least_squares, posterior
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.models.posterior_mean import PosteriorDraws
from tensorveil.solvers.block_updates import Entries, prior_variance, spectral_start
from tensorveil.solvers.diagnostics import effective_size, split_rhat
from tensorveil.solvers.noise_laws import NoiseLaw
from tensorveil.solvers.pattern_features import Links, given_features, pattern_features

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

FEWEST_SWEEPS, MOST_SWEEPS = 48, 320
ENTRIES_A_SWEEP = 5  # small data get fewer sweeps: entries / this, between the two
BURN_IN = 0.25
REFLECTION = -0.7
WATCHED = 64
CHECK_EVERY = 20
ENOUGH_DRAWS = 400  # effective ones, of the median watched entry
MOST_RHAT = 1.05
MOST_NUMBERS = 5 * 10**7  # of all draws kept
FEWEST_KEPT = 8
PART = 2**14  # entries that a thread takes at a time; sums over parts do not depend on the number of threads
FREEDOM = 1.0  # of the priors of variances: worth one row
LARGEST = 10.0  # variances over their usual ones
MEAN_PRECISION = 16.0  # the mean of all values has the prior N(0, 1/16): in the middle half of the bounds
USUAL_VARIANCE = 0.2  # of latent values, where the data cannot tell
SIGNAL_SHARE = 0.1  # of the variance of latent values, expected of factors
OFFSET_SHARE = 0.02  # and of each mode's offsets: little, for where there are none they only add noise
LINK_SHARE = 0.1  # of the variance of rows, expected of what features explain
SMALL_CORE = 64  # cells: up to here its matrix is formed
CORE_STEPS, CORE_PRECISION = 100, 1e-6


@final
@dataclass(frozen=True)
class PosteriorRun:
    """What sampling gives.

    Attributes
    ----------
    offsets : Offsets
        Posterior means.
    model : FactorModel
        Mean of the draws' factors: a picture of the model, predictions come from the draws.
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
    sweeps : at most so many; None: 48 to 320, a fifth of the number of entries. The first quarter is not used. Sampling
        ends before where R-hat and the effective number of draws say that it may.
    draws : how many draws the model keeps, at most; fewer for very large models
    threads : None: one a core. The result does not depend on it.
    pattern : whether where values were observed is side information (pattern_features.py)
    features : more of it, one public matrix a mode (a row an index) or None for a mode

    Examples
    --------
    >>> from tensorveil.data.synthetic import cp_tensor, observe
    >>> from tensorveil.models.cp import CP
    >>> from tensorveil.solvers.noise_laws import NoisyNumbers
    >>> data = observe(cp_tensor(seed=0), snr=10, seed=1)
    >>> run = Posterior().solve(data.train.coordinates, NoisyNumbers(data.train.values), CP(rank=3), (20, 20, 20))
    >>> errors = run.draws.predict(data.test.coordinates, run.offsets) - data.truth_at(data.test.coordinates)
    >>> bool(errors.std() < 0.5 * data.noise_std)
    True
    """

    sweeps: int | None = None
    draws: int = 100
    threads: int | None = None
    pattern: bool = True
    features: Sequence[ArrayLike | None] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("sweeps", "threads"):
            if getattr(self, name) is not None:
                checks.positive_integer(name, getattr(self, name))
        checks.positive_integer("draws", self.draws)

    def planned_sweeps(self, entries: int) -> int:
        """Most sweeps for so many entries."""
        if self.sweeps is not None:
            return self.sweeps
        return min(max(entries // ENTRIES_A_SWEEP, FEWEST_SWEEPS), MOST_SWEEPS)

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
        law : the released values on the centred scale, and their noise; it is changed on the way
        seed : None is 0, so that a run can be repeated
        progress : called after each sweep with its number and the planned one
        """
        if len(law) != len(coordinates) or not len(law):
            raise InputError(f"values must be one a row of coordinates, at least one, got {len(law)} of them")
        threads = self.threads or os.cpu_count() or 1
        if len(law) <= PART:
            threads = 1
        planned = self.planned_sweeps(len(law))
        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            links = [Links(part, len(part)) for part in self._side_information(coordinates, shape)]
            chain = _Chain(coordinates, law, family, shape, links, checks.seed(seed) or 0, pool)
            kept = _Kept(self, chain, planned)
            for sweep in range(planned):
                chain.sweep(sweep, planned)
                if progress is not None:
                    progress(sweep + 1, planned)
                if kept.enough_after(sweep):
                    break
        return kept.finish(chain, sweep + 1)

    def _side_information(self, coordinates: Coordinates, shape: tuple[int, ...]) -> list[Floats]:
        """Features of every mode."""
        found = pattern_features(coordinates, shape) if self.pattern else [np.empty((size, 0)) for size in shape]
        given = [None] * len(shape) if self.features is None else self.features
        return [np.column_stack(both) for both in zip(found, given_features(given, shape), strict=True)]


class _Chain:
    """The state of the sampler."""

    def __init__(
        self,
        coordinates: Coordinates,
        law: NoiseLaw,
        family: ModelFamily,
        shape: tuple[int, ...],
        links: list[Links],
        seed: int,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self.law, self.shape, self.links, self.pool = law, shape, links, pool
        self.generator = np.random.default_rng(seed)
        self.model = family.model([np.zeros(block) for block in family.block_shapes(shape)])
        self.starts, self.widths = self.model.block_starts, self.model.block_widths
        self.offset_starts: Integers = np.concatenate([[0], np.cumsum(shape)[:-1]]).astype(np.int64)
        stands, noise, self.mean = law.begin()
        self.data = Entries.of(coordinates, stands, shape)
        self.offsets = np.zeros(sum(shape))
        self._start(stands, noise)
        count = len(law)
        self.means, self.latent, self.precisions = np.empty(count), np.empty(count), np.empty(count)
        self.centres = [np.zeros((size, self.model.ranks[mode] + 1)) for mode, size in enumerate(shape)]
        self.prior_means = [np.zeros_like(part) for part in self.centres]
        self.parts = [(first, min(first + PART, count)) for first in range(0, count, PART)]
        self.row_parts = [self._row_parts(mode) for mode in range(len(shape))]
        self.last_mode = 0

    def _start(self, stands: Floats, noise: float) -> None:
        """Shrunken offsets, spectral factors, and priors of the expected scale."""
        unsure = math.sqrt(5 / len(stands)) * noise  # how well the moments know the variance of latent values
        trust = USUAL_VARIANCE**2 / (USUAL_VARIANCE**2 + unsure**2)
        found = trust * (float(stands.var()) - noise) + (1 - trust) * USUAL_VARIANCE
        variance = min(max(found, 1e-6), 1.0)
        residual = variance + noise
        own = SIGNAL_SHARE * variance
        targets = stands - self.mean
        for mode, size in enumerate(self.shape):
            index = self.data.coordinates[:, mode]
            counts = self.data.counts(mode)
            part = np.bincount(index, targets, minlength=size) / (counts + residual / own)
            self.offsets[self.offset_starts[mode] : self.offset_starts[mode] + size] = part
            targets = targets - part[index]
        self.entry_variance = prior_variance(self.model, own)
        self.parameters = spectral_start(self.data, targets, self.model, own, residual, self.generator)
        largest = 3 * math.sqrt(self.entry_variance)
        np.clip(self.parameters, -largest, largest, out=self.parameters)
        offsets = OFFSET_SHARE * variance
        self.usual = [np.append(np.full(rank, self.entry_variance), offsets) for rank in self.model.ranks]
        self.row_precisions = [1 / np.append(usual[:-1], own) for usual in self.usual]
        self.link_precisions = [1 / (LINK_SHARE * usual) for usual in self.usual]
        self.core_precision = 1 / self.entry_variance

    def _row_parts(self, mode: int) -> list[tuple[int, int]]:
        """Ranges of rows with about PART entries each."""
        begins = self.data.begins[mode]
        cuts = np.searchsorted(begins, np.arange(0, begins[-1], PART // 2))
        cuts = np.unique(np.concatenate([[0], cuts, [len(begins) - 1]]))
        return [(int(first), int(last)) for first, last in pairwise(cuts)]

    def share(
        self, kernel: Callable[..., Any], *arguments: Any, parts: list[tuple[int, int]] | None = None
    ) -> list[Any]:
        """Run a kernel over all entries, or these parts, by all threads; its results in the order of the parts."""
        ranges = self.parts if parts is None else parts
        if self.pool is None:
            return [kernel(*arguments, *part) for part in ranges]
        return [task.result() for task in [self.pool.submit(kernel, *arguments, *part) for part in ranges]]

    def key(self) -> np.uint64:
        """The key of the next streams."""
        return np.uint64(self.generator.integers(2**64, dtype=np.uint64))

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What kernels need to predict."""
        return self.parameters, self.starts, self.widths, self.offsets, self.offset_starts, self.data.coordinates

    def sweep(self, sweep: int, planned: int) -> None:
        """Draw everything once."""
        self.share(posterior.predict_means, *self.numbers, self.mean, self.means)
        tune = sweep < BURN_IN * planned
        self.law.draw(self.means, self.key(), self.generator, self.share, tune, self.latent, self.precisions)
        weight = float(self.precisions.sum()) + MEAN_PRECISION
        move = float(self.precisions @ (self.latent - self.means)) - MEAN_PRECISION * self.mean
        self.mean += move / weight + self.generator.standard_normal() / math.sqrt(weight)
        reflection = REFLECTION if sweep >= BURN_IN * planned else 0.0  # far from the target it would delay
        order = len(self.shape)
        for step in range(order):
            mode = (sweep + step) % order  # the last one drawn is each in turn
            self.share(
                posterior.draw_rows,
                *self.numbers,
                self.mean,
                self.latent,
                self.precisions,
                self.data.orders[mode],
                self.data.begins[mode],
                mode,
                self.prior_means[mode],
                self.row_precisions[mode],
                reflection,
                self.centres[mode],
                self.key(),
                parts=self.row_parts[mode],
            )
            self._draw_prior(mode)
            self.last_mode = mode
        if self.model.core is not None:
            self._draw_core()

    def rows(self, mode: int) -> Floats:
        """Rows of a mode with their offsets as the last column."""
        size, rank = self.shape[mode], self.model.ranks[mode]
        first = self.starts[mode]
        own = self.offsets[self.offset_starts[mode] : self.offset_starts[mode] + size]
        return np.column_stack([self.parameters[first : first + size * rank].reshape(size, rank), own])

    def _draw_prior(self, mode: int) -> None:
        """Links, their precisions and those of the rows, given the rows: F is orthogonal, so each is on its own."""
        rows, links, usual = self.rows(mode), self.links[mode], self.usual[mode]
        size = len(rows)
        normal = self.generator.standard_normal
        own = self.row_precisions[mode]
        prior = self.link_precisions[mode] / links.weights[:, None]
        prior[0] = 0.1 / usual  # means of the rows' columns; that of offsets is the model's mean
        prior[0, -1] = 1e12
        precision = size * own + prior
        beta = own * (links.features.T @ rows) / precision + normal(precision.shape) / np.sqrt(precision)
        self.prior_means[mode] = links.features @ beta
        if links.size:
            squares = (beta[1:] ** 2 / links.weights[1:, None]).sum(axis=0)
            self.link_precisions[mode] = self._precisions(squares, links.size, LINK_SHARE * usual)
        squares = ((rows - self.prior_means[mode]) ** 2).sum(axis=0)
        self.row_precisions[mode] = self._precisions(squares, size, usual)

    def _precisions(self, squares: Floats, count: int, usual: Floats) -> Floats:
        """Precisions of normal numbers, given their sums of squares: gamma, but for a limit on the variance."""
        drawn = 2 * self.generator.standard_gamma((FREEDOM + count) / 2, len(squares)) / (FREEDOM * usual + squares)
        return np.asarray(np.maximum(drawn, 1 / (LARGEST * usual.max())))

    def _draw_core(self) -> None:
        """The core ~ N(H^-1 g, H^-1), H = sum_w o_w phi_w phi_w^T + lambda, g = sum_w o_w phi_w t_w; then lambda."""
        first = self.starts[-1]
        core = self.parameters[first:]  # a view: what is written here is in the parameters
        zero = self.parameters.copy()
        zero[first:] = 0.0
        self.share(posterior.predict_means, zero, *self.numbers[1:], self.mean, self.means)
        targets = self.latent - self.means
        if core.size <= SMALL_CORE:
            core[:] = self._small_core(targets)
        else:
            self._large_core(targets, core)
        squares = FREEDOM * self.entry_variance + float(core @ core)
        self.core_precision = 2 * self.generator.standard_gamma((FREEDOM + core.size) / 2) / squares

    def _small_core(self, targets: Floats) -> Floats:
        """By the Cholesky factor of H."""
        arguments = self.parameters, self.starts, self.widths, self.data.coordinates, targets, self.precisions
        found = self.share(posterior.core_equations, *arguments)
        H = np.sum([part for part, _ in found], axis=0) + self.core_precision * np.eye(len(found[0][1]))
        g = np.sum([part for _, part in found], axis=0)
        root = np.linalg.cholesky(H)
        return np.asarray(np.linalg.solve(root.T, np.linalg.solve(root, g) + self.generator.standard_normal(len(g))))

    def _large_core(self, targets: Floats, core: Floats) -> None:
        """By conjugate gradients: H core = g + N(0, H), which is sum_w sqrt(o_w) phi_w z_w + sqrt(lambda) z."""
        normal = self.generator.standard_normal
        right = self._onto_core(self.precisions * targets + np.sqrt(self.precisions) * normal(len(targets)))
        right += math.sqrt(self.core_precision) * normal(core.size)
        trial, silent = self.parameters.copy(), np.zeros_like(self.offsets)

        def multiply(direction: Floats) -> Floats:
            trial[self.starts[-1] :] = direction
            arguments = trial, self.starts, self.widths, silent, self.offset_starts, self.data.coordinates
            self.share(posterior.predict_means, *arguments, 0.0, self.means)
            return self._onto_core(self.precisions * self.means) + self.core_precision * direction

        remainder = right - multiply(core.copy())
        direction = remainder.copy()
        size = float(remainder @ remainder)
        enough = CORE_PRECISION**2 * float(right @ right)
        for _ in range(CORE_STEPS):
            if not size > enough:
                break
            product = multiply(direction)
            step = size / float(direction @ product)
            core += step * direction
            remainder -= step * product
            size, before = float(remainder @ remainder), size
            direction = remainder + size / before * direction

    def _onto_core(self, weights: Floats) -> Floats:
        """sum_w weights_w phi_w of the core."""
        size = self.parameters.size - int(self.starts[-1])
        result, diagonal = np.empty(size), np.empty(size)
        data = self.data
        arguments = self.parameters, self.starts, self.widths, data.coordinates, weights, data.orders[0], data.begins[0]
        least_squares.core_product(*arguments, np.empty(0), result, diagonal)
        return result


class _Kept:
    """Draws that the run keeps, evenly spread over the sweeps, and what the watched entries did."""

    def __init__(self, solver: Posterior, chain: _Chain, planned: int) -> None:
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
        """Take the draw of a sweep; True where no more are needed."""
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

    def finish(self, chain: _Chain, sweeps: int) -> PosteriorRun:
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
