"""Descent with threads: repeatable, fits large sparse tensors from its own start, refuses what it cannot do."""

import numpy as np
import pytest

from tensorveil.data.observations import Observations
from tensorveil.errors import DivergenceError, InputError
from tensorveil.kernels.reference import descent
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.solvers.layouts.strata import sensible_threads
from tensorveil.solvers.parallel_sgd import ParallelSGD
from tensorveil.solvers.serial_tucker import SerialTucker


def planted(shape, rank, count, seed=0, noise=0.5):
    """The workload of benchmarks/speed.py, smaller: factors N(1, 1), noise of half the signal's spread."""
    generator = np.random.default_rng(seed)
    factors = [generator.normal(1, 1, (size, rank)) for size in shape]
    where = np.column_stack([generator.integers(0, size, count) for size in shape])
    values = np.prod([factor[where[:, n]] for n, factor in enumerate(factors)], axis=0).sum(axis=1)
    spread = noise * values.std()
    return Observations(where, values + spread * generator.standard_normal(count), shape, duplicates="keep"), spread


@pytest.mark.parametrize("threads", [1, 2])
def test_same_seed_and_threads_same_bits(threads):
    data, _ = planted((40, 30, 20), 3, 4000)
    runs = [ParallelSGD(iterations=5, threads=threads).solve(data, CP(3), seed=1) for _ in range(3)]
    assert runs[0].model == runs[1].model == runs[2].model
    assert runs[0].threads == threads
    assert ParallelSGD(iterations=5, threads=threads).solve(data, CP(3), seed=2).model != runs[0].model


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_large_sparse_tensor_fits_in_few_passes(precision):
    data, noise = planted((600, 400, 50), 4, 120_000)
    test, train = data.take(np.arange(10_000)), data.take(np.arange(10_000, len(data)))
    run = ParallelSGD(iterations=19, precision=precision).solve(train, CP(4), seed=0)
    assert np.sqrt(np.mean((run.predict(test.coordinates) - test.values) ** 2)) < 1.1 * noise
    assert run.loss[-1] < run.loss[0]


@pytest.mark.parametrize("scale, shift", [(1e-6, 0.0), (1e6, -3e7), (-1.0, 0.0), (1.0, -10.0)])
def test_scale_and_shift_of_the_values_do_not_matter(scale, shift):
    data, _ = planted((40, 30, 20), 3, 8000)
    moved = Observations(data.coordinates, scale * data.values + shift, data.shape, duplicates="keep")
    losses = [ParallelSGD().solve(entries, CP(3), seed=0).loss[-1] for entries in (data, moved)]
    assert losses[0] < 0.3 * data.values.var()
    assert losses[1] / scale**2 == pytest.approx(losses[0], rel=1e-3)


def test_single_and_double_precision_agree():
    data, _ = planted((40, 30, 20), 3, 4000)
    single, double = (
        ParallelSGD(iterations=10, precision=name).solve(data, CP(3), seed=0).predict(data.coordinates)
        for name in ("single", "double")
    )
    np.testing.assert_allclose(single, double, atol=1e-3 * data.values.std())


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("where", [[[0, 0, 0]], [[0, 0, 0], [3, 0, 1]]], ids=["one", "two"])
def test_tiny_data(where, threads):
    data = Observations(where, np.arange(len(where)) + 2.0, (4, 1, 3))
    run = ParallelSGD(iterations=3, threads=threads).solve(data, CP(2), seed=0)
    assert np.isfinite(run.model.parameters).all()
    assert np.isfinite(run.loss).all()


def test_too_large_steps_are_halved():
    data, _ = planted((40, 30, 20), 3, 4000)
    run = ParallelSGD(learning_rate=3.0, iterations=10).solve(data, CP(3), seed=0)
    assert run.learning_rate < 3.0
    assert run.loss[-1] < data.values.var()
    with pytest.raises(DivergenceError, match="learning_rate"):
        ParallelSGD(learning_rate=1e9, iterations=2).solve(data, CP(3), seed=0)


def test_progress_tells_each_iteration():
    data, _ = planted((40, 30, 20), 3, 4000)
    calls = []
    run = ParallelSGD(iterations=4).solve(data, CP(2), seed=0, progress=lambda *call: calls.append(call))
    assert calls == [(number + 1, loss) for number, loss in enumerate(run.loss)]


def test_small_data_are_left_to_one_thread():
    assert sensible_threads(None, 4000, 3) == 1
    assert sensible_threads(3, 10, 3) == 3


@pytest.mark.parametrize(
    "options", [{"learning_rate": 0.0}, {"iterations": 0}, {"regularization": -1.0}, {"threads": 0}, {"precision": "x"}]
)
def test_wrong_options_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        ParallelSGD(**options)


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_a_pass_over_a_tucker_model_is_the_plain_pass(order):
    shape, ranks = (6, 5, 4, 3, 3)[:order], (3, 2, 4, 2, 2)[:order]
    generator = np.random.default_rng(order)
    family = Tucker(ranks)
    model = family.model([generator.normal(0.4, 0.4, block) for block in family.block_shapes(shape)])
    where = np.column_stack([generator.integers(0, size, 80) for size in shape]).astype(np.uint32)
    values = generator.normal(size=80)
    layout = SerialTucker(where, values, 2.0, -0.5)
    packed = layout.pack(model)
    np.testing.assert_array_equal(layout.unpack(packed, model), model.parameters)
    losses = layout.visit(packed, model, np.array([0.01]), 0.05, np.random.default_rng(3))
    plain, B = model.parameters.copy(), order + 1
    visits = np.random.default_rng(3).permutation(80)
    none = descent.Clipping(np.full(B, np.inf), np.zeros(B, np.bool_), np.zeros(B), np.zeros(B))
    numbers = model.numbers._replace(parameters=plain)
    layers = (numbers, where, 2.0 * values - 0.5, visits, 0.01, np.full(B, 0.05))
    loss = descent.sgd_pass(*layers, none, -1, np.empty((0, 0)))
    np.testing.assert_allclose(layout.unpack(packed, model), plain, atol=1e-10)
    assert np.abs(plain - model.parameters).max() > 1e-3
    assert losses[0] == pytest.approx(loss)


def test_a_tucker_model_is_fitted():
    data, noise = planted((60, 50, 20), 2, 20_000)
    test, train = data.take(np.arange(2000)), data.take(np.arange(2000, len(data)))
    run = ParallelSGD(iterations=40).solve(train, Tucker((3, 3, 3)), seed=0)
    assert np.sqrt(np.mean((run.predict(test.coordinates) - test.values) ** 2)) < 1.2 * noise
    assert run.threads == 1
    assert (
        ParallelSGD(iterations=2).solve(train, Tucker(2), seed=1).model
        == ParallelSGD(iterations=2).solve(train, Tucker(2), seed=1).model
    )
