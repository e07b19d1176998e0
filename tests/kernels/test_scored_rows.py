"""Draws of rows given symbols: the exact posterior by integration on a grid; what a draw depends on."""

import numpy as np
import pytest

from oracles import dense, random_blocks
from tensorveil.inference.posterior.released import Released
from tensorveil.inference.values.public_scales import UNKNOWN, public_scale
from tensorveil.kernels.reference import posterior, scored_rows
from tensorveil.models.cp import CP
from tensorveil.models.offsets import Offsets
from tensorveil.models.tucker import Tucker

SHAPE = (1, 5, 3)
CHANCES = np.array([[0.6, 0.3, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]])


class Case:
    """One row of the first mode, whose law given twelve symbols is integrated; the other modes are fixed."""

    def __init__(self, family, shape=SHAPE, count=12):
        generator = np.random.default_rng(3)
        self.shape = shape
        self.model = family.model(random_blocks(family.block_shapes(shape), seed=2))
        self.where = np.column_stack([generator.integers(0, size, count) for size in shape]).astype(np.uint32)
        self.symbols = generator.integers(0, 3, count).astype(np.uint8)
        released = Released(self.symbols, CHANCES, public_scale([-1.0, 0.0, 1.0], 2**20), UNKNOWN)
        self.table = released.table(released.start(), 12.0)
        self.offsets = generator.normal(0, 0.2, sum(shape))
        self.starts = np.concatenate([[0], np.cumsum(shape)[:-1]]).astype(np.int64)
        self.prior_means = generator.normal(size=(shape[0], self.model.ranks[0] + 1))
        self.precisions = generator.uniform(0.5, 2.0, self.model.ranks[0] + 1)
        self.order = np.argsort(self.where[:, 0], kind="stable")
        self.begins = np.searchsorted(self.where[self.order, 0], np.arange(shape[0] + 1)).astype(np.int64)

    def draw(self, parameters, offsets, key, keep=0.0, parts=None):
        """Draw in place; the number of accepted proposals."""
        table = self.table.values, self.table.information, self.table.reach
        numbers = parameters, self.model.block_starts, self.model.block_widths, offsets, self.starts, self.where
        prior = self.prior_means, self.precisions, np.uint64(key)
        rest = self.symbols, *table, keep, self.order, self.begins, 0, *prior
        return sum(scored_rows.draw_rows(*numbers, 0.0, *rest, *part) for part in parts or [(0, self.shape[0])])

    def log_posterior(self, row):
        """Of one row with its offset, from dense tensors and the normal law."""
        from scipy.stats import norm

        blocks = [np.array(block) for block in self.model.factors]
        blocks[0] = row[None, :-1]
        blocks += [] if self.model.core is None else [np.array(self.model.core)]
        means = dense(self.model.family.model(blocks))[tuple(self.where.T)]
        others = np.split(self.offsets, self.starts[1:])
        means = means + row[-1] + sum(part[self.where[:, 1 + n]] for n, part in enumerate(others[1:]))
        cuts = np.concatenate([[-np.inf], self.table.cuts, [np.inf]])
        chances = np.diff(norm.cdf(cuts - means[:, None]), axis=1) @ CHANCES
        told = np.log(chances[np.arange(len(means)), self.symbols]).sum()
        return told - (self.precisions * (row - self.prior_means[0]) ** 2).sum() / 2


@pytest.mark.parametrize("keep", [0.0, 0.6])
@pytest.mark.parametrize("family", [CP(1), Tucker((1, 2, 2))], ids=str)
def test_draws_of_a_row_have_its_posterior_law(family, keep):
    case = Case(family)
    grid = np.linspace(-6, 6, 121)
    logs = np.array([[case.log_posterior(np.array([x, y])) for y in grid] for x in grid])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    means = np.array([weights.sum(axis=1) @ grid, weights.sum(axis=0) @ grid])
    spreads = np.sqrt([weights.sum(axis=1) @ (grid - means[0]) ** 2, weights.sum(axis=0) @ (grid - means[1]) ** 2])
    product = (grid - means[0]) @ weights @ (grid - means[1])
    parameters, offsets = np.array(case.model.parameters), case.offsets.copy()
    found, accepted, count = [], 0, 30_000
    for key in range(count):
        accepted += case.draw(parameters, offsets, key, keep)
        found.append((parameters[0], offsets[0]))
    rows = np.array(found[100:])
    assert 0.5 < accepted / count <= 1.0
    error = 0.06  # four standard errors of a mean, with the chain's autocorrelation
    np.testing.assert_allclose(rows.mean(axis=0), means, atol=error * spreads.max())
    np.testing.assert_allclose(rows.std(axis=0), spreads, rtol=error)
    assert np.cov(rows.T)[0, 1] == pytest.approx(product, abs=error * spreads.prod())


@pytest.mark.parametrize("family", [CP(2), Tucker((2, 2, 1))], ids=str)
def test_rows_do_not_depend_on_each_other_and_the_key_decides(family):
    case = Case(family, (6, 5, 3), 60)
    results = []
    for key, parts in [(1, None), (1, [(3, 6), (0, 1), (1, 3)]), (2, None)]:
        parameters, offsets = np.array(case.model.parameters), case.offsets.copy()
        accepted = case.draw(parameters, offsets, key, parts=parts)
        assert 0 < accepted <= 6
        results.append((parameters, offsets))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])
    assert not np.array_equal(results[0][0], results[2][0])
    untouched = case.model.block_starts[1]
    np.testing.assert_array_equal(results[0][0][untouched:], case.model.parameters[untouched:])


@pytest.mark.parametrize("family", [CP(2), Tucker((2, 2, 1))], ids=str)
def test_means_are_offsets_and_the_tensor(family):
    case = Case(family, (6, 5, 3), 60)
    means = np.empty(60)
    numbers = case.model.parameters, case.model.block_starts, case.model.block_widths, case.offsets, case.starts
    posterior.predict_means(*numbers, case.where, 0.7, means, 0, 60)
    offsets = Offsets(0.7, np.split(case.offsets, case.starts[1:]))
    np.testing.assert_allclose(means, dense(case.model)[tuple(case.where.T)] + offsets.at(case.where), rtol=1e-12)
