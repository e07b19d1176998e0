"""The replay itself: it passes sound mechanisms and catches planted bugs, each of a kind that has happened."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import ReplayError, replay
from tensorveil.mechanisms import statistic
from tensorveil.mechanisms.base import Design, Mechanism, no_progress, split_budget
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy import vault as vaults
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.queries.base import Change, Query
from tensorveil.privacy.queries.rows import normal_equations, own_rows
from tensorveil.privacy.queries.sums import row_sums
from tensorveil.privacy.queries.values import histogram
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.solvers.start import public_start

BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)
RNG = np.random.default_rng(0)
WHERE = np.argwhere(RNG.random(SHAPE) < 0.5)
WHERE = WHERE[WHERE[:, 0] != 2]
OBSERVATIONS = tv.Observations(WHERE, RNG.uniform(1, 5, len(WHERE)), SHAPE)


# many observations a row and a large budget, so that later stages are not drowned in noise
DENSE = tv.Observations(
    np.tile(np.argwhere(np.ones((40, 3, 3))), (4, 1)),
    np.tile(3.0 + 2 * np.einsum("i,j,k->ijk", np.tile([1, -1], 20), [1, -1, 1], [1, 1, -1]).ravel(), 4),
    (40, 3, 3),
    duplicates="keep",
)


def largest(unit, delta=1e-6, mechanism=None, limit=12, observations=OBSERVATIONS, epsilon=1.0):
    made = tv.StatisticPerturbation(sweeps=1) if mechanism is None else mechanism
    plan = made.plan(tv.CP(rank=2), BOUNDS, unit, epsilon, delta, shape=observations.shape)
    return max(replay(*pair, plan).largest for pair in neighbours(observations, unit, BOUNDS, limit))


def dense_largest(unit):
    return largest(unit, 1e-5, limit=8, mechanism=tv.StatisticPerturbation(), observations=DENSE, epsilon=16.0)


@dataclass(frozen=True)
class Total(Query):
    """The total of the centred values."""

    bug: str = ""
    scale: int = 1

    def theorem(self, unit):
        return "histogram"

    def of(self, shard):
        total = shard.steps.sum() * (3 if self.bug == "unclipped" else 1)
        return (np.full(1 + len(shard) % 2 if self.bug == "a shape that depends on the data" else 1, total),)

    def sensitivity(self, unit):
        bound = (2.0 if unit.coordinates_public else 1.0) * self.scale
        return (Change(Norm.L1, bound / 2 if self.bug == "halved" else bound, 2.0**-20),)


@dataclass(frozen=True)
class Totals(Mechanism):
    """The simplest mechanism: one noisy number, the total of centred values, as the mean of a constant model.

    Its bugs reach into the vault, which no mechanism of the package does.
    """

    bug: str = ""
    name: ClassVar[str] = "statistic"

    def design(self, request):
        (event,) = split_budget(request, [1.0], 1)
        sensitivity = Sensitivity(None, Norm.L1, "2 or 1")
        return Design((Stage("total", "histogram", event, sensitivity, Law.LAPLACE, "total"),), None, 1)

    def run(self, vault, plan, progress=no_progress):
        (data,) = vault._shards
        (event,) = plan.events
        total = data.steps.sum(keepdims=True)
        query = Total(self.bug, 1 + len(data) if self.bug == "scaled by the data" else 1)
        parts = 2 if self.bug == "a call that depends on the data" and total[0] > 0 else 1
        own = {"grid": 2.0**-20, "sensitivity": 2**21 if vault.unit.coordinates_public else 2**20}
        if self.bug == "overspent":
            mean = vault._noise.laplace(total, **own, epsilon=2 * event.epsilon)[0]
        else:
            mean = [vault.answer("total", query, epsilon=event.epsilon / parts).values[0] for _ in range(parts)][-1]
        if self.bug == "no noise":
            mean = total[0] * 2.0**-20
        if self.bug == "post-processing reads the data":
            mean = mean / len(data) if not vault.unit.coordinates_public else mean + data.centred[0] * 1e-12
        if self.bug == "twice":
            vault._noise.laplace(total, **own, epsilon=event.epsilon)
        model = public_start(plan.request.family, vault.shape, std=0.1)
        bounds = plan.request.bounds
        return Completion(Offsets(float(mean), [None] * len(vault.shape)), model, bounds.low, bounds.high)


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_a_sound_mechanism_passes_and_uses_all_of_its_sensitivity(unit):
    assert largest(unit, 0.0, Totals()) == 1.0


@pytest.mark.parametrize(
    "bug, message",
    [
        ("halved", "declared sensitivity"),
        ("unclipped", "declared sensitivity"),
        ("no noise", "bit for bit"),
        ("post-processing reads the data", "bit for bit"),
        ("overspent", "what the plan pays"),
        ("twice", "what the plan pays"),
    ],
)
@pytest.mark.parametrize("unit", ["value", "entry"])
def test_a_planted_bug_is_caught(unit, bug, message):
    with pytest.raises(ReplayError, match=message):
        largest(unit, 0.0, Totals(bug), limit=None)


@pytest.mark.parametrize(
    "bug, message",
    [
        ("a shape that depends on the data", "one shape and scale"),
        ("scaled by the data", "one shape and scale"),
        ("a call that depends on the data", "call"),
    ],
)
def test_calls_that_depend_on_what_is_private_under_entry_are_caught(bug, message):
    near_zero = tv.Observations([[0, 0, 0], [1, 1, 1]], [3.1, 2.95], SHAPE)
    with pytest.raises(ReplayError, match=message):
        largest("entry", 0.0, Totals(bug), limit=None, observations=near_zero)


UNITS = ["value", "slice_values:0", "entry", "slice:0"]


@pytest.mark.parametrize("unit", UNITS)
def test_statistic_perturbation_passes_before_bugs_are_planted(unit):
    assert 0.7 < largest(unit) <= 1


@pytest.mark.parametrize("unit", UNITS)
def test_halved_sensitivities_of_sums_are_caught(unit, monkeypatch):
    sound = row_sums.RowSums.sensitivity

    def halved(self, unit):
        return tuple(replace(change, bound=change.bound / 2) for change in sound(self, unit))

    monkeypatch.setattr(row_sums.RowSums, "sensitivity", halved)
    with pytest.raises(ReplayError, match=r"declared sensitivity|what the plan pays"):
        largest(unit, limit=None)


@pytest.mark.parametrize("unit", ["entry", "slice:0"])
def test_a_block_whose_matrices_get_no_noise_is_caught(unit, monkeypatch):
    sound = vaults.Vault._noised

    def quiet(self, total, event, change):
        answer = sound(self, total, event, change)
        return replace(answer, values=total * change.grid) if total.shape[1:] == (3,) else answer

    assert dense_largest(unit) <= 1
    monkeypatch.setattr(vaults.Vault, "_noised", quiet)
    with pytest.raises(ReplayError, match=r"bit for bit|declared sensitivity"):
        dense_largest(unit)


def test_weights_that_forget_how_active_a_slice_is_are_caught(monkeypatch):
    for module in (normal_equations, row_sums):
        monkeypatch.setattr(module, "slice_weights", lambda data, rows, pure: np.ones(len(data)))
    for unit in ("slice_values:0", "slice:0"):
        with pytest.raises(ReplayError, match="declared sensitivity"):
            largest(unit, limit=None)


@pytest.mark.parametrize("unit", ["slice_values:0", "slice:0"])
def test_weights_whose_squares_add_up_to_one_are_not_enough_for_a_histogram(unit, monkeypatch):
    """Sum of squares <= 1 is enough only with one observation of a slice in a cell."""

    def squares(data, rows, pure):
        slices = data.index(0)
        return 1 / np.sqrt(np.bincount(slices, minlength=data.shape[0]))[slices]

    monkeypatch.setattr(histogram, "slice_weights", squares)
    with pytest.raises(ReplayError, match="declared sensitivity"):
        largest(unit, limit=None)


@pytest.mark.parametrize("unit", ["entry", "slice:0"])
def test_a_limit_on_features_that_reads_how_many_observations_there_are_is_caught(unit, monkeypatch):
    half_sweep, typical = statistic._half_sweep, statistic.typical_feature

    def counting(vault, *arguments):
        count = sum(map(len, vault._shards))
        monkeypatch.setattr(statistic, "typical_feature", lambda *one: typical(*one) * count / 1000)
        return half_sweep(vault, *arguments)

    monkeypatch.setattr(statistic, "_half_sweep", counting)
    with pytest.raises(ReplayError, match=r"bit for bit|declared sensitivity"):
        dense_largest(unit)


def test_a_sum_that_is_not_clipped_is_caught(monkeypatch):
    sound = row_sums.whole_sums
    monkeypatch.setattr(row_sums, "whole_sums", lambda rows, part, size: sound(rows, 1.5 * part, size))
    with pytest.raises(ReplayError, match="declared sensitivity"):
        largest("entry", limit=None)


def test_noise_that_is_scaled_down_is_caught(monkeypatch):
    sound = vaults._law

    def weak(*arguments):
        law = sound(*arguments)
        return replace(law, scale=law.scale / 2)

    monkeypatch.setattr(vaults, "_law", weak)
    with pytest.raises(ReplayError, match="Gaussian precision"):
        largest("value")


def test_users_coupled_by_a_sign_that_all_share_are_caught(monkeypatch):
    sound = own_rows.own_rows

    def coupled(shard, *arguments):
        return sound(shard, *arguments) * (-1.0) ** len(np.unique(shard.index(0)))

    monkeypatch.setattr(own_rows, "own_rows", coupled)
    with pytest.raises(ReplayError, match="declared sensitivity"):
        dense_largest("slice:0")


def test_a_one_shot_release_that_pays_for_too_few_changing_numbers_is_caught():
    names = ("user", "film", "day")
    data = tv.Observations(np.argwhere(np.ones((4, 3, 2))), np.full(24, 1.0), (4, 3, 2), mode_names=names)
    other = data.with_values(np.where(data.coordinates[:, 0] == 1, 5.0, 1.0))
    plan = tv.InputPerturbation(noise="gaussian", solver="als").plan(
        tv.CP(1), tv.Bounds(1, 5), "slice_values:user", 1.0, 1e-6, shape=(4, 3, 2), mode_names=names, at_most=6
    )
    replay(data, other, plan)
    object.__setattr__(plan, "gaussian_coordinates", 5)  # six values of the user change
    with pytest.raises(vaults.VaultError, match="precision of every noisy number"):
        replay(data, other, plan)


def test_a_replay_counts_what_was_used_at_every_call():
    plan = tv.StatisticPerturbation(sweeps=1).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, 1e-6, shape=SHAPE)
    found = replay(*next(neighbours(OBSERVATIONS, "value", BOUNDS)), plan)
    assert len(found.used) == len(found.calls) == 1 + len(plan.stages)  # the key of the hash is free
    assert found.largest == max(found.used)


def test_equal_data_use_nothing():
    plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), BOUNDS, "entry", 1.0, 1e-6, shape=SHAPE)
    assert replay(OBSERVATIONS, OBSERVATIONS, plan).largest == 0.0


@pytest.mark.parametrize("ignored", ["in all steps", "after the first step"])
@pytest.mark.parametrize("unit", ["value", "entry", "slice:0"])
def test_samples_that_ignore_their_coins_are_caught(unit, ignored, monkeypatch):
    mechanism, sound, steps = tv.GradientPerturbation(steps=3, sampling_probability=0.5), vaults._of_sample, []
    assert largest(unit, mechanism=mechanism, limit=2, observations=DENSE) > 0

    def everybody(query, shard, coins):
        steps.append(coins)
        read = ignored == "after the first step" and len(steps) % 3 == 1
        return sound(query, shard, coins) if read else query.of(shard)

    monkeypatch.setattr(vaults, "_of_sample", everybody)
    with pytest.raises(ReplayError, match="chosen by the coins"):
        largest(unit, mechanism=mechanism, limit=2, observations=DENSE)
