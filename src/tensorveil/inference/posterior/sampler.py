"""Bayesian completion that knows the noise: several chains over rows, offsets, core and the scales of their priors.

    latent number of entry w ~ N(m_w, 1),    m_w = offsets_w + xhat_w,
    row i of mode n with its offset ~ N(F_i beta_n, 1 / lambda_n),    beta_n ~ N(0, weights / (kappa_n lambda_n)),

F are the features of the mode: a constant, side information and, if the mode is smooth, waves along it. There is one
lambda per column, and one kappa per column and group of features (of waves one for all factors); their roots have half-
Cauchy priors, so that what the data do not show is shrunk to nothing, and a rank that is too large costs little. The
released symbols depend on the latent numbers through cuts and a channel (released.py); latent numbers are summed out.
The average prediction of the draws is the posterior mean. In a non-negative model, the numbers of a row but its offset
are absolute values of numbers with these priors: their laws are folded normal, half-normal where F_i beta_n is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.data.features import Features, standardised, waves_by_mode
from tensorveil.errors import InputError
from tensorveil.inference.posterior.chain import Chain, Draw
from tensorveil.inference.posterior.coupled import Both, CoupledChain, Second, Stack
from tensorveil.inference.posterior.diagnostics import effective_size, expected_logs, split_rhat, stacking_weights
from tensorveil.inference.posterior.pattern import Links, given_features, pattern_features
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sorted_symbols import SortedSymbols
from tensorveil.inference.values.starts import Start
from tensorveil.kernels.cores import available_cores
from tensorveil.kernels.reference import scored_rows
from tensorveil.models.cp import CP
from tensorveil.models.draws import PosteriorDraws, expected_values
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.block_updates import Entries
from tensorveil.solvers.layouts.strata import run_apart

Floats = NDArray[np.float64]
Coordinates = NDArray[np.uint32]

BURN_IN = 0.3
HELD = 0.7  # of the burn-in, in which factors keep the spread of their prior
# Chains from random starts begin with a log likelihood divided by HEAT, which falls to one by COOL of the burn-in,
# before spreads are drawn: they find better modes. Birmingham, train split, epsilon 4.7, 200 sweeps, three draws: RMSE
# 183, 155, 196 -> 117, 118, 157. MovieLens, FilmTrust and MIMIC, epsilon 2 and 5, COOL 0.7: only noise between them.
HEAT, COOL = 10.0, 0.5
CHAINS = 4
# Chains of large data that all begin at least squares, since they find the same mode. Of 10^6 values, two chains of 83
# sweeps had an error of 0.1421 of the truth's spread, four 0.1414, and four of 210 sweeps 0.1417.
CHAINS_OF_LARGE = 2
FEWEST_SWEEPS, MOST_SWEEPS = 48, 300
FEWEST_OF_LARGE = 80  # of large data: from its start, a chain of 10^6 values took 60 sweeps to where it stayed
ENTRIES_PER_SWEEP = 8  # small data get fewer sweeps: entries / this, between the two
VISITS = 10**9  # of entries by draws of rows, in all chains: sets the sweeps between the two; 20 to 25 s of one core
REGROUP = (0.25, 0.5, 0.75)  # of the burn-in: when chains that were left behind go on from the best one
WATCHED = 64
FEWEST_SHARED = 2**11  # entries; with fewer, threads would wait for each other
CHECK_EVERY = 20
ENOUGH_DRAWS = 100.0  # effective ones of the median watched entry: the error of the average adds 1 % to its variance
MOST_RHAT = 1.05  # of 95 % of them
MOST_NUMBERS = 5 * 10**7  # of all draws kept
FEWEST_KEPT = 8
FEWEST_STACKED = 10  # draws per chain; with fewer, how well a chain predicts is not known
COMPARED = 2**14  # entries on which models of several families are compared


@final
@dataclass(frozen=True)
class PosteriorRun:
    """The result of sampling.

    Attributes
    ----------
    offsets : Offsets
        Posterior means, on the latent scale.
    model : FactorModel
        Mean of the draws' factors, for display only; predictions come from the draws.
    draws : PosteriorDraws
    """

    offsets: Offsets
    model: FactorModel
    draws: PosteriorDraws

    def expected_fit(self, coordinates: Coordinates, released: Released) -> float:
        """Expected log probability of another symbol of an entry like these, by the widely applicable criterion.

        Over at most COMPARED entries: the log of the mean probability of each symbol over the draws, less the variance
        of its log (Watanabe 2010). It reads released symbols alone.
        """
        logs = _log_chances(self.draws, self.offsets, coordinates, released)
        return float(expected_logs(logs).mean())


@final
@dataclass(frozen=True)
class Posterior:
    """Sampling of the posterior of CP and Tucker models of any order.

    Parameters
    ----------
    sweeps : largest number of sweeps of each chain. None: 48 to 300, fewer for tiny and for large data. The first 30 %
        are discarded. Sampling stops early if R-hat and the effective number of draws allow it.
    chains : largest number of chains, from starts of their own; two are enough for large data that determine the model.
        If chains end in different modes, draws are weighted by stacking.
    draws : largest number of draws that the model keeps; fewer for very large models
    threads : number of threads; None: one per core. The result does not depend on it.
    pattern : whether to use the positions of the observed values as side information (pattern.py)
    features : further side information, one public matrix per mode (one row per index), or None for a mode
    smooth : one matrix of waves per smooth mode (one row per index), or None for other modes: a random walk along
        the mode is linear in them. They are a group of features, beside which rows stay free to differ.
    families : further models to sample; the one that is expected to predict symbols best is kept
    """

    sweeps: int | None = None
    chains: int = CHAINS
    draws: int = 160
    threads: int | None = None
    pattern: bool = True
    features: Sequence[ArrayLike | None] | None = field(default=None, repr=False, compare=False)
    smooth: Sequence[Floats | None] | None = field(default=None, repr=False, compare=False)
    families: tuple[ModelFamily, ...] = ()

    def __post_init__(self) -> None:
        for name in ("sweeps", "threads"):
            if getattr(self, name) is not None:
                checks.positive_integer(name, getattr(self, name))
        checks.positive_integer("chains", self.chains)
        checks.positive_integer("draws", self.draws)

    def knowing(
        self,
        features: Mapping[str, ArrayLike] | None,
        smooth: Mapping[str, Features] | None,
        mode_names: Sequence[str],
        shape: tuple[int, ...],
    ) -> Posterior:
        """The same with public features of some modes, and with waves along the smooth ones, by the names of modes."""
        given = standardised(features, mode_names, shape)
        known = [given.get(mode) for mode in range(len(shape))]
        return replace(self, features=known, smooth=waves_by_mode(smooth, mode_names))

    def planned_sweeps(self, entries: int, order: int) -> int:
        """The largest number of sweeps of a chain for a given number of entries."""
        if self.sweeps is not None:
            return self.sweeps
        if self._is_large(entries, order):
            return max(VISITS // (entries * order * self.chains), FEWEST_OF_LARGE)
        return min(max(entries // ENTRIES_PER_SWEEP, FEWEST_SWEEPS), MOST_SWEEPS)

    def _is_large(self, entries: int, order: int) -> bool:
        """Whether there are too many entries for the largest number of sweeps."""
        return VISITS // (entries * order * self.chains) < MOST_SWEEPS

    def solve(
        self,
        coordinates: Coordinates,
        released: Released,
        family: ModelFamily,
        shape: tuple[int, ...],
        *,
        coupled: Second | None = None,
        start: Start | None = None,
        seed: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> PosteriorRun:
        """Sample the posterior of a model of the family.

        Parameters
        ----------
        coordinates : of the released symbols, checked
        released : the symbols and their law
        coupled : a second table that shares a mode (coupled.py); for CP only
        start : what all chains, or half of them, begin near; the others, and all if None, begin at small random numbers
        seed : None is 0, so that a run can be repeated
        progress : called after each sweep with its number and the planned one
        """
        if len(released) != len(coordinates) or not len(released):
            raise InputError(
                f"there must be one symbol per row of coordinates and at least one row, got {len(released)} symbols"
            )
        entries = len(released) + (0 if coupled is None else len(coupled.released))
        cores = self.threads or (available_cores() if entries >= FEWEST_SHARED else 1)
        alike = start is not None and start.determined
        count = min(self.chains, CHAINS_OF_LARGE) if alike and self._is_large(entries, len(shape)) else self.chains
        threads = min(cores, count)
        make = self._maker(coordinates, released, family, shape, coupled, cores, max(cores // threads, 1))
        first = checks.seed(seed) or 0
        planned = self.planned_sweeps(entries, len(shape))
        chains = [make(first + 1_000_003 * number) for number in range(count)]
        near: list[Chain] = []
        if start is not None:
            near = chains if alike else chains[count - count // 2 :]
            for chain in near:
                chain.start_at(start)
        far = chains[: count - len(near)]
        if start is not None and start.constant is not None and coupled is None:
            for chain in far:
                chain.start_alike(start.constant)
        kept = _Kept(self, chains, planned)
        cooled = COOL * kept.burn_in
        heat = [HEAT ** (1 - sweep / cooled) if sweep < cooled else 1.0 for sweep in range(planned)]

        def advance(thread: int) -> None:
            for chain in chains[thread::threads]:
                flat = heat[sweep] if chain in far else 1.0
                chain.sweep(sweep, sweep < kept.burn_in, sweep < HELD * kept.burn_in, flat)

        for sweep in range(planned):  # `advance` reads it
            run_apart(advance, threads)
            if sweep in [int(share * kept.burn_in) for share in REGROUP]:
                for group in filter(None, (far, near)):
                    _regroup(group)
            if progress is not None:
                progress(sweep + 1, planned)
            if kept.enough_after(sweep):
                break
        return kept.finish(sweep + 1, coordinates, released)

    def _maker(
        self,
        coordinates: Coordinates,
        released: Released,
        family: ModelFamily,
        shape: tuple[int, ...],
        coupled: Second | None,
        cores: int,
        threads: int,
    ) -> Callable[[int], Chain]:
        """What makes a chain from a seed; all chains share the entries in their orders, and the features."""
        waves = [None] * len(shape) if self.smooth is None else self.smooth
        if coupled is None:
            links = [Links(*part) for part in zip(self._features(coordinates, shape), shape, waves, strict=True)]
            data, lists = _sorted(coordinates, released.symbols, family.zeros(shape), cores)
            return lambda seed: Chain(data, released, family, shape, links, seed, threads, lists)
        if not isinstance(family, CP) or family.nonnegative:
            raise InputError(f"the model of two coupled tables must be a free CP model, got {family}; give CP(rank)")
        stack, both = Stack(shape, coupled), Both(released, coupled.released)
        of_both = self._coupled_links(coordinates, shape, coupled, waves)
        where = stack.coordinates(coordinates)
        data, lists = _sorted(where, both.symbols, CP(family.rank + 1).zeros(stack.shape), cores)
        return lambda seed: CoupledChain(data, both, family, stack, of_both, seed, threads, lists)

    def _coupled_links(
        self, coordinates: Coordinates, shape: tuple[int, ...], coupled: Second, waves: Sequence[Floats | None]
    ) -> tuple[list[Links], list[Links]]:
        """Links of the modes of both tables; rows of the shared mode have features from both.

        Indices that the first table lacks are average in what was given for it.
        """
        shared, every = coupled.first_mode, coupled.shape[coupled.mode]
        sizes = tuple(every if mode == shared else size for mode, size in enumerate(shape))
        groups = self._features(coordinates, shape)
        groups = [[_longer(part, size) for part in parts] for parts, size in zip(groups, sizes, strict=True)]
        second: list[Floats] = []
        if self.pattern:
            second = pattern_features(coupled.coordinates, coupled.shape)
            groups[shared].append(second[coupled.mode])
        known = [None if wave is None else _longer(wave, size) for wave, size in zip(waves, sizes, strict=True)]
        below = [Links(second[mode : mode + 1], size) for mode, size in enumerate(coupled.shape)]
        return [Links(*part) for part in zip(groups, sizes, known, strict=True)], below

    def _features(self, coordinates: Coordinates, shape: tuple[int, ...]) -> list[list[Floats]]:
        """Groups of features of every mode: those of the pattern, and those that the caller gave."""
        found = pattern_features(coordinates, shape) if self.pattern else [np.empty((size, 0)) for size in shape]
        given = [None] * len(shape) if self.features is None else self.features
        return [list(both) for both in zip(found, given_features(given, shape), strict=True)]


def _longer(rows: Floats, size: int) -> Floats:
    """The same rows, and rows of zeros up to a size."""
    return np.concatenate([rows, np.zeros((size - len(rows), rows.shape[1]))])


def _sorted(
    coordinates: Coordinates, symbols: NDArray[np.uint8], model: FactorModel, cores: int
) -> tuple[Entries, SortedSymbols | None]:
    """Entries, and their lists for kernels that are made for the ranks, if these are worth it."""
    data = Entries.of(coordinates, np.empty(0), model.shape)
    if not model.family.nonnegative and SortedSymbols.worth_sorting(len(symbols), model):
        return data, SortedSymbols.of(coordinates, symbols, model.shape, model.ranks, cores)
    data.orders  # noqa: B018  # made before threads share it
    return data, None


def _log_chances(draws: PosteriorDraws, offsets: Offsets, coordinates: Coordinates, released: Released) -> Floats:
    """Log probability of at most COMPARED symbols, one row per draw."""
    count = len(released)
    chosen = np.unique(np.linspace(0, count - 1, min(COMPARED, count)).astype(np.int64))
    means = draws.latent_means(np.ascontiguousarray(coordinates[chosen]), offsets)
    symbols = released.symbols[chosen]
    return np.array(
        [released.log_chances(row, knots[1:-1], symbols) for row, knots in zip(means, draws.knots, strict=True)]
    )


def _regroup(chains: list[Chain]) -> None:
    """Chains whose fit is far below the best go on from there: their starts led to poor modes, with little mass.

    The log likelihood of draws from one mode varies by the root of half the number of parameters. Only chains that
    began in the same way are compared: those that began near least squares fit better at first, as others are hot.
    """
    best = max(chains, key=lambda chain: chain.fit)
    for chain in chains:
        if chain.fit < best.fit - math.sqrt(best.parameters.size + best.offsets.size):
            chain.follow(best)


class _Kept:
    """The draws that the run keeps, evenly spread over the sweeps, and the predictions of the watched entries."""

    def __init__(self, solver: Posterior, chains: list[Chain], planned: int) -> None:
        self.chains, self.planned = chains, planned
        self.burn_in = int(BURN_IN * planned)
        first = chains[0]
        numbers = first.target.parameters.size + sum(first.target.shape)
        self.most = max(min(solver.draws, max(FEWEST_KEPT, MOST_NUMBERS // numbers)) // len(chains), 1)  # per chain
        self.every = 1
        count = len(first.predicted)
        watched = np.unique(np.linspace(0, count - 1, min(WATCHED, count)).astype(np.int64))
        self.where = np.ascontiguousarray(first.data.coordinates[watched])
        self.where.setflags(write=first.data.coordinates.flags.writeable)  # else kernels would be compiled once more
        self.history: list[Floats] = []  # expected values of the watched entries: one row per chain
        self.draws: list[list[Draw]] = []  # one list per kept sweep, one draw per chain

    def enough_after(self, sweep: int) -> bool:
        """Record the draws of a sweep; returns True if no more sweeps are needed."""
        if sweep < self.burn_in:
            return False
        self.history.append(np.array([self._watch(chain) for chain in self.chains]))
        if (sweep - self.burn_in) % self.every == 0:
            if len(self.draws) == self.most:  # every second one is dropped, so that sampling may stop at any time
                self.draws, self.every = self.draws[::2], 2 * self.every
            if (sweep - self.burn_in) % self.every == 0:
                self.draws.append([chain.draw() for chain in self.chains])
        done = len(self.history)
        if done % CHECK_EVERY:
            return False
        rhat, effective = self._diagnose()
        return rhat < MOST_RHAT and effective >= ENOUGH_DRAWS

    def _watch(self, chain: Chain) -> Floats:
        """Expected values of the watched entries."""
        means = np.empty(len(self.where))
        arguments = (*chain.numbers[:-1], self.where, 0.0, means, 0, len(means))
        scored_rows.predict_means(*arguments)
        scale = chain.predicted.scale
        return expected_values(means, 1.0, chain.knots(), scale.low, scale.high)

    def _diagnose(self) -> tuple[float, float]:
        draws = np.array(self.history)
        if len(draws) < 4:
            return float("inf"), float(draws.shape[0] * draws.shape[1])
        return float(np.quantile(split_rhat(draws), 0.95)), float(np.median(effective_size(draws)))

    def finish(self, sweeps: int, coordinates: Coordinates, released: Released) -> PosteriorRun:
        """The draws of all chains; where chains ended in different modes, as many of each as its weight allows.

        coordinates, released : of the symbols that weights of chains are found with
        """
        run = self._run(sweeps, [draw for draws in self.draws for draw in draws])
        rhat = float(run.draws.mixing[2])
        if len(self.chains) == 1 or len(self.draws) < FEWEST_STACKED or rhat < MOST_RHAT:
            return run
        logs = _log_chances(run.draws, run.offsets, coordinates, released)
        chains, numbers = len(self.chains), self.chains[0].parameters.size + self.chains[0].offsets.size
        chance = logs.shape[1] / len(released) * math.sqrt(numbers / 2)  # as in `_regroup`
        weights = stacking_weights([expected_logs(logs[chain::chains]) for chain in range(chains)], chance)
        counts = np.ceil(len(self.draws) * weights / weights.max() - 1e-9).astype(np.int64)
        places = [np.unique(np.linspace(0, len(self.draws) - 1, count).round().astype(int)) for count in counts]
        return self._run(sweeps, [self.draws[at][chain] for chain, kept in enumerate(places) for at in kept])

    def _run(self, sweeps: int, kept: list[Draw]) -> PosteriorRun:
        """The result of these draws, their offsets as deviations from their means."""
        first = self.chains[0]
        parameters, offsets, knots = (np.array(part) for part in zip(*kept, strict=True))
        middle = offsets.mean(axis=0)
        rhat, effective = self._diagnose()
        deviations = np.column_stack([np.zeros(len(offsets)), offsets - middle]).astype(np.float32)
        draws = PosteriorDraws(
            first.target.family,
            first.target.shape,
            parameters,
            deviations,
            np.ones(len(offsets)),
            knots,
            first.predicted.scale.low,
            first.predicted.scale.high,
            np.array([sweeps, len(self.chains), min(rhat, 1e9), effective]),
        )
        model = first.target.replace_parameters(parameters.mean(axis=0, dtype=np.float64))
        ends = np.cumsum(first.target.shape)[:-1]
        return PosteriorRun(Offsets(0.0, np.split(middle, ends)), model, draws)
