"""Gradient perturbation: replay on hurtful neighbours, sensitivities reached, budgets spent, errors, accuracy."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tensorveil.audit import replays
from tensorveil.data.datasets import synthetic
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError, UnprovenError
from tensorveil.kernels.reference import gradients
from tensorveil.mechanisms import gradient as subject
from tensorveil.mechanisms.gradient import GradientPerturbation
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.accounting.events import SampledGaussianEvent
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.queries.base import Change
from tensorveil.privacy.queries.gradients import JointGradients
from tensorveil.privacy.stages import Norm
from tensorveil.release.fitting import fit

SHAPE = (6, 5, 4)
BOUNDS = Bounds(1, 5)
MODELS = [CP(2), Tucker((2, 2, 2))]


def table(seed=0, count=50):
    """Row 5 of mode 0 is empty, row 4 holds one observation, row 0 holds many."""
    generator = np.random.default_rng(seed)
    cells = np.array(list(np.ndindex(4, 5, 4)))
    chosen = np.concatenate([cells[:20], generator.permutation(cells[20:])[: count - 21], [[4, 1, 1]]])
    return chosen, generator.uniform(0, 6, len(chosen))


def observations(where, values, shape=SHAPE):
    return Observations(where, values, shape, duplicates="keep")


def neighbours(unit):
    """Pairs of neighbouring data sets that are chosen to hurt."""
    where, values = table()
    base = observations(where, values)
    kind = unit.split(":")[0]
    if kind == "value":
        for place in (0, len(values) - 1):  # in the most active row and in the rarest
            low, high = values.copy(), values.copy()
            low[place], high[place] = -9.0, 9.0
            yield observations(where, low), observations(where, high)
    elif kind == "entry":
        for coordinate, value in (((5, 0, 0), 5.0), ((0, 0, 0), 1.0), ((4, 1, 1), 5.0)):
            more = observations(np.vstack([where, coordinate]), np.append(values, value))
            yield base, more
            yield more, base
        yield observations(where[:1], values[:1]), observations(where[:2], values[:2])
    elif kind == "slice_values":
        for index in (0, 4):
            mine = where[:, 0] == index
            yield observations(where, np.where(mine, 1.0, values)), observations(where, np.where(mine, 5.0, values))
    else:
        for index in (0, 4):
            mine = where[:, 0] == index
            yield base, observations(where[~mine], values[~mine])
        extra = np.array([(5, j, k) for j in range(5) for k in range(4)])
        yield base, observations(np.vstack([where, extra]), np.append(values, np.full(20, 5.0)))


def plan(form, model, unit, epsilon=4.0, shape=SHAPE, bounds=BOUNDS, **options):
    delta = 1e-4 if form == "gaussian" else 0.0
    return GradientPerturbation(form=form, **options).plan(model, bounds, unit, epsilon, delta, shape=shape)


CASES = [
    *[("gaussian", unit) for unit in ("value", "entry", "slice_values:0", "slice:0")],
    *[("rows", unit) for unit in ("value", "entry")],
]


@pytest.mark.parametrize("model", [*MODELS, CP(2, nonnegative=True)], ids=str)
@pytest.mark.parametrize("form, unit", CASES)
def test_replay(form, unit, model):
    planned = plan(form, model, unit, steps=6)
    for mine, theirs in neighbours(unit):
        found = replays.replay(mine, theirs, planned)
        assert found.largest > 0.01


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("unit", ["value", "entry", "slice_values:0", "slice:0"])
def test_replay_with_poisson_batches(unit, model):
    planned = plan("gaussian", model, unit, steps=10, sampling_probability=0.5)
    assert isinstance(planned.events[1], SampledGaussianEvent)
    assert planned.events[1].replace == unit.startswith(("value", "slice_values"))
    for mine, theirs in neighbours(unit):
        replays.replay(mine, theirs, planned)


@pytest.mark.parametrize("shape", [(5, 4), (4, 3, 2, 3), (3, 2, 3, 2, 2), (2, 2, 2, 2, 2, 2)])
def test_replay_of_every_order(shape):
    generator = np.random.default_rng(3)
    where = np.array(list(np.ndindex(*shape)))
    values = generator.uniform(1, 5, len(where))
    other = values.copy()
    values[0], other[0] = 1.0, 5.0
    for model in (CP(2), Tucker(2)):
        for form in ("gaussian", "rows"):
            planned = plan(form, model, "value", shape=shape, steps=3)
            replays.replay(observations(where, values, shape), observations(where, other, shape), planned)


def test_replay_notices_gradients_that_are_not_clipped(monkeypatch):
    honest = gradients.entry_sums

    def unclipped(*arguments):
        *layout, _, grid, totals = arguments
        honest(*layout, 1e6, grid, totals)

    planned = plan("gaussian", CP(2), "value", steps=3)
    pair = next(iter(neighbours("value")))
    monkeypatch.setattr(gradients, "entry_sums", unclipped)
    with pytest.raises(replays.ReplayError, match="declared sensitivity"):
        replays.replay(*pair, planned)


def quiet(first, shape=(3, 3), count=3000):
    """Many values in the middle, so that the clip norm is small, and one as given."""
    where = np.array(list(np.ndindex(*shape)))[np.arange(count) % 9]
    return observations(where, np.append(first, np.full(count - 1, 0.5)), shape)


def test_two_clip_norms_are_reached_by_one_value():
    """A value moved from bound to bound, far beyond the clip norm on both sides, uses all of 2 m."""
    for form in ("gaussian", "rows"):
        planned = plan(form, CP(1), "value", epsilon=10.0, shape=(3, 3), bounds=Bounds(0, 1), steps=2)
        found = replays.replay(quiet(0.0), quiet(1.0), planned)
        noisy = [
            share for share, call in zip(found.used, found.calls, strict=True) if call.kind in ("gaussian", "rows")
        ]
        assert 0.99 < max(noisy[1:]) <= 1 + 1e-9, form  # the first is the level


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_replay_finds_the_coins_of_observations_of_one_cell(unit):
    """They are sorted by value, so that a new value takes another place, and all between move by one."""
    planned = plan(
        "gaussian", CP(1), unit, epsilon=10.0, shape=(3, 3), bounds=Bounds(0, 1), steps=6, sampling_probability=0.5
    )
    where = np.array(list(np.ndindex(3, 3)))[np.arange(90) % 9]
    values = np.random.default_rng(1).choice([0.0, 0.25, 0.5, 0.75, 1.0], 90)
    more = observations(np.vstack([where, [1, 1]]), np.append(values, 0.5), (3, 3))
    if unit == "entry":
        pairs = [(observations(where, values, (3, 3)), more), (more, observations(where, values, (3, 3)))]
    else:
        lower, upper = (observations(more.coordinates, np.append(values, end), (3, 3)) for end in (0.0, 1.0))
        pairs = [(lower, upper), (upper, lower), (more, upper), (lower, more)]
    for pair in pairs:
        found = replays.replay(*pair, planned)
        sampled = [share for share, call in zip(found.used, found.calls, strict=True) if call.kind == "gaussian"][1:]
        assert max(sampled) > 0.2


def test_replay_notices_a_sensitivity_that_is_stated_too_low(monkeypatch):
    planned = plan("gaussian", CP(1), "value", epsilon=10.0, shape=(3, 3), bounds=Bounds(0, 1), steps=2)
    monkeypatch.setattr(JointGradients, "sensitivity", lambda self, unit: (Change(Norm.L2, self.clip_norm, self.grid),))
    with pytest.raises(replays.ReplayError, match="declared sensitivity"):
        replays.replay(quiet(0.0), quiet(1.0), planned)


def test_replay_notices_counts_that_are_read_off_the_data(monkeypatch):
    planned = plan("gaussian", CP(2), "entry", steps=3)
    honest = subject._ask_moments

    def leaking(vault, *arguments):
        (data,) = vault._shards
        counts = [np.bincount(data.index(mode), minlength=size) * 1.0 for mode, size in enumerate(data.shape)]
        return replace(honest(vault, *arguments), counts=counts)

    monkeypatch.setattr(subject, "_ask_moments", leaking)
    with pytest.raises(replays.ReplayError):
        replays.replay(*next(iter(neighbours("entry"))), planned)


def test_one_clip_norm_is_reached_by_one_entry():
    where = np.array(list(np.ndindex(3, 3)))[np.arange(3000) % 9]
    base = observations(where, np.full(3000, 0.5), (3, 3))
    more = observations(np.vstack([where, [0, 0]]), np.append(np.full(3000, 0.5), 1.0), (3, 3))
    for form in ("gaussian", "rows"):
        planned = plan(form, CP(1), "entry", epsilon=10.0, shape=(3, 3), bounds=Bounds(0, 1), steps=2)
        found = replays.replay(base, more, planned)
        noisy = [
            share for share, call in zip(found.used, found.calls, strict=True) if call.kind in ("gaussian", "rows")
        ]
        assert 0.99 < max(noisy[1:]) <= 1 + 1e-9, form


def test_rows_without_data_get_noise_under_entry():
    where, values = table()
    recorder = replays._Recorder(0)
    planned = plan("rows", CP(2), "entry", steps=2)
    fit(observations(where, values), planned, noise=recorder)
    tables = [call for call in recorder.calls if call.kind == "rows" and call.statistic.shape == (6, 2)]
    assert len(tables) == 2
    for call in tables:
        assert not call.statistic[5].any()
        assert call.output[5].all()


def test_rows_without_data_get_no_noise_under_value():
    where, values = table()
    recorder = replays._Recorder(0)
    planned = plan("rows", CP(2), "value", steps=2)
    fit(observations(where, values), planned, noise=recorder)
    assert {call.statistic.shape[0] for call in recorder.calls if call.kind == "rows"} == {1, 5, 4}


def test_gaussian_noise_reaches_every_number_of_the_model():
    for model in MODELS:
        recorder = replays._Recorder(0)
        planned = plan("gaussian", model, "entry", steps=2)
        fit(observations(*table()), planned, noise=recorder)
        calls = [call for call in recorder.calls if call.kind == "gaussian"][1:]
        for call in calls:
            assert call.statistic.size == sum(map(math.prod, model.block_shapes(SHAPE)))
            assert (call.output != call.statistic * call.parameters["grid"]).all()


@pytest.mark.parametrize("form, unit", CASES)
def test_the_budget_is_kept_and_used(form, unit):
    for model in MODELS:
        for epsilon in (0.5, 5.0):
            planned = plan(form, model, unit, epsilon=epsilon)
            assert 0.99 * epsilon <= planned.epsilon <= epsilon
            assert planned.delta == (1e-4 if form == "gaussian" else 0.0)


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_the_budget_of_poisson_batches_is_kept_and_used(unit):
    planned = plan("gaussian", CP(2), unit, epsilon=2.0, sampling_probability=0.1, steps=40)
    whole = plan("gaussian", CP(2), unit, epsilon=2.0, steps=40)
    assert 0.99 * 2 <= planned.epsilon <= 2
    assert planned.settings.noise < whole.settings.noise / 2  # secret coins save noise


def worst_pair(q, m, z):
    """(1-q) N(0) + q N(m) against (1-q) N(0) + q N(-m) on a fine line, as chances of small intervals."""
    x = np.linspace(-12 * z - m, 12 * z + m, 40001)
    normal = lambda centre: np.exp(-((x - centre) ** 2) / (2 * z * z))  # noqa: E731
    p, r = (1 - q) * normal(0) + q * normal(m), (1 - q) * normal(0) + q * normal(-m)
    return p / p.sum(), r / r.sum()


@pytest.mark.parametrize("q, z", [(0.1, 0.7), (0.5, 1.0), (0.9, 2.0)])
def test_no_two_vectors_beat_the_opposite_pair(q, z):
    """Hockey-stick divergences of planar pairs, |v|, |v'| <= 1, against the pair that the accountant composes."""
    grid = np.linspace(-6 * z - 1, 6 * z + 1, 301)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2 / (2 * np.pi * z * z)
    normal = lambda a, b: np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * z * z)) * cell  # noqa: E731
    p, r = worst_pair(q, 1.0, z)
    for angle in (0.0, 0.5, np.pi / 2, 2.5, np.pi):
        for length in (0.0, 0.5, 1.0):
            mine = (1 - q) * normal(0, 0) + q * normal(1, 0)
            theirs = (1 - q) * normal(0, 0) + q * normal(length * np.cos(angle), length * np.sin(angle))
            for gamma in (0.3, 1.0, 1.5, 3.0):
                for one, other in ((mine, theirs), (theirs, mine)):
                    found = np.maximum(one - gamma * other, 0).sum()
                    assert found <= np.maximum(p - gamma * r, 0).sum() + 1e-4


