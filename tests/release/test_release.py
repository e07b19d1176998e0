"""A release predicts inside its bounds, and whatever it says follows from its model alone."""

import dataclasses

import numpy as np
import pytest
import tensorly as tl

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


@pytest.mark.parametrize("model", [tv.CP(rank=2), tv.Tucker(ranks=(2, 3, 1))])
@pytest.mark.parametrize("modes", [(), (1,), (0, 1, 2)])
def test_tensorly_reconstructs_the_completion_before_clipping(model, modes):
    rng = np.random.default_rng(5)
    factors = model.model([rng.normal(size=block) for block in model.block_shapes(SHAPE)])
    parts = [rng.normal(size=size) if mode in modes else None for mode, size in enumerate(SHAPE)]
    completion = Completion(Offsets(0.3, parts), factors, -2.0, 7.0)
    release = dataclasses.replace(release_of(), model=completion)
    found = release.to_tensorly()
    dense = tl.cp_to_tensor(found) if model.name == "cp" else tl.tucker_to_tensor(found)
    where = CELLS.astype(np.uint32)
    np.testing.assert_allclose(dense.ravel(), 2.5 + 4.5 * completion.centred(where), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.clip(dense.ravel(), -2, 7), release.predict(CELLS), rtol=1e-12)
    assert dense.max() > 7, "clipping must matter for this test to say anything"


def test_a_model_without_offsets_of_its_own_goes_to_tensorly_as_it_is():
    plan = tv.published.PublishedInput().plan(tv.CP(2), 1.0, tv.SGD(iterations=2))
    release = tv.fit(OBSERVATIONS, plan, seed=0)
    np.testing.assert_allclose(release.to_tensorly().to_tensor().ravel(), release.predict(CELLS))


def test_a_release_has_the_names_and_labels_of_the_observations():
    names, labels = ("a", "b", "c"), (["v", "w", "x", "y", "z"], None, [7, 8, 9])
    data = tv.Observations(CELLS, OBSERVATIONS.values, SHAPE, mode_names=names, labels=labels)
    plan = tv.StatisticPerturbation(sweeps=1).plan(tv.CP(1), tv.Bounds(1, 5), "slice_values:1", 5.0, shape=SHAPE)
    release = tv.fit(data, plan)
    assert release.mode_names == names
    assert release.labels[0].tolist() == labels[0]
    assert release.labels[1] is None
    assert release.guarantee.unit == "slice_values:b", "a plan without names takes those of the observations"
    assert release.mode_number("c") == release.mode_number(-1) == 2
    assert release_of().mode_names == ("mode_0", "mode_1", "mode_2")


@pytest.mark.parametrize(
    "wrong",
    [{"mode_names": ("a", "b")}, {"labels": (None,)}, {"bins": ("day",)}, {"labels": (np.arange(4), None, None)}],
)
def test_names_and_labels_must_fit_the_model(wrong):
    with pytest.raises(tv.InputError, match=next(iter(wrong)).removesuffix("s")):
        dataclasses.replace(release_of(), **wrong)


def test_intervals_hold_the_share_of_values_that_they_say():
    data = tv.synthetic.observe(tv.synthetic.cp_tensor((20, 20, 20), 2, seed=3), snr_kind="variances", seed=4)
    release = tv.complete(data.train, tv.CP(2), tv.Bounds(-0.5, 1.5), "value", 20.0, seed=5)
    found = release.predict(data.test.coordinates, interval=0.8)
    assert np.array_equal(found.prediction, release.predict(data.test.coordinates))
    inside = np.mean((found.low <= data.test.values) & (data.test.values <= found.high))
    assert 0.7 < inside < 0.95
    assert (release.predict(data.test.coordinates, interval=0.5).low >= found.low).all()


def test_a_release_without_posterior_draws_has_no_intervals():
    data = tv.Observations(np.argwhere(np.ones((6, 5))), np.linspace(1, 5, 30), (6, 5))
    for release in (
        tv.complete(data, tv.CP(1), tv.Bounds(1, 5), "value", 1.0, mechanism="statistic"),
        tv.fit(data, tv.published.PublishedGradient().plan(tv.CP(1), 1.0)),
    ):
        with pytest.raises(tv.InputError, match="interval must be left out"):
            release.predict([[0, 0]], interval=0.9)
