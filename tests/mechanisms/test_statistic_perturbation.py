"""Statistic perturbation under replay: random tiny tensors, neighbours chosen to hurt; and it learns."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay

BOUNDS = tv.Bounds(1, 5)
CASES = [
    ("value", 0.0),
    ("slice_values:0", 0.0),
    *((unit, 1e-6) for unit in ("value", "slice_values:0", "entry", "slice:0")),
]


@st.composite
def tiny_tensors(draw, duplicates=True):
    """2 to 4 modes of 1 to 5, any cells, values at the bounds, beyond them, or anywhere."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=4)))
    assume(np.prod(shape) >= 4)
    cell = st.tuples(*(st.integers(0, size - 1) for size in shape))
    cells = draw(st.lists(cell, min_size=2, max_size=25, unique=not duplicates))
    value = st.one_of(st.sampled_from([1.0, 5.0, 3.0, -100.0]), st.floats(0, 6))
    values = draw(st.lists(value, min_size=len(cells), max_size=len(cells)))
    return tv.Observations(cells, values, shape, duplicates="keep" if duplicates else "error")


def family_for(tucker, rank, shape):
    return tv.Tucker(ranks=tuple(min(2, size) for size in shape)) if tucker else tv.CP(rank=rank)


def check(data, observations, case, tucker, rank, mechanism, at_most, epsilon):
    unit, delta = case
    pairs = list(neighbours(observations, unit, BOUNDS, 60))
    assume(pairs)
    plan = mechanism.plan(
        family_for(tucker, rank, observations.shape),
        BOUNDS,
        unit,
        epsilon,
        min(delta, 0.5 / observations.shape[0]),
        shape=observations.shape,
        at_most=at_most if "slice" in unit else None,
    )
    one, other = data.draw(st.sampled_from(pairs))
    found = replay(one, other, plan, seed=data.draw(st.integers(0, 1000)))
    drawn = sum(call.statistic.size for call in found.calls if call.kind == "gaussian")
    assert drawn <= mechanism.design(plan.request).gaussian_coordinates


ARGUMENTS = (
    st.data(),
    tiny_tensors(),
    st.sampled_from(CASES),
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([0.05, 1.0, 8.0]),
)


@settings(max_examples=25, deadline=None)
@given(*ARGUMENTS)
def test_no_neighbour_of_a_random_tensor_is_told_apart(data, observations, case, tucker, rank, at_most, epsilon):
    check(data, observations, case, tucker, rank, tv.StatisticPerturbation(sweeps=1), at_most, epsilon)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(*ARGUMENTS)
def test_no_neighbour_of_many_random_tensors_is_told_apart(data, observations, case, tucker, rank, at_most, epsilon):
    check(data, observations, case, tucker, rank, tv.StatisticPerturbation(), at_most, epsilon)


def small(seed=0, shape=(5, 4, 3)):
    rng = np.random.default_rng(seed)
    where = np.argwhere(rng.random(shape) < 0.5)
    where = where[where[:, 0] != 2]
    return tv.Observations(where, rng.choice([1.0, 2.0, 5.0], len(where)), shape)


@pytest.mark.parametrize("unit", ["entry", "slice:0"])
@pytest.mark.parametrize("family", [tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2))])
def test_the_sensitivity_of_an_added_unit_is_reached(unit, family):
    observations = small()
    plan = tv.StatisticPerturbation(sweeps=1).plan(family, BOUNDS, unit, 4.0, 1e-6, shape=observations.shape)
    used = np.max([replay(*pair, plan).used for pair in neighbours(observations, unit, BOUNDS, 40)], axis=0)
    calls = replay(*next(neighbours(observations, unit, BOUNDS)), plan).calls
    kinds = [call.statistic.ndim for call in calls if call.kind == "gaussian"]
    shares = [share for share, call in zip(used, calls, strict=True) if call.kind == "gaussian"]
    sums = [share for share, kind in zip(shares, kinds, strict=True) if kind == 1]
    assert max(sums[1:]) > 0.99  # offsets
    assert all(share <= 1 for share in shares)
    # right-hand sides and matrices; a slice's own row is short, and so are its features
    assert max(shares[len(sums) :]) > (0.5 if unit == "entry" else 0.2)