@pytest.mark.parametrize(
    "options, unit, delta, error, message",
    [
        ({"form": "gaussian"}, "value", 0.0, InputError, "delta must be above 0"),
        ({"form": "rows"}, "slice:0", 0.0, UnprovenError, "gaussian"),
        ({}, "slice_values:1", 0.0, UnprovenError, "gaussian"),
        ({"sampling_probability": 0.0}, "value", 1e-3, InputError, "sampling_probability"),
        ({"sampling_probability": 1.5}, "value", 1e-3, InputError, "sampling_probability"),
        ({"sampling_probability": math.nan}, "value", 1e-3, InputError, "sampling_probability"),
        ({"sampling_probability": 0.5}, "value", 0.0, InputError, "sampling_probability"),
        ({"steps": 0}, "value", 1e-3, InputError, "steps"),
        ({"form": "newton"}, "value", 1e-3, InputError, "form must be one of"),
    ],
)
def test_wrong_use_is_one_clear_error(options, unit, delta, error, message):
    with pytest.raises(error, match=message):
        GradientPerturbation(**options).plan(CP(2), BOUNDS, unit, 1.0, delta, shape=SHAPE)


def run(planned, data, seed):
    return fit(data, planned, seed=seed).model


@pytest.mark.parametrize("form", subject.FORMS)
def test_a_seed_gives_the_same_release_again_and_another_one_does_not(form):
    data = observations(*table())
    planned = plan(form, CP(2), "value")
    assert run(planned, data, 1) == run(planned, data, 1)
    assert run(planned, data, 1) != run(planned, data, 2)


