"""Draws of rows against dense normal equations; what a draw depends on, and what it does not."""

import numpy as np
import pytest

from oracles import ORDERS, RANKS, SHAPES, dense, random_blocks
from tensorveil.kernels.reference import posterior
from tensorveil.models.cp import CP
from tensorveil.models.offsets import Offsets
from tensorveil.models.tucker import Tucker

CASES = [(order, family) for order in ORDERS for family in (CP(rank=3), Tucker(ranks=RANKS[order]))]
MEAN = 0.3


def sorted_by(where, mode, size):
    order = np.argsort(where[:, mode], kind="stable")
    return order, np.searchsorted(where[order, mode], np.arange(size + 1)).astype(np.int64)


def dense_features(model, where, mode):
    """phi of a mode at every entry: the tensor with unit vectors for its rows."""
    columns = []
    for unit in np.eye(model.ranks[mode]):
        factors = list(model.factors)
        factors[mode] = np.tile(unit, (model.shape[mode], 1))
        changed = model.family.model(factors if model.core is None else [*factors, model.core])
        columns.append(dense(changed)[tuple(where.T)])
    return np.column_stack(columns)


class Case:
    """A model with offsets, entries, and everything that the kernel is handed."""

    def __init__(self, order, family):
        self.shape = SHAPES[order]
        self.model = family.model(random_blocks(family.block_shapes(self.shape), seed=order))
        generator = np.random.default_rng(order)
        where = np.column_stack([generator.integers(0, size, 40) for size in self.shape])
        self.where = np.ascontiguousarray(where[where[:, 0] != 1], dtype=np.uint32)  # some twice; row 1 has none
        self.values = generator.standard_normal(len(self.where))
        self.precisions = generator.uniform(0.5, 2.0, len(self.values))
        self.starts = np.concatenate([[0], np.cumsum(self.shape)[:-1]]).astype(np.int64)
        self.offsets = generator.normal(0, 0.2, sum(self.shape))
        self.priors = [
            generator.normal(size=(size, rank + 1)) for size, rank in zip(self.shape, self.model.ranks, strict=True)
        ]
        self.strengths = [generator.uniform(0.5, 2.0, rank + 1) for rank in self.model.ranks]

    def draw(self, mode, key, parts=None, reflection=0.0, parameters=None, offsets=None):
        parameters = self.model.parameters.copy() if parameters is None else parameters
        offsets = self.offsets.copy() if offsets is None else offsets
        centres = np.zeros((self.shape[mode], self.model.ranks[mode] + 1))
        for part in parts or [(0, self.shape[mode])]:
            posterior.draw_rows(
                parameters, self.model.block_starts, self.model.block_widths, offsets, self.starts, self.where, MEAN,
                self.values, self.precisions, *sorted_by(self.where, mode, self.shape[mode]), mode, self.priors[mode],
                self.strengths[mode], reflection, centres, np.uint64(key), *part,
            )  # fmt: skip
        rank, first = self.model.ranks[mode], self.model.block_starts[mode]
        rows = parameters[first : first + self.shape[mode] * rank].reshape(-1, rank)
        own = offsets[self.starts[mode] : self.starts[mode] + self.shape[mode]]
        return np.column_stack([rows, own]), centres

    def dense(self, mode, i):
        """Mean and covariance of one row, by numpy."""
        phi = np.column_stack([dense_features(self.model, self.where, mode), np.ones(len(self.where))])
        targets = self.values - MEAN
        for other in range(len(self.shape)):
            if other != mode:
                targets = targets - self.offsets[self.starts[other] + self.where[:, other]]
        own = self.where[:, mode] == i
        weighted = phi[own] * self.precisions[own, None]
        covariance = np.linalg.inv(weighted.T @ phi[own] + np.diag(self.strengths[mode]))
        return covariance @ (weighted.T @ targets[own] + self.strengths[mode] * self.priors[mode][i]), covariance


@pytest.mark.parametrize("order, family", CASES, ids=str)
def test_rows_scatter_about_the_dense_solution_with_its_covariance(order, family):
    case = Case(order, family)
    for mode in range(order):
        draws = []
        for key in range(300):
            rows, centres = case.draw(mode, key)
            draws.append(rows)
        for i in (0, case.shape[mode] - 1, 1):  # row 1 of the first mode has no entries: its prior
            mean, covariance = case.dense(mode, i)
            np.testing.assert_allclose(centres[i], mean, rtol=1e-8, atol=1e-10)
            standard = np.linalg.solve(np.linalg.cholesky(covariance), (np.array(draws)[:, i] - mean).T)
            assert np.abs(standard.mean(axis=1)).max() < 5 / np.sqrt(300)
            np.testing.assert_allclose(standard @ standard.T / 300, np.eye(len(mean)), atol=0.45)


@pytest.mark.parametrize("order, family", CASES[:2], ids=str)
def test_a_row_does_not_depend_on_which_thread_draws_it(order, family):
    case = Case(order, family)
    size = case.shape[0]
    whole = case.draw(0, 7)[0]
    np.testing.assert_array_equal(whole, case.draw(0, 7, [(2, size), (0, 1), (1, 2)])[0])
    assert (whole != case.draw(0, 8)[0]).all()


def test_reflection_keeps_the_law_and_crosses_to_the_other_side():
    case = Case(2, CP(rank=3))
    mean, covariance = case.dense(0, 0)
    root = np.linalg.cholesky(covariance)
    parameters, offsets = case.model.parameters.copy(), case.offsets.copy()
    states = []
    for key in range(2000):
        rows, _ = case.draw(0, key, reflection=-0.7, parameters=parameters, offsets=offsets)
        states.append(np.linalg.solve(root, rows[0] - mean))
    states = np.array(states[10:])
    np.testing.assert_allclose(states.T @ states / len(states), np.eye(4), atol=0.2)
    np.testing.assert_allclose((states[1:] * states[:-1]).mean(axis=0), -0.7, atol=0.12)


@pytest.mark.parametrize("order, family", CASES, ids=str)
def test_means_are_those_of_offsets_and_model(order, family):
    case = Case(order, family)
    means = np.empty(len(case.where))
    model = case.model
    for part in ((0, 10), (10, len(means))):
        posterior.predict_means(
            model.parameters, model.block_starts, model.block_widths, case.offsets, case.starts, case.where, MEAN,
            means, *part,
        )  # fmt: skip
    offsets = Offsets(MEAN, np.split(case.offsets, case.starts[1:]))
    np.testing.assert_allclose(means, offsets.at(case.where) + model.predict(case.where), rtol=1e-12, atol=1e-12)
