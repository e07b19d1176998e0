"""Joint privacy: a row is its owner's alone, computed from the release and the owner's own data."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tensorveil as tv
from tensorveil.mechanisms.personal import (
    largest_feature,
    own_features,
    owner_rows,
    personal_offsets,
    personal_rows,
    typical_feature,
)
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import clip
from tensorveil.solvers.start import public_start

BOUNDS = tv.Bounds(1, 5)
SHAPE = (8, 6, 4)
FAMILIES = [tv.CP(rank=3), tv.Tucker(ranks=(3, 2, 2))]


def data_of(seed, count=60, user=None):
    rng = np.random.default_rng(seed)
    where = np.column_stack(np.unravel_index(rng.choice(np.prod(SHAPE), count, replace=False), SHAPE))
    values = rng.uniform(0.5, 5.5, count)
    keep = np.ones(count, dtype=bool) if user is None else where[:, 0] == user
    return where[keep], values[keep]


def joint_release(family, seed=0, epsilon=1.0, **options):
    plan = tv.StatisticPerturbation().plan(family, BOUNDS, "slice:0", epsilon, 1e-6, shape=SHAPE, **options)
    return tv.fit(tv.Observations(*data_of(seed, 100), SHAPE), plan, seed=seed)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 7), st.sampled_from(FAMILIES))
def test_a_row_does_not_change_by_a_bit_when_other_users_data_change(seed, user, family):
    mine = data_of(seed, 100, user)
    model = public_start(family, SHAPE, std=0.5)
    rng = np.random.default_rng(seed)
    offsets = Offsets(0.1, [None, rng.normal(0, 0.1, 6), None])
    found = []
    for other, count in ((seed + 1, 5), (seed + 2, 150)):
        where, values = data_of(other, count)
        foreign = where[:, 0] != user
        together = np.concatenate([where[foreign], mine[0]]), np.concatenate([values[foreign], mine[1]])
        assume(len(together[1]) > 0)
        observations = tv.Observations(*together, SHAPE)
        data = clip(observations, BOUNDS, tv.Unit.slice(0), bytes(32))
        own = personal_offsets(data, data.centred, offsets, 0)
        rows = personal_rows(data, data.centred, offsets.with_mode(0, own), model, 0)
        found.append((own[user].tobytes(), rows[user].tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_solve_the_owners_ridge_regression(family):
    model = public_start(family, SHAPE, std=0.5)
    where, values = data_of(3, 120)
    data = clip(tv.Observations(where, values, SHAPE), BOUNDS, tv.Unit.slice(0), bytes(32))
    small = 0.05 * data.centred  # nothing is clipped
    rows = personal_rows(data, small, Offsets.none(3), model, 0)
    ridge = 2.0 * typical_feature(model, 0) ** 2
    for user in range(SHAPE[0]):
        own = where[:, 0] == user
        phi = np.array([model.features(cell)[0] for cell in where[own]]).reshape(-1, model.ranks[0])
        stacked = np.vstack([phi, np.sqrt(ridge) * np.eye(model.ranks[0])])
        best = np.linalg.lstsq(stacked, np.concatenate([small[own], np.zeros(model.ranks[0])]), rcond=None)[0]
        np.testing.assert_allclose(rows[user], best, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_feature_is_larger_than_the_bound_from_released_blocks(family):
    model = public_start(family, SHAPE, std=0.5)
    cells = np.argwhere(np.ones(SHAPE))
    for mode in range(3):
        lengths = [np.linalg.norm(model.features(cell)[mode]) for cell in cells]
        assert max(lengths) <= largest_feature(model, mode) * (1 + 1e-12)
        assert np.sqrt(np.mean(np.square(lengths))) == pytest.approx(typical_feature(model, mode))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_public_release_holds_nothing_of_the_protected_mode(family):
    release = joint_release(family)
    assert release.model.withheld_mode == 0
    assert not release.model.factors.factors[0].any()
    assert release.model.offsets.modes[0] is None
    assert release.model.offsets.modes[1] is not None
    assert "joint" in release.guarantee.released
    with pytest.raises(tv.InputError, match="personalize"):
        release.predict([[0, 0, 0]])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("at_most", [None, 3])
def test_an_owner_gets_a_model_that_predicts_for_the_owner_alone(family, at_most):
    release = joint_release(family, at_most=at_most)
    own = tv.Observations(*data_of(0, 100, 5), SHAPE)
    model = release.personalize(own)
    cells = np.argwhere(np.ones(SHAPE))
    predictions = model.predict(cells[cells[:, 0] == 5])
    assert np.isfinite(predictions).all()
    assert predictions.min() >= 1
    assert predictions.max() <= 5
    with pytest.raises(tv.InputError, match="index 5"):
        model.predict(cells)
    for mode in (1, 2):
        np.testing.assert_array_equal(model.factors.factors[mode], release.model.factors.factors[mode])
    others = np.arange(SHAPE[0]) != 5
    assert not model.factors.factors[0][others].any()
    assert not model.offsets.modes[0][others].any()


def test_personalizing_follows_the_owners_own_level():
    release = joint_release(tv.CP(rank=2))
    cells = np.argwhere(np.ones((1, 6, 4)))
    high = release.personalize(tv.Observations(cells, np.full(24, 5.0), SHAPE)).predict(cells)
    low = release.personalize(tv.Observations(cells, np.full(24, 1.0), SHAPE)).predict(cells)
    assert high.mean() > 4
    assert low.mean() < 2


def test_personalizing_asks_for_one_owner_of_the_right_shape():
    release = joint_release(tv.CP(rank=2))
    with pytest.raises(tv.InputError, match="one index of mode 0"):
        release.personalize(tv.Observations(*data_of(0, 100), SHAPE))
    with pytest.raises(tv.InputError, match="shape"):
        release.personalize(tv.Observations([[0, 0]], [3.0], (8, 6)))


def test_a_release_for_everybody_cannot_be_personalized():
    plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
    observations = tv.Observations(*data_of(0, 100), SHAPE)
    with pytest.raises(tv.InputError, match="joint release"):
        tv.fit(observations, plan, seed=0).personalize(observations)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_own_features_times_the_row_are_the_prediction(family, mode):
    model = public_start(family, SHAPE, std=0.5)
    where, _ = data_of(3, 40)
    rows = model.factors[mode][where[:, mode]]
    predicted = (own_features(model, where.astype(np.uint32), mode) * rows).sum(axis=1)
    np.testing.assert_allclose(predicted, model.predict(where.astype(np.uint32)), atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_owner_finds_offset_and_row_together(family):
    """Offset and features overlap: the one after the other would leave part of what both can tell."""
    model = public_start(family, SHAPE, std=0.5)
    where, _ = data_of(3, 190, user=2)
    where = np.tile(where, (400, 1))
    features = own_features(model, where.astype(np.uint32), 0)
    truth = 0.2 + features @ np.linspace(-0.3, 0.3, features.shape[1])
    observations = tv.Observations(where, BOUNDS.uncentred(truth), SHAPE, duplicates="keep")
    data = clip(observations, BOUNDS, tv.Unit.slice(0), bytes(32))
    offsets, rows = owner_rows(data, Completion(Offsets.none(3), model, 1.0, 5.0, 0), 0)
    np.testing.assert_allclose(offsets[2] + features @ rows[2], truth, atol=0.02)
    assert not np.delete(rows, 2, axis=0).any()
