"""One chain of Gibbs sampling: its state, and a sweep that draws every variable once (model: sampler.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.laws import NoiseLaw
from tensorveil.inference.posterior.pattern import Links
from tensorveil.kernels.dispatch import worth_compiling
from tensorveil.kernels.fast import gibbs_rows
from tensorveil.kernels.reference import least_squares, posterior
from tensorveil.models.factor_model import ModelFamily
from tensorveil.solvers.block_updates import Entries, prior_variance, spectral_start
from tensorveil.solvers.layouts.latent_lists import LatentLists
from tensorveil.solvers.layouts.strata import run_apart
from tensorveil.solvers.parallel_sgd import ParallelSGD

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

BURN_IN = 0.25
REFLECTION = -0.7
PART = 2**14  # entries that a thread takes at a time; sums over parts do not depend on the number of threads
LARGE = 2**20  # entries from which on the start is a few passes of descent: eigenvectors take too long
START_PASSES = 6
FREEDOM = 1.0  # of the priors of variances: worth one row
LARGEST = 10.0  # variances over their usual ones
USUAL_VARIANCE = 0.2  # of latent values, where the data cannot tell
SIGNAL_SHARE = 0.1  # of the variance of latent values, expected of factors
OFFSET_SHARE = 0.02  # and of each mode's offsets: little, for where there are none they only add noise
LINK_SHARE = 0.1  # of the variance of rows, expected of what features explain
SMALL_CORE = 64  # cells: up to here its matrix is formed
CORE_STEPS, CORE_PRECISION = 100, 1e-6


class Chain:
    """The state of the sampler."""

    def __init__(
        self,
        coordinates: Coordinates,
        law: NoiseLaw,
        family: ModelFamily,
        shape: tuple[int, ...],
        links: list[Links],
        seed: int,
        threads: int,
    ) -> None:
        self.law, self.shape, self.links, self.threads = law, shape, links, threads
        self.generator = np.random.default_rng(seed)
        self.model = family.zeros(shape)
        self.starts, self.widths = self.model.block_starts, self.model.block_widths
        self.offset_starts: Integers = np.concatenate([[0], np.cumsum(shape)[:-1]]).astype(np.int64)
        stands, self.noise, self.mean = law.begin()
        self.data = Entries.of(coordinates, stands, shape)
        self.offsets = np.zeros(sum(shape))
        self._start(stands, self.noise)
        count = len(law)
        self.means, self.latent, self.precisions = np.empty(count), np.empty(count), np.empty(count)
        self.centres = [np.zeros((size, self.model.ranks[mode] + 1)) for mode, size in enumerate(shape)]
        self.prior_means = [np.zeros_like(part) for part in self.centres]
        self.parts = [(first, min(first + PART, count)) for first in range(0, count, PART)]
        self.row_parts = [self._row_parts(mode) for mode in range(len(shape))]
        self.last_mode = 0
        self.lists: LatentLists | None = None
        if worth_compiling(count, family.name):
            self.lists = LatentLists(self.data.coordinates, self.data.begins, shape, self.model.ranks[0])

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
        if self.model.core is None and len(targets) >= LARGE:
            self.parameters = self._descended(stands)
        else:
            self.parameters = spectral_start(self.data, targets, self.model, own, residual, self.generator)
        largest = 3 * math.sqrt(self.entry_variance)
        np.clip(self.parameters, -largest, largest, out=self.parameters)
        offsets = OFFSET_SHARE * variance
        self.usual = [np.append(np.full(rank, self.entry_variance), offsets) for rank in self.model.ranks]
        self.row_precisions = [1 / np.append(usual[:-1], own) for usual in self.usual]
        self.link_precisions = [
            np.tile(1 / (LINK_SHARE * usual), (len(links.weights), 1))
            for usual, links in zip(self.usual, self.links, strict=True)
        ]
        self.core_precision = 1 / self.entry_variance

    def _descended(self, stands: Floats) -> Floats:
        """Factors after a few passes of descent, for large data; they also contain the effect of the offsets."""
        descent = ParallelSGD(iterations=START_PASSES, threads=1)  # whatever the number of threads: the same start
        run = descent.solve_entries(self.data.coordinates, stands, self.shape, self.model.family, self.generator)
        self.mean = run.offsets.mean
        self.offsets[:] = 0.0
        return run.model.parameters.copy()

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
        found: list[Any] = [None] * len(ranges)

        def work(thread: int) -> None:
            for place in range(thread, len(ranges), self.threads):
                found[place] = kernel(*arguments, *ranges[place])

        run_apart(work, self.threads)
        return found

    def key(self) -> np.uint64:
        """The key of the next streams."""
        return np.uint64(self.generator.integers(2**64, dtype=np.uint64))

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What kernels need to predict."""
        return self.parameters, self.starts, self.widths, self.offsets, self.offset_starts, self.data.coordinates

    def sweep(self, sweep: int, planned: int) -> None:
        """Draw everything once."""
        self._predict()
        tune = sweep < BURN_IN * planned
        self.law.draw(self.means, self.key(), self.generator, self.share, tune, self.latent, self.precisions)
        level, doubt = self.law.level
        weight = float(self.precisions.sum()) + 1 / doubt
        move = float(np.einsum("w,w", self.precisions, self.latent - self.means)) + (level - self.mean) / doubt
        self.mean += move / weight + self.generator.standard_normal() / math.sqrt(weight)
        reflection = REFLECTION if self.law.fixed and not tune else 0.0  # far from the target it would delay
        if self.lists is not None:
            self.share(gibbs_rows.pair_up, self.latent, self.precisions, self.lists.latent)
        order = len(self.shape)
        for step in range(order):
            mode = (sweep + step) % order  # the last one drawn is each in turn
            self._draw_rows(mode, reflection)
            self._draw_prior(mode)
            self.last_mode = mode
        if self.model.core is not None:
            self._draw_core()

    def _predict(self) -> None:
        """Means of all entries; large CP models by sorted entries."""
        if self.lists is None:
            self.share(posterior.predict_means, *self.numbers, self.mean, self.means)
            return
        self.lists.pack(self.parameters, self.offsets)
        self.share(gibbs_rows.cp_means, *self.lists.place(0), self.mean, self.means, parts=self.lists.parts[0])

    def _draw_rows(self, mode: int, reflection: float) -> None:
        """The rows of one mode with their offsets."""
        prior = self.prior_means[mode], self.row_precisions[mode], reflection, self.centres[mode], self.key()
        if self.lists is None:
            order, begins = self.data.orders[mode], self.data.begins[mode]
            arguments = *self.numbers, self.mean, self.latent, self.precisions, order, begins, mode, *prior
            self.share(posterior.draw_rows, *arguments, parts=self.row_parts[mode])
            return
        width = self.model.ranks[mode] + 1
        arguments = *self.lists.place(mode), self.mean, self.lists.latent, width, *prior
        self.share(gibbs_rows.cp_draw_rows, *arguments, parts=self.lists.parts[mode])
        self.lists.unpack(mode, self.parameters, self.offsets)

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
        for group in links.groups:
            squares = (beta[group] ** 2 / links.weights[group, None]).sum(axis=0)
            self.link_precisions[mode][group] = self._precisions(squares, group.stop - group.start, LINK_SHARE * usual)
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
