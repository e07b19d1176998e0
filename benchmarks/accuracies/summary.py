"""What the rows say about the aims: floors, order in epsilon and units, insensitivity, targets, coverage, mixing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from accuracies.measuring import (
    ABOVE_FOUR,
    CUBE,
    DEFAULT,
    FOUR,
    NO_UNIT,
    OURS,
    OURS_WITH_FEATURES,
    PERMUTED,
    PRIVATE_MEAN,
    RANK_30,
    WIDE,
    Row,
)

MOST_MEAN_RATIO, MOST_RATIO = 1.01, 1.05  # to the private mean: mean over the seeds of a cell, and of a single run
STANDARD_ERRORS = 2.0
COVERAGE, COVERAGE_OF_TENTHS = (0.87, 0.95), (0.80, 0.98)
MOST_RHAT = 1.05
ENOUGH_DRAWS = 100  # independent draws have an R-hat of 1.03 then, and of 1.06 with 60 (measuring.rhat)
SHOWN = 12  # the worst rows that a finding lists
# variant -> what it is compared with, and the ratio of errors that is allowed
INSENSITIVE = {WIDE: (DEFAULT, 1.03), ABOVE_FOUR: (FOUR, 1.01), RANK_30: (DEFAULT, 1.02), PERMUTED: (DEFAULT, 1.0)}


@dataclass(frozen=True)
class Cell:
    """All runs that differ in the seed only."""

    data: str
    unit: str
    epsilon: float | None
    delta: float
    method: str
    variant: str
    rows: tuple[Row, ...] = field(repr=False)

    @property
    def rmse(self) -> float:
        """Mean of the error over seeds."""
        return statistics.fmean(row["rmse"] for row in self.rows)

    @property
    def name(self) -> str:
        """The cell in words."""
        parts = [self.data, self.unit, epsilon_text(self.epsilon)]
        parts += [f"delta {self.delta:g}"] if self.delta else []
        return ", ".join([*parts, *(part for part in (self.method, self.variant) if part not in (OURS, DEFAULT))])

    def by_seed(self, measure: str = "rmse") -> dict[int, float]:
        """A measure of every run that has it."""
        return {row["seed"]: row[measure] for row in self.rows if measure in row}

    def mean(self, measure: str = "rmse") -> float | None:
        """Mean of a measure over seeds, None if no run has it."""
        found = self.by_seed(measure)
        return statistics.fmean(found.values()) if found else None

    def error(self, measure: str = "rmse") -> float | None:
        """Standard error of that mean, None for fewer than two runs."""
        found = list(self.by_seed(measure).values())
        return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None


@dataclass(frozen=True)
class Finding:
    """An aim, whether it was met (None: nothing to judge by), the numbers, and a table of what missed it."""

    aim: str
    met: bool | None
    numbers: str
    columns: tuple[str, ...] = ()
    lines: tuple[tuple[str, ...], ...] = ()


def epsilon_text(epsilon: float | None) -> str:
    """An epsilon as it is printed."""
    return "inf" if epsilon is None else f"{epsilon:g}"


def number(value: float | None) -> str:
    """Four significant digits, or a dash."""
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


class Results:
    """The cells of all rows without an error."""

    def __init__(self, rows: Sequence[Row]) -> None:
        names = ("data", "unit", "epsilon", "delta", "method", "variant")
        grouped: dict[tuple[object, ...], list[Row]] = {}
        for row in rows:
            if "error" not in row:
                grouped.setdefault(tuple(row[name] for name in names), []).append(row)
        self.cells = [Cell(**{name: mine[0][name] for name in names}, rows=tuple(mine)) for mine in grouped.values()]
        self._by_key = {
            (one.data, one.unit, one.epsilon, one.method, one.variant, one.delta): one for one in self.cells
        }

    def find(
        self,
        data: str,
        unit: str,
        epsilon: float | None,
        method: str = OURS,
        variant: str = DEFAULT,
        delta: float = 0.0,
    ) -> Cell | None:
        """One cell, or None if it was not run."""
        return self._by_key.get((data, unit, epsilon, method, variant, delta))

    def ours(self) -> list[Cell]:
        """Our private cells with the defaults."""
        wanted = (OURS, OURS_WITH_FEATURES)
        return [
            one for one in self.cells if one.method in wanted and one.variant == DEFAULT and one.epsilon is not None
        ]

    def without_privacy(self, data: str) -> Cell | None:
        """Our completion of a data set with an infinite epsilon."""
        return self.find(data, NO_UNIT, None)


def rise(first: Cell, second: Cell) -> tuple[float, float] | None:
    """How much larger the error of the second cell is, and the standard error of that; None if seeds are too few.

    Runs of one seed share their data and are compared in pairs. A cell that has one run because nothing in it is random
    has no standard error of its own.
    """
    one, other = first.by_seed(), second.by_seed()
    common = one.keys() & other.keys()
    if len(common) > 1:
        differences = [other[seed] - one[seed] for seed in common]
        return statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    errors = [error for error in (first.error(), second.error()) if error is not None]
    if not errors:
        return None
    return statistics.fmean(other.values()) - statistics.fmean(one.values()), math.hypot(*errors)


def findings(results: Results) -> list[Finding]:
    """All aims, in the order of the page."""
    return [
        *_floor(results),
        _ordered("monotone: the error does not rise with epsilon", _steps(results)),
        _ordered("`value` is at least as good as `entry`", _value_and_entry(results)),
        *_insensitive(results),
        *_coverage(results),
        _mixing(results),
    ]


def _floor(results: Results) -> list[Finding]:
    means, runs = [], []
    for cell in results.ours():
        floor = results.find(cell.data, cell.unit, cell.epsilon, PRIVATE_MEAN)
        if floor is None:
            continue
        floors = floor.by_seed()
        ratios = {seed: error / floors[seed] for seed, error in cell.by_seed().items() if seed in floors}
        if ratios:
            means.append((statistics.fmean(ratios.values()), cell.name))
            runs += [(ratio, f"{cell.name}, seed {seed}") for seed, ratio in ratios.items()]
    overall = "" if not runs else f"; mean of all {len(runs)} runs {statistics.fmean(one for one, _ in runs):.3f}"
    return [
        _largest(f"mean ratio to the private mean at most {MOST_MEAN_RATIO}", means, MOST_MEAN_RATIO, overall),
        _largest(f"no run above {MOST_RATIO} of the private mean", runs, MOST_RATIO),
    ]


def _largest(aim: str, found: Sequence[tuple[float, str]], most: float, also: str = "") -> Finding:
    """An aim that numbers are at most a limit, and those that are not."""
    if not found:
        return Finding(aim, None, f"nothing to judge by{also}")
    over = sorted((one for one in found if one[0] > most), reverse=True)
    text = f"{len(over)} of {len(found)} above; worst {max(found)[0]:.3f} ({max(found)[1]}){also}"
    return Finding(aim, not over, text, ("ratio", "run"), tuple((f"{ratio:.3f}", name) for ratio, name in over[:SHOWN]))


def _steps(results: Results) -> Iterator[tuple[Cell, Cell]]:
    """Neighbouring epsilons, the smaller first, and the largest with no privacy."""
    series: dict[tuple[str, str, float, str], list[Cell]] = {}
    for cell in results.ours():
        series.setdefault((cell.data, cell.unit, cell.delta, cell.method), []).append(cell)
    for (data, _, _, method), cells in series.items():
        ordered = sorted(cells, key=lambda cell: cell.epsilon or 0.0)
        last = results.without_privacy(data)
        yield from pairwise(ordered)
        if last is not None and method == OURS:
            yield ordered[-1], last


def _value_and_entry(results: Results) -> Iterator[tuple[Cell, Cell]]:
    for cell in results.ours():
        value = results.find(cell.data, "value", cell.epsilon)
        if cell.unit == "entry" and cell.method == OURS and value is not None:
            yield cell, value


def _ordered(aim: str, pairs: Iterator[tuple[Cell, Cell]]) -> Finding:
    """An aim that the second cell of each pair has no larger error than the first, beyond standard errors."""
    judged, undecided, missed = 0, 0, []
    for first, second in pairs:
        found = rise(first, second)
        if found is None:
            undecided += 1
            continue
        judged += 1
        difference, error = found
        if difference > STANDARD_ERRORS * error + 1e-12:
            relative = difference / first.rmse
            missed.append((relative, first.name, second.name, f"{number(difference)} ± {number(error)}"))
    missed.sort(reverse=True)
    text = f"{len(missed)} of {judged} pairs rise by more than {STANDARD_ERRORS:g} standard errors"
    text += f"; worst {missed[0][0]:+.1%}" if missed else ""
    text += f"; {undecided} pairs have too few seeds" if undecided else ""
    lines = tuple((f"{relative:+.1%}", *rest) for relative, *rest in missed[:SHOWN])
    columns = ("rise", "from", "to", "difference")
    return Finding(aim, None if not judged else not missed, text, columns, lines)


def _insensitive(results: Results) -> Iterator[Finding]:
    for variant, (reference, most) in INSENSITIVE.items():
        ratios = []
        for cell in results.cells:
            plain = results.find(cell.data, cell.unit, cell.epsilon, cell.method, reference)
            if cell.variant == variant and plain is not None:
                ratios.append((cell.rmse / plain.rmse, cell.name))
        against = "the defaults" if reference == DEFAULT else reference
        aim = f"{variant}: at most {most:g} of the error of {against}" if most > 1 else f"{variant}: the same error"
        yield _largest(aim, ratios, most + 1e-12)


def _coverage(results: Results) -> Iterator[Finding]:
    cells = [cell for cell in results.cells if cell.method in (OURS, OURS_WITH_FEATURES) and cell.variant == DEFAULT]
    silent = [cell for cell in cells if cell.mean("coverage") is None]
    share = [(cell.mean("coverage") or 0.0, cell.name) for cell in cells if cell not in silent]
    yield _within("coverage of 90 % intervals", COVERAGE, share)
    tenths = []
    for cell in cells:
        if cell not in silent:
            columns = zip(*(row["tenths"] for row in cell.rows if "tenths" in row), strict=False)
            means = [statistics.fmean(column) for column in columns]
            tenths += [(mean, f"{cell.name}, tenth {place}") for place, mean in enumerate(means, 1)]
    yield _within("coverage in every tenth of the predictions", COVERAGE_OF_TENTHS, tenths)
    names = tuple((cell.name,) for cell in silent[:SHOWN])
    met = not silent if cells else None
    yield Finding("all units have intervals", met, f"{len(silent)} of {len(cells)} cells have none", ("cell",), names)


def _within(aim: str, ends: tuple[float, float], found: Sequence[tuple[float, str]]) -> Finding:
    aim = f"{aim} from {ends[0]:.2f} to {ends[1]:.2f}"
    if not found:
        return Finding(aim, None, "nothing was run")
    out = sorted(
        (one for one in found if not ends[0] <= one[0] <= ends[1]), key=lambda one: -abs(one[0] - sum(ends) / 2)
    )
    text = f"{len(out)} of {len(found)} outside; from {min(found)[0]:.3f} to {max(found)[0]:.3f}"
    return Finding(aim, not out, text, ("coverage", "cell"), tuple((f"{one:.3f}", name) for one, name in out[:SHOWN]))


def _mixing(results: Results) -> Finding:
    sampled = [cell for cell in results.cells if cell.mean("draws") is not None]
    found = [(mean, cell.name) for cell in sampled if _judged(cell) and (mean := cell.mean("rhat")) is not None]
    unjudged = f"; {len(sampled) - len(found)} cells keep fewer than {ENOUGH_DRAWS} draws, too few to judge"
    return _largest(f"R-hat at most {MOST_RHAT}", found, MOST_RHAT, unjudged)


def _judged(cell: Cell) -> bool:
    """Whether all runs of a cell keep enough draws for their R-hat to tell something."""
    return all(row.get("draws", 0) >= ENOUGH_DRAWS for row in cell.rows)


# data, unit and method -> epsilon -> error that is to be reached; "ml-100k" is the mean of its splits
TARGETS: dict[tuple[str, str, str], dict[float, float]] = {
    ("ml-100k", "value", OURS): {5.0: 0.909, 2.0: 0.949, 1.0: 0.983},
    ("filmtrust", "value", OURS): {10.0: 0.785, 5.0: 0.790, 2.0: 0.82, 1.0: 0.845},
    ("birmingham", "value", OURS): {10.0: 80, 5.0: 115, 2.0: 250, 1.0: 310},
    ("mimic", "value", OURS): {10.0: 0.34, 5.0: 0.37, 2.0: 0.40, 1.0: 0.465},
    (CUBE, "value", OURS): {2.0: 0.075, 1.0: 0.15},
    ("filmtrust", "entry", OURS): {5.0: 0.805, 1.0: 0.838},
    ("birmingham", "entry", OURS): {5.0: 255, 1.0: 300},
    ("mimic", "entry", OURS): {5.0: 0.45, 1.0: 0.468},
    ("ml-100k", "entry", OURS_WITH_FEATURES): {5.0: 0.962, 1.0: 0.987},
    ("filmtrust", "slice:user", OURS): {5.0: 0.80},
    ("ml-100k", "slice:user", OURS_WITH_FEATURES): {5.0: 0.950, 1.0: 0.984},
}
SPLITS = {"ml-100k": ("ml-100k ua", "ml-100k ub")}
# the same as ratios to our error without privacy
RATIO_TARGETS: dict[tuple[str, str], dict[float, float]] = {
    ("ml-latest-small", "value"): {5.0: 1.015},
    ("nyc-taxi", "value"): {5.0: 1.05, 1.0: 1.4},
}


@dataclass(frozen=True)
class Target:
    """A number to reach, the number that was reached (None: not run), and the standard error of that."""

    name: str
    wanted: float
    reached: float | None
    error: float | None

    @property
    def met(self) -> bool | None:
        """Whether it is reached."""
        return None if self.reached is None else self.reached <= self.wanted


def targets(results: Results) -> list[Target]:
    """All targets. Where a cell was run with several deltas, the smallest error counts."""
    found = []
    for (data, unit, method), wanted in TARGETS.items():
        for epsilon, error in wanted.items():
            name = ", ".join([data, unit, f"epsilon {epsilon:g}", *([method] if method != OURS else [])])
            found.append(Target(name, error, *_reached(results, data, unit, epsilon, method)))
    for (data, unit), ratios in RATIO_TARGETS.items():
        plain = results.without_privacy(data)
        for epsilon, ratio in ratios.items():
            reached, deviation = _reached(results, data, unit, epsilon, OURS)
            name = f"{data}, {unit}, epsilon {epsilon:g}, ratio to no privacy"
            if plain is None or reached is None:
                found.append(Target(name, ratio, None, None))
            else:
                relative = None if deviation is None else deviation / plain.rmse
                found.append(Target(name, ratio, reached / plain.rmse, relative))
    return found


def _reached(results: Results, data: str, unit: str, epsilon: float, method: str) -> tuple[float | None, float | None]:
    """The mean error, and its standard error, averaged over the splits of the data."""
    means, errors = [], []
    for split in SPLITS.get(data, (data,)):
        cells = [
            cell
            for cell in results.ours()
            if (cell.data, cell.unit, cell.epsilon, cell.method) == (split, unit, epsilon, method)
        ]
        if not cells:
            return None, None
        best = min(cells, key=lambda cell: cell.rmse)
        means.append(best.rmse)
        errors.append(best.error())
    known = [error for error in errors if error is not None]
    return statistics.fmean(means), math.hypot(*known) / len(means) if len(known) == len(means) else None
