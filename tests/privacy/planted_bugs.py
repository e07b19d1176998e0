"""Privacy bugs of kinds that have happened, planted in the real code, each with the check that must catch it.

A bug replaces one function of tensorveil; its check then runs plans through `fit` as a user would. The same check
passes on the code as it is. `PYTHONPATH=tests python -m privacy.planted_bugs --write` catches all of them and
writes the table of docs/planted_bugs.md.
"""

import math
import os
import warnings
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest

import tensorveil as tv
from privacy.planting import (
    BOUNDS,
    SHAPE,
    CaughtError,
    Patch,
    main,
    many_users,
    planted,
    quiet,
    replay_all,
    replay_one_value,
    spread_values,
    tensor,
)
from tensorveil.audit.lower_bounds import lower_bound_from_scores
from tensorveil.audit.replays import replay
from tensorveil.kernels import sampling
from tensorveil.kernels.reference import gradients
from tensorveil.mechanisms import input as input_perturbation
from tensorveil.mechanisms import statistic
from tensorveil.privacy import vault
from tensorveil.privacy.bounds import BoundedObservations
from tensorveil.privacy.noise import source as noise
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.noise.secret_words import Coins
from tensorveil.privacy.queries.contributions import CONTRIBUTION_STEPS
from tensorveil.privacy.queries.gradients import RowGradients
from tensorveil.privacy.queries.rows import own_rows
from tensorveil.privacy.queries.sums import row_sums
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.vault import Vault
from tensorveil.release.tables import clipping

SURE = 1 - 1e-6  # confidence of audits


JOINT = tv.GradientPerturbation(steps=4)
ROWS = tv.GradientPerturbation(form="rows", steps=4)
SAMPLED = tv.GradientPerturbation(steps=4, sampling_probability=0.3)


@planted(
    "half the noise, asked for",
    "vault._law",
    "replay: cost of the calls against the plan",
    lambda: replay_all(JOINT, tensor(), "entry", 4.0, 1e-6),
    "Gaussian precision",
)
def half_the_noise_asked_for(patch: Patch) -> None:
    sound = vault._law

    def weak(*arguments):
        law = sound(*arguments)
        return replace(law, scale=law.scale / 2)

    patch.setattr(vault, "_law", weak)


@planted(
    "half the Laplace noise, drawn",
    "noise.laplace_law",
    "audit, 20,000 runs a world, confidence 1 - 1e-6",
    lambda: audit_laplace(),
    "is refuted",
)
def half_the_noise_drawn(patch: Patch) -> None:
    sound = noise.laplace_law
    patch.setattr(noise, "laplace_law", lambda scale: sound(scale / 2))


def audit_laplace() -> None:
    """Values randomized at the source, all at one bound or all at the other: each is a run of its own."""
    mechanism, epsilon, runs = tv.InputPerturbation(noise="laplace"), 1.0, 20_000
    worlds = [mechanism.randomize(np.full(runs, bound), BOUNDS, epsilon).values for bound in (BOUNDS.low, BOUNDS.high)]
    found = lower_bound_from_scores(*worlds, confidence=SURE)
    if found.refutes(epsilon):
        raise CaughtError(f"epsilon {epsilon:g} is refuted: {found}")


@planted(
    "half the Gaussian noise, drawn",
    "sampling.gaussian_law",
    "audit, 4,000 runs a world, confidence 1 - 1e-6",
    lambda: audit_gaussian(),
    "is refuted",
    slow=True,
)
def half_the_gaussian_noise_drawn(patch: Patch) -> None:
    sound = sampling.gaussian_law
    patch.setattr(sampling, "gaussian_law", lambda scale: sound(scale / 2))


def audit_gaussian() -> None:
    """Releases of a noisy statistic through a whole fit: every value is noised by itself."""
    shape, delta = (80, 50), 1e-6
    where = np.argwhere(np.ones(shape))
    mechanism = tv.InputPerturbation(noise="gaussian", solver="als")
    plan = mechanism.plan(tv.CP(1), BOUNDS, "value", 4.0, delta, shape=shape)
    worlds: list[np.ndarray] = []
    for bound in (BOUNDS.low, BOUNDS.high):
        with pytest.MonkeyPatch.context() as patch:
            sound = Vault.values

            def listening(*arguments: Any, sound: Any = sound) -> Any:
                answer = sound(*arguments)
                worlds.append(answer.values)
                return answer

            patch.setattr(Vault, "values", listening)
            tv.fit(tv.Observations(where, np.full(len(where), bound), shape), plan)
    found = lower_bound_from_scores(*worlds, delta=delta, confidence=SURE, claim="gaussian")
    if found.refutes(plan.epsilon):
        raise CaughtError(f"epsilon {plan.epsilon:g} is refuted: {found}")


