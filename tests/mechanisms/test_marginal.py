"""The marginal as first stages: exact where noise is small, harmless where it is large, never more than is paid for."""

import math

import numpy as np
import pytest

import tensorveil as tv
from marginal_alone import MarginalAlone
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.mechanisms.parts.marginal import (
    ask_marginal,
    marginal_coordinates,
    marginal_share,
    marginal_stages,
)
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS, clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Request
from tensorveil.privacy.vault import Vault

BOUNDS = tv.Bounds(0, 10)
UNITS = ["value", "slice_values:0", "entry", "slice:0"]
LITTLE = PureEvent(1000.0)


def request(unit, shape=(200, 20), delta=1e-6, count=None, epsilon=1.0):
    return Request.checked(tv.CP(rank=1), BOUNDS, unit, epsilon, delta, shape, None, count, None)


def asked(values, unit, event, seed=0):
    """The marginal, the queries that it took, and the vault after them."""
    where = np.argwhere(np.ones((200, 20)))
    told = request(unit)
    stages = marginal_stages(told, [event] * 3)
    shard = clip(tv.Observations(where, values, (200, 20)), BOUNDS, told.unit, bytes(32))
    vault = Vault([shard], stages, marginal_coordinates(told), NoiseSource(seed))
    queries = []
    answer = vault.answer
    vault.answer = lambda stage, query: queries.append(query) or answer(stage, query)
    return ask_marginal(vault, stages, BOUNDS), queries, vault


def normal_values(mean=6.0, std=1.0):
    return np.clip(np.random.default_rng(0).normal(mean, std, 4000), 0, 10)


@pytest.mark.parametrize("event", [LITTLE, GaussianEvent(0.1)])
@pytest.mark.parametrize("unit", UNITS)
def test_with_little_noise_it_is_the_law_of_the_values(unit, event):
    values = normal_values()
    marginal, queries, _ = asked(values, unit, event)
    assert len(queries[0].first) == 16
    assert len(queries[0].first) < len(queries[1].first) <= 256
    assert marginal.mean() == pytest.approx((values.mean() - 5) / 5, abs=0.01)
    assert marginal.std() == pytest.approx(values.std() / 5, rel=0.03)
    for share in (0.1, 0.5, 0.9):
        assert float(marginal.quantile(share)) == pytest.approx((np.quantile(values, share) - 5) / 5, abs=0.02)
    assert marginal.total == pytest.approx(200 if "slice" in unit else 4000, rel=0.02)


@pytest.mark.parametrize("unit", UNITS)
def test_atoms_are_found_within_cells_of_a_four_thousandth_of_the_bounds(unit):
    marginal, _, _ = asked(np.tile([0.0, math.e, 10.0, 10.0], 1000), unit, LITTLE)
    for value, mass in ((0.0, 0.25), (math.e, 0.25), (10.0, 0.5)):  # on no lattice
        step = BOUNDS.steps(np.array([value]))[0]
        (cell,) = np.flatnonzero((marginal.first <= step) & (step < marginal.last))
        assert marginal.masses[cell] == pytest.approx(mass, abs=0.01)
        assert marginal.last[cell] - marginal.first[cell] <= 2 * VALUE_STEPS // 4096 + 1


@pytest.mark.parametrize("event", [PureEvent(1e-3), GaussianEvent(3000.0)])
@pytest.mark.parametrize("unit", UNITS)
def test_where_noise_hides_all_cells_the_same_ones_are_counted_three_times(unit, event):
    marginal, queries, vault = asked(normal_values(), unit, event)
    assert len(vault.receipts) == 3
    assert [len(query.first) for query in queries] == [16, 16, 16]
    assert marginal.masses.sum() == pytest.approx(1.0)
    assert -1 <= marginal.mean() <= 1


def test_counts_of_the_same_cells_are_averaged(monkeypatch):
    seen = []
    monkeypatch.setattr("tensorveil.mechanisms.parts.marginal.marginal_of", lambda released, *_: seen.append(released))
    monkeypatch.setattr(
        "tensorveil.mechanisms.parts.marginal.refined", lambda released, parts: (np.empty(0, np.int64),) * 2
    )
    errors = []
    for seed in range(30):
        asked(normal_values(), "value", PureEvent(0.01), seed)
        ((counted,),) = (seen.pop(),)
        exact = np.histogram(normal_values(), np.linspace(0, 10, 17))[0]
        errors.append(np.mean((counted.counts - exact) ** 2) / counted.variance)
    assert counted.variance == pytest.approx(2 * (2 / 0.01) ** 2 / 3, rel=1e-3)
    assert np.mean(errors) == pytest.approx(1.0, abs=0.25)


@pytest.mark.parametrize("unit", UNITS)
def test_no_histogram_has_more_cells_than_the_plan_counts(unit):
    """Values everywhere and little noise: every cell is split."""
    marginal, queries, vault = asked(np.linspace(0, 10, 4000), unit, GaussianEvent(0.1))
    sizes = [len(query.first) for query in queries]
    assert sizes[:2] == [16, 256]
    assert sizes[2] > 1000
    assert sum(sizes) <= marginal_coordinates(request(unit)) == 16 + 256 + 4096
    assert vault._meter.gaussian_coordinates == marginal_coordinates(request(unit)) - sum(sizes)
    np.testing.assert_array_equal(marginal.first[1:], marginal.last[:-1])
    assert (marginal.first[0], marginal.last[-1]) == (-VALUE_STEPS, VALUE_STEPS + 1)


def test_the_share_falls_with_the_public_number_of_units_and_with_epsilon():
    assert marginal_share(request("value", count=1000)) == 0.15
    assert marginal_share(request("value", count=100_000)) == pytest.approx(0.02)
    assert marginal_share(request("value", count=100_000, epsilon=2.0)) == pytest.approx(0.01)
    assert marginal_share(request("value", delta=0.0, count=10**7)) == 0.005
    assert marginal_share(request("entry", delta=0.0, count=10**7)) == 0.02  # a declared count may be too large
    assert marginal_share(request("slice:0", shape=(50_000, 3), count=10**9)) == pytest.approx(0.04)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("unit", UNITS)
def test_neighbours_are_not_told_apart_by_a_replay(unit, delta):
    rng = np.random.default_rng(1)
    where = np.tile(np.argwhere(np.ones((6, 5))), (10, 1))
    data = tv.Observations(where, rng.choice([0.0, 3.0, 3.1, 10.0], len(where)), (6, 5), duplicates="keep")
    plan = MarginalAlone().plan(tv.CP(rank=1), BOUNDS, unit, 20.0 if delta == 0 else 8.0, delta, shape=(6, 5))
    used = []
    for pair in neighbours(data, unit, BOUNDS, 6):
        found = replay(*pair, plan)
        used.append([share for share, call in zip(found.used, found.calls, strict=True) if call.kind != "key"])
    assert np.min(np.max(used, axis=0)) > 0.4  # every stage can tell, and none by more than it may
    assert np.max(used) > 0.99


def test_noise_that_no_grid_holds_is_refused_while_planning():
    with pytest.raises(tv.InputError, match="use more epsilon"):
        marginal_stages(request("value"), [PureEvent(1e-6)] * 3)
    with pytest.raises(ValueError, match=r"shorter|longer"):
        marginal_stages(request("value"), [PureEvent(1.0)] * 2)
