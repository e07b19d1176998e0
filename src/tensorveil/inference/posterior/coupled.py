"""Two tables that share a mode, in one posterior: joint factors, and offsets, cuts and channels of their own.

Both tables are blocks of one tensor. The shared mode keeps its indices; the other modes of the second table are put
after the indices of those of the first one, and a mode that the second table does not have gets one index more, whose
row is one. An entry of either table has the mean

    offsets of its own modes + sum_r a[i, r] b[j, r] ... ,    a[i] the row of the shared index,

where the last component is the offset of the shared index: rows of the first table are one there, so that its model is
what it is without a second table, and rows of the second one are free: its values may depend on these offsets as on any
factor. Rows of each table and mode have priors of their own, so nothing is shared that both tables do not show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tensorveil.errors import InputError
from tensorveil.inference.posterior.chain import (
    APART,
    FIT_SHARE,
    KEEP,
    LARGEST_STEP,
    LINK_RATIO,
    OFFSET_SCALE,
    ROOM,
    START,
    STEP,
    TINY,
    Chain,
    Draw,
    scale_prior,
)
from tensorveil.inference.posterior.pattern import Links
from tensorveil.inference.posterior.released import Released, Table
from tensorveil.inference.values.starts import Start
from tensorveil.models.cp import CP
from tensorveil.solvers.block_updates import Entries

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

MOST_SYMBOLS = 256
PINNED = 1e8  # precision of numbers that are not drawn
LOADING_SCALE = 1.0  # of what the second table makes of an offset of the first one


@final
@dataclass(frozen=True)
class Second:
    """The second table: its released symbols, where they are, and the mode that it shares with the first table.

    Attributes
    ----------
    coordinates : of its symbols; in the shared mode, the indices of the first table and then those that it lacks
    shape : sizes of its modes; in the shared mode, of all indices of both tables
    mode, first_mode : the shared mode in this table and in the first one
    """

    coordinates: Coordinates
    released: Released
    shape: tuple[int, ...]
    mode: int
    first_mode: int


@final
@dataclass(frozen=True)
class Block:
    """Rows of one mode that belong to one table, or to both.

    Attributes
    ----------
    table : 0 or 1, or None for rows of the shared mode
    columns : the numbers of a row that are drawn, the one last whose mean the cuts hold: an offset
    usual : scales of their priors
    """

    mode: int
    first: int
    last: int
    table: int | None
    columns: Integers
    usual: Floats
    links: Links

    @property
    def rows(self) -> slice:
        """Where its rows are in the mode."""
        return slice(self.first, self.last)


@final
class Both:
    """The symbols of both tables as one alphabet: those of the second one after those of the first one."""

    def __init__(self, first: Released, second: Released) -> None:
        self.parts = first, second
        kinds = first.chances.shape[1]
        if kinds + second.chances.shape[1] > MOST_SYMBOLS:
            raise InputError(
                f"two tables must have at most {MOST_SYMBOLS} symbols together, got more; use fewer levels"
            )
        self.symbols = np.concatenate([first.symbols, second.symbols + np.uint8(kinds)])
        self.spans = slice(0, kinds), slice(kinds, kinds + second.chances.shape[1])

    def __len__(self) -> int:
        return len(self.symbols)

    def start(self) -> list[Floats]:
        """Coordinates of the cuts of each table."""
        return [part.start() for part in self.parts]

    def table(self, cuts: list[Floats], reach: float, now: list[Floats] | None = None) -> Table:
        """What symbols of both tables tell of means; cuts and information are those of the first one."""
        known = [None, None] if now is None else now
        tables = [part.table(own, reach, told) for part, own, told in zip(self.parts, cuts, known, strict=True)]
        return replace(tables[0], values=np.concatenate([table.values for table in tables]))


@final
class Stack:
    """Both tables as blocks of one tensor: its shape, and where the rows of each table are."""

    def __init__(self, shape: tuple[int, ...], second: Second) -> None:
        self.first_shape, self.second, self.shared = shape, second, second.first_mode
        self.own = [mode for mode in range(len(shape)) if mode != self.shared]
        others = [mode for mode in range(len(second.shape)) if mode != second.mode]
        self.places = dict(zip(self.own, others, strict=False))  # mode of the first table -> mode of the second one
        sizes = list(shape)
        sizes[self.shared] = second.shape[second.mode]
        for mode in self.own:
            sizes[mode] += second.shape[self.places[mode]] if mode in self.places else 1
        self.shape = tuple(sizes)

    def coordinates(self, first: Coordinates) -> Coordinates:
        """Coordinates of the entries of the first table, and then of those of the second one."""
        given = self.second.coordinates
        below = np.empty((len(given), len(self.shape)), dtype=np.uint32)
        below[:, self.shared] = given[:, self.second.mode]
        for mode in self.own:
            own = given[:, self.places[mode]] if mode in self.places else 0
            below[:, mode] = self.first_shape[mode] + own
        return np.concatenate([first, below])

    def blocks(self, rank: int, each: float, links: tuple[list[Links], list[Links]]) -> list[Block]:
        """The blocks of rows, with links of the modes of both tables; those of the shared mode are the first one's."""
        factors = np.arange(rank)
        usual = np.full(rank, each)
        found = [
            Block(
                self.shared,
                0,
                self.shape[self.shared],
                None,
                np.append(factors, rank),
                np.append(usual, OFFSET_SCALE),
                links[0][self.shared],
            )
        ]
        loading = each ** ((len(self.shape) - 1) / len(self.places))  # products have the scale that they have elsewhere
        for mode in self.own:
            size, scales = self.first_shape[mode], np.append(usual, OFFSET_SCALE)
            found.append(Block(mode, 0, size, 0, np.append(factors, rank + 1), scales, links[0][mode]))
            if mode in self.places:
                scales = np.concatenate([np.full(rank, loading), [LOADING_SCALE, OFFSET_SCALE]])
                columns, own = np.arange(rank + 2), links[1][self.places[mode]]
                found.append(Block(mode, size, self.shape[mode], 1, columns, scales, own))
        return found


