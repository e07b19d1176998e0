"""Checks of arguments, and the errors they raise."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest

from tensorveil import checks, errors
from tensorveil.errors import InputError, SizeError, TensorveilError

NOT_NUMBERS = [None, "1", b"1", [1], True, False, 1j, np.bool_(True)]
NOT_FINITE = [math.nan, math.inf, -math.inf, np.float32("nan")]
NUMBER_CHECKS = [checks.finite_number, checks.positive_number, checks.nonnegative_number, checks.fraction]


@pytest.mark.parametrize("check", NUMBER_CHECKS)
@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE], ids=repr)
def test_what_is_no_finite_number_is_refused_by_name(check, value):
    with pytest.raises(InputError, match=r"^epsilon must be .*got .*;"):
        check("epsilon", value)


@pytest.mark.parametrize("check", NUMBER_CHECKS)
def test_a_whole_number_too_large_for_a_float_is_refused_like_an_infinity(check):
    with pytest.raises(InputError, match=r"^epsilon must be"):
        check("epsilon", 10**400)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), Fraction(1, 2), np.float64(0.5)], ids=repr)
@pytest.mark.parametrize("check", NUMBER_CHECKS)
def test_every_kind_of_real_number_comes_back_as_a_plain_float(check, value):
    result = check("share", value)
    assert result == 0.5
    assert type(result) is float


@pytest.mark.parametrize(
    "check, good, bad",
    [
        (checks.finite_number, [-1e300, 0, 3], []),
        (checks.positive_number, [1e-300, 3], [0, 0.0, -0.0, -1e-300, -2]),
        (checks.nonnegative_number, [0, 0.0, 3], [-1e-300, -2]),
        (checks.fraction, [1e-300, 0.999], [0, 1, 1.5, -0.5]),
    ],
)
def test_each_number_check_draws_its_line_where_it_says(check, good, bad):
    assert [check("x", value) for value in good] == good
    for value in bad:
        with pytest.raises(InputError, match=r"^x must be"):
            check("x", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, 2.5, "3", True, None, math.nan, np.float64(3), [3]], ids=repr)
def test_a_positive_integer_is_neither_a_float_nor_a_truth_value(value):
    with pytest.raises(InputError, match="rank must be a positive whole number"):
        checks.positive_integer("rank", value)


@pytest.mark.parametrize("value", [1, np.int8(7), np.uint64(2**40), 2**70])
def test_a_positive_integer_comes_back_as_a_plain_int(value):
    result = checks.positive_integer("rank", value)
    assert result == value
    assert type(result) is int


def test_a_choice_names_all_its_words():
    assert checks.choice("split", "ub", ("ua", "ub")) == "ub"
    with pytest.raises(InputError, match=r"split must be one of 'ua', 'ub', got 'uc'"):
        checks.choice("split", "uc", ("ua", "ub"))
    with pytest.raises(InputError):
        checks.choice("split", None, ("ua", "ub"))


@pytest.mark.parametrize("value", [None, 0, 5, np.int64(5), 2**100])
def test_a_seed_is_none_or_a_whole_number(value):
    assert checks.seed(value) == value


@pytest.mark.parametrize("value", [-1, 1.0, "0", True, np.random.default_rng(0)])
def test_other_seeds_are_refused(value):
    with pytest.raises(InputError, match="seed must be None or a whole number"):
        checks.seed(value)


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
def test_two_to_six_modes_are_a_tensor(order):
    assert checks.order(order) == order
    assert checks.shape([3] * order) == (3,) * order


@pytest.mark.parametrize("order", [0, 1, 7, 20])
def test_fewer_or_more_modes_are_not(order):
    with pytest.raises(InputError, match=f"2 to 6 modes, got {order}"):
        checks.order(order)
    with pytest.raises(InputError, match=f"2 to 6 modes, got {order}"):
        checks.shape([3] * order)


@pytest.mark.parametrize("value", ["33", b"33", 3, None, {3, 4}, np.array(5), zip("ab", "cd", strict=True)])
def test_a_shape_is_a_sequence(value):
    with pytest.raises(InputError, match="shape must be a sequence"):
        checks.shape(value)


@pytest.mark.parametrize("value", [(3, 0), (3, -1), (3, 2.0), (3, True), (3, 2**32)])
def test_mode_sizes_are_positive_whole_numbers_that_fit(value):
    with pytest.raises(InputError, match=r"shape\[1\]"):
        checks.shape(value)


def test_a_shape_may_come_as_an_array_and_reach_the_largest_index():
    assert checks.shape(np.array([2**32 - 1, 3])) == (2**32 - 1, 3)


def test_absurd_sizes_are_refused_with_the_size_in_the_message():
    checks.dense_size((10, 10), 100, "keep it sparse")
    with pytest.raises(SizeError, match=r"1,000,000,000,000,000,000 .*GiB.*keep it sparse"):
        checks.dense_size((10**6, 10**6, 10**6), 10**8, "keep it sparse")
    with pytest.raises(SizeError, match="at most 99 cells"):
        checks.dense_size((10, 10), 99, "keep it sparse")


@pytest.mark.parametrize("value, number", [(0, 0), (2, 2), (-1, 2), (-3, 0), (np.int64(1), 1)])
def test_modes_may_be_counted_from_the_end(value, number):
    assert checks.mode(value, 3) == number


@pytest.mark.parametrize("value", [3, -4, 1.0, "1", None, True], ids=repr)
def test_there_is_no_such_mode(value):
    with pytest.raises(InputError, match="mode must be a whole number from -3 to 2"):
        checks.mode(value, 3)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.uint32, ">i4"])
def test_coordinates_of_any_integer_kind_come_back_as_uint32(dtype):
    result = checks.coordinates(np.array([[0, 1], [3, 2]], dtype=dtype), (4, 3))
    assert result.dtype == np.uint32
    assert result.flags.c_contiguous
    assert result.tolist() == [[0, 1], [3, 2]]


def test_coordinates_keep_their_row_order_when_they_come_column_by_column():
    columns = np.array([[0, 1, 2], [2, 1, 0]])
    assert checks.coordinates(columns.T, (3, 3)).tolist() == [[0, 2], [1, 1], [2, 0]]


@pytest.mark.parametrize("bad, mode, row", [([[0, 0], [0, 3]], 1, 1), ([[0, 0], [-1, 0]], 0, 1), ([[4, 0]], 0, 0)])
def test_a_coordinate_outside_its_mode_is_named_with_its_row(bad, mode, row):
    with pytest.raises(InputError, match=f"coordinates of mode {mode} must be from 0 to .* in row {row};"):
        checks.coordinates(bad, (4, 3))


def test_a_coordinate_beyond_64_bits_does_not_wrap_around():
    with pytest.raises(InputError):
        checks.coordinates(np.array([[2**64 - 1, 0]], dtype=np.uint64), (4, 3))
    with pytest.raises(InputError):
        checks.coordinates(np.array([[2**32, 0]], dtype=np.int64), (4, 3))


@pytest.mark.parametrize("bad", [[0, 1], [[0, 1, 2]], [[[0, 1]]], 5, [[0], [1]]])
def test_coordinates_are_a_table_with_one_column_a_mode(bad):
    with pytest.raises(InputError, match="coordinates must be a table"):
        checks.coordinates(bad, (4, 3))


@pytest.mark.parametrize("bad", [[[0.0, 1.0]], [["0", "1"]], [[True, False]], [[0, None]]])
def test_coordinates_are_whole_numbers(bad):
    with pytest.raises(InputError, match="coordinates must be whole numbers"):
        checks.coordinates(bad, (4, 3))


def test_every_error_is_one_of_ours_and_a_standard_one_too():
    for own, standard in [
        (errors.InputError, ValueError),
        (errors.SizeError, ValueError),
        (errors.DivergenceError, ArithmeticError),
        (errors.DownloadError, OSError),
        (errors.MissingDependencyError, ImportError),
    ]:
        assert issubclass(own, TensorveilError)
        assert issubclass(own, standard)


def test_a_divergence_error_survives_the_way_home_from_a_worker():
    error = pickle.loads(pickle.dumps(errors.DivergenceError("diverged in iteration 7", 7)))
    assert type(error) is errors.DivergenceError
    assert error.iteration == 7
    assert str(error) == "diverged in iteration 7"
