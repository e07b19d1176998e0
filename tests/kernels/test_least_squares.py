"""Ridge rows and core products against dense normal equations, written with einsum and numpy's least squares."""

import math

import numpy as np
import pytest

from oracles import ORDERS, RANKS, SHAPES, random_blocks
from tensorveil.kernels.reference import least_squares
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.solvers.block_updates import Entries, core_product, solve_tucker_rows


def families(order):
    return [CP(rank=3), Tucker(ranks=RANKS[order])]


CASES = [(order, family) for order in ORDERS for family in families(order)]


def some_entries(shape, seed, count=40):
    """Coordinates with doubles among them; index 1 of the first mode has none, index 0 of the last has one."""
    generator = np.random.default_rng(seed)
    coordinates = np.column_stack([generator.integers(0, size, count) for size in shape]).astype(np.uint32)
    coordinates = coordinates[(coordinates[:, 0] != 1) & (coordinates[:, -1] != 0)]
    coordinates = np.vstack([coordinates, coordinates[:3], [[0] * len(shape)]]).astype(np.uint32)
    return np.ascontiguousarray(coordinates), generator.standard_normal(len(coordinates))


def sorted_by(coordinates, mode, size):
    order = np.argsort(coordinates[:, mode], kind="stable")
    return order, np.searchsorted(coordinates[order, mode], np.arange(size + 1)).astype(np.int64)


def dense_features(model, coordinates, mode):
    """phi of a mode at every entry: what the prediction is multiplied with, by contracting unit vectors."""
    rows = [factor[coordinates[:, number]] for number, factor in enumerate(model.factors)]
    rank = model.ranks[mode]
    columns = []
    for r in range(rank):
        replaced = [np.tile(np.eye(rank)[r], (len(coordinates), 1)) if n == mode else row for n, row in enumerate(rows)]
        columns.append(contract(model.core, replaced))
    return np.column_stack(columns)


def contract(core, rows):
    if core is None:
        return math_prod(rows).sum(axis=1)
    letters = "uvwxyz"[: len(rows)]
    return np.einsum(letters + "," + ",".join("b" + letter for letter in letters) + "->b", core, *rows)


def math_prod(rows):
    product = np.ones_like(rows[0])
    for row in rows:
        product = product * row
    return product


@pytest.mark.parametrize("order, family", CASES, ids=str)
def test_rows_solve_the_dense_least_squares_problem(order, family):
    shape = SHAPES[order]
    model = family.model(random_blocks(family.block_shapes(shape), seed=order))
    coordinates, values = some_entries(shape, seed=order)
    ridge = 0.3
    for mode in range(order):
        order_of, begins = sorted_by(coordinates, mode, shape[mode])
        parameters = model.parameters.copy()
        numbers = model.numbers._replace(parameters=parameters)
        effective = least_squares.solve_rows(numbers, coordinates, values, order_of, begins, mode, ridge)
        phi = dense_features(model, coordinates, mode)
        rank = model.ranks[mode]
        expected, degrees = np.zeros((shape[mode], rank)), 0.0
        for i in range(shape[mode]):
            own = coordinates[:, mode] == i
            table = np.vstack([phi[own], math.sqrt(ridge) * np.eye(rank)])
            expected[i] = np.linalg.lstsq(table, np.concatenate([values[own], np.zeros(rank)]), rcond=None)[0]
            degrees += sum(s**2 / (s**2 + ridge) for s in np.linalg.svd(phi[own], compute_uv=False))
        begin = model.block_starts[mode]
        found = parameters[begin : begin + expected.size].reshape(expected.shape)
        np.testing.assert_allclose(found, expected, atol=1e-9)
        assert effective == pytest.approx(degrees, abs=1e-8)
        others = np.ones(parameters.size, dtype=bool)
        others[begin : begin + expected.size] = False
        np.testing.assert_array_equal(parameters[others], model.parameters[others])


def test_a_row_without_entries_becomes_zero():
    model = CP(rank=2).model(random_blocks([(3, 2), (4, 2)], seed=0))
    coordinates = np.array([[0, 1], [2, 3]], dtype=np.uint32)
    parameters = model.parameters.copy()
    order_of, begins = sorted_by(coordinates, 0, 3)
    numbers = model.numbers._replace(parameters=parameters)
    least_squares.solve_rows(numbers, coordinates, np.ones(2), order_of, begins, 0, 0.1)
    assert (parameters[2:4] == 0).all()
    assert (parameters[[0, 4]] != 0).all()


@pytest.mark.parametrize("order", ORDERS)
def test_core_products_against_the_kronecker_matrix(order):
    shape = SHAPES[order]
    family = Tucker(ranks=RANKS[order])
    model = family.model(random_blocks(family.block_shapes(shape), seed=order))
    coordinates, values = some_entries(shape, seed=order)
    phi = np.array([np.ravel(kronecker([f[i] for f, i in zip(model.factors, w, strict=True)])) for w in coordinates])
    entries = Entries.of(coordinates, values, shape)
    direction = np.random.default_rng(1).standard_normal(model.core.size)
    found, _ = core_product(entries, values, model, model.parameters, direction)
    np.testing.assert_allclose(found, phi.T @ (phi @ direction), atol=1e-9)
    right, diagonal = core_product(entries, values, model, model.parameters, None)
    np.testing.assert_allclose(right, phi.T @ values, atol=1e-9)
    np.testing.assert_allclose(diagonal, (phi**2).sum(axis=0), atol=1e-9)


def kronecker(rows):
    tensor = np.ones(())
    for row in rows:
        tensor = np.multiply.outer(tensor, row)
    return tensor


def test_a_matrix_that_is_not_positive_definite_is_not_factorized():
    assert not least_squares.factorize(np.array([[1.0, 0.0], [2.0, 1.0]]))
    assert not least_squares.factorize(np.array([[np.nan]]))
    matrix = np.array([[4.0, 0.0], [2.0, 3.0]])
    assert least_squares.factorize(matrix)
    lower = np.tril(matrix)
    np.testing.assert_allclose(lower @ lower.T, [[4, 2], [2, 3]])


@pytest.mark.parametrize("order", ORDERS)
def test_tucker_rows_are_the_plain_rows(order):
    shape, family = SHAPES[order], Tucker(ranks=RANKS[order])
    model = family.model(random_blocks(family.block_shapes(shape), seed=order))
    coordinates, values = some_entries(shape, seed=order, count=200)
    entries = Entries.of(coordinates, values, shape)
    for mode in range(order):
        plain, fast = model.parameters.copy(), model.parameters.copy()
        lists = entries.orders[mode], entries.begins[mode]
        numbers = model.numbers._replace(parameters=plain)
        expected = least_squares.solve_rows(numbers, coordinates, values, *lists, mode, 0.3)
        assert solve_tucker_rows(entries, values, model, fast, mode, 0.3) == pytest.approx(expected)
        np.testing.assert_allclose(fast, plain, atol=1e-10)
        assert np.abs(fast - model.parameters).max() > 1e-3
