"""One chain of draws from the posterior: its state, and a sweep that draws every variable once (model: sampler.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.pattern import Links
from tensorveil.inference.posterior.released import Released
from tensorveil.kernels.reference import scored_rows
from tensorveil.models.factor_model import ModelFamily
from tensorveil.solvers.block_updates import Entries
from tensorveil.solvers.layouts.strata import run_apart

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

PART = 2**14  # entries that a thread takes at a time; sums over parts do not depend on the number of threads
KEEP = 0.5  # of every second sweep: nearer proposals, for rows whose law is far from normal
# Scales of half-Cauchy priors, in units of the residual spread: the median of what each explains
FACTOR_SCALE = 0.5  # of all factors together
OFFSET_SCALE = 0.3  # of the offsets of one mode
MEAN_RATIO = 1.0  # of the mean of a column of rows, over their spread
LINK_RATIO = 0.55  # of what a group of features explains of it
START = 0.1  # of the prior's scale: chains start near zero and apart
STEP, LARGEST_STEP = 0.1, 0.5  # of the log of the scale of all effects; it adapts while draws are discarded
CORE_BLOCK = 256  # cells of a core that are drawn together
FIT_SHARE = 0.1  # of the last sweep in the average of the log likelihood
CUTS_BLOCK = 32  # coordinates of the cuts that are
WEIGHT_PARTS = 8  # of the entries, for sums of weights
ROOM = 1.3  # of means in tables, over the largest one of today


class Chain:
    """The state of the sampler: rows, offsets, core, their scales, and the cuts that follow from them."""

    def __init__(
        self,
        data: Entries,
        released: Released,
        family: ModelFamily,
        shape: tuple[int, ...],
        links: list[Links],
        seed: int,
        threads: int,
    ) -> None:
        self.data, self.released, self.shape, self.links, self.threads = data, released, shape, links, threads
        self.generator = np.random.default_rng(seed)
        self.model = family.zeros(shape)
        self.starts, self.widths = self.model.block_starts, self.model.block_widths
        self.offset_starts: Integers = np.concatenate([[0], np.cumsum(shape)[:-1]]).astype(np.int64)
        self.offsets = np.zeros(sum(shape))
        order, ranks = len(shape), self.model.ranks
        blocks = order if self.model.core is None else order + 1
        terms = ranks[0] if self.model.core is None else math.prod(ranks)
        each = (FACTOR_SCALE / math.sqrt(terms)) ** (1 / blocks)  # of the entries of every block
        self.usual = [np.append(np.full(rank, each), OFFSET_SCALE) for rank in ranks]
        self.parameters = START * each * self.generator.standard_normal(self.model.parameters.size)
        self.row_precisions = [usual**-2 for usual in self.usual]
        self.link_precisions = [
            np.full((len(part.weights), rank + 1), 1 / LINK_RATIO**2) for part, rank in zip(links, ranks, strict=True)
        ]  # over those of the rows
        self.prior_means = [np.zeros((size, rank + 1)) for size, rank in zip(shape, ranks, strict=True)]
        self.core_scale = self.core_precision = each**-2
        count = len(released)
        self.means = np.zeros(count)
        self.parts = [(first, min(first + PART, count)) for first in range(0, count, PART)]
        self.row_parts = [self._row_parts(mode) for mode in range(order)]
        self.step = STEP
        self.fit = 0.0  # average log likelihood of the last sweeps
        self.accepted = 0.0  # share of rows whose last proposal was
        self.cuts = released.start()
        self.table = released.table(self.cuts, 3.0)

    def follow(self, other: Chain) -> None:
        """Go on from where another chain is, with random numbers of one's own."""
        self.parameters, self.offsets, self.cuts = other.parameters.copy(), other.offsets.copy(), other.cuts.copy()
        self.row_precisions = [part.copy() for part in other.row_precisions]
        self.link_precisions = [part.copy() for part in other.link_precisions]
        self.prior_means = [part.copy() for part in other.prior_means]
        self.core_precision, self.step, self.fit = other.core_precision, other.step, other.fit

    def _row_parts(self, mode: int) -> list[tuple[int, int]]:
        """Ranges of rows with about PART entries each."""
        begins = self.data.begins[mode]
        cuts = np.searchsorted(begins, np.arange(0, begins[-1], PART // 2))
        cuts = np.unique(np.concatenate([[0], cuts, [len(begins) - 1]]))
        return [(int(first), int(last)) for first, last in pairwise(cuts)]

    def share(self, kernel: Callable[..., Any], *arguments: Any, parts: list[tuple[int, int]]) -> list[Any]:
        """Run a kernel over parts, by all threads; its results in the order of the parts."""
        found: list[Any] = [None] * len(parts)

        def work(thread: int) -> None:
            for place in range(thread, len(parts), self.threads):
                found[place] = kernel(*arguments, *parts[place])

        run_apart(work, self.threads)
        return found

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What kernels need to predict."""
        return self.parameters, self.starts, self.widths, self.offsets, self.offset_starts, self.data.coordinates

    def sweep(self, sweep: int, tune: bool) -> None:
        """Draw everything once; `tune`: whether the draw is discarded and step sizes may change."""
        order = len(self.shape)
        for mode in range(order):
            self._draw_level(mode)
        self.share(scored_rows.predict_means, *self.numbers, 0.0, self.means, parts=self.parts)
        reach = float(np.abs(self.means).max()) + 1e-3
        places = self.released.places(reach)
        weights = self._weights(reach, len(places))
        reach *= self._draw_scale(sweep % order, places, weights, tune)
        self._draw_cuts(places, weights)
        value, shares = self.released.log_likelihood(self.cuts, places, weights)
        self.fit += FIT_SHARE * (value - self.fit)
        self.table = self.released.table(self.cuts, ROOM * reach + 3.0, shares)
        accepted = 0
        for step in range(order):
            mode = (sweep + step) % order
            accepted += self._draw_rows(mode, KEEP * (sweep % 2))
            self._draw_prior(mode)
        self.accepted = accepted / sum(self.shape)
        if self.model.core is not None:
            self._draw_core()

    def _weights(self, reach: float, count: int) -> Floats:
        """Weights of symbols at places of the means."""
        size = max(PART, -(-len(self.means) // WEIGHT_PARTS))
        parts = [(first, min(first + size, len(self.means))) for first in range(0, len(self.means), size)]

        def one(begin: int, end: int) -> Floats:
            weights = np.zeros((self.released.chances.shape[1], count, 2))
            scored_rows.spread_means(self.released.symbols, self.means, reach, weights, begin, end)
            return weights

        return np.asarray(sum(self.share(one, parts=parts)))

    def _draw_level(self, mode: int) -> None:
        """All offsets of a mode moved together with the cuts, which leaves the likelihood as it is."""
        offsets = self.offsets[self.offset_starts[mode] : self.offset_starts[mode] + self.shape[mode]]
        spread = 1 / math.sqrt(len(offsets) * self.row_precisions[mode][-1])
        shift = spread * self.generator.standard_normal() - float((offsets - self.prior_means[mode][:, -1]).mean())
        offsets += shift
        self.cuts, _ = self.released.moved(self.cuts, 0.0, 1.0, shift)

    def _draw_cuts(self, places: Floats, weights: Floats) -> None:
        """Coordinates of the cuts given all means, by a scored proposal."""
        chosen = np.sort(self.generator.permutation(len(self.cuts))[:CUTS_BLOCK])
        value, g, H = self.released.equations(self.cuts, places, weights, chosen)
        root = _root(H)
        z = self.generator.standard_normal(len(g))
        step = np.linalg.solve(root.T, np.linalg.solve(root, g) + z)
        new = self.cuts.copy()
        new[chosen] += step
        if not self.released.possible(new):
            return
        new_value, g, H = self.released.equations(new, places, weights, chosen)
        new_root = _root(H)
        miss = new_root.T @ step + np.linalg.solve(new_root, g)
        ratio = new_value - value + (z @ z - miss @ miss) / 2
        ratio += float(np.log(np.diag(new_root)).sum() - np.log(np.diag(root)).sum())
        if math.log(self.generator.random()) < ratio:
            self.cuts = new

    def _draw_scale(self, mode: int, places: Floats, weights: Floats, tune: bool) -> float:
        """All effects times a common factor, together with the scales of their priors, and cuts stretched to fit.

        Rows and cuts depend on each other through the scale of the effects: drawn one given the other they would move
        slowly. The prior changes by the half-Cauchy laws of the scales alone.
        """
        factor = math.exp(self.step * self.generator.standard_normal())
        centre, variance = float(self.means.mean()), float(self.means.var())
        stretch = math.sqrt((1 + factor**2 * variance) / (1 + variance))
        cuts, ratio = self.released.moved(self.cuts, centre, stretch, (factor - 1) * centre)
        scaled = weights * np.array([1.0, factor])
        ratio += self.released.log_likelihood(cuts, factor * places, scaled)[0]
        ratio -= self.released.log_likelihood(self.cuts, places, weights)[0]
        moved: list[tuple[int, slice]] = [(n, slice(-1, None)) for n in range(len(self.shape))]
        if self.model.core is None:
            moved[mode] = mode, slice(None)
        else:
            scale = self.core_scale
            ratio += _scale_prior(factor**2 / self.core_precision, scale) - _scale_prior(1 / self.core_precision, scale)
        for n, columns in moved:
            variances, usual = 1 / self.row_precisions[n][columns], self.usual[n][columns] ** -2
            ratio += float((_scale_prior(factor**2 * variances, usual) - _scale_prior(variances, usual)).sum())
        accepted = self.released.possible(cuts) and math.log(self.generator.random()) < ratio
        if tune:
            self.step = min(max(self.step * (1.15 if accepted else 0.93), 1e-3), LARGEST_STEP)
        if not accepted:
            return 1.0
        self.cuts = cuts
        self.means *= factor
        places *= factor
        weights[:, :, 1] *= factor
        self.offsets *= factor
        block = mode if self.model.core is None else len(self.shape)
        first = self.starts[block]
        last = self.starts[block + 1] if block + 1 < len(self.starts) else self.parameters.size
        self.parameters[first:last] *= factor
        for n, columns in moved:
            self.row_precisions[n][columns] /= factor**2
            self.prior_means[n][:, columns] *= factor
        if self.model.core is not None:
            self.core_precision /= factor**2
        return factor

    def _draw_rows(self, mode: int, keep: float) -> int:
        """The rows of one mode with their offsets; returns how many proposals were accepted."""
        table = self.table.values, self.table.information, self.table.reach
        order, begins = self.data.orders[mode], self.data.begins[mode]
        key = np.uint64(self.generator.integers(2**64, dtype=np.uint64))
        prior = self.prior_means[mode], self.row_precisions[mode]
        arguments = *self.numbers, 0.0, self.released.symbols, *table, keep, order, begins, mode, *prior, key
        return sum(self.share(scored_rows.draw_rows, *arguments, parts=self.row_parts[mode]))

    def rows(self, mode: int) -> Floats:
        """Rows of a mode with their offsets as the last column."""
        size, rank = self.shape[mode], self.model.ranks[mode]
        first = self.starts[mode]
        own = self.offsets[self.offset_starts[mode] : self.offset_starts[mode] + size]
        return np.column_stack([self.parameters[first : first + size * rank].reshape(size, rank), own])

    def _draw_prior(self, mode: int) -> None:
        """Links, their precisions and those of the rows, given the rows: F is orthogonal, so each is on its own."""
        rows, links, own = self.rows(mode), self.links[mode], self.row_precisions[mode]
        size, ratios = len(rows), self.link_precisions[mode]
        weights = links.weights[:, None]
        prior = ratios / weights
        prior[0, -1] = 1e12  # the cuts hold the mean of the offsets
        precision = size + prior
        beta = links.features.T @ rows / precision
        beta += self.generator.standard_normal(beta.shape) / np.sqrt(precision * own)
        self.prior_means[mode] = links.features @ beta
        squares = ((rows - self.prior_means[mode]) ** 2).sum(axis=0)
        count = size
        for group, usual in [(slice(0, 1), MEAN_RATIO), *((group, LINK_RATIO) for group in links.groups)]:
            explained = (beta[group] ** 2 / weights[group]).sum(axis=0)
            number = group.stop - group.start
            ratios[group] = self._precisions(own * explained, number, ratios[group][0], np.full(len(own), usual**-2))
            squares += ratios[group][0] * explained
            count += number
        self.row_precisions[mode] = self._precisions(squares, count, own, self.usual[mode] ** -2)

    def _precisions(self, squares: Floats, count: int, now: Floats, usual: Floats) -> Floats:
        """Precisions of `count` normal numbers with these sums of squares, whose spread is half-Cauchy.

        Drawn with an auxiliary number that makes the prior a mixture of inverse gamma laws (Makalic, Schmidt 2016);
        `usual` is one over the square of the prior's scale.
        """
        gamma = self.generator.standard_gamma
        auxiliary = gamma(1.0, len(squares)) / (usual + now)
        return np.asarray(gamma((1 + count) / 2, len(squares)) / (auxiliary + squares / 2))

    def _draw_core(self) -> None:
        """A block of the cells of the core by a scored proposal, as rows are; then the precision of the core."""
        first = self.starts[-1]
        core = self.parameters[first:]  # a view: what is written here is in the parameters
        chosen = np.sort(self.generator.permutation(core.size)[:CORE_BLOCK])
        old = core[chosen].copy()
        value, centre, root = self._core_equations(chosen)
        z = self.generator.standard_normal(len(old))
        new = centre + np.linalg.solve(root.T, z)
        core[chosen] = new
        new_value, back, new_root = self._core_equations(chosen)
        miss = new_root.T @ (old - back)
        ratio = new_value - value + (z @ z - miss @ miss) / 2
        ratio += float(np.log(np.diag(new_root)).sum() - np.log(np.diag(root)).sum())
        if not math.log(self.generator.random()) < ratio:
            core[chosen] = old
        squares, now = np.array([core @ core]), np.array([self.core_precision])
        self.core_precision = float(self._precisions(squares, core.size, now, np.array([self.core_scale]))[0])

    def _core_equations(self, chosen: Integers) -> tuple[float, Floats, Floats]:
        """Log posterior of chosen cells of the core, the centre of a proposal and the Cholesky factor of its H."""
        self.share(scored_rows.predict_means, *self.numbers, 0.0, self.means, parts=self.parts)
        slopes, told = np.empty_like(self.means), np.empty_like(self.means)
        table = self.table.values, self.table.information, self.table.reach
        arguments = self.released.symbols, *table, self.means, slopes, told
        value = math.fsum(self.share(scored_rows.scores, *arguments, parts=self.parts))
        core = self.parameters[self.starts[-1] :][chosen]
        H, g = self.core_precision * np.eye(len(core)), -self.core_precision * core
        places = np.unravel_index(chosen, self.model.ranks)
        for begin, end in self.parts:
            phi = np.ones((end - begin, len(core)))
            for mode, place in enumerate(places):
                phi *= self.rows(mode)[self.data.coordinates[begin:end, mode]][:, place]
            g += phi.T @ slopes[begin:end]
            H += phi.T @ (told[begin:end, None] * phi)
        value -= self.core_precision * float(core @ core) / 2
        return value, core + np.linalg.solve(H, g), np.linalg.cholesky(H)


def _root(H: Floats) -> Floats:
    """Cholesky factor of an information matrix, made positive definite."""
    return np.linalg.cholesky(H + 1e-6 * (1 + np.trace(H)) / len(H) * np.eye(len(H)))


def _scale_prior(variances: Any, usual: Any) -> Any:
    """Log density of the log of a half-Cauchy spread, up to a constant; `usual` is one over its scale squared."""
    return np.log(variances) / 2 - np.log1p(variances * usual)