@planted(
    "sensitivity m instead of 2m",
    "RowGradients.sensitivity",
    "replay: a statistic moves too far",
    lambda: replay_one_value(ROWS, 0.0),
    "declared sensitivity",
)
def sensitivity_m_not_2m(patch: Patch) -> None:
    sound = RowGradients.sensitivity

    def halved(self, unit):
        return tuple(replace(change, bound=change.bound / 2) for change in sound(self, unit))

    patch.setattr(RowGradients, "sensitivity", halved)


@planted(
    "noise missing on one block",
    "Vault._noised",
    "replay: the next step, or the release, differs",
    lambda: replay_all(JOINT, tensor(), "entry", 4.0, 1e-6),
    "declared sensitivity|bit for bit|one shape and scale",
)
def noise_missing_on_one_block(patch: Patch) -> None:
    sound, last = vault.Vault._noised, 2 * SHAPE[-1]  # numbers of the last factor matrix of rank 2

    def gaps(self, total, event, change):
        answer = sound(self, total, event, change)
        values = np.concatenate([answer.values[:-last], total[-last:] * change.grid])
        return replace(answer, values=values)

    patch.setattr(vault.Vault, "_noised", gaps)


@planted(
    "budget not divided by iterations",
    "Vault._noised",
    "replay: cost of the calls against the plan",
    lambda: replay_all(ROWS, tensor(), "value", 4.0, 0.0),
    "pure epsilon",
)
def budget_not_divided(patch: Patch) -> None:
    sound = vault.Vault._noised

    def whole(self, total, event, change):
        return sound(self, total, replace(event, epsilon=ROWS.steps * event.epsilon), change)

    patch.setattr(vault.Vault, "_noised", whole)


@planted(
    "clipping after summing",
    "kernels.gradients.entry_sums",
    "replay: a statistic moves too far",
    lambda: replay_one_value(JOINT, 1e-6),
    "declared sensitivity",
)
def clipping_after_summing(patch: Patch) -> None:
    """The batch's mean gradient is clipped to m, not each entry's."""
    sound = gradients.entry_sums

    def late(*arguments):
        *layout, values, m, grid, totals = arguments
        sums = np.zeros_like(totals)
        sound(*layout, values, 1e6, grid, sums)  # so long is no gradient here
        length = np.linalg.norm(sums * grid) / max(len(values), 1)
        totals += np.trunc(sums * min(1.0, m / max(length, 1e-300))).astype(np.int64)

    patch.setattr(gradients, "entry_sums", late)


@planted(
    "bounds from data",
    "clipping.clip",
    "replay on neighbours: a statistic moves too far",
    lambda: replay_all(tv.InputPerturbation(noise="laplace", solver="als"), spread_values(), "value", 1.0, 0.0),
    "declared sensitivity",
)
def bounds_from_data(patch: Patch) -> None:
    sound = clipping.clip

    def fitted(observations, bounds, unit, key):
        values = observations.values
        return sound(observations, tv.Bounds(values.min(), values.max()), unit, key)

    patch.setattr(clipping, "clip", fitted)


@planted(
    "count-weighted regulariser under entry",
    "mechanisms.statistic.posterior_rows",
    "replay: the next stage, or the release, differs",
    lambda: replay_all(tv.StatisticPerturbation(), tensor(40), "entry", 16.0, 1e-5),
    "declared sensitivity|bit for bit",
)
def count_weighted_regulariser(patch: Patch) -> None:
    """A mechanism that reaches into the vault for counts, which are private under entry."""
    run, posterior = tv.StatisticPerturbation.run, statistic.posterior_rows

    def counting(self, locked, plan, *rest):
        (shard,) = locked._shards
        counts = {size: np.bincount(shard.index(mode), minlength=size) for mode, size in enumerate(SHAPE)}

        def weighted(g, H, *others):
            return posterior(g, H + 0.01 * counts[len(g)][:, None, None] * np.eye(g.shape[1]), *others)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(statistic, "posterior_rows", weighted)
            return run(self, locked, plan, *rest)

    patch.setattr(tv.StatisticPerturbation, "run", counting)


def shuffled_batch(count: int, probability: float, seed: int | None = None) -> np.ndarray:
    """A batch of fixed size: what most training loops take, and no theorem here covers."""
    chosen = np.zeros(count, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(count)[: round(probability * count)]] = True
    return chosen