@pytest.mark.parametrize("unit, delta", CASES)
def test_with_a_large_budget_an_additive_tensor_is_learnt(unit, delta):
    rng = np.random.default_rng(5)
    shape = (400, 8, 6)
    films, days = rng.normal(0, 0.7, 8), rng.normal(0, 0.5, 6)
    truth = np.broadcast_to(3 + films[:, None] + days, shape).clip(1, 5)
    where = np.argwhere(rng.random(shape) < 0.5)
    observations = tv.Observations(where, truth[tuple(where.T)], shape)
    plan = tv.StatisticPerturbation().plan(tv.CP(rank=1), BOUNDS, unit, 12.0, delta, shape=shape)
    release = tv.fit(observations, plan, seed=0)
    if unit == "slice:0":
        own, cells = observations.take(where[:, 0] == 7), np.argwhere(np.ones((1, 8, 6)))
        cells[:, 0] = 7
        predicted, exact = release.personalize(own).predict(cells), truth[7].ravel()
    else:
        predicted, exact = release.predict(np.argwhere(np.ones(shape))), truth.ravel()
    assert tv.rmse(predicted, exact) < 0.5 * exact.std()


def test_without_delta_matrices_cannot_be_noised():
    for unit in ("entry", "slice:0"):
        with pytest.raises(tv.InputError, match="delta must be above 0"):
            tv.StatisticPerturbation().plan(tv.CP(rank=1), BOUNDS, unit, 1.0, shape=(4, 4))


@pytest.mark.parametrize("options", [{"sweeps": 0}, {"marginal_share": 0.0}, {"offsets_share": 1.0}])
def test_wrong_options_are_errors(options):
    with pytest.raises(tv.InputError):
        tv.StatisticPerturbation(**options)


def test_rows_longer_than_the_proof_allows_for_are_refused_in_the_plan():
    with pytest.raises(tv.InputError, match="4,096 numbers"):
        tv.StatisticPerturbation().plan(tv.CP(rank=4097), BOUNDS, "value", 1.0, shape=(2, 2))


def test_a_core_too_large_for_its_matrix_is_refused_in_the_plan():
    with pytest.raises(tv.InputError, match="core"):
        tv.StatisticPerturbation().plan(tv.Tucker(ranks=(9, 9, 9)), BOUNDS, "value", 1.0, shape=(20, 20, 20))


@pytest.mark.parametrize("unit", ["value", "slice:0"])
def test_a_plan_without_names_serves_observations_with_names(unit):
    """Stages are known by the names that they have in the plan."""
    plain = small()
    named = tv.Observations(plain.coordinates, plain.values, plain.shape, mode_names=("user", "film", "day"))
    plan = tv.StatisticPerturbation(sweeps=1).plan(tv.CP(rank=2), BOUNDS, unit, 1.0, 1e-6, shape=plain.shape)
    assert tv.fit(named, plan, seed=0).model == tv.fit(plain, plan, seed=0).model


def test_pure_noise_that_does_not_fit_its_grid_is_refused_before_anything_is_paid():
    """Rows of a large core reach far; a budget that is small but enough for the factor matrices is not for them."""
    observations, family = small(shape=(8, 8, 8)), tv.Tucker(ranks=(8, 8, 8))
    with pytest.raises(tv.InputError, match="grid steps"):
        tv.StatisticPerturbation().plan(family, BOUNDS, "value", 2e-3, shape=(8, 8, 8))
    enough = tv.StatisticPerturbation().plan(family, BOUNDS, "value", 5e-2, shape=(8, 8, 8))
    assert np.isfinite(tv.fit(observations, enough, seed=0).predict(observations.coordinates)).all()
