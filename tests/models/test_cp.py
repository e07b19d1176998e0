"""CP models: predictions, gradients, slices, conversions."""

import pickle

import numpy as np
import pytest
import tensorly
from tensorly.cp_tensor import CPTensor

import oracles
from tensorveil.errors import InputError, MissingDependencyError, SizeError
from tensorveil.models.cp import CP, CPModel
from tensorveil.models.tucker import Tucker, TuckerModel

CASES = [(order, rank) for order in oracles.ORDERS for rank in (1, 3)]


def cp_model(order: int, rank: int = 3, seed: int = 0) -> CPModel:
    return CPModel(oracles.random_blocks([(size, rank) for size in oracles.SHAPES[order]], seed))


@pytest.mark.parametrize("order, rank", CASES)
def test_predictions_are_the_cells_of_the_dense_einsum(order, rank):
    model = cp_model(order, rank)
    predicted = model.predict(oracles.all_coordinates(model.shape))
    assert np.abs(predicted - oracles.dense(model).ravel()).max() < 1e-10


@pytest.mark.parametrize("order, rank", CASES)
def test_the_dense_form_is_the_einsum(order, rank):
    model = cp_model(order, rank)
    assert model.to_dense().shape == oracles.SHAPES[order]
    assert np.abs(model.to_dense() - oracles.dense(model)).max() < 1e-10


@pytest.mark.parametrize("order, rank", CASES)
def test_slices_are_slices_of_the_dense_form(order, rank):
    model = cp_model(order, rank)
    dense = oracles.dense(model)
    for mode in range(order):
        for index in range(model.shape[mode]):
            assert np.abs(model.slice(mode, index) - dense.take(index, axis=mode)).max() < 1e-10
            assert np.array_equal(model.slice(mode - order, index), model.slice(mode, index))


@pytest.mark.parametrize("order, rank", CASES)
def test_the_gradient_of_one_entry_agrees_with_finite_differences(order, rank):
    model = cp_model(order, rank, seed=order)
    factors = [np.array(factor) for factor in model.factors]
    index = [size - 1 - mode % 2 for mode, size in enumerate(model.shape)]
    gradients = model.gradient(index, 0.7, regularization=0.3)
    assert len(gradients) == order
    for factor, gradient, i in zip(factors, gradients, index, strict=True):
        numeric = oracles.numeric_gradient(lambda: oracles.entry_objective(factors, None, index, 0.7, 0.3), factor)
        assert np.abs(gradient - numeric[i]).max() < 1e-6
        numeric[i] = 0
        assert np.abs(numeric).max() < 1e-6  # no other row feels the entry


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_features_are_derivatives_even_where_rows_hold_zeros(order):
    factors = [np.array(factor) for factor in cp_model(order).factors]
    factors[0][0], factors[-1][0, 1] = 0.0, 0.0  # a division would give NaN
    model, index = CPModel(factors), [0] * order
    features = model.features(index)
    for factor, feature in zip(factors, features, strict=True):
        numeric = oracles.numeric_gradient(lambda: float(oracles.dense_cp(factors)[tuple(index)]), factor)
        assert np.abs(feature - numeric[0]).max() < 1e-6
    assert np.isfinite(np.concatenate(features)).all()
    assert model.predict([index])[0] == pytest.approx(0.0, abs=0)


@pytest.mark.parametrize("order, rank", CASES)
def test_as_a_tucker_model_it_is_the_same_tensor(order, rank):
    model = cp_model(order, rank)
    tucker = model.to_tucker()
    assert isinstance(tucker, TuckerModel)
    assert np.abs(oracles.dense_tucker(tucker.core, tucker.factors) - oracles.dense(model)).max() < 1e-10
    assert np.abs(tucker.to_dense() - model.to_dense()).max() < 1e-10
    assert np.count_nonzero(tucker.core) == rank


def test_the_tucker_family_of_a_cp_family_holds_its_models():
    assert CP(2).to_tucker() == Tucker(ranks=2)
    assert CP(2).to_tucker().ranks_for((4, 3, 5)) == cp_model(3, 2).to_tucker().ranks


def test_a_superdiagonal_core_of_more_than_4096_cells_is_refused():
    model = CPModel([np.ones((20, 17))] * 3)
    with pytest.raises(SizeError, match="4,913"):
        model.to_tucker()


@pytest.mark.parametrize("order, rank", CASES)
def test_tensorly_reconstructs_the_same_tensor(order, rank):
    model = cp_model(order, rank)
    converted = model.to_tensorly()
    assert isinstance(converted, CPTensor)
    assert np.abs(tensorly.cp_to_tensor(converted) - oracles.dense(model)).max() < 1e-10
    assert CPModel.from_tensorly(converted) == model


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_weights_from_tensorly_are_not_lost(order):
    model = cp_model(order)
    weighted = CPTensor((np.array([2.0, -0.5, 3.0]), [np.array(factor) for factor in model.factors]))
    assert np.abs(CPModel.from_tensorly(weighted).to_dense() - tensorly.cp_to_tensor(weighted)).max() < 1e-10
    assert CPModel.from_tensorly((None, list(model.factors))) == model


def test_weights_of_another_length_are_refused():
    factors = [np.ones((2, 3)), np.ones((2, 3))]
    for weights in ([2.0], [1.0, 2.0], [1.0, 2.0, 3.0, 4.0]):
        with pytest.raises(InputError):
            CPModel.from_tensorly((np.array(weights), factors))


def test_what_tensorly_gets_is_its_own():
    model = cp_model(3)
    before = np.array(model.parameters)
    for factor in model.to_tensorly().factors:
        factor[:] = 7.0
    assert np.array_equal(model.parameters, before)


