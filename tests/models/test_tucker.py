"""Tucker models: predictions, gradients, slices, conversions, limits."""

import math

import numpy as np
import pytest
import tensorly
from tensorly.tucker_tensor import TuckerTensor

import oracles
from tensorveil.errors import InputError, MissingDependencyError, SizeError
from tensorveil.models.tucker import Tucker, TuckerModel

CASES = [(order, ranks) for order in oracles.ORDERS for ranks in (oracles.RANKS[order], (1,) * order, (2,) * order)]


def tucker_model(order: int, ranks: tuple[int, ...] | None = None, seed: int = 0) -> TuckerModel:
    chosen = oracles.RANKS[order] if ranks is None else ranks
    *factors, core = oracles.random_blocks([*zip(oracles.SHAPES[order], chosen, strict=True), chosen], seed)
    return TuckerModel(core, factors)


@pytest.mark.parametrize("order, ranks", CASES)
def test_predictions_are_the_cells_of_the_dense_einsum(order, ranks):
    model = tucker_model(order, ranks)
    predicted = model.predict(oracles.all_coordinates(model.shape))
    assert np.abs(predicted - oracles.dense(model).ravel()).max() < 1e-10


@pytest.mark.parametrize("order, ranks", CASES)
def test_the_dense_form_and_its_slices_are_those_of_the_einsum(order, ranks):
    model = tucker_model(order, ranks)
    dense = oracles.dense(model)
    assert np.abs(model.to_dense() - dense).max() < 1e-10
    for mode in range(order):
        for index in range(model.shape[mode]):
            assert np.abs(model.slice(mode, index) - dense.take(index, axis=mode)).max() < 1e-10


@pytest.mark.parametrize("order, ranks", CASES)
def test_the_gradient_of_one_entry_agrees_with_finite_differences(order, ranks):
    model = tucker_model(order, ranks, seed=order)
    factors, core = [np.array(factor) for factor in model.factors], np.array(model.core)
    index = [size - 1 - mode % 2 for mode, size in enumerate(model.shape)]
    *by_factors, by_core = model.gradient(index, -0.4, regularization=0.3, core_regularization=0.2)
    assert len(by_factors) == order

    def objective() -> float:
        return oracles.entry_objective(factors, core, index, -0.4, 0.3, 0.2)

    for factor, gradient, i in zip(factors, by_factors, index, strict=True):
        assert np.abs(gradient - oracles.numeric_gradient(objective, factor)[i]).max() < 1e-6
    assert by_core.shape == core.shape
    assert np.abs(by_core - oracles.numeric_gradient(objective, core)).max() < 1e-6


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_features_are_derivatives_even_where_rows_and_core_hold_zeros(order):
    model = tucker_model(order)
    factors, core = [np.array(factor) for factor in model.factors], np.array(model.core)
    factors[0][1], core[(0,) * order] = 0.0, 0.0
    index = [1] * order
    features = TuckerModel(core, factors).features(index)

    def entry() -> float:
        return float(oracles.dense_tucker(core, factors)[tuple(index)])

    for factor, feature in zip(factors, features, strict=False):
        assert np.abs(feature - oracles.numeric_gradient(entry, factor)[1]).max() < 1e-6
    assert np.abs(features[-1] - oracles.numeric_gradient(entry, core)).max() < 1e-6
    assert not features[-1].any()  # a zero row silences the core


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_a_prediction_is_linear_in_each_block(order):
    model = tucker_model(order)
    index = [0] * order
    rows = [*(factor[0] for factor in model.factors), model.core]
    for feature, row in zip(model.features(index), rows, strict=True):
        assert float((feature * row).sum()) == pytest.approx(float(oracles.dense(model)[tuple(index)]), abs=1e-10)


@pytest.mark.parametrize("order, ranks", CASES)
def test_tensorly_reconstructs_the_same_tensor(order, ranks):
    model = tucker_model(order, ranks)
    converted = model.to_tensorly()
    assert isinstance(converted, TuckerTensor)
    assert np.abs(tensorly.tucker_to_tensor(converted) - oracles.dense(model)).max() < 1e-10
    assert TuckerModel.from_tensorly(converted) == model
    assert TuckerModel.from_tensorly((model.core, model.factors)) == model


def test_what_tensorly_gets_is_its_own():
    model = tucker_model(3)
    before = np.array(model.parameters)
    core, factors = model.to_tensorly()
    for part in (core, *factors):
        part[:] = 7.0
    assert np.array_equal(model.parameters, before)


def test_a_decomposition_of_tensorly_becomes_a_model():
    tensor = oracles.dense(tucker_model(3, (2, 2, 3)))
    found = tensorly.decomposition.tucker(tensor, rank=[2, 2, 3], random_state=0)
    assert np.abs(TuckerModel.from_tensorly(found).to_dense() - tensor).max() < 1e-8


def test_without_tensorly_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorly", None)
    with pytest.raises(MissingDependencyError, match=r"tensorveil\[tensorly\]"):
        tucker_model(3).to_tensorly()


def test_the_callers_arrays_are_neither_kept_nor_locked():
    *factors, core = oracles.random_blocks([(4, 2), (3, 2), (2, 2)], 0)
    model = TuckerModel(core, factors)
    before = np.array(model.parameters)
    core[:], factors[0][:] = 99.0, 99.0
    assert np.array_equal(model.parameters, before)
    assert np.array_equal(model.core.ravel(), before[-4:])