@final
class CoupledChain(Chain):
    """One chain over both tables. Its draws are of the first table's model alone."""

    def __init__(
        self,
        data: Entries,
        released: Both,
        family: CP,
        stack: Stack,
        links: tuple[list[Links], list[Links]],
        seed: int,
        threads: int,
        lists: Any = None,
    ) -> None:
        none = [Links([], size) for size in stack.shape]
        super().__init__(data, released, CP(family.rank + 1), stack.shape, none, seed, threads, lists)  # type: ignore[arg-type]
        self.both, self.stack, self.rank = released, stack, family.rank
        self.predicted, self.target = released.parts[0], family.zeros(stack.first_shape)
        self.both_cuts: list[Floats] = released.start()
        self.steps = [STEP, STEP]
        self.informations = [self.information, self.information]
        each = float(self.usual[0][0])
        self.blocks = stack.blocks(family.rank, each, links)
        self.own = [block.usual**-2 for block in self.blocks]
        self.ratios = [np.full((len(b.links.weights), len(b.columns)), 1 / LINK_RATIO**2) for b in self.blocks]
        for mode in stack.own:  # an index that the second table lacks, and what the first one makes of shared offsets
            rows = self._factor(mode)
            rows[: stack.first_shape[mode], self.rank] = 1.0
            if mode not in stack.places:
                rows[stack.first_shape[mode] :] = 1.0
        self._factor(stack.shared)[:, self.rank] *= OFFSET_SCALE / each
        for block in self.blocks:
            pinned = np.setdiff1d(np.arange(self.rank + 2), block.columns)
            self.prior_means[block.mode][block.rows, pinned] = np.where(pinned == self.rank, 1.0, 0.0)

    def _factor(self, mode: int) -> Floats:
        """The rows of a mode without offsets: a view."""
        first, size = int(self.starts[mode]), self.shape[mode]
        return np.asarray(self.parameters[first : first + size * (self.rank + 1)].reshape(size, -1))

    def _offsets(self, block: Block) -> Floats:
        """Offsets of the rows of a block: a view."""
        start = int(self.offset_starts[block.mode])
        return self.offsets[start + block.first : start + block.last]

    def start_at(self, start: Start) -> None:
        columns = [np.sqrt(np.mean(factor**2, axis=0)) for factor in start.model.factors]
        sizes = (start.unit * np.prod(columns, axis=0)) ** (1 / len(columns))
        for mode, (factor, size) in enumerate(zip(start.model.factors, columns, strict=True)):
            apart = np.exp(APART * self.generator.standard_normal(factor.shape))
            rows = self._factor(mode)
            rows[: len(factor), : self.rank] = factor * (sizes / np.maximum(size, TINY)) * apart
            offsets = start.unit * start.offsets[mode]
            if mode == self.stack.shared:
                rows[: len(factor), self.rank] = offsets
            else:
                first = int(self.offset_starts[mode])
                self.offsets[first : first + len(offsets)] = offsets
        for number, block in enumerate(self.blocks):
            if block.table != 1:
                spreads = np.maximum(sizes, START * block.usual[: self.rank])
                self.own[number] = np.append(spreads, block.usual[-1]) ** -2

    def follow(self, other: Chain) -> None:
        super().follow(other)
        if isinstance(other, CoupledChain):
            self.both_cuts = [part.copy() for part in other.both_cuts]
            self.own = [part.copy() for part in other.own]
            self.ratios = [part.copy() for part in other.ratios]
            self.steps, self.informations = list(other.steps), list(other.informations)

    def sweep(self, sweep: int, tune: bool, held: bool = False, heat: float = 1.0) -> None:
        for number, block in enumerate(self.blocks):
            if block.table is not None:
                self._draw_level_of(number, block)
        self.predict()
        reach = max(float(self.means.max()), -float(self.means.min())) + 1e-3
        every = Released.places(reach)
        weights = self._weights(reach, len(every))
        value, together, factor, known = 0.0, [], 1.0, []
        for table, (part, span) in enumerate(zip(self.both.parts, self.both.spans, strict=True)):
            used = weights[span].any(axis=(0, 2))
            places, own = every[used], weights[span][:, used]
            factor = max(factor, self._draw_scale_of(table, sweep, places, own, tune))
            self.both_cuts[table] = self.drawn_cuts(part, self.both_cuts[table], places, own)
            fit, now = part.log_likelihood(self.both_cuts[table], places, own)
            value += fit
            together.append(now)
            known.append((places, own[:, :, 0].sum(axis=0)))
        self.fit += FIT_SHARE * (value - self.fit)
        reach = ROOM * reach * factor + 3.0
        tables = [
            part.table(cuts, reach, now)
            for part, cuts, now in zip(self.both.parts, self.both_cuts, together, strict=True)
        ]
        if tune:
            for number, (table_of, (places, counts)) in enumerate(zip(tables, known, strict=True)):
                told = np.interp(places, Released.places(reach), table_of.information)
                self.informations[number] = float(counts @ told / counts.sum()) / heat
        values = np.concatenate([table_of.values for table_of in tables])
        self.table = replace(tables[0], values=values / heat if heat > 1 else values)
        accepted, order = 0, len(self.shape)
        for step in range(order):
            mode = (sweep + step) % order
            for number, block in enumerate(self.blocks):
                if block.mode == mode:
                    accepted += self._draw_block(number, block, KEEP * (sweep % 2))
                    self._draw_prior_of(number, block, held)
        self.accepted = accepted / sum(block.last - block.first for block in self.blocks)

    def _draw_level_of(self, number: int, block: Block) -> None:
        """All offsets of a block moved together with the cuts of its table, which leaves the likelihood as it is."""
        offsets = self._offsets(block)
        spread = 1 / math.sqrt(len(offsets) * self.own[number][-1])
        away = float((offsets - self.prior_means[block.mode][block.rows, -1]).mean())
        shift = spread * self.generator.standard_normal() - away
        offsets += shift
        table = block.table or 0
        self.both_cuts[table], _ = self.both.parts[table].moved(self.both_cuts[table], 0.0, 1.0, shift)

    def _draw_scale_of(self, table: int, sweep: int, places: Floats, weights: Floats, tune: bool) -> float:
        """All effects on one table times a common factor, with the scales of their priors, and cuts stretched to fit.

        Of the first table, these are the factors of one of its own modes, its offsets, and those of the shared mode; by
        as much, the second table then makes less of the latter.
        """
        step, part, cuts = self.steps[table], self.both.parts[table], self.both_cuts[table]
        factor = math.exp(step * self.generator.standard_normal())
        counts = weights[:, :, 0].sum(axis=0)
        centre = float(counts @ places / counts.sum())
        variance = float(counts @ (places - centre) ** 2 / counts.sum())
        stretch = math.sqrt((1 + factor**2 * variance) / (1 + variance))
        new, ratio = part.moved(cuts, centre, stretch, (factor - 1) * centre)
        ratio += part.log_likelihood(new, factor * places, weights * np.array([1.0, factor]))[0]
        ratio -= part.log_likelihood(cuts, places, weights)[0]
        moved = self._moved(table, sweep, factor)
        for number, columns, times in moved:
            variances, usual = 1 / self.own[number][columns], self.blocks[number].usual[columns] ** -2
            ratio += float((scale_prior(times**2 * variances, usual) - scale_prior(variances, usual)).sum())
        accepted = part.possible(new) and math.log(self.generator.random()) < ratio
        if tune:
            self.steps[table] = min(max(step * (1.15 if accepted else 0.93), 1e-3), LARGEST_STEP)
        if not accepted:
            return 1.0
        self.both_cuts[table] = new
        places *= factor
        weights[:, :, 1] *= factor
        for number, columns, times in moved:
            block = self.blocks[number]
            self.own[number][columns] /= times**2
            chosen = block.columns[columns]
            self.prior_means[block.mode][block.rows, chosen] *= times
            factors = chosen[chosen <= self.rank]
            self._factor(block.mode)[block.rows, factors] *= times
            if len(factors) < len(chosen):
                self._offsets(block)[:] *= times
        return factor

    def _moved(self, table: int, sweep: int, factor: float) -> list[tuple[int, slice, float]]:
        """Which columns of which blocks are multiplied, and by what, for all effects on a table to be."""
        own = [number for number, block in enumerate(self.blocks) if block.table == table]
        chosen = own[sweep % len(own)]
        offset = slice(-1, None)
        moved = [(number, slice(None) if number == chosen else offset, factor) for number in own]
        if table == 0:
            below = next(number for number, block in enumerate(self.blocks) if block.table == 1)
            moved += [(0, offset, factor), (below, slice(-2, -1), 1 / factor)]
        return moved

    def _draw_block(self, number: int, block: Block, keep: float) -> int:
        """The rows of a block; what is pinned is put back."""
        precisions = np.full(self.rank + 2, PINNED)
        precisions[block.columns] = self.own[number]
        parts = [
            (max(first, block.first), min(last, block.last))
            for first, last in self.row_parts[block.mode]
            if first < block.last and last > block.first
        ]
        counts = [len(part) for part in self.both.parts]
        information = float(np.average(self.informations, weights=counts))
        if block.table is not None:
            information = self.informations[block.table]
        accepted = self.draw_rows(block.mode, keep, precisions, information, parts)
        if block.table is None:
            self._offsets(block)[:] = 0.0
        elif block.table == 0:
            self._factor(block.mode)[block.rows, self.rank] = 1.0
        return accepted

    def _draw_prior_of(self, number: int, block: Block, held: bool) -> None:
        own = self.own[number]
        rows = self.rows(block.mode)[block.rows][:, block.columns]
        means, drawn = self.drawn_prior(rows, block.links, own, self.ratios[number], block.usual)
        self.prior_means[block.mode][block.rows, block.columns] = means
        if held:
            drawn[:-1] = own[:-1]
        self.own[number] = drawn

    def knots(self) -> Floats:
        cuts = self.predicted.cuts(self.both_cuts[0])
        return self.predicted.knots(cuts)

    def draw(self) -> Draw:
        factors, offsets = [], []
        for mode, size in enumerate(self.stack.first_shape):
            rows = self._factor(mode)[:size]
            factors.append(rows[:, : self.rank].ravel())
            start = int(self.offset_starts[mode])
            own = self.offsets[start : start + size]
            offsets.append(rows[:, self.rank] if mode == self.stack.shared else own)
        return np.concatenate(factors).astype(np.float32), np.concatenate(offsets), self.knots()
