"""How a privacy bug is planted and caught, data that hurt, and the page; the bugs are in planted_bugs.py."""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import Replay, ReplayError, replay

PAGE = Path(__file__).parents[2] / "docs" / "planted_bugs.md"
BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)
Patch = pytest.MonkeyPatch


class CaughtError(AssertionError):
    """A check other than replay has shown that something is not private."""


@dataclass(frozen=True)
class PlantedBug:
    """One bug: what it is, where it is planted, what catches it, and words of the message that says so."""

    name: str
    where: str
    caught_by: str
    plant: Callable[[Patch], None]
    check: Callable[[], object]
    message: str
    slow: bool = False  # a second or more, most of it for accounting

    def seconds_to_catch(self) -> float:
        """Plant it, let the check find it; an AssertionError where it does not, or finds something else."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            began = time.perf_counter()
            try:
                self.check()
            except (ReplayError, CaughtError) as error:
                took = time.perf_counter() - began
                if not re.search(self.message, str(error)):
                    raise AssertionError(f"{self.name}: caught, but for another reason: {error}") from error
                return took
        raise AssertionError(f"{self.name}: not caught")


BUGS: list[PlantedBug] = []


def planted(*words: Any, slow: bool = False) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Put a bug on the list: its name, where it is planted, what catches it, the check, words of the message."""

    def enlist(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name, where, caught_by, check, message = words
        BUGS.append(PlantedBug(name, where, caught_by, plant, check, message, slow))
        return plant

    return enlist


def tensor(repeated: int = 8, gap: int = 3) -> tv.Observations:
    """A rank-one tensor at its bounds, each cell seen several times; one index of the first mode is empty."""
    rng = np.random.default_rng(0)
    signs = [rng.choice([-1.0, 1.0], size) for size in SHAPE]
    where = np.tile(np.argwhere(np.ones(SHAPE)), (repeated, 1))
    where = where[where[:, 0] != gap]
    values = 3 + 2 * np.einsum("i,j,k->ijk", *signs)[tuple(where.T)]
    return tv.Observations(where, values, SHAPE, duplicates="keep")


def many_users() -> tv.Observations:
    """Forty users of two kinds with many observations each, so that later stages are not drowned in noise."""
    signs = np.einsum("i,j,k->ijk", np.tile([1, -1], 20), [1, -1, 1], [1, 1, -1])
    where = np.tile(np.argwhere(np.ones(signs.shape)), (4, 1))
    return tv.Observations(where, np.tile(3.0 + 2 * signs.ravel(), 4), signs.shape, duplicates="keep")


def spread_values() -> tv.Observations:
    """Every cell once, values inside the bounds."""
    where = np.argwhere(np.ones(SHAPE))
    return tv.Observations(where, np.random.default_rng(1).uniform(2, 4, len(where)), SHAPE)


def quiet(first: float, row: int = 0, count: int = 3000) -> tv.Observations:
    """Many values in the middle, so that the clip norm is small, and one of its own at the row's start."""
    where = np.array(list(np.ndindex(3, 3)))
    where = np.concatenate([where[[3 * row]], where[np.arange(count) % 9]])
    return tv.Observations(where, np.append(first, np.full(count, 3.0)), (3, 3), duplicates="keep")


def replay_all(
    mechanism: Any, observations: tv.Observations, unit: str, epsilon: float, delta: float, limit: int = 6
) -> list[Replay]:
    """Replay neighbours that hurt; a ReplayError where one is told apart."""
    plan = mechanism.plan(tv.CP(2), BOUNDS, unit, epsilon, delta, shape=observations.shape)
    return [replay(*pair, plan) for pair in neighbours(observations, unit, BOUNDS, limit)]


def replay_one_value(mechanism: Any, delta: float) -> None:
    """One value among many equal ones goes from bound to bound, far beyond the clip norm on both sides."""
    plan = mechanism.plan(tv.CP(1), BOUNDS, "value", 10.0, delta, shape=(3, 3))
    replay(quiet(1.0), quiet(5.0), plan)


HEAD = """# Planted bugs

<!-- made by `PYTHONPATH=tests python -m privacy.planted_bugs --write`: change that file, not this page -->

An audit is worth what it catches. Each bug below is planted in the real code, one function replaced, and the whole run
goes on as a user's would; on the code as it is the same check passes. `tests/privacy/test_planted_bugs.py` does both
(`make test-all`). Seconds are those that it took to catch the bug, on two cores, when this page was made, compiled
kernels at hand.

| bug | planted in | caught by | seconds |
|---|---|---|---|
"""
TAIL = """
*Replay* (`tensorveil.audit.replays`) hands the noisy outputs of one run to a run on neighbouring data and compares what
is under the noise, what the calls cost, and what is released. It trusts the source of noise: a source that draws half
the noise, keeps its key after a fork or tosses no real coins passes it. Those are for the empirical audit
(`tensorveil.audit.lower_bounds`), for attacks, and for the exact tests of `tests/privacy/test_noise.py`. Nothing that
counts outputs would see a column that is off by a hair: tables are checked number by number, wherever one is made.

More bugs are planted beside the mechanisms they belong to: `tests/audit/test_replays.py`,
`tests/mechanisms/test_gradient.py`.
"""


def page(seconds: dict[str, float]) -> str:
    """The page docs/planted_bugs.md, with the time that each bug took."""
    rows = [f"| {bug.name} | `{bug.where}` | {bug.caught_by} | {seconds[bug.name]:.2f} |\n" for bug in BUGS]
    return HEAD + "".join(rows) + TAIL


def main() -> None:
    """Catch all, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/planted_bugs.md; without it, print it")
    write = parser.parse_args().write
    seconds = {}
    for bug in BUGS:
        bug.check()  # passes, and compiles the kernels
        seconds[bug.name] = bug.seconds_to_catch()
    if not write:
        print(page(seconds), end="")
        return
    aside = PAGE.with_suffix(".part")
    aside.write_text(page(seconds))
    aside.replace(PAGE)
