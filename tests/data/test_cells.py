"""Observations by cell: compared with Python's own sorting and grouping."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tensorveil.data.cells import cell_starts, places_in_cells, stable_order


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 6), st.integers(1, 60), st.integers(0, 2**32), st.sampled_from([1, 2, 2**20, 2**32 - 1]))
def test_rows_are_sorted_as_python_sorts_tuples(order, count, seed, largest):
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(1, largest, order, endpoint=True))
    pool = np.column_stack([rng.integers(0, size, 8) for size in shape])
    where = np.ascontiguousarray(pool[rng.integers(0, 8, count)], dtype=np.uint32)
    numbers = rng.integers(0, 5, count)
    rows = [(*cell, number) for cell, number in zip(where.tolist(), numbers.tolist(), strict=True)]
    found = stable_order((*where.T, numbers), (*shape, 5)).tolist()
    assert found == sorted(range(count), key=rows.__getitem__)  # both keep equal rows in their order
    again = stable_order((*where[found].T, numbers[found]), (*shape, 5))
    assert again.tolist() == list(range(count))
    assert stable_order(tuple(where.T), shape).tolist() == sorted(range(count), key=where.tolist().__getitem__)


@pytest.mark.parametrize("order", [2, 4])
def test_a_cell_starts_where_its_first_observation_is(order):
    cells = sorted(np.random.default_rng(order).integers(0, 2, (40, order)).tolist())
    lengths = [len(list(run)) for _, run in itertools.groupby(cells)]
    assert cell_starts(np.array(cells, dtype=np.uint32)).tolist() == [0, *itertools.accumulate(lengths)][:-1]
    assert places_in_cells(np.array(cells)).tolist() == [place for length in lengths for place in range(length)]
    assert max(lengths) > 1


def test_no_observations_have_no_cells():
    assert cell_starts(np.empty((0, 3), dtype=np.uint32)).tolist() == []
