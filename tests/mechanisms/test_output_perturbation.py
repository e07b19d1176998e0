"""Output perturbation: its sensitivity is exact, and every way to use it keeps it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.mechanisms.output import feature_bits
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.rows.exact_rows import MOST_BITS

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


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_noise_on_solved_rows_has_the_stated_size(delta):
    """In units of the sensitivity, a plane vector of norm-exponential noise, or of normal noise."""
    shape, frozen = (1, 4, 3), tv.CPModel([RNG.normal(0, 0.7, (size, 2)) for size in (1, 4, 3)])
    plan = tv.OutputPerturbation(blocks=(0,), frozen=frozen).plan(tv.CP(2), BOUNDS, "value", 2.0, delta, shape=shape)
    where = np.argwhere(np.ones(shape))
    observations = tv.Observations(where, np.linspace(1, 5, 12), shape)

    class Keeper(NoiseSource):
        def rows(self, statistic, **parameters):
            released = super().rows(statistic, **parameters)
            self.noise = released - statistic * parameters["grid"]
            return released

        def gaussian(self, statistic, **parameters):
            released = super().gaussian(statistic, **parameters)
            self.noise = released - statistic * parameters["grid"]
            return released

    sizes = []
    for seed in range(400):
        source = Keeper(seed)
        tv.fit(observations, plan, noise=source)
        sizes.append(np.linalg.norm(source.noise[0]))
    event = plan.stages[0].event
    if isinstance(event, PureEvent):  # the radius is Gamma(2, 1 / epsilon): mean 2 / epsilon
        assert np.mean(sizes) == pytest.approx(2 / 2.0, rel=0.12)
    else:  # mean radius sqrt(pi / 2) std
        assert np.mean(sizes) == pytest.approx(np.sqrt(np.pi / 2) * event.noise_multiplier, rel=0.12)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2**30), st.floats(1e-3, 2.0**20))
def test_bits_fit_the_sums_or_are_refused_before_anything_is_paid(most, multiplier):
    """The vault must not make the grid finer: the finer sums might not fit."""
    from tensorveil.privacy.noise.source import LARGEST_SCALE, grid_for

    bits = feature_bits(most, 3, GaussianEvent(multiplier))
    grid = 2.0 ** -(bits + 20)
    assert multiplier <= LARGEST_SCALE * grid
    assert grid <= grid_for(multiplier)
    assert bits + most.bit_length() <= MOST_BITS or multiplier < 0.3
    assert feature_bits(most, 3, PureEvent(1.0)) + most.bit_length() <= MOST_BITS


def test_counts_that_do_not_fit_their_noise_are_refused_before_anything_is_paid():
    class Counted:
        unit, shape = tv.Unit.value(), SHAPE

        def __len__(self):
            return 2**30

        def counts(self, mode):
            return np.array([2**30])

    for kind, block in (("cp", 0), ("tucker", "core")):
        family, frozen = MODELS[kind]
        made = tv.OutputPerturbation(blocks=(block,), frozen=frozen)
        made.check_pattern(Counted(), made.plan(family, BOUNDS, "value", 2.0, 1e-3, shape=SHAPE))
        with pytest.raises(tv.InputError, match="1,073,741,824 values"):
            made.check_pattern(Counted(), made.plan(family, BOUNDS, "value", 24.0, 1e-3, shape=SHAPE))


@pytest.mark.parametrize("epsilon", [1e-4, 1e4])
@pytest.mark.parametrize("kind, block", [("cp", 0), ("tucker", "core"), ("cp", "offsets:1")])
def test_pure_noise_of_any_size_fits_its_grid(kind, block, epsilon):
    family, frozen = MODELS[kind]
    plan = tv.OutputPerturbation(blocks=(block,), frozen=frozen).plan(family, BOUNDS, "value", epsilon, shape=SHAPE)
    assert np.isfinite(tv.fit(OBSERVATIONS, plan, seed=0).predict(WHERE)).all()


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
    first = plan.settings.first
    assert first.epsilon == pytest.approx(0.5)
    assert [stage.event for stage in plan.stages[: len(first.stages)]] == [stage.event for stage in first.stages]
    assert [stage.name for stage in plan.stages[: len(first.stages)]] == [
        f"first stage, {stage.name}" for stage in first.stages
    ]
    assert plan.stages[-1].theorem == "output-exact"


def test_the_first_mechanism_is_asked_whether_the_pattern_fits(monkeypatch):
    def refuse(self, pattern, plan):
        raise tv.InputError("too many for me")

    monkeypatch.setattr(tv.StatisticPerturbation, "check_pattern", refuse)
    plan = tv.OutputPerturbation().plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
    with pytest.raises(tv.InputError, match="too many"):
        tv.fit(OBSERVATIONS, plan)


def test_a_plan_without_names_serves_observations_with_names():
    names = ("user", "film", "day")
    named = tv.Observations(WHERE, OBSERVATIONS.values, SHAPE, mode_names=names)
    plan = tv.OutputPerturbation().plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)
    assert tv.fit(named, plan, seed=0).model == tv.fit(OBSERVATIONS, plan, seed=0).model


@pytest.mark.parametrize("unit", ["entry", "slice:0", "slice_values:0"])
def test_other_units_have_no_theorem(unit):
    with pytest.raises(tv.UnprovenError, match="statistic"):
        tv.OutputPerturbation().plan(tv.CP(rank=2), BOUNDS, unit, 1.0, 1e-6, shape=SHAPE)


@pytest.mark.parametrize("blocks", [(), ("core",), ("offsets",), ("offsets:9",), (7,), ("factor:0",), (True,)])
def test_blocks_that_are_not_there_are_errors(blocks):
    with pytest.raises(tv.InputError):
        tv.OutputPerturbation(blocks=blocks).plan(tv.CP(rank=2), BOUNDS, "value", 1.0, shape=SHAPE)


def test_rows_longer_than_the_proof_allows_for_are_refused_in_the_plan():
    with pytest.raises(tv.InputError, match="4,096 numbers"):
        tv.OutputPerturbation(blocks=(0,)).plan(tv.CP(rank=4097), BOUNDS, "value", 1.0, shape=(2, 2))


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