def test_nobody_can_write_into_a_model():
    model = tucker_model(3)
    for part in (model.parameters, model.core, *model.factors):
        assert not part.flags.writeable


def test_parameters_are_the_factors_then_the_core():
    model = tucker_model(3)
    parts = [*model.factors, model.core]
    assert np.array_equal(model.parameters, np.concatenate([part.ravel() for part in parts]))
    assert model.block_starts.tolist() == [0, 8, 11, 26]
    assert model.block_widths.tolist() == [2, 1, 3, 6]
    assert model.replace_parameters(model.parameters) == model
    assert model != model.replace_parameters(2 * model.parameters)
    assert model.family == Tucker(oracles.RANKS[3])
    assert repr(model) == "TuckerModel(shape=(4, 3, 5), ranks=(2, 1, 3))"


def test_the_largest_core_is_allowed_and_right():
    *factors, core = oracles.random_blocks([(16, 16), (17, 16), (16, 16), (16, 16, 16)], 3)
    model = TuckerModel(core, factors)
    where = np.array([[0, 16, 15], [15, 3, 7]])
    expected = oracles.dense(model)[tuple(where.T)]
    assert model.predict(where) == pytest.approx(expected, rel=1e-10)
    assert Tucker(ranks=(4,) * 6).ranks_for((4,) * 6) == (4,) * 6


@pytest.mark.parametrize("ranks", [(17, 16, 16), (64, 65), (5,) * 6])
def test_a_core_of_more_than_4096_cells_is_refused_with_its_size(ranks):
    cells = f"{math.prod(ranks):,}"
    with pytest.raises(SizeError, match=f"at most 4,096 cells, .* give {cells};"):
        Tucker(ranks=ranks)
    with pytest.raises(SizeError, match=cells):
        TuckerModel(np.ones(ranks), [np.ones((rank, rank)) for rank in ranks])


def test_one_rank_for_all_modes_is_held_to_the_limit_once_the_order_is_known():
    family = Tucker(ranks=10)
    assert family.ranks_for((20, 20, 20)) == (10, 10, 10)
    with pytest.raises(SizeError, match="10,000"):
        family.ranks_for((20, 20, 20, 20))


@pytest.mark.parametrize("ranks, shape, mode", [(3, (4, 2, 5), 1), ((2, 2, 6), (4, 2, 5), 2)])
def test_a_rank_above_its_modes_size_is_refused(ranks, shape, mode):
    with pytest.raises(InputError, match=rf"ranks\[{mode}\] must be at most the mode's size {shape[mode]}"):
        Tucker(ranks).block_shapes(shape)


def test_ranks_for_another_order_are_refused():
    with pytest.raises(InputError, match="got 2 for a tensor of 3 modes"):
        Tucker((2, 2)).ranks_for((4, 4, 4))


@pytest.mark.parametrize("ranks", [0, -1, 2.0, "22", True, None, (2,), (2,) * 7, (2, 0), (2, 1.0), np.array(3.5)])
def test_ranks_are_positive_whole_numbers(ranks):
    with pytest.raises(InputError):
        Tucker(ranks)


def test_ranks_may_come_as_a_list_or_an_array():
    assert Tucker([2, 3]) == Tucker(np.array([2, 3])) == Tucker((2, 3))
    assert hash(Tucker([2, 3])) == hash(Tucker((2, 3)))


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_a_family_says_the_shapes_of_its_blocks(order):
    shape, ranks = oracles.SHAPES[order], oracles.RANKS[order]
    shapes = Tucker(ranks).block_shapes(shape)
    assert shapes == (*zip(shape, ranks, strict=True), ranks)
    model = Tucker(ranks).model(oracles.random_blocks(shapes, 0))
    assert (model.shape, model.ranks) == (shape, ranks)


@pytest.mark.parametrize(
    "core, factors",
    [
        (np.ones((2, 2)), [np.ones((3, 2)), np.ones((3, 3))]),
        (np.ones((2, 2)), [np.ones((3, 2))]),
        (np.ones((2, 2)), [np.ones((3, 2)), np.ones(2)]),
        (np.ones((2, 2)), [np.ones((3, 2)), np.ones((3, 2)), np.ones((3, 2))]),
        (np.ones(2), [np.ones((3, 2))]),
        (np.ones((2,) * 7), [np.ones((3, 2))] * 7),
        (np.full((2, 2), np.nan), [np.ones((3, 2)), np.ones((3, 2))]),
        (np.ones((2, 2)), [np.ones((3, 2)), np.full((3, 2), np.inf)]),
    ],
)
def test_core_and_factors_that_make_no_model_are_refused(core, factors):
    with pytest.raises(InputError):
        TuckerModel(core, factors)


def test_absurd_dense_forms_are_refused_with_their_size():
    model = TuckerModel(np.ones((1, 1, 1)), [np.ones((2000, 1))] * 3)
    with pytest.raises(SizeError, match="8,000,000,000"):
        model.to_dense()
    assert model.slice(1, 1999).shape == (2000, 2000)
    with pytest.raises(SizeError, match="4,000,000"):
        model.slice(1, 1999, max_cells=10**6)