@pytest.mark.parametrize(
    "form, unit, share", [*[(*case, 1.0) for case in CASES], *[("gaussian", unit, 0.5) for _, unit in CASES[:4]]]
)
def test_the_order_of_rows_does_not_matter(form, unit, share):
    """Not even where one cell is observed several times, or coins are tossed for observations."""
    where, values = table()
    where, values = np.tile(where, (3, 1)), np.concatenate([values, values[::-1], values])
    planned = plan(form, Tucker(2), unit, steps=4, sampling_probability=share)
    mine = run(planned, observations(where, values), 1)
    for order in (np.random.default_rng(5).permutation(len(values)), np.argsort(values)):
        assert mine == run(planned, observations(where[order], values[order]), 1)


def test_progress_is_told():
    told = []
    planned = plan("gaussian", CP(2), "value", steps=3)
    fit(observations(*table()), planned, seed=0, progress=lambda *news: told.append(news))
    assert told == [("gradient steps", done, 3) for done in range(4)]


def fraction_of_sd(tensor, unit, epsilon, model, delta=1e-6, **options):
    """RMSE on the noise-free truth of held-out cells, over that truth's standard deviation: the mean has 1."""
    planned = GradientPerturbation(**options).plan(model, Bounds(-1, 2), unit, epsilon, delta, shape=tensor.truth.shape)
    truth = tensor.truth_at(tensor.test.coordinates)
    error = run(planned, tensor.train, 1).predict(tensor.test.coordinates) - truth
    return float(np.sqrt((error**2).mean()) / truth.std())


