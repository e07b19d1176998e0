"""Alternating least squares: what it minimises, what it recovers, and that noise alone leaves the mean."""

import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from oracles import all_coordinates, dense, dense_cp, dense_tucker, random_blocks
from tensorveil.data.datasets.movielens import load_movielens
from tensorveil.data.datasets.synthetic import cp_tensor, observe, tucker_tensor
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.kernels import dispatch
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.solvers import als
from tensorveil.solvers.als import ALS
from tensorveil.solvers.block_updates import Entries, prior_variance, solve_core
from tensorveil.solvers.sgd import SGD

SHARED = Path(os.environ.get("TENSORVEIL_DATA") or Path(__file__).parents[3] / "shared" / "data")


def relative_error(run, truth):
    return np.sqrt(np.mean((run.predict(all_coordinates(truth.shape)) - truth.ravel()) ** 2)) / truth.std()


def observed(tensor, share, seed=0, noise=0.0):
    generator = np.random.default_rng(seed)
    kept = generator.random(tensor.shape) < share
    return Observations(np.argwhere(kept), tensor[kept] + noise * generator.standard_normal(kept.sum()), tensor.shape)


def objective(run, data, ridge):
    """The penalised sum of squares, from the dense tensor."""
    tensor = dense(run.model)
    for number, part in enumerate(run.offsets.modes):
        if part is not None:
            tensor = tensor + part.reshape([-1 if mode == number else 1 for mode in range(tensor.ndim)])
    squares = ((data.values - run.offsets.mean - tensor[tuple(data.coordinates.T)]) ** 2).sum()
    parts = [*run.model.factors, run.model.core, *run.offsets.modes]
    return squares + ridge * sum((part**2).sum() for part in parts if part is not None)


@pytest.mark.parametrize("family", [CP(3), Tucker((3, 2, 2))], ids=str)
@pytest.mark.parametrize("offsets", [True, False])
def test_at_fixed_penalties_the_objective_never_rises(family, offsets):
    data = observed(cp_tensor((7, 6, 5), 3, seed=1) * 10, 0.6, noise=0.5)
    values = [
        objective(ALS(sweeps, 0.4, offsets, 0.0).solve(data, family), data, 0.4)
        for sweeps in (1, 2, 3, 4, 6, 9, 15, 40)
    ]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(values))
    assert values[-1] < values[0]


@pytest.mark.parametrize("family", [CP(2), Tucker(2)], ids=str)
def test_the_end_is_a_stationary_point(family):
    data = observed(cp_tensor((6, 5, 4), 2, seed=2) * 10, 0.8, noise=0.3)
    run = ALS(600, 0.5, True, 0.0).solve(data, family)
    blocks = [2 * 0.5 * np.array(block) for block in [*run.model.factors, run.model.core] if block is not None]
    for where, value in zip(data.coordinates, data.values, strict=True):
        residual = value - run.predict(where[None])[0]
        phi = run.model.features(where)
        for mode in range(3):
            blocks[mode][where[mode]] -= 2 * residual * phi[mode]
        if run.model.core is not None:
            blocks[3] -= 2 * residual * phi[3]
    slopes = [np.abs(block).max() for block in blocks]
    assert max(slopes) < 1e-3


@pytest.mark.parametrize(
    "shape, share", [((15, 12), 0.7), ((10, 9, 8), 0.5), ((7, 6, 6, 5), 0.4), ((5, 5, 4, 5, 4), 0.4)], ids=str
)
@pytest.mark.parametrize("kind", ["cp", "tucker"])
def test_a_tensor_of_low_rank_is_recovered(shape, share, kind):
    if kind == "cp":
        family, truth = CP(2), dense_cp(random_blocks([(size, 2) for size in shape], seed=3))
    else:
        family = Tucker(2)
        blocks = random_blocks(family.block_shapes(shape), seed=4)
        truth = dense_tucker(blocks[-1], blocks[:-1])
    run = ALS(sweeps=400, offsets=False, tolerance=1e-7).solve(observed(truth, share), family)
    assert relative_error(run, truth) < 1e-2


@pytest.mark.parametrize("ranks", [(3, 2, 4), (16, 16, 16)], ids=str)
def test_the_core_by_conjugate_gradients_solves_the_dense_system(ranks):
    shape = tuple(2 + 2 * rank for rank in (3, 2, 4)) if ranks == (3, 2, 4) else (18, 17, 16)
    family = Tucker(ranks)
    model = family.model(random_blocks(family.block_shapes(shape), seed=0))
    where = all_coordinates(shape)[::5].astype(np.uint32)
    values = np.random.default_rng(1).standard_normal(len(where))
    parameters = model.parameters.copy()
    ridge = 5.0 if ranks == (3, 2, 4) else 5000.0
    solve_core(Entries.of(where, values, shape), values, model, parameters, ridge, steps=300, precision=1e-9)
    rows = [factor[where[:, mode]] for mode, factor in enumerate(model.factors)]
    phi = np.einsum("bu,bv,bw->buvw", *rows).reshape(len(where), -1)
    core = parameters[model.block_starts[-1] :]
    remainder = phi.T @ (values - phi @ core) - ridge * core  # zero at the solution; 4,096 cells are too many to invert
    assert np.linalg.norm(remainder) < 1e-6 * np.linalg.norm(phi.T @ values)
    if core.size < 100:
        expected = np.linalg.solve(phi.T @ phi + ridge * np.eye(core.size), phi.T @ values)
        np.testing.assert_allclose(core, expected, atol=1e-7)


