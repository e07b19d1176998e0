"""Replay fuzz: whole runs on random neighbouring data sets, each answer's exact loss against what its stage pays.

    make fuzz PAIRS=2000

A random plan (mechanism, options, unit, model, order 2 to 6, budget, perhaps a coupled table) is run on one data set.
All noisy answers are recorded and handed to a run on a neighbour, so that both runs are in the same state whenever they
ask. Checked are:

- For each answer, the largest log-likelihood ratio over all possible answers, between the two exact statistics, is at
  most what the receipt says was paid, and of all answers together at most the epsilon and delta of the plan.
- Every statistic is a sum over units, to the last step: no unit changes what another one contributes.
- Both runs ask the same queries with noise of the same scale, and end alike, with the same error if with one.

Noise has unbounded reach, so every answer is possible. Most runs therefore do not record answers as drawn, but exact or
far-off ones: states in which a sensitivity hurts, and which noise would hardly ever reach on small data.

A run ends with its last paid answer, because what follows is post-processing of answers and public facts. One pair in
twenty runs to the end, and the two models must then be the same bit for bit.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

import tensorveil as tv
from privacy.fuzz_cases import COUPLED, NAMES, World, pick, random_pair, random_plan
from privacy.fuzz_losses import LOSSES, TOLERANCE, allowed, spent
from tensorveil.audit.replays import NoisyCall, ReplayError, _identical, _matched, _Recorder, _same
from tensorveil.engines.local import Engine
from tensorveil.kernels.cores import one_blas_thread
from tensorveil.models.completion import Completion
from tensorveil.privacy.accounting.events import Event, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.coupled import coupled_vaults
from tensorveil.privacy.noise.source import LARGEST_SUM
from tensorveil.privacy.plan import Plan
from tensorveil.privacy.units import KINDS
from tensorveil.privacy.vault import Pattern, Receipt, Vault, _of_sample

PAIRS_OF_A_PLAN = 6
PLANS_TRIED = 8  # before a mechanism and a unit are given up: some have no theorem, others not with such options
WHOLE_EVERY = 20
ANSWERS = ("drawn", "exact", "far", "mixed")  # what the first run gets instead of noise


GRID = [(name, kind) for name in NAMES for kind in KINDS if name != COUPLED or kind == "value"]


class LastAnswer(Exception):  # noqa: N818  no error
    """All that the plan pays for is answered."""


class Player(_Recorder):
    """Records answers, bent as one of ANSWERS, or plays recorded ones; ends a run with the last paid answer."""

    def __init__(self, seed: int, bent: str = "drawn", recorded: list[NoisyCall] | None = None, matched: Any = None):
        super().__init__(seed, recorded, matched=matched)
        self.rng, self.bent = np.random.default_rng(seed), bent
        self.vaults: tuple[Vault, ...] = ()
        self.to_the_end = False

    def coins(self, probability: float) -> Any:
        if self._recorded is not None or self.bent == "drawn":
            return super().coins(probability)
        return super().coins(1.0)

    def _laplace_steps(self, scale: float, count: int) -> np.ndarray:
        return np.rint(self.rng.laplace(0.0, scale, count)).astype(np.int64)  # any noise will do, and this is fast

    def _gaussian_steps(self, scale: float, count: int) -> np.ndarray:
        return np.rint(self.rng.normal(0.0, scale, count)).astype(np.int64)

    def _row_steps(self, scale: float, count: int, width: int) -> np.ndarray:
        return np.rint(self.rng.normal(0.0, scale, (count, width)) * math.sqrt(width)).astype(np.int64)

    def _answer(self, kind: str, statistic: Any, parameters: dict[str, Any], draw: Callable[..., Any]) -> Any:
        def answer(statistic: Any, **given: Any) -> Any:
            return self._bend(kind, statistic, given, draw(statistic, **given))

        output = super()._answer(kind, statistic, parameters, answer)
        if not self.to_the_end and self.vaults and _all_paid(self.vaults, len(_noisy(self.calls))):
            raise LastAnswer
        return output

    def _bend(self, kind: str, statistic: Any, given: dict[str, Any], drawn: Any) -> Any:
        bent = pick(self.rng, ANSWERS[:3]) if self.bent == "mixed" else self.bent
        if bent == "drawn":
            return drawn
        if kind == "channel":
            possible = np.flatnonzero(given["channel"].counts.max(axis=0))
            return drawn if bent == "exact" else self.rng.choice(possible, np.shape(drawn))
        exact = np.asarray(statistic * given["grid"])
        if bent == "exact":
            return exact
        far = 2.0 ** int(pick(self.rng, (1, 4, 12, 40)))
        return np.clip(exact + (drawn - exact) * far, -LARGEST_SUM * given["grid"], LARGEST_SUM * given["grid"])


def _all_paid(vaults: Sequence[Vault], answered: int) -> bool:
    """Whether every stage is used up, and all that was paid is drawn."""
    if answered < sum(len(vault.receipts) for vault in vaults):
        return False
    for vault in vaults:
        unpaid = {name: _price(stage.event) * stage.event.count for name, stage in vault._meter.stages.items()}
        for receipt in vault.receipts:
            unpaid[receipt.stage.name] -= _price(receipt.paid)
        if any(price >= TOLERANCE for price in unpaid.values()):
            return False
    return True


def _price(event: Event) -> float:
    return event.epsilon if isinstance(event, PureEvent) else 1.0


def _noisy(calls: list[NoisyCall]) -> list[NoisyCall]:
    return [call for call in calls if call.kind not in ("coins", "key")]


class UnitsApart:
    """An engine that checks of every query that no unit changes what the others add to the sum, not by one step."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def map(self, function: Callable[..., Any], shards: Sequence[Any], *secrets: object) -> list[Any]:
        return [function(shard, *secrets) for shard in shards]

    def keep(self, function: Callable[..., Any], shards: Sequence[Any], *secrets: object) -> list[Any]:
        return self.map(function, shards, *secrets)

    def sum(self, function: Any, shards: Sequence[Any], *coins: Any) -> tuple[np.ndarray, ...]:
        (shard,) = shards
        if coins:  # a coin is for a place in the whole data, so that the sample is taken first
            shard, function = _of_sample(SimpleNamespace(of=lambda kept: kept), shard, *coins), function.args[0].of
        together = function(shard)
        units = shard.index(shard.unit.mode_number) if shard.unit.whole_slices else np.arange(len(shard))
        own = units == (pick(self.rng, units) if len(units) else 0)
        apart = zip(function(shard.kept(own)), function(shard.kept(~own)), strict=True)
        if not all(np.array_equal(whole, one + rest) for whole, (one, rest) in zip(together, apart, strict=True)):
            raise ReplayError(f"{function.__qualname__} must be a sum over units, got one that changes others' parts")
        return together


