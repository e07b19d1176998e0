"""Scalings and their inverses."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

from tensorveil.data.observations import Observations
from tensorveil.data.scaling import BiScaling, MinMaxScaling
from tensorveil.errors import InputError


def random_observations(shape=(9, 7, 3), share=0.9, seed=0, scale=1.0) -> Observations:
    """Values with centres and spreads of their own in every row and column, a few cells missing."""
    generator = np.random.default_rng(seed)
    rows, columns = generator.uniform(0.5, 3, (shape[0], 1, shape[2])), generator.uniform(0.5, 3, (1, *shape[1:]))
    tensor = rows * columns * generator.standard_normal(shape) + 5 * rows - 3 * columns
    tensor[generator.uniform(size=shape) > share] = math.nan
    return Observations.from_dense(scale * tensor)


def lines(observations: Observations, mode: int, slice_mode: int) -> list[np.ndarray]:
    """The values of every row (or column) of every slice, one array each."""
    groups: dict[tuple[int, int], list[float]] = {}
    for where, value in zip(observations.coordinates.tolist(), observations.values.tolist(), strict=True):
        groups.setdefault((where[mode], where[slice_mode]), []).append(value)
    return [np.array(group) for group in groups.values()]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_min_max_scaling_reaches_both_ends_and_back(values):
    assume(max(values) - min(values) > 1e-6)
    scaling = MinMaxScaling.of(values)
    scaled = scaling.scaled(values)
    assert scaled.min() == 0.0
    assert scaled.max() == 1.0
    assert (np.diff(scaled[np.argsort(values)]) >= 0).all()
    assert scaling.unscaled(scaled) == pytest.approx(np.array(values), rel=1e-12, abs=1e-9)


def test_min_max_scaling_is_a_line_beyond_its_ends_too():
    scaling = MinMaxScaling(1, 5)
    assert scaling.scaled([1, 3, 5, 9, -3]).tolist() == [0.0, 0.5, 1.0, 2.0, -1.0]
    assert scaling.unscaled([0.0, 0.5, 2.0]).tolist() == [1.0, 3.0, 9.0]


@pytest.mark.parametrize("low, high", [(1, 1), (2, 1), (math.nan, 1), (0, math.inf), ("0", 1), (True, 2)])
def test_ends_that_span_nothing_are_refused(low, high):
    with pytest.raises(InputError):
        MinMaxScaling(low, high)


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0], [1.0, math.nan], [1.0, math.inf]])
def test_values_that_span_nothing_are_refused(values):
    with pytest.raises(InputError):
        MinMaxScaling.of(values)


@pytest.mark.parametrize("slice_mode", [0, 1, 2, -1])
def test_bi_scaling_and_back_is_exact_on_the_training_entries(slice_mode):
    observations = random_observations(share=0.4)
    scaling = BiScaling.of(observations, slice_mode)
    scaled = scaling.scaled(observations)
    assert scaled.coordinates.tolist() == observations.coordinates.tolist()
    back = scaling.unscaled(observations.coordinates, scaled.values)
    assert back == pytest.approx(observations.values, rel=1e-12, abs=1e-12)
    assert np.abs(scaled.values - observations.values).max() > 0.1
    assert scaling.covers(observations.coordinates).all()


@pytest.mark.parametrize("slice_mode", [0, 1, 2])
@pytest.mark.parametrize("share", [1.0, 0.9])
def test_rows_and_columns_of_each_slice_have_mean_zero_and_variance_one(slice_mode, share):
    observations = random_observations((9, 8, 10), share, seed=3)
    scaled = BiScaling.of(observations, slice_mode, iterations=500).scaled(observations)
    for mode in {0, 1, 2} - {slice_mode}:
        found = lines(scaled, mode, slice_mode)
        assert len(found) == math.prod((9, 8, 10)) // (9, 8, 10)[3 - slice_mode - mode]
        for line in found:
            assert line.mean() == pytest.approx(0, abs=1e-6)
            assert (line**2).mean() == pytest.approx(1, abs=1e-6)


def test_the_unit_of_the_values_does_not_matter():
    large, small = random_observations(seed=4), random_observations(seed=4, scale=1e-6)
    first = BiScaling.of(large, iterations=200).scaled(large).values
    second = BiScaling.of(small, iterations=200).scaled(small).values
    assert second == pytest.approx(first, rel=1e-6, abs=1e-6)


def test_slices_do_not_touch_each_other():
    observations = random_observations(seed=5)
    changed = np.array(observations.values)
    changed[observations.coordinates[:, 2] == 1] *= 7
    first = BiScaling.of(observations).scaled(observations).values
    second = BiScaling.of(observations.with_values(changed)).scaled(observations.with_values(changed)).values
    other = observations.coordinates[:, 2] != 1
    assert second[other] == pytest.approx(first[other], abs=1e-12)


def test_a_single_entry_of_a_slice_loses_its_mean_and_keeps_its_scale():
    observations = Observations([[0, 0, 0], [1, 1, 1]], [4.0, -6.0], (2, 2, 2))
    scaling = BiScaling.of(observations)
    assert scaling.scaled(observations).values.tolist() == [0.0, 0.0]
    # scale one: a step of one on the standardised scale is a step of one on the values' own
    assert scaling.unscaled([[0, 0, 0]], [1.0]) == pytest.approx([5.0])


def test_a_row_or_column_with_one_entry_keeps_scale_one():
    # one row of five in five columns: every column has one entry, the row has a variance
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    observations = Observations([[0, column, 0] for column in range(5)], values, (1, 5, 1))
    scaling = BiScaling.of(observations)
    assert scaling.gamma.tolist() == [1.0] * 5
    assert scaling.unscaled(observations.coordinates, scaling.scaled(observations).values) == pytest.approx(values)


@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_lines_with_one_entry_have_scale_one_however_short_the_alternation(iterations):
    # slice 0: rows 0 and 1 are full but for the last column, rows 2 and 3 have one entry in the same column
    tensor = np.full((4, 5, 1), math.nan)
    tensor[:2, :4, 0] = np.random.default_rng(8).normal(2, 3, (2, 4))
    tensor[2:, 0, 0] = 30.0, -50.0
    scaling = BiScaling.of(Observations.from_dense(tensor), iterations=iterations)
    # in the unseen last column the column's scale is one, so what shows is the row's
    assert [spread(scaling, row, 4, 0) for row in (2, 3)] == pytest.approx([1.0, 1.0])
    assert spread(scaling, 0, 4, 0) != pytest.approx(1.0)


def test_constant_values_stay_finite():
    observations = Observations.from_dense(np.full((3, 4, 2), 2.5))
    scaling = BiScaling.of(observations)
    assert scaling.scaled(observations).values == pytest.approx(np.zeros(24), abs=1e-12)
    assert scaling.unscaled(observations.coordinates, np.zeros(24)) == pytest.approx(np.full(24, 2.5))


@pytest.fixture
def holey():
    """Slice 0: rows 0-2, columns 0-2 of 5; slice 1 is full; slice 2 has nothing."""
    generator = np.random.default_rng(6)
    tensor = np.full((5, 5, 3), math.nan)
    tensor[:3, :3, 0] = generator.normal(3, 2, (3, 3))
    tensor[:, :, 1] = generator.normal(-1, 1, (5, 5))
    observations = Observations.from_dense(tensor)
    return observations, BiScaling.of(observations, iterations=50)


def centre(scaling: BiScaling, *where: int) -> float:
    return float(scaling.unscaled([where], [0.0])[0])


def spread(scaling: BiScaling, *where: int) -> float:
    return float(scaling.unscaled([where], [1.0])[0]) - centre(scaling, *where)


def test_an_unseen_row_takes_the_mean_of_the_seen_rows_and_scale_one(holey):
    _, scaling = holey
    # averaged over the seen rows, the column's own centre stays and the rows' centres become their mean
    for column in range(3):
        expected = np.mean([centre(scaling, row, column, 0) for row in range(3)])
        assert centre(scaling, 4, column, 0) == pytest.approx(expected)
    # the row's scale is one, so what is left is the column's, the same for all unseen rows
    assert spread(scaling, 4, 1, 0) == pytest.approx(spread(scaling, 3, 1, 0))


def test_an_unseen_column_takes_the_mean_of_the_seen_columns_and_scale_one(holey):
    _, scaling = holey
    for row in range(3):
        expected = np.mean([centre(scaling, row, column, 0) for column in range(3)])
        assert centre(scaling, row, 4, 0) == pytest.approx(expected)
    assert spread(scaling, 1, 4, 0) == pytest.approx(spread(scaling, 1, 3, 0))


def test_where_row_and_column_are_unseen_the_mean_centre_of_the_slice_stands_in_with_scale_one(holey):
    _, scaling = holey
    expected = np.mean([centre(scaling, row, column, 0) for row in range(3) for column in range(3)])
    assert centre(scaling, 3, 4, 0) == pytest.approx(expected)
    assert spread(scaling, 3, 4, 0) == pytest.approx(1.0)


def test_the_scales_of_row_and_column_multiply(holey):
    _, scaling = holey
    product = spread(scaling, 4, 1, 0) * spread(scaling, 2, 4, 0)
    assert spread(scaling, 2, 1, 0) == pytest.approx(product)


def test_in_an_empty_slice_the_mean_of_all_training_values_is_predicted(holey):
    observations, scaling = holey
    for row, column in ((0, 0), (4, 4)):
        assert centre(scaling, row, column, 2) == pytest.approx(float(np.mean(observations.values)))
        assert spread(scaling, row, column, 2) == pytest.approx(1.0)


def test_it_covers_entries_whose_row_and_column_were_seen_on_that_day(holey):
    _, scaling = holey
    for row in range(5):
        for column in range(5):
            assert scaling.covers([[row, column, 0]])[0] == (row < 3 and column < 3)
            assert scaling.covers([[row, column, 1]])[0]
            assert not scaling.covers([[row, column, 2]])[0]


@pytest.mark.parametrize("shape", [(5, 5, 3), (9, 5, 3), (5, 9, 3), (5, 5, 4)])
def test_observations_of_another_shape_are_refused(holey, shape):
    observations, scaling = holey
    other = Observations(np.array(shape)[None, :] - 1, [1.0], shape)
    if shape == observations.shape:
        assert len(scaling.scaled(other)) == 1
    else:
        with pytest.raises(InputError):
            scaling.scaled(other)


def test_coordinates_outside_the_shape_are_refused(holey):
    _, scaling = holey
    for call in (lambda where: scaling.unscaled(where, [0.0]), scaling.covers):
        with pytest.raises(InputError, match="coordinates of mode 2"):
            call([[0, 0, 3]])


@pytest.mark.parametrize("order", [2, 4])
def test_only_three_modes_have_slices(order):
    with pytest.raises(InputError, match="3 modes"):
        BiScaling.of(Observations.from_dense(np.eye(3) if order == 2 else np.ones((2,) * 4)))


@pytest.mark.parametrize("arguments", [{"slice_mode": 3}, {"slice_mode": "day"}, {"iterations": 0}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(InputError):
        BiScaling.of(random_observations(), **arguments)