@pytest.mark.parametrize("tensor, family", [(cp_tensor, CP(3)), (tucker_tensor, Tucker(3))], ids=["cp", "tucker"])
def test_it_beats_sgd_on_the_benchmark_of_the_paper(tensor, family):
    data = observe(tensor(seed=0), snr_kind="variances", seed=1)
    found = relative_error(ALS().solve(data.train, family), data.truth)
    sgd = relative_error(SGD().solve(data.train, family, seed=0).model, data.truth)
    assert found < 0.35
    assert found < 0.5 * sgd


@pytest.mark.parametrize("family", [CP(3), Tucker(2)], ids=str)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_noise_alone_leaves_little_but_the_mean(family, known, scale):
    generator = np.random.default_rng(5)
    shape, worst = (12, 11, 10), []
    for seed in range(3):
        where = generator.permutation(all_coordinates(shape))[:800]
        data = Observations(where, scale * (5 + generator.standard_normal(800)), shape)
        run = ALS().solve(data, family, noise_variance=scale**2 if known else 0.0, seed=seed)
        worst.append(np.sqrt(np.mean((run.predict(all_coordinates(shape)) / scale - 5) ** 2)))
    assert np.mean(worst) < 0.35  # of the noise's standard deviation; predicting it all would be 1


def test_offsets_alone_are_found_and_shrunk():
    generator = np.random.default_rng(6)
    rows, columns = generator.standard_normal(30), generator.standard_normal(25)
    data = observed(3 + rows[:, None] + columns, 0.3, noise=0.5)
    run = ALS().solve(data, CP(2))
    assert relative_error(run, 3 + rows[:, None] + columns) < 0.25
    assert run.offsets.modes[0] is not None
    assert np.corrcoef(run.offsets.modes[0], rows)[0, 1] > 0.95


def test_without_offsets_there_are_none():
    run = ALS(offsets=False).solve(observed(cp_tensor((6, 5, 4), 2, seed=0), 0.9), CP(2))
    assert run.offsets.mean == 0
    assert run.offsets.modes == (None, None, None)


@pytest.mark.parametrize("family", [CP(2), Tucker((2, 2))], ids=str)
@pytest.mark.parametrize(
    "coordinates, values",
    [
        ([[0, 0]], [3.0]),
        ([[0, 0], [0, 0], [0, 0]], [1.0, 2.0, 3.0]),
        ([[0, 0], [3, 4]], [2.0, 2.0]),
        (all_coordinates((5, 6)), np.zeros(30)),
        (all_coordinates((5, 6)), np.full(30, -7.0)),
        (all_coordinates((5, 6))[:12], np.arange(12) * 1e150),
        (all_coordinates((5, 6)), np.arange(30) * 1e-150),
    ],
    ids=["one", "doubles", "two", "zeros", "constant", "huge", "tiny"],
)
def test_poor_data_give_finite_predictions(family, coordinates, values):
    data = Observations(coordinates, values, (5, 6), duplicates="keep")
    for variance in (0.0, 1.0, 1e9):
        predictions = ALS().solve(data, family, noise_variance=variance).predict(all_coordinates((5, 6)))
        assert np.isfinite(predictions).all()


def test_a_run_can_be_repeated_and_another_seed_is_another_run():
    data = observed(cp_tensor((8, 7, 6), 3, seed=0), 0.7, noise=0.01)
    first, second = ALS().solve(data, CP(3)), ALS().solve(data, CP(3))
    assert first.model == second.model
    assert first.offsets == second.offsets
    assert ALS().solve(data, CP(3), seed=0).model == first.model
    assert ALS().solve(data, CP(3), seed=1).model != first.model


def test_progress_counts_sweeps_and_tells_the_loss():
    calls = []
    data = observed(cp_tensor((8, 7, 6), 3, seed=0), 0.7, noise=0.01)
    run = ALS(sweeps=3, regularization=0.1).solve(data, CP(3), progress=lambda *call: calls.append(call))
    assert [number for number, _ in calls] == [1, 2, 3]
    assert [loss for _, loss in calls] == list(run.loss)
    residuals = data.values - run.predict(data.coordinates)
    assert run.loss[-1] == pytest.approx(np.mean(residuals**2))