@planted(
    "batch not Poisson, in the vault",
    "vault._of_sample",
    "replay: other coins, the same sums",
    lambda: replay_all(SAMPLED, tensor(), "value", 4.0, 1e-6),
    "chosen by the coins",
    slow=True,
)
def batch_not_poisson_in_the_vault(patch: Patch) -> None:
    def shuffled(query, shard, coins):
        return query.of(shard.kept(shuffled_batch(len(shard), SAMPLED.sampling_probability, seed=0)))

    patch.setattr(vault, "_of_sample", shuffled)


@planted(
    "batch not Poisson, in the source",
    "Coins.of",
    "spread of the batch sizes of a fit",
    lambda: count_heads(),
    "spread like coins",
    slow=True,
)
def batch_not_poisson_in_the_source(patch: Patch) -> None:
    patch.setattr(Coins, "of", lambda self, rows: shuffled_batch(len(rows), self.limit / 2**64))


@cache
def plan_of_many_batches(share: float) -> tv.Plan:
    mechanism = tv.GradientPerturbation(steps=100, sampling_probability=share)
    return mechanism.plan(tv.CP(2), BOUNDS, "entry", 2.0, 1e-6, shape=SHAPE)


def count_heads() -> None:
    """Sizes of the batches of one fit must spread like those of independent coins."""
    from scipy import stats

    sizes: list[int] = []

    def kept(self: BoundedObservations, heads: np.ndarray) -> BoundedObservations:  # what a step really reads
        sizes.append(int(heads.sum()))
        return whole(self, heads)

    units, share, whole = len(tensor()), 0.3, BoundedObservations.kept
    with mock.patch.object(BoundedObservations, "kept", kept):
        tv.fit(tensor(), plan_of_many_batches(share))
    spread = sum((size - share * units) ** 2 for size in sizes) / (units * share * (1 - share))
    chance = 2 * min(stats.chi2(len(sizes)).cdf(spread), stats.chi2(len(sizes)).sf(spread))
    if chance < 1 - SURE:
        raise CaughtError(f"batch sizes must spread like coins, got {spread:.3g} times their variance in {len(sizes)}")


@planted(
    "user rows coupled by a QR under slice",
    "queries.rows.own_rows.own_rows",
    "replay: a statistic moves too far",
    lambda: replay_all(tv.StatisticPerturbation(), many_users(), "slice:0", 16.0, 1e-5),
    "declared sensitivity",
)
def users_coupled_by_a_qr(patch: Patch) -> None:
    sound = own_rows.own_rows
    patch.setattr(own_rows, "own_rows", lambda *arguments: np.asarray(np.linalg.qr(sound(*arguments))[0]))


@planted(
    "rounding after the sum",
    "kernels.gradients.row_sums",
    "brute force over 12 replays: a step too far",
    lambda: brute_force_one_value(),
    "declared sensitivity",
)
def rounding_after_the_sum(patch: Patch) -> None:
    """Gradients are added as fine numbers, and the sum is rounded: an entry can move it by one step more."""
    sound, finer = gradients.row_sums, 2.0**20

    def late(*arguments):
        *layout, grids, totals = arguments
        fine = np.zeros_like(totals)
        sound(*layout, grids / finer, fine)
        totals += np.rint(fine / finer).astype(np.int64)

    patch.setattr(gradients, "row_sums", late)


def brute_force_one_value() -> None:
    """One value from bound to bound, with clip norms and sums of many last digits."""
    plan = tv.GradientPerturbation(form="rows", steps=4).plan(tv.CP(1), BOUNDS, "value", 20.0, 0.0, shape=(3, 3))
    for seed in range(12):
        replay(quiet(1.0, row=seed % 3), quiet(5.0, row=seed % 3), plan, seed=seed)


@planted(
    "rounding after the sum, of whole sums",
    "row_sums.whole_sums",
    "brute force over 8 replays: whole numbers, compared exactly",
    lambda: whole_numbers_exactly(),
    "declared sensitivity",
)
def rounding_of_whole_sums(patch: Patch) -> None:
    def late(rows, contributions, size):
        return np.rint(np.bincount(rows, contributions, size) * CONTRIBUTION_STEPS).astype(np.int64)

    patch.setattr(row_sums, "whole_sums", late)


def whole_numbers_exactly() -> None:
    """One step in 2^31 is within the tolerance of a replay for floats; Laplace statistics are whole numbers."""
    rng, shape = np.random.default_rng(0), (200, 7, 5)
    where = np.argwhere(rng.random(shape) < 0.4)
    narrow = tv.Observations(where, 3 + rng.normal(0, 0.05, len(where)), shape)
    mechanism = tv.StatisticPerturbation(sweeps=1, marginal_share=0.5)
    for found in replay_all(mechanism, narrow, "slice_values:0", 40.0, 0.0, limit=8):
        shares = [share for share, call in zip(found.used, found.calls, strict=True) if call.kind == "laplace"]
        if max(shares) > 1:
            raise CaughtError(f"a call must move by its declared sensitivity at most, got {max(shares):.15g} times it")


