"""How a privacy bug is planted and caught, and the page that lists all of them; the bugs are in planted_bugs.py."""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tensorveil.audit.replays import ReplayError

PAGE = Path(__file__).parents[2] / "docs" / "planted_bugs.md"
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


class Through:
    """A source of noise with some answers replaced by a planted bug; everything else goes to the source."""

    def __init__(self, source: Any, **replaced: Callable[..., Any]) -> None:
        self._source = source
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


BUGS: list[PlantedBug] = []


def planted(*words: Any, slow: bool = False) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Put a bug on the list: its name, where it is planted, what catches it, the check, words of the message."""

    def enlist(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name, where, caught_by, check, message = words
        BUGS.append(PlantedBug(name, where, caught_by, plant, check, message, slow))
        return plant

    return enlist


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
`tests/mechanisms/test_gradient_perturbation.py`.
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
