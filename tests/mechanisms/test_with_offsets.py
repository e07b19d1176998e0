"""Offsets first, then any mechanism: what they learn adds up, and the budget is shared."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.models.offsets import Offsets

BOUNDS = tv.Bounds(1, 5)
SHAPE = (30, 20, 10)


def additive(seed=0):
    """Values that are a mean and an offset of every index, and nothing else."""
    rng = np.random.default_rng(seed)
    parts = np.meshgrid(*(rng.uniform(-0.6, 0.6, size) for size in SHAPE), indexing="ij")
    where = np.argwhere(np.ones(SHAPE))
    return where, (3.2 + sum(parts)).ravel()


@pytest.mark.parametrize(
    "inner", [tv.GradientPerturbation(), tv.InputPerturbation(solver="als"), tv.StatisticPerturbation()]
)
def test_offsets_explain_what_is_additive_before_the_mechanism_starts(inner):
    where, truth = additive()
    plan = tv.WithOffsets(inner).plan(tv.CP(rank=2), BOUNDS, "value", 10.0, 1e-6, shape=SHAPE)
    release = tv.fit(tv.Observations(where, truth, SHAPE), plan, seed=1)
    assert tv.rmse(truth, release.predict(where)) < 0.35 * truth.std()


def test_the_budget_is_shared_as_stated():
    plan = tv.WithOffsets(share=0.25).plan(tv.CP(rank=2), BOUNDS, "value", 4.0, shape=SHAPE)
    spent = {True: 0.0, False: 0.0}
    for stage in plan.stages:
        spent[stage.name.startswith("residuals")] += stage.event.epsilon * stage.event.count
    assert spent[False] == pytest.approx(1.0)
    assert spent[True] == pytest.approx(3.0)


def test_with_a_joint_mechanism_owners_still_personalize():
    where, truth = additive()
    data = tv.Observations(where, truth, SHAPE)
    plan = tv.WithOffsets(tv.StatisticPerturbation()).plan(tv.CP(rank=1), BOUNDS, "slice:0", 8.0, 1e-3, shape=SHAPE)
    release = tv.fit(data, plan, seed=1)
    assert release.model.withheld_mode == 0
    assert release.model.offsets.modes[0] is None
    own = data.take(where[:, 0] == 7)
    assert np.isfinite(release.personalize(own).predict(own.coordinates)).all()


def test_offsets_add_up():
    one, two = Offsets(1.0, [[0.5, 0.25], None]), Offsets(2.0, [[1.0, 2.0], [3.0]])
    where = np.array([[0, 0], [1, 0]], dtype=np.uint32)
    np.testing.assert_allclose((one + two).at(where), one.at(where) + two.at(where))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_is_between_zero_and_one(share):
    with pytest.raises(tv.InputError, match="share"):
        tv.WithOffsets(share=share)


@pytest.mark.parametrize("unit", ["value", "slice_values:0"])
@pytest.mark.parametrize("epsilon, delta", [(1.0, 1e-6), (4.0, 1e-5), (4.0, 0.0)])
def test_input_perturbation_can_come_after_offsets_at_any_budget(unit, epsilon, delta):
    plan = tv.WithOffsets(tv.InputPerturbation(solver="als")).plan(
        tv.CP(rank=2), BOUNDS, unit, epsilon, delta, shape=SHAPE
    )
    assert 0.9 * epsilon <= plan.epsilon <= epsilon


@pytest.mark.parametrize("wrong", ["input", tv.InputPerturbation, None])
def test_what_comes_after_offsets_is_a_mechanism(wrong):
    with pytest.raises(tv.InputError, match="mechanism must be an instance"):
        tv.WithOffsets(wrong)


@pytest.mark.parametrize("inner", [tv.InputPerturbation(), tv.SumPerturbation()])
def test_a_mechanism_that_learns_offsets_itself_is_refused(inner):
    with pytest.raises(tv.InputError, match="learn offsets itself"):
        tv.WithOffsets(inner).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