@planted(
    "key reused after fork",
    "NoiseSource._generator",
    "attack: a child's release subtracted from the parent's",
    lambda: subtract_a_childs_release(),
    "used twice",
)
def key_reused_after_fork(patch: Patch) -> None:
    patch.setattr(noise.NoiseSource, "_generator", lambda self: self._chacha)


def subtract_a_childs_release() -> None:
    """Parent and child release different values with one source; noise that is used twice cancels."""
    source, mechanism = noise.NoiseSource(), tv.InputPerturbation(noise="laplace")

    def released(values: Any) -> np.ndarray:
        return mechanism.randomize(values, BOUNDS, 1.0, noise=source).values

    mine, theirs = np.linspace(1, 3, 33), np.linspace(4, 2, 33)
    released(mine)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads
        child = os.fork()
    if child == 0:
        try:
            os.write(write, released(theirs).tobytes())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        other = np.frombuffer(pipe.read())
    cancelled = np.isclose(released(mine) - other, mine - theirs, atol=1e-4).sum()
    if cancelled > 3:
        raise CaughtError(f"noise must not be used twice, got {cancelled} of 33 values exposed by a subtraction")


HAIR = Fraction(1, 10**9)


@planted(
    "channel column off by a hair",
    "mechanisms.input.design_channel",
    "exact check of the table, in fractions",
    lambda: table_in_fractions(),
    "beyond it",
)
def column_off_by_a_hair(patch: Patch) -> None:
    sound = input_perturbation.design_channel

    def bent(scale, epsilon, per_index):
        counts = sound(scale, epsilon, per_index).counts.copy()
        symbol = counts.max(axis=0).argmax()
        high, low = counts[:, symbol].argmax(), counts[:, symbol].argmin()
        allowed = exp_below(Fraction(epsilon)) * int(counts[low, symbol])
        extra = math.ceil(allowed * (1 + HAIR)) - int(counts[high, symbol])
        left = (counts[high] - extra) / counts.max(axis=0)
        left[symbol] = 0.0
        donor = left.argmax()  # a column that stays within e^epsilon
        counts[high, symbol] += extra
        counts[high, donor] -= extra
        off = object.__new__(Channel)  # past the constructor, which would refuse it
        for name, value in (("epsilon", epsilon), ("counts", counts)):
            object.__setattr__(off, name, value)
        return off

    patch.setattr(input_perturbation, "design_channel", bent)


def exp_below(x: Fraction) -> Fraction:
    """A lower bound on e^x, x > 0, by its series in fractions: every term left out is positive."""
    term, total = Fraction(1), Fraction(1)
    for n in range(1, 60):
        term *= x / n
        total += term
    return total


def table_in_fractions() -> None:
    """The table that a fit hands to the vault, ratio by ratio, in fractions."""
    found: list[Channel] = []
    mechanism = tv.InputPerturbation(levels=(1, 2, 3, 4, 5), solver="als")
    plan = mechanism.plan(tv.CP(1), BOUNDS, "value", 1.0, 0.0, shape=SHAPE)
    with pytest.MonkeyPatch.context() as patch:
        sound = Vault.symbols

        def listening(self: Any, stage: Any, query: Any, channel: Any) -> Any:
            found.append(channel)
            return sound(self, stage, query, channel)

        patch.setattr(Vault, "symbols", listening)
        tv.fit(spread_values(), plan)
    bound = exp_below(Fraction(found[0].epsilon))
    for column in found[0].counts.T.tolist():
        if max(column) > bound * min(column):
            raise CaughtError("a column must keep within e^epsilon, got a count beyond it")


@planted(
    "empty rows without noise under entry",
    "Vault._noised",
    "replay: calls differ in shape",
    lambda: replay_all(ROWS, tensor(), "entry", 4.0, 0.0),
    "one shape and scale",
)
def empty_rows_without_noise(patch: Patch) -> None:
    sound = vault.Vault._noised

    def sparing(self, total, event, change):
        if change.norm is not Norm.ROWS:
            return sound(self, total, event, change)
        known, values = total.any(axis=1), np.zeros(total.shape)
        answer = sound(self, total[known], event, change)
        values[known] = answer.values
        return replace(answer, values=values)

    patch.setattr(vault.Vault, "_noised", sparing)


if __name__ == "__main__":
    main()