@dataclass(frozen=True)
class Run:
    """One run: what left the vault of each table, where values are observed in it, and how the run ended."""

    calls: list[NoisyCall]
    receipts: tuple[tuple[Receipt, ...], ...]
    coordinates: tuple[np.ndarray, ...]
    ended: Completion | str | None


def run(world: World, plan: Plan, player: Player, engine: Engine | None = None) -> Run:
    """A run as `fit` does it; an error is how it ended."""
    request = plan.request
    bounds = [request.bounds, *([] if request.coupled is None else [request.coupled.bounds])]
    data = [clip(table, limits, request.unit, player.key()) for table, limits in zip(world, bounds, strict=True)]
    facts = plan.stages, plan.gaussian_coordinates, player, engine
    player.vaults = coupled_vaults(*([one] for one in data), *facts) if len(data) == 2 else (Vault(data, *facts),)
    ended: Completion | str | None = None
    try:
        if request.unit.coordinates_public:
            plan.mechanism.check_pattern(Pattern(data[0].coordinates, data[0].shape, data[0].unit), plan)
        runs = plan.mechanism.run if len(data) == 1 else plan.mechanism.run_coupled
        with one_blas_thread():
            ended = runs(*player.vaults, plan)
    except LastAnswer:
        pass
    except ReplayError:
        raise
    except Exception as error:  # whatever it is, a run on a neighbour must end alike
        ended = repr(error)
    receipts = tuple(vault.receipts for vault in player.vaults)
    return Run(player.calls, receipts, tuple(one.coordinates for one in data), ended)


