"""Non-negative models: no number below zero wherever factors are made or kept, at the error of the free model."""

import math
import pickle

import numpy as np
import pytest
from scipy.optimize import nnls

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.cli.job import Job
from tensorveil.errors import InputError
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.kernels.reference import least_squares
from tensorveil.mechanisms.with_offsets import WithOffsets
from tensorveil.models.cp import CPModel
from tensorveil.release.predictions import with_unknown_indices
from tensorveil.solvers.als import ALS
from tensorveil.solvers.parallel_sgd import ParallelSGD
from tensorveil.solvers.sgd import SGD

BOUNDS = (0, 20)
FEW = tv.InputPerturbation(solver=Posterior(sweeps=20, chains=2, threads=1))


def made_up_counts(seed, shape, seen, rank=4):
    """Poisson counts with non-negative patterns: what is seen, and all other cells with their counts."""
    generator = np.random.default_rng(seed)
    factors = [generator.gamma(0.5, 1.0, (size, rank)) for size in shape]
    rates = np.einsum("ir,jr,kr->ijk", *factors)
    counts = generator.poisson(rates / rates.mean()).astype(float)
    where = np.argwhere(np.ones(shape))[generator.permutation(rates.size)]
    train, test = where[:seen], where[seen:]
    return tv.Observations(train, counts[tuple(train.T)], shape), test, counts[tuple(test.T)]


@pytest.fixture(scope="module")
def counts():
    return made_up_counts(0, (20, 15, 4), 500)


@pytest.fixture(scope="module")
def release(counts):
    return tv.complete(counts[0], tv.CP(3, nonnegative=True), BOUNDS, "value", 8.0, mechanism=FEW)


def test_a_model_keeps_its_word():
    family = tv.CP(2, nonnegative=True)
    assert str(family) == "CP(rank=2, nonnegative=True)"
    assert str(tv.CP(2)) == "CP(rank=2)"
    blocks = [np.ones((3, 2)), np.zeros((4, 2))]
    model = family.model(blocks)
    assert model.family == family != CPModel(blocks).family
    assert pickle.loads(pickle.dumps(model)).family == family
    with pytest.raises(InputError, match="must not be below 0, got -1"):
        model.with_block(0, -np.ones((3, 2)))
    with pytest.raises(InputError, match="nonnegative must be True or False, got 1"):
        tv.CP(2, nonnegative=1)


def test_a_release_has_no_factor_and_no_prediction_below_zero(release, counts, tmp_path):
    _, cells, _ = counts
    assert release.model.draws.parameters.min() >= 0
    assert release.factors.parameters.min() >= 0
    assert release.factors.parameters.max() > 0
    predicted = release.predict(cells)
    low, high = release.predict(cells, interval=0.9)[1:]
    assert 0 <= predicted.min() <= predicted.max() <= 20
    assert low.min() >= 0
    assert high.max() <= 20
    release.save(tmp_path / "release")
    loaded = tv.Release.load(tmp_path / "release")
    assert loaded.factors.family == release.factors.family == tv.CP(3, nonnegative=True)
    assert loaded.certificate.model.nonnegative
    assert loaded.certificate.model.kind == "non-negative CP"
    np.testing.assert_array_equal(loaded.predict(cells), predicted)
    assert [check for check in tv.verify(tmp_path / "release") if check.state == "doubt"] == []


def test_new_people_and_unknown_labels_stay_above_zero(release, counts):
    data = counts[0]
    own = data.take(np.flatnonzero(data.coordinates[:, 0] == data.coordinates[0, 0]))
    new = release.personalize(own, "mode_0")
    assert new.draws.parameters.min() >= 0
    assert new.factors.parameters.min() >= 0
    wider = with_unknown_indices(release.model)
    np.testing.assert_allclose(wider.factors.factors[1][-1], release.factors.factors[1].mean(axis=0))
    rows = wider.draws.parameters[:, : 21 * 3].reshape(-1, 21, 3)
    np.testing.assert_allclose(rows[:, -1], rows[:, :-1].mean(axis=1), rtol=1e-5)


@pytest.mark.parametrize("unit, delta", [("value", 1e-4), ("entry", 0.0)])
def test_gradient_perturbation_keeps_factors_above_zero(counts, unit, delta):
    made = tv.complete(counts[0], tv.CP(2, nonnegative=True), BOUNDS, unit, 5.0, delta, mechanism="gradient", seed=1)
    assert made.factors.parameters.min() >= 0 < made.factors.parameters.max()
    assert made.factors.family.nonnegative
    assert made.predict(counts[1]).min() >= 0
    assert made.model.offsets.mean == -1  # the lower bound


