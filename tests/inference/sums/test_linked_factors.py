"""Factors that stand for something given: they predict the product, whatever the other modes are."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.sums.linked_factors import item_columns, linked_factors

SHAPE = (5, 4, 3)
FAMILIES = [tv.CP(rank=3), tv.Tucker(ranks=(3, 3, 2))]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode, partner", [(0, 1), (1, 0)])
def test_they_predict_the_product_of_columns_and_rows(family, mode, partner):
    rng = np.random.default_rng(0)
    columns, rows = rng.normal(size=(SHAPE[mode], 3)), rng.normal(size=(SHAPE[partner], 3))
    dense = linked_factors(family.zeros(SHAPE), mode, columns, partner, rows).to_dense()
    expected = columns @ rows.T if mode < partner else rows @ columns.T
    np.testing.assert_allclose(dense, np.broadcast_to(expected[:, :, None], SHAPE), atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_rows_nothing_is_predicted_and_ranks_bound_the_columns(family):
    columns = np.random.default_rng(0).normal(size=(4, 7))
    model = linked_factors(family.zeros(SHAPE), 1, columns, 0)
    assert not model.to_dense().any()
    np.testing.assert_array_equal(model.factors[1], columns[:, :3])


def test_columns_of_items_are_even_and_average_to_nothing_over_counts():
    rng = np.random.default_rng(1)
    offsets, counts, given = rng.normal(0, 0.1, 50), rng.integers(0, 90, 50).astype(float), rng.normal(size=(50, 4))
    columns = item_columns(offsets, counts, given)
    np.testing.assert_allclose(counts @ columns, 0.0, atol=1e-9)
    sizes = np.square(columns).mean(axis=0)
    np.testing.assert_allclose([sizes[0], sizes[1], sizes[2:].sum()], 1.0)
    assert np.corrcoef(columns[:, 0], offsets)[0, 1] == pytest.approx(1.0)


def test_what_does_not_vary_is_no_column():
    assert item_columns(np.zeros(6), np.ones(6), None).shape == (6, 0)