@dataclass
class Found:
    """What one pair has shown: the largest share of its price that an answer of each query lost, and that all lost."""

    shares: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    total: float = 0.0
    failed: bool = False


def compare(mine: Run, theirs: Run, plan: Plan) -> Found:
    """Hold two runs against each other and the plan; a ReplayError where they show more than was paid for."""
    found = Found()
    if isinstance(mine.ended, str) or isinstance(theirs.ended, str):
        if mine.ended != theirs.ended:
            raise ReplayError(f"runs on neighbours must end alike, got {mine.ended!r} and {theirs.ended!r}")
        found.failed = True
    if mine.receipts != theirs.receipts or len(mine.calls) != len(theirs.calls):
        raise ReplayError("runs on neighbours must ask the same, got other receipts or another number of calls")
    numbered = [np.unique(where, axis=0, return_inverse=True)[1].ravel() for where in mine.coordinates]
    paid = [(receipt, cells) for told, cells in zip(mine.receipts, numbered, strict=True) for receipt in told]
    pure, precision = [], Fraction(0)
    sampled = False
    for one, other, (receipt, cells) in zip(_noisy(mine.calls), _noisy(theirs.calls), paid, strict=False):
        if not _same(one.parameters, other.parameters) or one.statistic.shape != other.statistic.shape:
            raise ReplayError(f"{receipt.query} must have one shape and scale on neighbours, got two")
        public = plan.request.unit.coordinates_public  # else there is one symbol for every cell of the box
        where = cells if public else np.arange(one.statistic.size)
        loss, most = LOSSES[one.kind](one, other, where), allowed(receipt.paid)
        if (one.kind == "gaussian") == isinstance(receipt.paid, PureEvent):
            raise ReplayError(f"{receipt.query} is paid by {receipt.paid}, got noise of the kind {one.kind}")
        exact = one.kind in ("laplace", "gaussian")
        if loss > (most if exact else most * Fraction(1 + TOLERANCE)):
            raise ReplayError(f"{receipt.query} must lose at most {float(most)!r}, got {float(loss / most)!r} times it")
        share = float(loss / most)
        found.shares[receipt.query] = max(
            found.shares[receipt.query], math.sqrt(share) if one.kind == "gaussian" else share
        )
        sampled = sampled or isinstance(receipt.paid, SampledGaussianEvent)
        if isinstance(receipt.paid, PureEvent):
            pure.append(loss)
        else:
            precision += loss
    if not sampled:
        found.total = spent(plan, pure, math.sqrt(precision))
    if isinstance(mine.ended, Completion) and not _identical(mine.ended, theirs.ended):
        raise ReplayError("the final release must be the same bit for bit given the same noisy outputs, got two")
    return found