def test_the_prior_gives_predictions_the_variance_of_the_signal():
    generator = np.random.default_rng(0)
    for family in (CP(4), Tucker((3, 2, 4))):
        shapes = family.block_shapes((40, 40, 40))
        model = family.model([np.zeros(shape) for shape in shapes])
        spread = np.sqrt(prior_variance(model, 2.5))
        squares = [
            (dense(family.model([spread * generator.standard_normal(shape) for shape in shapes])) ** 2).mean()
            for _ in range(60)
        ]
        assert np.mean(squares) == pytest.approx(2.5, rel=0.25)


@pytest.mark.parametrize(
    "arguments", [{"sweeps": 0}, {"regularization": 0.0}, {"regularization": -1.0}, {"tolerance": -1.0}], ids=str
)
def test_wrong_options_are_refused(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        ALS(**arguments)


def test_a_wrong_noise_variance_is_refused():
    with pytest.raises(InputError, match="noise_variance"):
        ALS().solve(observed(cp_tensor((4, 4), 1, seed=0), 1.0), CP(1), noise_variance=-1.0)


@pytest.mark.slow
def test_a_large_noisy_tensor_in_reasonable_time():
    data = observe(cp_tensor((100, 100, 100), seed=0), snr_kind="variances", train_fraction=0.999, seed=1)
    start = time.process_time()
    run = ALS().solve(data.train, CP(3))
    assert relative_error(run, data.truth) < 0.05
    assert time.process_time() - start < 60


@pytest.mark.slow
@pytest.mark.skipif(not (SHARED / "ml-100k" / "ua.base").is_file(), reason="MovieLens 100K is not here")
@pytest.mark.parametrize("split, error", [("ua", 0.94), ("ub", 0.955)])
def test_movielens_users_and_films(split, error):
    data = load_movielens(split, SHARED)
    train, test = (
        Observations(part.coordinates[:, :2], part.values, part.shape[:2], duplicates="keep")
        for part in (data.train, data.test)
    )
    predictions = np.clip(ALS().solve(train, CP(5)).predict(test.coordinates), 1, 5)
    assert np.sqrt(np.mean((predictions - test.values) ** 2)) < error


def planted(shape, rank, count, seed=0):
    """Factors N(1, 1), noise of half the signal's spread, and offsets: benchmarks/speed.py's workload, smaller."""
    generator = np.random.default_rng(seed)
    factors = [generator.normal(1, 1, (size, rank)) for size in shape]
    where = np.column_stack([generator.integers(0, size, count) for size in shape])
    values = np.prod([factor[where[:, n]] for n, factor in enumerate(factors)], axis=0).sum(axis=1)
    noise = 0.5 * values.std()
    return Observations(where, values + noise * generator.standard_normal(count), shape, duplicates="keep"), noise


def test_vectorised_sweeps_never_raise_the_objective_and_tell_the_loss(monkeypatch):
    monkeypatch.setattr(dispatch, "FEWEST_FAST", 1)
    data = observed(cp_tensor((7, 6, 5), 3, seed=1) * 10, 0.6, noise=0.5)
    for offsets in (True, False):
        runs = [ALS(sweeps, 0.4, offsets, 0.0).solve(data, CP(3)) for sweeps in (1, 2, 3, 6, 15)]
        values = [objective(run, data, 0.4) for run in runs]
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(values))
        residuals = data.values - runs[-1].predict(data.coordinates)
        assert runs[-1].loss[-1] == pytest.approx(np.mean(residuals**2))


def test_vectorised_and_plain_sweeps_end_at_the_same_minimum(monkeypatch):
    data = observed(cp_tensor((9, 8, 7), 2, seed=3) * 10, 0.7, noise=0.2)
    plain = ALS(800, 0.5, True, 0.0).solve(data, CP(2))
    monkeypatch.setattr(dispatch, "FEWEST_FAST", 1)
    fast = ALS(800, 0.5, True, 0.0).solve(data, CP(2))
    np.testing.assert_allclose(fast.predict(data.coordinates), plain.predict(data.coordinates), atol=1e-3)


@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_large_data_start_from_descent_and_reach_the_noise_in_few_sweeps(monkeypatch, precision, offsets):
    monkeypatch.setattr(als, "LARGEST_TRIED", 100_000)
    data, noise = planted((600, 400, 50), 4, 120_000)
    test, train = data.take(np.arange(10_000)), data.take(np.arange(10_000, len(data)))
    solver = ALS(sweeps=13, offsets=offsets, precision=precision, largest_spectral=100_000)
    run = solver.solve(train, CP(4), seed=0)
    assert np.sqrt(np.mean((run.predict(test.coordinates) - test.values) ** 2)) < 1.1 * noise


def test_the_number_of_threads_does_not_change_the_result():
    data, _ = planted((60, 50, 40), 3, 20_000)
    one, two = (ALS(sweeps=5, regularization=1.0, threads=threads).solve(data, CP(3)) for threads in (1, 2))
    assert one.model == two.model
    assert one.offsets == two.offsets
