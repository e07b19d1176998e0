"""One chain of draws from the posterior: its state, and a sweep that draws every variable once (model: sampler.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil.inference.posterior.core import draw_core, tucker_blocks
from tensorveil.inference.posterior.pattern import Links
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.posterior.sorted_symbols import SortedSymbols
from tensorveil.inference.values.starts import Start
from tensorveil.kernels.fast import scored_rows as fast_rows
from tensorveil.kernels.reference import blocks, scored_rows
from tensorveil.models.factor_model import ModelFamily
from tensorveil.solvers.block_updates import Entries
from tensorveil.solvers.layouts.strata import run_apart

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Draw = tuple[NDArray[np.float32], Floats, Floats]  # parameters, offsets, knots

PART = 2**14  # entries that a thread takes at a time; sums over parts do not depend on the number of threads
KEEP = 0.5  # of every second sweep: nearer proposals, for rows whose law is far from normal
# Scales of half-Cauchy priors, in units of the residual spread: the median of what each explains
FACTOR_SCALE = 0.5  # of all factors together
OFFSET_SCALE = 0.3  # of the offsets of one mode
MEAN_RATIO = 1.0  # of the mean of a column of rows, over their spread
LINK_RATIO = 0.55  # of what a group of features explains of it
START = 0.1  # of the prior's scale: chains start near zero and apart
STEP, LARGEST_STEP = 0.1, 0.5  # of the log of the scale of all effects; it adapts while draws are discarded
APART = 0.02  # relative spread of chains that begin near one model; with 0.2, large values looked like false symbols
ALIKE = 0.03  # relative spread of rows that begin alike
TINY = 1e-12  # a column smaller than this is zero
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
        lists: SortedSymbols | None = None,
    ) -> None:
        self.data, self.released, self.shape, self.links, self.threads = data, released, shape, links, threads
        self.lists = lists  # for kernels made for the rank; None: those of the reference
        self.generator = np.random.default_rng(seed)
        self.model = family.zeros(shape)
        self.starts, self.widths = self.model.block_starts, self.model.block_widths
        self.offset_starts: Integers = np.concatenate([[0], np.cumsum(shape)[:-1]]).astype(np.int64)
        self.offsets = np.zeros(sum(shape))
        self.predicted, self.target = released, self.model  # whose values draws predict, and by what model
        order, ranks = len(shape), self.model.ranks
        blocks = order if self.model.core is None else order + 1
        terms = ranks[0] if self.model.core is None else math.prod(ranks)
        each = (FACTOR_SCALE / math.sqrt(terms)) ** (1 / blocks)  # of the entries of every block
        self.usual = [np.append(np.full(rank, each), OFFSET_SCALE) for rank in ranks]
        self.parameters = START * each * self.generator.standard_normal(self.model.parameters.size)
        # the parameters of a non-negative model are absolute values of these, whose prior is that of a free model
        self.signed = np.abs(self.parameters) if family.nonnegative else None
        if self.signed is not None:
            self.parameters = self.signed.copy()
        self.row_precisions = [usual**-2 for usual in self.usual]
        self.link_precisions = [
            np.full((len(part.weights), rank + 1), 1 / LINK_RATIO**2) for part, rank in zip(links, ranks, strict=True)
        ]  # over those of the rows
        self.prior_means = [np.zeros((size, rank + 1)) for size, rank in zip(shape, ranks, strict=True)]
        self.core_scale = self.core_precision = each**-2
        count = len(released)
        self.symbols = released.symbols if lists is None else lists.symbols
        self.means: NDArray[Any] = np.zeros(count, np.float64 if lists is None else np.float32)  # one per symbol
        self.parts = [(first, min(first + PART, count)) for first in range(0, count, PART)]
        self.row_parts = [self._row_parts(mode) for mode in range(order)]
        self.step = STEP
        self.fit = 0.0  # average log likelihood of the last sweeps
        self.accepted = 0.0  # share of rows whose last proposal was
        self.cuts = released.start()
        self.table = released.table(self.cuts, 3.0)
        self.information = float(self.table.information.max())  # of an average symbol

    def start_at(self, start: Start) -> None:
        """Begin near a CP model, with columns of the same size in all modes."""
        apart = np.exp(APART * self.generator.standard_normal(self.parameters.size))
        self.offsets = start.unit * np.concatenate(start.offsets)
        if self.model.core is not None:
            bases, core = tucker_blocks(start.model, self.model.ranks)
            sizes = [usual[0] for usual in self.usual]
            core = core * (start.unit / math.prod(sizes))
            blocks = [*(size * basis for size, basis in zip(sizes, bases, strict=True)), core]
            self.parameters = np.concatenate([block.ravel() for block in blocks]) * apart
            self.core_precision = core.size / max(float((core**2).sum()), TINY)
            return
        columns = [np.sqrt(np.mean(factor**2, axis=0)) for factor in start.model.factors]
        each = (start.unit * np.prod(columns, axis=0)) ** (1 / len(columns))
        factors = [
            factor * (each / np.maximum(size, TINY)) for factor, size in zip(start.model.factors, columns, strict=True)
        ]
        self.parameters = np.concatenate([factor.ravel() for factor in factors]) * apart
        self.signed = None if self.signed is None else self.parameters.copy()
        # at least those of the prior: least squares may have shrunk factors so far that chains would lose them
        self.row_precisions = [np.append(np.maximum(each, usual[:-1]), usual[-1]) ** -2 for usual in self.usual]
        if start.constant is not None:
            self.row_precisions[start.constant][:-1] /= ALIKE**2
            self.prior_means[start.constant][:, :-1] = each

    def start_alike(self, mode: int) -> None:
        """Begin with rows of a mode that are nearly the same, and whose prior says so."""
        first, size = self.starts[mode], self.shape[mode] * self.model.ranks[mode]
        each = self.usual[mode][0]
        self.parameters[first : first + size] = each + ALIKE * self.parameters[first : first + size]
        self.signed = None if self.signed is None else self.parameters.copy()
        self.row_precisions[mode][:-1] /= ALIKE**2
        self.prior_means[mode][:, :-1] = each

    def follow(self, other: Chain) -> None:
        """Go on from where another chain is, with random numbers of one's own."""
        self.parameters, self.offsets, self.cuts = other.parameters.copy(), other.offsets.copy(), other.cuts.copy()
        self.row_precisions = [part.copy() for part in other.row_precisions]
        self.link_precisions = [part.copy() for part in other.link_precisions]
        self.prior_means = [part.copy() for part in other.prior_means]
        self.signed = None if other.signed is None else other.signed.copy()
        self.core_precision, self.step, self.fit = other.core_precision, other.step, other.fit
        self.information = other.information

    def _row_parts(self, mode: int) -> list[tuple[int, int]]:
        """Ranges of rows with about PART entries each, or more where that takes as little time."""
        begins = self.data.begins[mode]
        cuts = np.searchsorted(begins, np.arange(0, begins[-1], PART // 2 if self.lists is None else 4 * PART))
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
        room = None if self.model.core is None else blocks.work_size(self.widths, len(self.shape))
        where = self.offset_starts, self.data.coordinates
        return self.parameters, self.starts, self.widths, room, self.offsets, *where

    def sweep(self, sweep: int, tune: bool, held: bool = False, heat: float = 1.0) -> None:
        """Draw everything once.

        Parameters
        ----------
        tune : whether the draw is discarded and step sizes may change
        held : whether the spreads of factors stay as they are; else a column that is still small in every mode would
            be shrunk before the data could make it large
        heat : what the log likelihood of rows is divided by; above one only while draws are discarded
        """
        order = len(self.shape)
        for mode in range(order):
            self._draw_level(mode)
        self.predict()
        reach = max(float(self.means.max()), -float(self.means.min())) + 1e-3
        places = self.released.places(reach)
        weights = self._weights(reach, len(places))
        used = weights.any(axis=(0, 2))
        places, weights = places[used], weights[:, used]
        reach *= self._draw_scale(sweep % order, places, weights, tune)
        self.cuts = self.drawn_cuts(self.released, self.cuts, places, weights)
        value, together = self.released.log_likelihood(self.cuts, places, weights)
        self.fit += FIT_SHARE * (value - self.fit)
        self.table = self.released.table(self.cuts, ROOM * reach + 3.0, together)
        if tune:  # later it stays: proposals must not depend on what they are to change
            counts, known = weights[:, :, 0].sum(axis=0), self.released.places(self.table.reach)
            self.information = float(counts @ np.interp(places, known, self.table.information) / counts.sum()) / heat
        if heat > 1:
            self.table = replace(self.table, values=self.table.values / heat)
        accepted = 0
        for step in range(order):
            mode = (sweep + step) % order
            own = self.row_precisions[mode]
            accepted += self.draw_rows(mode, KEEP * (sweep % 2), own, self.information, self.row_parts[mode])
            self._draw_prior(mode, held)
        self.accepted = accepted / sum(self.shape)
        if self.model.core is not None:
            draw_core(self)

    def knots(self) -> Floats:
        """Knots of the values that draws predict."""
        return self.released.knots(self.table.cuts)

    def draw(self) -> Draw:
        """Parameters of the target, its offsets, and knots."""
        return self.parameters.astype(np.float32), self.offsets.copy(), self.knots()

    def predict(self) -> None:
        """Means of all entries, in the order of the symbols."""
        if self.lists is None:
            self.share(scored_rows.predict_means, *self.numbers, 0.0, self.means, parts=self.parts)
        else:
            self.share(fast_rows.predict_means, *self._given(self.lists, 0), self.means, parts=self.row_parts[0])

    def _given(self, lists: SortedSymbols, mode: int) -> tuple[Any, ...]:
        """What the kernels made for the ranks need to gather features."""
        return lists.given(mode, lists.pack(self.parameters, self.offsets), self._core)

    @property
    def _core(self) -> Floats | None:
        """The core of a Tucker model as it is now."""
        return None if self.model.core is None else self.parameters[self.starts[-1] :].reshape(self.model.ranks)

    def _weights(self, reach: float, count: int) -> Floats:
        """Weights of symbols at places of the means."""
        size = max(PART, -(-len(self.means) // WEIGHT_PARTS))
        parts = [(first, min(first + size, len(self.means))) for first in range(0, len(self.means), size)]

        def one(begin: int, end: int) -> Floats:
            weights = np.zeros((len(self.table.values), count, 2))
            scored_rows.spread_means(self.symbols, self.means, reach, weights, begin, end)
            return weights

        return np.asarray(sum(self.share(one, parts=parts)))

    def _draw_level(self, mode: int) -> None:
        """All offsets of a mode moved together with the cuts, which leaves the likelihood as it is."""
        offsets = self.offsets[self.offset_starts[mode] : self.offset_starts[mode] + self.shape[mode]]
        spread = 1 / math.sqrt(len(offsets) * self.row_precisions[mode][-1])
        shift = spread * self.generator.standard_normal() - float((offsets - self.prior_means[mode][:, -1]).mean())
        offsets += shift
        self.cuts, _ = self.released.moved(self.cuts, 0.0, 1.0, shift)

    def drawn_cuts(self, released: Released, cuts: Floats, places: Floats, weights: Floats) -> Floats:
        """Coordinates of the cuts of released symbols given all means, by a scored proposal."""
        chosen = np.sort(self.generator.permutation(len(cuts))[:CUTS_BLOCK])
        value, g, H = released.equations(cuts, places, weights, chosen)
        root = _root(H)
        z = self.generator.standard_normal(len(g))
        step = np.linalg.solve(root.T, np.linalg.solve(root, g) + z)
        new = cuts.copy()
        new[chosen] += step
        if not released.possible(new):
            return cuts
        new_value, g, H = released.equations(new, places, weights, chosen)
        new_root = _root(H)
        miss = new_root.T @ step + np.linalg.solve(new_root, g)
        ratio = new_value - value + (z @ z - miss @ miss) / 2
        ratio += float(np.log(np.diag(new_root)).sum() - np.log(np.diag(root)).sum())
        return new if math.log(self.generator.random()) < ratio else cuts

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
            ratio += scale_prior(factor**2 / self.core_precision, scale) - scale_prior(1 / self.core_precision, scale)
        for n, columns in moved:
            variances, usual = 1 / self.row_precisions[n][columns], self.usual[n][columns] ** -2
            ratio += float((scale_prior(factor**2 * variances, usual) - scale_prior(variances, usual)).sum())
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
        if self.signed is not None:
            self.signed[first:last] *= factor
        for n, columns in moved:
            self.row_precisions[n][columns] /= factor**2
            self.prior_means[n][:, columns] *= factor
        if self.model.core is not None:
            self.core_precision /= factor**2
        return factor

    def draw_rows(
        self, mode: int, keep: float, precisions: Floats, information: float, parts: list[tuple[int, int]]
    ) -> int:
        """Rows of one mode with their offsets, in ranges; returns how many proposals were accepted."""
        key = np.uint64(self.generator.integers(2**64, dtype=np.uint64))
        prior = self.prior_means[mode], precisions
        table = self.table
        proposals = information, keep
        if self.lists is None:
            order, begins = self.data.orders[mode], self.data.begins[mode]
            law = self.symbols, table.values, table.reach
            arguments = *self.numbers, 0.0, *law, *proposals, order, begins, mode, *prior, key, self.signed
            return sum(self.share(scored_rows.draw_rows, *arguments, parts=parts))
        symbols, values = self.lists.lists[mode].values, table.values.astype(np.float32)
        first, offset, size = self.starts[mode], self.offset_starts[mode], self.shape[mode]
        own = self.parameters[first : first + size * self.widths[mode]], self.offsets[offset : offset + size]
        singles = symbols, values, np.float32(table.reach)
        arguments = *self._given(self.lists, mode), *singles, *proposals, *own, *prior, key
        return sum(self.share(fast_rows.draw_rows, *arguments, parts=parts))

    def rows(self, mode: int) -> Floats:
        """Rows of a mode with their offsets as the last column; of a non-negative model those with signs."""
        size, rank = self.shape[mode], self.model.ranks[mode]
        first = self.starts[mode]
        own = self.offsets[self.offset_starts[mode] : self.offset_starts[mode] + size]
        numbers = self.parameters if self.signed is None else self.signed
        return np.column_stack([numbers[first : first + size * rank].reshape(size, rank), own])

    def _draw_prior(self, mode: int, held: bool) -> None:
        """Links, their precisions and those of the rows of a mode."""
        own, ratios = self.row_precisions[mode], self.link_precisions[mode]
        found = self.drawn_prior(self.rows(mode), self.links[mode], own, ratios, self.usual[mode])
        self.prior_means[mode], drawn = found
        if held:
            drawn[:-1] = own[:-1]
        self.row_precisions[mode] = drawn

    def drawn_prior(
        self, rows: Floats, links: Links, own: Floats, ratios: Floats, usual_scales: Floats
    ) -> tuple[Floats, Floats]:
        """Prior means of rows by new links, and new precisions: F is orthogonal, so each link is on its own.

        `own` are the precisions of the rows, and `ratios` those of the links over them, which are changed.
        """
        size, weights = len(rows), links.weights[:, None]
        prior = ratios / weights
        prior[0, -1] = 1e12  # the cuts hold the mean of the offsets
        precision = size + prior
        beta = links.features.T @ rows / precision
        beta += self.generator.standard_normal(beta.shape) / np.sqrt(precision * own)
        means = links.features @ beta
        squares = ((rows - means) ** 2).sum(axis=0)
        counts = np.full(len(own), float(size))
        for group, usual in [(slice(0, 1), MEAN_RATIO), *((group, LINK_RATIO) for group in links.groups)]:
            explained = (beta[group] ** 2 / weights[group]).sum(axis=0)
            number = group.stop - group.start
            ratios[group] = self._ratios(own * explained, number, ratios[group][0], usual, group == links.shared)
            squares += ratios[group][0] * explained
            counts += number
        counts[-1] -= 1  # the mean of the offsets is held, so it tells nothing of their spread
        return means, self.precisions(squares, counts, own, usual_scales**-2)

    def _ratios(self, squares: Floats, count: int, now: Floats, usual: float, shared: bool) -> Floats:
        """Precisions of a group of links over those of the rows: one per column, or of all factors and of offsets."""
        if not shared:
            return self.precisions(squares, count, now, np.full(len(now), usual**-2))
        factors = len(now) - 1
        sums, counts = np.array([squares[:-1].sum(), squares[-1]]), np.array([count * factors, count])
        return np.repeat(self.precisions(sums, counts, now[-2:], np.full(2, usual**-2)), [factors, 1])

    def precisions(self, squares: Floats, counts: ArrayLike, now: Floats, usual: Floats) -> Floats:
        """Precisions of so many normal numbers with these sums of squares, whose spread is half-Cauchy.

        Drawn with an auxiliary number that makes the prior a mixture of inverse gamma laws (Makalic, Schmidt 2016);
        `usual` is one over the square of the prior's scale.
        """
        gamma = self.generator.standard_gamma
        auxiliary = gamma(1.0, len(squares)) / (usual + now)
        return np.asarray(gamma((1 + np.asarray(counts)) / 2, len(squares)) / (auxiliary + squares / 2))


def _root(H: Floats) -> Floats:
    """Cholesky factor of an information matrix, made positive definite."""
    return np.linalg.cholesky(H + 1e-6 * (1 + np.trace(H)) / len(H) * np.eye(len(H)))


def scale_prior(variances: Any, usual: Any) -> Any:
    """Log density of the log of a half-Cauchy spread, up to a constant; `usual` is one over its scale squared."""
    return np.log(variances) / 2 - np.log1p(variances * usual)