@dataclass
class Table:
    """Pairs, errors, violations and the largest losses so far."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    whole: Counter[tuple[str, str]] = field(default_factory=Counter)
    orders: Counter[tuple[str, int]] = field(default_factory=Counter)
    answers: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    totals: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    queries: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = ["mechanism  unit          pairs to the end   errors  answer     all"]
        for key in sorted(self.pairs):
            numbers = f"{self.pairs[key]:5} {self.whole[key]:10} {self.failed[key]:8}"
            lines.append(f"{key[0]:10} {key[1]:13} {numbers} {self.answers[key]:7.4f} {self.totals[key]:7.4f}")
        lines += ["", f"{'query':16} {'unit':13} {'pairs':>6} {'answer':>7}"]
        lines += [f"{q:16} {u:13} {self.asked[q, u]:6} {self.queries[q, u]:7.4f}" for q, u in sorted(self.asked)]
        lines += ["", "by model and order: " + ", ".join(f"{m} {o}: {n}" for (m, o), n in sorted(self.orders.items()))]
        return "\n".join([*lines, f"{self.pairs.total()} pairs, {len(self.violations)} violations"])


def fuzz_case(seed: int, number: int, table: Table) -> None:
    """All pairs of one random plan; a combination that the library refuses has none."""
    rng = np.random.default_rng([seed, number])
    name, kind = GRID[number % len(GRID)]
    plan = None
    for _ in range(PLANS_TRIED):
        try:
            plan = random_plan(rng, name, kind)
            break
        except tv.InputError:
            continue
    if plan is None:
        return
    for place in range(PAIRS_OF_A_PLAN):
        pair = random_pair(rng, plan)
        bent, noise = pick(rng, ANSWERS), int(rng.integers(2**31))
        whole = rng.random() < 1 / WHOLE_EVERY
        first = Player(noise, bent)
        second = Player(noise, "drawn", first.calls, _matched(pair[0][0], pair[1][0], plan))
        first.to_the_end = second.to_the_end = whole
        try:
            found = compare(run(pair[0], plan, first, UnitsApart(noise)), run(pair[1], plan, second), plan)
        except ReplayError as error:
            request = plan.request
            where = f"--seed {seed} --case {number}, pair {place}: {plan.mechanism}, {request.family}, {request.unit}"
            table.violations.append(f"{where}, answers {bent}: {error}")
            found = Found()
        table.pairs[name, kind] += 1
        table.failed[name, kind] += found.failed
        table.whole[name, kind] += whole
        family = plan.request.family
        table.orders["nonnegative" if family.nonnegative else family.name, len(plan.request.shape)] += 1
        table.answers[name, kind] = max(table.answers[name, kind], *found.shares.values(), 0.0)
        table.totals[name, kind] = max(table.totals[name, kind], found.total)
        for query, share in found.shares.items():
            table.asked[query, kind] += 1
            table.queries[query, kind] = max(table.queries[query, kind], share)


def fuzz(pairs: int, seed: int = 0, progress: Callable[[Table], None] = lambda table: None, only: str = "") -> Table:
    """At least so many pairs without errors, mechanisms and units in turn; `only` those of one mechanism, if named."""
    table, number = Table(), 0
    while table.pairs.total() - table.failed.total() < pairs:
        if not only or GRID[number % len(GRID)][0] == only:
            fuzz_case(seed, number, table)
            progress(table)
        number += 1
    return table


def main() -> int:
    """Print the table; the exit code is 1 where a violation was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=2000, help="how many pairs of neighbouring data sets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=NAMES, default="", help="only this mechanism")
    parser.add_argument("--case", type=int, help="only this case of the seed")
    given = parser.parse_args()
    began, told = time.perf_counter(), 0.0

    def progress(table: Table) -> None:
        nonlocal told
        if time.perf_counter() - told > 60:
            told = time.perf_counter()
            rate = table.pairs.total() / (told - began + 1e-9)
            print(f"{table.pairs.total()} pairs, {rate:.1f} per second", *table.violations, sep="\n", flush=True)

    if given.case is None:
        table = fuzz(given.pairs, given.seed, progress, given.only)
    else:
        table = Table()
        fuzz_case(given.seed, given.case, table)
    print(table, *table.violations, f"{time.perf_counter() - began:.0f} seconds", sep="\n")
    return 1 if table.violations else 0


if __name__ == "__main__":
    sys.exit(main())
