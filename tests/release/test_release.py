"""A release predicts inside its bounds, and whatever it says follows from its model alone."""

import dataclasses

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets

SHAPE = (5, 4, 3)
RNG = np.random.default_rng(0)
CELLS = np.argwhere(np.ones(SHAPE))
OBSERVATIONS = tv.Observations(CELLS, RNG.uniform(1, 5, 60), SHAPE)


def release_of(model=None, bounds=(1, 5), epsilon=1.0, seed=0):
    plan = tv.StatisticPerturbation().plan(model or tv.CP(rank=2), tv.Bounds(*bounds), "value", epsilon, shape=SHAPE)
    return tv.fit(OBSERVATIONS, plan, seed=seed)


@pytest.mark.parametrize("model", [tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2))])
def test_predictions_are_offsets_and_factors_on_the_scale_of_the_values(model):
    release = release_of(model, epsilon=500.0)
    completion = release.model
    centred = completion.factors.to_dense() + completion.offsets.mean
    for mode, part in enumerate(completion.offsets.modes):
        centred = centred + part.reshape([-1 if place == mode else 1 for place in range(3)])
    expected = np.minimum(np.maximum(3 + 2 * centred, 1), 5)
    np.testing.assert_allclose(release.predict(CELLS), expected.ravel())
    assert expected.std() > 0.1


@pytest.mark.parametrize("bounds", [(1, 5), (-1e6, 1e6), (0, 1e-9), (1000, 1000.5)])
@pytest.mark.parametrize("epsilon", [0.01, 100.0])
def test_predictions_keep_to_the_bounds(bounds, epsilon):
    predictions = release_of(bounds=bounds, epsilon=epsilon).predict(CELLS)
    assert np.isfinite(predictions).all()
    assert predictions.min() >= bounds[0]
    assert predictions.max() <= bounds[1]


def test_coordinates_outside_are_an_error():
    release = release_of()
    for wrong in ([[5, 0, 0]], [[0, 0]], [[-1, 0, 0]], [[0.5, 0, 0]]):
        with pytest.raises(tv.InputError, match="coordinates"):
            release.predict(wrong)


def test_a_release_is_frozen_and_its_numbers_cannot_be_written():
    release = release_of()
    with pytest.raises(dataclasses.FrozenInstanceError):
        release.guarantee = None
    with pytest.raises(ValueError, match="read-only"):
        release.model.factors.factors[0][0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        release.model.offsets.modes[0][0] = 1.0


def test_a_release_does_not_hold_the_data():
    """No array of it has as many numbers as there are observations, or any of their values."""
    release = release_of(epsilon=1000.0)
    arrays = [release.model.factors.parameters, *release.model.offsets.modes]
    held = np.concatenate([np.ravel(array) for array in arrays])
    assert not np.isin(OBSERVATIONS.values, held).any()
    assert "60" not in repr(release.plan.request)


def test_a_joint_release_predicts_for_nobody_until_personalized():
    factors = tv.CPModel([np.zeros((size, 1)) for size in SHAPE])
    model = Completion(Offsets.none(3), factors, 1.0, 5.0, withheld_mode=1)
    with pytest.raises(tv.InputError, match="personalize"):
        model.predict([[0, 0, 0]])
    owned = dataclasses.replace(model, owned_index=2)
    assert owned.predict([[0, 2, 0]]).tolist() == [3.0]
    with pytest.raises(tv.InputError, match="index 2"):
        owned.predict([[0, 2, 0], [0, 1, 0]])
