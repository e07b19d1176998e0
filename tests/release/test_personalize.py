"""Joint privacy: a row is its owner's alone, computed from the release and the owner's own data."""

from dataclasses import replace

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.release.people.newcomers import newcomers
from tensorveil.release.predictions import everybody

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


def test_a_release_for_everybody_must_be_told_whose_mode_it_is_and_a_published_one_cannot_be_personalized():
    plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
    observations = tv.Observations(*data_of(0, 100), SHAPE)
    with pytest.raises(tv.InputError, match="mode must name the mode"):
        tv.fit(observations, plan, seed=0).personalize(observations)
    published = tv.published.PublishedInput().plan(tv.CP(2), 1.0, tv.SGD(iterations=1))
    with pytest.raises(tv.InputError, match="published model"):
        tv.fit(observations, published, seed=0).personalize(observations, mode=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_person_outside_the_shape_gets_the_row_of_one_inside_with_the_same_data(family):
    release = joint_release(family)
    where, values = data_of(0, 100, 5)
    inside = release.personalize(tv.Observations(where, values, SHAPE))
    new = where.copy()
    new[:, 0] = 0
    outside = release.personalize(tv.Observations(new, values, (1, *SHAPE[1:])))
    cells = np.argwhere(np.ones((1, *SHAPE[1:])))
    mine = cells.copy()
    mine[:, 0] = 5
    np.testing.assert_allclose(outside.predict(cells), inside.predict(mine), rtol=1e-12)
    if outside.shape[0] > 1:
        with pytest.raises(tv.InputError, match="index 0"):
            outside.predict([[1, 0, 0]])
    with pytest.raises(tv.InputError, match="for everybody"):
        replace(release, model=outside).save("never")


@pytest.mark.parametrize("mechanism", [tv.SumPerturbation(), tv.StatisticPerturbation()], ids=lambda one: one.name)
def test_what_an_owner_gets_does_not_depend_on_other_owners(mechanism):
    """Also where all of them are computed at once: the billboard lemma allows the release and the own data only."""
    rng, shape = np.random.default_rng(3), (60, 20)
    where = np.argwhere(rng.random(shape) < 0.4)
    values, mine = rng.uniform(-0.5, 0.5, len(where)), where[:, 0] == 7
    plan = mechanism.plan(tv.CP(2), tv.Bounds(-1, 1), "slice:0", 8.0, 1e-5, shape=shape)
    release = tv.fit(tv.Observations(where, values, shape), plan, seed=1)
    alone = release.personalize(tv.Observations(where[mine], values[mine], shape))
    cells = np.column_stack([np.full(20, 7), np.arange(20)])
    for others in (values, rng.choice([-1.0, 1.0], len(where))):
        together = everybody(release, tv.Observations(where, np.where(mine, values, others), shape))
        np.testing.assert_array_equal(together.predict(cells), alone.predict(cells))


@pytest.mark.parametrize(
    "unit, delta, mechanism",
    [
        ("value", 0.0, tv.InputPerturbation(solver=tv.Posterior(sweeps=20, chains=2, threads=1))),
        ("slice:0", 1e-5, tv.SumPerturbation()),
    ],
    ids=["value", "slice"],
)
def test_numbers_of_one_person_do_not_change_with_the_people_beside(unit, delta, mechanism):
    """Neither with how many they are, nor with their values, also if all are predicted in one call."""
    rng, shape = np.random.default_rng(5), (40, 12)
    where = np.argwhere(rng.random(shape) < 0.6)
    data = tv.Observations(where, rng.uniform(1, 5, len(where)), shape)
    release = tv.complete(data, tv.CP(2), tv.Bounds(1, 5), unit, 8.0, delta, mechanism=mechanism, seed=1)
    mine = np.column_stack([np.zeros(4, np.int64), [1, 3, 5, 8]])
    told = []
    for people, level in [(1, 0.0), (2, 1.0), (2, 5.0), (3, 2.0), (9, 5.0)]:
        others = np.argwhere(np.ones((people, 12)))[12:]
        values = np.concatenate([[2.0, 4.0, 3.0, 5.0], np.full(len(others), level)])
        model = newcomers(release, tv.Observations(np.vstack([mine, others]), values, (people, 12)), 0)
        cells = np.argwhere(np.ones((people, 12)))
        told.append(np.array([model.predict(cells), *model.interval(cells, 0.9)])[:, :12])
    for numbers in told[1:]:
        np.testing.assert_array_equal(numbers, told[0])
