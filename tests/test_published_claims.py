"""What holds for all three published algorithms: a claim, never a proof; the seed's sole rule; no wrong epsilon."""

import math

import numpy as np
import pytest

import oracles
from tensorveil.data.datasets import synthetic
from tensorveil.data.observations import Observations
from tensorveil.errors import DivergenceError, InputError
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.published import PublishedGradient, PublishedInput, PublishedOutput
from tensorveil.solvers.sgd import SGD

MECHANISMS = [PublishedInput(), PublishedGradient(), PublishedOutput()]
FAMILIES = [CP(2), Tucker((2, 3, 2))]
TRAIN = synthetic.observe(synthetic.cp_tensor((6, 5, 7), 2, seed=0), seed=0).train
FEW = SGD(iterations=3)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one.name)
@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, True, "1", None, 10**400], ids=lambda one: str(one)[:5])
def test_a_wrong_epsilon_is_refused_before_anything_runs(mechanism, epsilon):
    with pytest.raises(InputError, match="epsilon must be"):
        mechanism.run(TRAIN, CP(2), epsilon, oracles.UncalledSolver())


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one.name)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_guarantee_is_a_claim_with_reasons_and_not_for_publication(mechanism, family):
    for seed in (1, None):
        run = mechanism.run(TRAIN, family, 2.5, FEW, seed=seed)
        guarantee = run.guarantee
        assert (guarantee.epsilon, guarantee.delta, guarantee.unit) == (2.5, 0.0, "value")
        assert guarantee.status == "claimed"
        assert not guarantee.publishable
        assert guarantee.seeded == (seed is not None)
        assert guarantee.reasons
        text = str(guarantee)
        assert text.startswith("Claimed, not proven: epsilon = 2.5")
        assert all(reason in text for reason in guarantee.reasons)
        assert run.model.family == family
        assert run.loss.shape == (3,)


def test_each_algorithm_names_its_theorem_and_its_own_weak_points():
    sources = [mechanism.run(TRAIN, CP(2), 1.0, FEW, seed=0).guarantee for mechanism in MECHANISMS]
    assert ["Algorithm 1, Theorem 1" in one.source for one in sources] == [True, False, False]
    assert ["Algorithm 2, Theorem 2" in one.source for one in sources] == [False, True, False]
    assert ["Algorithm 3, Theorem 3" in one.source for one in sources] == [False, False, True]
    assert any("read off the data" in reason for reason in sources[0].reasons)
    assert any("raw values" in reason for reason in sources[1].reasons)
    assert any("not convex" in reason for reason in sources[2].reasons)
    public = PublishedInput(bounds=(0, 1)).run(TRAIN, CP(2), 1.0, FEW, seed=0).guarantee
    assert not any("read off the data" in reason for reason in public.reasons)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one.name)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_seed_alone_decides_the_run(mechanism, family):
    first, second, third = (mechanism.run(TRAIN, family, 5.0, FEW, seed=seed).model for seed in (1, 1, 2))
    assert first.parameters.tobytes() == second.parameters.tobytes()
    assert first != third
    assert mechanism.run(TRAIN, family, 5.0, FEW).model != mechanism.run(TRAIN, family, 5.0, FEW).model


@pytest.mark.parametrize("order", oracles.ORDERS)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one.name)
def test_tensors_of_any_order_can_be_perturbed(mechanism, order):
    values = np.random.default_rng(order).uniform(size=oracles.SHAPES[order])
    data = Observations.from_dense(values)
    for family in (CP(2), Tucker(oracles.RANKS[order])):
        run = mechanism.run(data, family, 50.0, FEW, seed=0)
        assert run.model.shape == data.shape
        assert np.isfinite(run.model.parameters).all()


def test_progress_is_passed_on_and_divergence_is_not_hidden():
    for mechanism in MECHANISMS:
        told = []
        run = mechanism.run(TRAIN, CP(2), 5.0, FEW, seed=0, progress=lambda *what, told=told: told.append(what))
        assert [loss for _, loss in told] == run.loss.tolist()
        with pytest.raises(DivergenceError):
            mechanism.run(TRAIN, CP(2), 5.0, SGD(learning_rate=20.0), seed=0)


@pytest.mark.parametrize("clip_norm", [0, -1, math.nan, math.inf, "1", True])
def test_clip_norms_are_positive_numbers(clip_norm):
    with pytest.raises(InputError, match="clip_norm"):
        PublishedGradient(clip_norm)
    with pytest.raises(InputError, match="lipschitz"):
        PublishedOutput(clip_norm)


@pytest.mark.parametrize("mode", [3, -4, "last", 1.0])
def test_gradient_noise_needs_a_mode_of_the_tensor(mode):
    with pytest.raises(InputError, match="mode must be"):
        PublishedGradient(mode=mode).run(TRAIN, CP(2), 1.0, oracles.UncalledSolver())
