"""Symbols of all cells: replays of both roads, when they are bought, and that they tell what sums cannot."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.mechanisms.parts.cells import cells_are_better
from tensorveil.privacy.plan import Request

BOUNDS = tv.Bounds(1, 5)


def stars(shape=(30, 25, 4), share=0.6, seed=0):
    """Whole stars of a rank-one tensor without offsets, some of them seen, and all of them."""
    rng = np.random.default_rng(seed)
    signs = [rng.choice([-1.0, 1.0], size) for size in shape]
    truth = 3 + 1.4 * np.einsum("i,j,k->ijk", *signs)
    where = np.argwhere(rng.random(shape) < share)
    values = np.clip(np.rint(truth[tuple(where.T)] + 0.6 * rng.normal(size=len(where))), 1, 5)
    return tv.Observations(where, values, shape), truth


def request(shape, epsilon, unit="entry"):
    return Request.checked(tv.CP(12), BOUNDS, unit, epsilon, 0.0, shape, None, None, None)


@pytest.mark.parametrize("model", [tv.CP(2), tv.Tucker((2, 2, 2))], ids=str)
@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize("road", ["input", "auto"])
def test_replays_of_both_roads(road, repeated, model):
    """Whole runs on neighbours, to which a cell with several observations may be the one that differs."""
    shape = (5, 4, 3)
    rng = np.random.default_rng(2)
    where = np.tile(rng.permutation(np.argwhere(np.ones(shape)))[:40], (repeated, 1))
    data = tv.Observations(where, rng.choice([-3.0, 1.0, 2.0, 5.0, 9.0], len(where)), shape, duplicates="keep")
    quick = tv.InputPerturbation(solver=tv.Posterior(sweeps=4))
    mechanism = quick if road == "input" else tv.SumPerturbation(cells=True)
    plan = mechanism.plan(model, BOUNDS, "entry", 8.0, shape=shape, expected_count=len(where))
    used = []
    for pair in neighbours(data, "entry", BOUNDS, 6):
        found = replay(*pair, plan)
        channels = [call for call in found.calls if call.kind == "channel"]
        assert [call.statistic.size for call in channels] == [60]
        used.append(found.used[-1])
    assert max(used) == 1.0  # one cell differs


def test_the_road_follows_from_the_released_count():
    """The same plan buys symbols for a dense box and sums for a sparse one."""
    asked = {}
    for share in (0.6, 0.02):
        data, _ = stars(share=share)
        release = tv.complete(data, "cp", BOUNDS, "entry", 5.0, seed=1)
        asked[share] = release.model.draws.mixing[0] > 0  # sweeps of a posterior; sums need none
        assert release.plan.stages[-1].theorems == ("sums-pairs", "input-cells")
    assert asked == {0.6: True, 0.02: False}


def test_symbols_of_cells_find_factors_that_sums_cannot():
    data, truth = stars()
    cells = np.argwhere(np.ones(truth.shape))

    def error(mechanism):
        release = tv.complete(data, tv.CP(2), BOUNDS, "entry", 5.0, mechanism=mechanism, seed=1)
        return np.sqrt(np.mean((release.predict(cells) - truth.ravel()) ** 2))

    found = {name: error(name) for name in ("auto", "input", "sums")}
    assert found["auto"] < 0.5 < 0.9 < found["sums"]
    assert found["input"] < 0.5


@pytest.mark.parametrize(
    ("shape", "count", "better"),
    [
        ((30, 77, 18), 4000, {1: False, 3: False, 5: True, 10: True}),  # car parks
        ((943, 1682), 90_000, {1: False, 3: False, 5: True, 10: True}),  # ratings
        ((30, 30, 1464), 130_000, {1: False, 3: True, 5: True, 10: True}),  # taxi trips
        ((88, 539, 164), 7000, {1: False, 3: False, 5: False}),  # diagnoses: hardly any cell is observed
        ((50_000, 20_000), 10**7, {10: False, 20: False}),  # the box is too large
    ],
)
def test_symbols_are_bought_where_enough_cells_are_observed(shape, count, better):
    for epsilon, expected in better.items():
        assert cells_are_better(request(shape, float(epsilon)), count, float(epsilon)) == expected


def test_only_the_unit_entry_buys_symbols_of_cells():
    for unit in ("value", "slice:0", "slice_values:0"):
        assert not cells_are_better(request((30, 25, 4), 10.0, unit), 1500, 10.0)
    with pytest.raises(tv.UnprovenError, match="channel"):
        tv.InputPerturbation("channel").plan(tv.CP(1), BOUNDS, "slice:0", 5.0, shape=(6, 5, 4), at_most=3)


@pytest.mark.parametrize("epsilon", [5e-4, 0.05, 1.0, 50.0])
@pytest.mark.parametrize("count", [1, 2, 12])
def test_tiny_and_nearly_empty_boxes_are_completed(count, epsilon):
    data = tv.Observations(np.argwhere(np.ones((4, 3)))[:count], np.linspace(1, 5, count), (4, 3))
    plan = tv.InputPerturbation(solver=tv.Posterior(sweeps=10)).plan(tv.CP(1), BOUNDS, "entry", epsilon, shape=(4, 3))
    for seed in range(4):
        predicted = tv.fit(data, plan, seed=seed).predict(np.argwhere(np.ones((4, 3))))
        assert np.isfinite(predicted).all()
        assert predicted.min() >= 1
        assert predicted.max() <= 5


def test_a_release_of_symbols_of_cells_is_saved_and_verified(tmp_path):
    data, _ = stars()
    release = tv.complete(data, "cp", BOUNDS, "entry", 5.0)
    assert release.guarantee.publishable
    assert [name.split()[0] for name in release.guarantee.theorems] == ["histogram", "sums-pairs", "input-cells"]
    release.save(tmp_path / "release")
    assert not [check for check in tv.verify(tmp_path / "release") if check.state == "doubt"]
    loaded = tv.Release.load(tmp_path / "release")
    where = data.coordinates[:9]
    np.testing.assert_array_equal(loaded.predict(where), release.predict(where))
    assert (
        "Every cell, observed or not, was replaced by a random symbol" in (tmp_path / "release/report.html").read_text()
    )
    low, high = loaded.predict(where, interval=0.9)[1:]
    assert (low <= high).all()