@pytest.mark.parametrize("mechanism", ["sums", "statistic", "output", WithOffsets()])
def test_other_mechanisms_refuse_when_planning(counts, mechanism):
    with pytest.raises(InputError, match=r"must not be non-negative for .*take input or gradient perturbation"):
        tv.plan(counts[0], tv.CP(2, nonnegative=True), BOUNDS, "value", 1.0, 1e-4, mechanism=mechanism)


@pytest.mark.parametrize(
    "unit, epsilon, delta, chosen",
    [("value", 5.0, 0.0, "input"), ("value", 0.05, 0.0, "input"), ("entry", 1.0, 0.0, "gradient"),
     ("slice:mode_0", 1.0, 1e-4, "gradient"), ("slice_values:mode_0", 1.0, 0.0, "input")],
)  # fmt: skip
def test_auto_chooses_a_mechanism_that_takes_it(counts, unit, epsilon, delta, chosen):
    planned = tv.plan(counts[0], "nonnegative", BOUNDS, unit, epsilon, delta)
    assert planned.mechanism.name == chosen
    assert planned.request.family.nonnegative


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_bounds_below_zero_are_refused(counts, epsilon):
    with pytest.raises(InputError, match=r"bounds must not be below 0 for a non-negative model, got \[-1, 20\]"):
        tv.complete(counts[0], tv.CP(2, nonnegative=True), (-1, 20), "value", epsilon)


def test_the_command_line_names_the_model():
    facts = {"input": "counts.csv", "bounds": BOUNDS, "unit": "value", "epsilon": 1.0}
    assert Job(**facts, model="nonnegative").family == "nonnegative"
    assert Job(**facts, model="nonnegative", rank=(4,)).family == tv.CP(4, nonnegative=True)


def test_rows_of_least_squares_are_the_best_without_numbers_below_zero():
    generator = np.random.default_rng(3)
    model = tv.CP(4).model([generator.uniform(0, 1, (2, 4)), generator.normal(size=(30, 4))])
    where = np.argwhere(np.ones((2, 30))).astype(np.uint32)
    values, ridge = where[:, 0] + (model.factors[1] @ [1.0, -1.0, 0.5, -0.2])[where[:, 1]], 0.3
    parameters = model.parameters.copy()
    numbers = model.numbers._replace(parameters=parameters)
    for _ in range(60):
        entries = where, values, np.arange(60), np.array([0, 30, 60])
        least_squares.solve_rows(numbers, *entries, 0, ridge, True)
    for row in range(2):
        design = np.vstack([model.factors[1], math.sqrt(ridge) * np.eye(4)])
        best, _ = nnls(design, np.append(values[30 * row : 30 * row + 30], np.zeros(4)))
        assert 0 < (best > 0).sum() < 4
        np.testing.assert_allclose(parameters[4 * row : 4 * row + 4], best, atol=1e-8)


def test_solvers_without_privacy(counts):
    data, cells, measured = counts
    run = ALS(threads=1).solve(data, tv.CP(3, nonnegative=True))
    assert run.model.parameters.min() >= 0 < run.model.parameters.max()
    assert np.mean((run.predict(cells) - measured) ** 2) < 0.8 * np.mean((data.values.mean() - measured) ** 2)
    for solver in (SGD(), ParallelSGD()):
        with pytest.raises(InputError, match="must not be non-negative for SGD"):
            solver.solve(data, tv.CP(3, nonnegative=True))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [math.inf, 5.0])
def test_on_counts_the_error_is_within_two_percent_of_the_free_model(epsilon):
    data, cells, measured = made_up_counts(0, (60, 50, 8), 6000)
    mechanism = "auto" if math.isinf(epsilon) else tv.InputPerturbation()
    seed = None if math.isinf(epsilon) else 0
    errors = []
    for nonnegative in (False, True):
        family = tv.CP(12, nonnegative=nonnegative)
        made = tv.complete(data, family, BOUNDS, "value", epsilon, mechanism=mechanism, seed=seed)
        errors.append(math.sqrt(np.mean((made.predict(cells) - measured) ** 2)))
    assert errors[1] < 1.02 * errors[0]


def test_symbols_of_neighbours_are_replayed_to_the_same_model(counts):
    observations, *_ = counts
    plan = FEW.plan(tv.CP(3, nonnegative=True), tv.Bounds(*BOUNDS), "value", 2.0, shape=observations.shape)
    found = [replay(*pair, plan) for pair in neighbours(observations, "value", tv.Bounds(*BOUNDS), 3)]
    assert max(one.largest for one in found) > 0.9
