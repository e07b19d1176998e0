"""Output perturbation: its sensitivity is exact, and every way to use it keeps it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.mechanisms.output import FLOAT_MARGIN, exact_sensitivity, release_rows
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.noise.source import NoiseSource

BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)
RNG = np.random.default_rng(0)
WHERE = np.argwhere(RNG.random(SHAPE) < 0.5)
WHERE = WHERE[WHERE[:, 0] != 3]
OBSERVATIONS = tv.Observations(WHERE, RNG.uniform(1, 5, len(WHERE)), SHAPE)
FROZEN_CP = tv.CPModel([RNG.normal(0, 0.7, (size, 2)) for size in SHAPE])
FROZEN_TUCKER = tv.TuckerModel(RNG.normal(0, 0.7, (2, 2, 2)), [RNG.normal(0, 0.7, (size, 2)) for size in SHAPE])
MODELS = {"cp": (tv.CP(rank=2), FROZEN_CP), "tucker": (tv.Tucker(ranks=(2, 2, 2)), FROZEN_TUCKER)}


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(
    "kind, block",
    [("cp", 0), ("cp", 2), ("tucker", 1), ("tucker", "core"), ("cp", "offsets:1"), ("tucker", "offsets:0")],
)
def test_the_declared_sensitivity_is_reached_within_one_percent_and_never_passed(kind, block, delta):
    family, frozen = MODELS[kind]
    mechanism = tv.OutputPerturbation(blocks=(block,), frozen=frozen)
    plan = mechanism.plan(family, BOUNDS, "value", 1.0, delta, shape=SHAPE)
    shares = [replay(*pair, plan).largest for pair in neighbours(OBSERVATIONS, "value", BOUNDS)]
    assert 0.99 < max(shares) <= 1 + 1e-9


@pytest.mark.parametrize("ridge", [0.01, 1.0])
def test_exact_sensitivity_is_that_of_ridge_regression_solved_twice(ridge):
    """S^-1 (g' - g) = S (c' - c), S = H^1/2: the noise-shaped change of the solved row, by brute force."""
    rng = np.random.default_rng(1)
    features, rows, values = rng.normal(size=(12, 3)), np.repeat(np.arange(3), 4), rng.uniform(-1, 1, 12)
    roots, inverses = [], []
    for row in range(3):
        own = features[rows == row]
        eigenvalues, vectors = np.linalg.eigh(own.T @ own + ridge * np.eye(3))
        roots.append(vectors * np.sqrt(eigenvalues) @ vectors.T)
        inverses.append(np.linalg.inv(roots[-1]))
    declared = exact_sensitivity(np.array(inverses), features, rows, 3)
    reached = np.zeros(3)
    for place, row in enumerate(rows):
        own = rows == row
        stacked = np.vstack([features[own], np.sqrt(ridge) * np.eye(3)])
        solved = []
        for value in (-1.0, 1.0):
            moved = values.copy()
            moved[place] = value
            target = np.concatenate([moved[own], np.zeros(3)])
            solved.append(np.linalg.lstsq(stacked, target, rcond=None)[0])
        reached[row] = max(reached[row], np.linalg.norm(roots[row] @ (solved[1] - solved[0])))
    np.testing.assert_allclose(reached * FLOAT_MARGIN, declared)


@pytest.mark.parametrize("event", [PureEvent(2.0), GaussianEvent(0.8)])
def test_the_noise_on_solved_rows_has_the_stated_shape_and_size(event):
    """With a single row the released correction before shrinking is H^-1 g + H^-1/2 n: its whitened size is known."""
    rng = np.random.default_rng(2)
    features, steps = rng.normal(size=(6, 2)), np.zeros(6, dtype=np.int64)
    rows = np.tile(np.arange(1), 6)

    class Keeper(NoiseSource):
        def rows(self, statistic, **parameters):
            self.kept = super().rows(statistic, **parameters)
            return self.kept

        def gaussian(self, statistic, **parameters):
            self.kept = super().gaussian(statistic, **parameters)
            return self.kept

    sizes = []
    for seed in range(400):
        source = Keeper(seed)
        release_rows(features, steps, np.zeros(6), rows, 1, 0.3, event, source)
        sizes.append(np.linalg.norm(source.kept[0]))
    if isinstance(
        event, PureEvent
    ):  # divided by the sensitivity, the radius is Gamma(2, 1 / epsilon): mean 2 / epsilon
        assert np.mean(sizes) == pytest.approx(2 / 2.0, rel=0.12)
    else:  # divided by the sensitivity, a normal plane vector: mean radius sqrt(pi / 2) std
        assert np.mean(sizes) == pytest.approx(np.sqrt(np.pi / 2) * 0.8, rel=0.12)


def test_rows_without_data_get_no_noise_and_stay():
    plan = tv.OutputPerturbation(blocks=(0,), frozen=FROZEN_CP).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
    release = tv.fit(OBSERVATIONS, plan, seed=1)
    np.testing.assert_array_equal(release.model.factors.factors[0][3], FROZEN_CP.factors[0][3])
    for mode in (1, 2):
        np.testing.assert_array_equal(release.model.factors.factors[mode], FROZEN_CP.factors[mode])


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(2, 5), min_size=2, max_size=4),
    st.booleans(),
    st.sampled_from([0.0, 1e-6]),
    st.sampled_from([0.05, 1.0, 10.0]),
)
def test_no_neighbour_of_a_random_tensor_is_told_apart(seed, shape, tucker, delta, epsilon):
    rng = np.random.default_rng(seed)
    where = np.argwhere(rng.random(shape) < rng.uniform(0.2, 1))
    if len(where) == 0:
        return
    values = rng.choice([1.0, 5.0, 2.5], len(where))
    observations = tv.Observations(where, values, tuple(shape))
    family = tv.Tucker(ranks=2) if tucker else tv.CP(rank=2)
    blocks = (0, "offsets:1", *(["core"] if tucker else [1]))
    mechanism = tv.OutputPerturbation(blocks=blocks, first=tv.StatisticPerturbation(sweeps=1))
    plan = mechanism.plan(family, BOUNDS, "value", epsilon, delta, shape=tuple(shape))
    pairs = list(neighbours(observations, "value", BOUNDS))
    found = replay(*pairs[seed % len(pairs)], plan, seed=seed % 1000)
    drawn = sum(call.statistic.size for call in found.calls if call.kind == "gaussian")
    assert drawn <= mechanism.design(plan.request).gaussian_coordinates


def test_the_first_stage_is_paid_for_in_the_same_guarantee():
    plan = tv.OutputPerturbation().plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
    first = plan.settings["first"]
    assert first.epsilon == pytest.approx(0.5)
    assert [stage.event for stage in plan.stages[: len(first.stages)]] == [stage.event for stage in first.stages]
    assert plan.stages[-1].theorem == "output-exact"


@pytest.mark.parametrize("unit", ["entry", "slice:0", "slice_values:0"])
def test_other_units_have_no_theorem(unit):
    with pytest.raises(tv.UnprovenError, match="statistic"):
        tv.OutputPerturbation().plan(tv.CP(rank=2), BOUNDS, unit, 1.0, 1e-6, shape=SHAPE)


@pytest.mark.parametrize("blocks", [(), ("core",), ("offsets",), ("offsets:9",), (7,), ("factor:0",), (True,)])
def test_blocks_that_are_not_there_are_errors(blocks):
    with pytest.raises(tv.InputError):
        tv.OutputPerturbation(blocks=blocks).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)


def test_a_frozen_model_of_another_shape_is_an_error():
    with pytest.raises(tv.InputError, match="frozen"):
        tv.OutputPerturbation(frozen=FROZEN_CP).plan(tv.CP(rank=3), BOUNDS, "value", 1.0, shape=SHAPE)
    with pytest.raises(tv.InputError, match="frozen"):
        tv.OutputPerturbation(frozen=FROZEN_CP).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=(4, 4, 4))


def test_a_frozen_model_of_any_size_keeps_the_sensitivity():
    huge = tv.CPModel([np.full((size, 1), 2.0**17) for size in SHAPE])  # predicts 2^51, where floats are 1/2 apart
    plan = tv.OutputPerturbation(frozen=huge).plan(tv.CP(rank=1), BOUNDS, "value", 1.0, shape=SHAPE)
    for pair in neighbours(OBSERVATIONS, "value", BOUNDS):
        assert replay(*pair, plan).largest <= 1 + 1e-9


def test_a_frozen_model_is_trusted_to_be_public_and_the_guarantee_says_so():
    plan = tv.OutputPerturbation(frozen=FROZEN_CP).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
    assert any("frozen" in text for text in plan.assumptions_trusted)