def low_rank(shape, seed, kind="cp"):
    whole = synthetic.cp_tensor(shape, 3, seed=seed) if kind == "cp" else synthetic.tucker_tensor(shape, 3, seed=seed)
    return synthetic.observe(whole, snr_kind="variances", seed=seed)


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_much_better_than_the_mean_at_a_large_epsilon(unit):
    assert fraction_of_sd(low_rank((30, 30, 30), 0), unit, 10.0, CP(3)) < 0.7


def test_hardly_worse_than_the_mean_at_a_small_epsilon():
    for options, delta in (({}, 1e-6), ({"form": "rows"}, 0.0)):
        assert fraction_of_sd(low_rank((30, 30, 30), 0), "value", 0.5, CP(3), delta, **options) < 1.3


@pytest.mark.slow
def test_accuracy_on_a_larger_tensor():
    assert fraction_of_sd(low_rank((60, 50, 40), 0), "value", 5.0, CP(3)) < 0.3
    assert fraction_of_sd(low_rank((60, 50, 40), 0), "entry", 5.0, CP(3)) < 0.3
    assert fraction_of_sd(low_rank((60, 50, 40), 1, "tucker"), "value", 10.0, Tucker(3)) < 0.5


def skewed(seed=0, shape=(30, 25, 20), count=15000):
    """Few indices hold most observations, as in ratings."""
    tensor, generator = low_rank(shape, seed), np.random.default_rng(seed)
    chances = [generator.permutation(1.0 / np.arange(1, size + 1)) for size in shape]
    where = np.column_stack(
        [generator.choice(size, count + 2000, p=c / c.sum()) for size, c in zip(shape, chances, strict=True)]
    )
    truth = tensor.truth_at(where)
    values = truth + generator.normal(0, tensor.noise_std, len(truth))
    return observations(where[:count], values[:count], shape), where[count:], truth[count:]


@pytest.mark.parametrize("unit, delta", [("value", 1e-6), ("entry", 1e-6), ("entry", 0.0)])
def test_few_popular_rows_do_no_harm(unit, delta):
    data, where, truth = skewed()
    for epsilon, most in ((1.0, 1.3), (10.0, 0.8)):
        planned = GradientPerturbation().plan(CP(3), Bounds(-1, 2), unit, epsilon, delta, shape=data.shape)
        error = run(planned, data, 1).predict(where) - truth
        assert np.sqrt((error**2).mean()) / truth.std() < most
