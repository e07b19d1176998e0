"""Products and unfoldings against TensorLy, einsum and plain loops."""

from itertools import product

import numpy as np
import pytest
import tensorly.base
import tensorly.tenalg

import oracles
from tensorveil.errors import InputError
from tensorveil.models import algebra

ORDER_AND_MODE = [(order, mode) for order in oracles.ORDERS for mode in range(order)]


def tensor_of(order: int) -> np.ndarray:
    return oracles.random_blocks([oracles.SHAPES[order]], order)[0]


@pytest.mark.parametrize("order, mode", ORDER_AND_MODE)
def test_unfolding_is_tensorlys(order, mode):
    tensor = tensor_of(order)
    assert np.array_equal(algebra.unfold(tensor, mode), tensorly.base.unfold(tensor, mode))
    assert np.array_equal(algebra.unfold(tensor, mode - order), tensorly.base.unfold(tensor, mode))


@pytest.mark.parametrize("order, mode", ORDER_AND_MODE)
def test_folding_undoes_unfolding_and_is_tensorlys(order, mode):
    tensor = tensor_of(order)
    matrix = tensorly.base.unfold(tensor, mode)
    assert np.array_equal(algebra.fold(matrix, mode, tensor.shape), tensor)
    assert np.array_equal(algebra.fold(algebra.unfold(tensor, mode), mode, list(tensor.shape)), tensor)
    assert np.array_equal(algebra.fold(matrix, mode, tensor.shape), tensorly.base.fold(matrix, mode, tensor.shape))


def test_the_last_mode_of_an_unfolding_varies_fastest():
    tensor = np.arange(24).reshape(2, 3, 4)
    matrix = algebra.unfold(tensor, 1)
    for i, j, k in product(range(2), range(3), range(4)):
        assert matrix[j, i * 4 + k] == tensor[i, j, k]


@pytest.mark.parametrize("order, mode", ORDER_AND_MODE)
def test_the_mode_product_is_tensorlys(order, mode):
    tensor = tensor_of(order)
    matrix = oracles.random_blocks([(6, tensor.shape[mode])], mode)[0]
    found = algebra.mode_product(tensor, matrix, mode)
    assert found.shape == (*tensor.shape[:mode], 6, *tensor.shape[mode + 1 :])
    assert found == pytest.approx(tensorly.tenalg.mode_dot(tensor, matrix, mode), abs=1e-12)
    assert found == pytest.approx(algebra.mode_product(tensor, matrix, mode - order), abs=0)


def test_mode_products_along_different_modes_commute():
    tensor = tensor_of(4)
    first, second = oracles.random_blocks([(2, 3), (5, 2)], 0)
    one = algebra.mode_product(algebra.mode_product(tensor, first, 0), second, 2)
    other = algebra.mode_product(algebra.mode_product(tensor, second, 2), first, 0)
    assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("number", [2, 3, 4, 5])
@pytest.mark.parametrize("columns", [1, 3])
def test_the_khatri_rao_product_is_tensorlys(number, columns):
    matrices = oracles.random_blocks([(2 + row % 3, columns) for row in range(number)], number)
    found = algebra.khatri_rao(matrices)
    assert found == pytest.approx(tensorly.tenalg.khatri_rao(matrices), abs=1e-12)


def test_columns_of_the_khatri_rao_product_are_kronecker_products():
    first, second = oracles.random_blocks([(3, 2), (4, 2)], 1)
    found = algebra.khatri_rao([first, second])
    for column in range(2):
        assert found[:, column] == pytest.approx(np.kron(first[:, column], second[:, column]), abs=0)
    assert np.array_equal(algebra.khatri_rao([first]), first)


@pytest.mark.parametrize("order, mode", ORDER_AND_MODE)
def test_a_cp_tensor_unfolds_into_factor_times_khatri_rao(order, mode):
    factors = oracles.random_blocks([(size, 3) for size in oracles.SHAPES[order]], order)
    others = [factor for number, factor in enumerate(factors) if number != mode]
    unfolded = algebra.unfold(oracles.dense_cp(factors), mode)
    assert unfolded == pytest.approx(factors[mode] @ algebra.khatri_rao(others).T, abs=1e-12)


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_the_hadamard_product_multiplies_cell_by_cell(order):
    first, second = oracles.random_blocks([oracles.SHAPES[order]] * 2, order)
    found = algebra.hadamard(first, second)
    for cell in np.ndindex(*first.shape):
        assert found[cell] == first[cell] * second[cell]


def test_whole_numbers_do_not_overflow():
    big = np.array([[200, 200]], dtype=np.uint8)
    assert algebra.hadamard(big, big).tolist() == [[40_000.0, 40_000.0]]
    assert algebra.mode_product(big, np.array([[200]], dtype=np.uint8), 0).tolist() == [[40_000.0, 40_000.0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: algebra.hadamard(np.ones((2, 3)), np.ones((3, 2))),
        lambda: algebra.hadamard(np.ones((2, 3)), np.ones(3)),  # no broadcasting
        lambda: algebra.khatri_rao([]),
        lambda: algebra.khatri_rao([np.ones((2, 3)), np.ones((2, 2))]),
        lambda: algebra.khatri_rao([np.ones((2, 3)), np.ones(3)]),
        lambda: algebra.khatri_rao([np.ones(3)]),
        lambda: algebra.unfold(np.ones((2, 3)), 2),
        lambda: algebra.unfold(np.ones((2, 3)), True),
        lambda: algebra.fold(np.ones((3, 4)), 0, (2, 6)),
        lambda: algebra.fold(np.ones((2, 6)), 3, (2, 2, 3)),
        lambda: algebra.mode_product(np.ones((2, 3)), np.ones((4, 2)), 1),
        lambda: algebra.mode_product(np.ones((2, 3)), np.ones(3), 1),
        lambda: algebra.mode_product(np.ones((2, 3)), np.ones((4, 3)), 2),
    ],
)
def test_sizes_that_do_not_fit_are_refused(call):
    with pytest.raises(InputError):
        call()