def test_without_tensorly_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorly", None)
    with pytest.raises(MissingDependencyError, match=r"tensorveil\[tensorly\]"):
        cp_model(3).to_tensorly()


def test_the_callers_arrays_are_neither_kept_nor_locked():
    factors = oracles.random_blocks([(4, 2), (3, 2)], 0)
    model = CPModel(factors)
    before = np.array(model.parameters)
    factors[0][:] = 99.0
    assert np.array_equal(model.parameters, before)
    assert model.factors[0][0, 0] != 99.0
    parameters = np.arange(14.0)
    other = model.replace_parameters(parameters)
    parameters[:] = 99.0
    assert other.factors[1].tolist() == [[8.0, 9.0], [10.0, 11.0], [12.0, 13.0]]


def test_nobody_can_write_into_a_model():
    model = cp_model(3)
    for part in (model.parameters, *model.factors):
        assert not part.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        model.factors[0][0, 0] = 1.0


def test_nobody_can_move_the_blocks_of_a_model():
    # the kernels trust these numbers: changed ones would read memory that is not the model's
    model = cp_model(3)
    for part in (model.block_starts, model.block_widths):
        assert not part.flags.writeable


def test_a_pickled_model_is_equal_as_immutable_and_predicts_the_same():
    model = cp_model(4)
    other = pickle.loads(pickle.dumps(model))
    assert other == model
    assert not any(part.flags.writeable for part in (other.parameters, *other.factors))
    where = oracles.all_coordinates(model.shape)
    assert np.array_equal(other.predict(where), model.predict(where))


def test_factors_are_views_of_the_one_vector_of_parameters():
    model = cp_model(3)
    assert np.array_equal(model.parameters, np.concatenate([factor.ravel() for factor in model.factors]))
    assert model.replace_parameters(model.parameters) == model
    assert model.block_starts.tolist() == [0, 12, 21]
    assert model.block_widths.tolist() == [3, 3, 3]


def test_models_are_equal_by_value():
    model = cp_model(3)
    assert model == CPModel(model.factors)
    assert model != model.replace_parameters(model.parameters + 1)
    assert model != cp_model(3, 2)
    assert CPModel([np.ones((2, 3)), np.ones((4, 3))]) != CPModel([np.ones((4, 3)), np.ones((2, 3))])
    assert model != model.to_tucker()
    with pytest.raises(TypeError):
        hash(model)
    assert repr(model) == "CPModel(shape=(4, 3, 5), ranks=(3, 3, 3))"


def test_absurd_dense_forms_are_refused_with_their_size():
    model = CPModel([np.ones((2000, 1))] * 3)
    with pytest.raises(SizeError, match="8,000,000,000"):
        model.to_dense()
    assert model.slice(0, 5).shape == (2000, 2000)
    with pytest.raises(SizeError, match="at most 3,999,999 cells"):
        model.slice(0, 5, max_cells=3_999_999)
    assert model.predict([[1999, 1999, 1999]]).tolist() == [1.0]


@pytest.mark.parametrize("index", [4, -1, True, 1.0, "1", None])
def test_a_slice_that_is_not_there_is_refused(index):
    with pytest.raises(InputError, match="index must be"):
        cp_model(3).slice(0, index)


def test_a_mode_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="mode must be"):
        cp_model(3).slice(3, 0)


@pytest.mark.parametrize("where", [[[4, 0, 0]], [[0, -1, 0]], [[0, 0]], [0, 0, 0], [[0.0, 0.0, 0.0]]])
def test_coordinates_outside_the_tensor_never_reach_the_kernel(where):
    with pytest.raises(InputError):
        cp_model(3).predict(where)


def test_nothing_asked_nothing_predicted():
    assert cp_model(3).predict(np.empty((0, 3), dtype=int)).shape == (0,)


@pytest.mark.parametrize("coordinate", [[[0, 0, 0], [1, 1, 1]], [4, 0, 0], [0, 0], []])
def test_a_gradient_is_of_one_entry(coordinate):
    with pytest.raises(InputError):
        cp_model(3).gradient(coordinate, 1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, "1", None])
def test_a_gradient_needs_a_value(value):
    with pytest.raises(InputError, match="value must be a finite number"):
        cp_model(3).gradient([0, 0, 0], value)


@pytest.mark.parametrize(
    "factors",
    [
        [np.ones((2, 2))],
        [np.ones((2, 2))] * 7,
        [np.ones((2, 2)), np.ones((2, 3))],
        [np.ones((2, 2)), np.ones(2)],
        [np.ones((2, 2)), np.ones((0, 2))],
        [np.ones((2, 0)), np.ones((2, 0))],
        [np.ones((2, 2)), np.full((2, 2), np.nan)],
        [np.ones((2, 2)), np.full((2, 2), np.inf)],
    ],
)
def test_factors_that_make_no_model_are_refused(factors):
    with pytest.raises(InputError):
        CPModel(factors)


@pytest.mark.parametrize("rank", [0, -1, 2.0, "3", True, None])
def test_a_rank_is_a_positive_whole_number(rank):
    with pytest.raises(InputError, match="rank must be a positive whole number"):
        CP(rank)


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_a_family_says_the_shapes_of_its_blocks(order):
    shape = oracles.SHAPES[order]
    assert CP(5).block_shapes(shape) == tuple((size, 5) for size in shape)
    assert CP(5).model(oracles.random_blocks(CP(5).block_shapes(shape), 0)).family == CP(5)
    assert CP(5).ranks_for(shape) == (5,) * order
