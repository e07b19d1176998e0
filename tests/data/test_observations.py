"""Observed entries: what is refused, what is merged, what is kept, and that nobody can change it."""

import array
import copy
import dataclasses
import math
import pickle
from collections import Counter
from fractions import Fraction

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings
from scipy import stats

from tensorveil.data.observations import Observations
from tensorveil.errors import InputError, SizeError

COORDINATES = [[0, 0, 1], [1, 2, 0], [0, 1, 1]]
VALUES = [1.0, -2.0, 0.5]
SHAPE = (2, 3, 2)


def small(**arguments) -> Observations:
    return Observations(**{"coordinates": COORDINATES, "values": VALUES, "shape": SHAPE, **arguments})


def as_dict(observations: Observations) -> dict[tuple[int, ...], float]:
    return {
        tuple(where): value
        for where, value in zip(observations.coordinates.tolist(), observations.values.tolist(), strict=True)
    }


def random_entries(shape: tuple[int, ...], number: int, seed: int):
    generator = np.random.default_rng(seed)
    return np.column_stack([generator.integers(0, size, number) for size in shape]), generator.standard_normal(number)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"coordinates": [[0, 0, 1], [1, 3, 0], [0, 1, 1]]}, "mode 1 must be from 0 to 2, got 3 in row 1"),
        ({"coordinates": [[0, 0, 1], [1, -1, 0], [0, 1, 1]]}, "mode 1 must be from 0 to 2, got -1 in row 1"),
        ({"coordinates": np.array(COORDINATES, dtype=float)}, "coordinates must be whole numbers, got dtype float64"),
        ({"coordinates": np.array(COORDINATES, dtype=str)}, "coordinates must be whole numbers"),
        ({"coordinates": np.array(COORDINATES, dtype=bool)}, "coordinates must be whole numbers"),
        ({"coordinates": [[0, 0], [1, 2], [0, 1]]}, "3 columns"),
        ({"coordinates": [0, 1, 2]}, "must be a table"),
        ({"values": [1.0, math.inf, 2.0]}, "values must be finite, got 1 NaN or infinite, the first in row 1"),
        ({"values": [1.0, 2.0, -math.inf]}, "values must be finite, got 1 NaN or infinite, the first in row 2"),
        ({"values": [math.nan, math.inf, 2.0]}, "values must be finite, got 2 NaN or infinite, the first in row 0"),
        ({"values": [1.0, 2.0]}, "must have the same length, got 3 rows and 2 values"),
        ({"values": [1.0, 2.0, 3.0, 4.0]}, "must have the same length, got 3 rows and 4 values"),
        ({"values": [[1.0], [2.0], [3.0]]}, "values must be a list"),
        ({"values": ["1", "2", "3"]}, "values must be numbers"),
        ({"values": [True, False, True]}, "values must be numbers"),
        ({"values": [1j, 2j, 3j]}, "values must be numbers"),
        ({"values": [1.0, None, 2.0]}, "values must be numbers"),
        ({"coordinates": np.empty((0, 3), dtype=int), "values": []}, "at least one entry"),
        ({"coordinates": [[0, 0, 1], [1, 2, 0], [0, 0, 1]]}, "every cell must occur once, got 1 repeated.* row 2"),
        ({"duplicates": "sum"}, "duplicates must be one of 'error', 'keep', 'mean', got 'sum'"),
        ({"shape": (2,)}, "2 to 6 modes, got 1"),
        ({"shape": (2,) * 7}, "2 to 6 modes, got 7"),
        ({"shape": (2, 3, 0)}, r"shape\[2\] must be a positive whole number"),
        ({"shape": (2, 3.0, 2)}, r"shape\[1\] must be a positive whole number"),
        ({"mode_names": ("a", "b")}, "mode_names must be 3 different"),
        ({"mode_names": ("a", "b", "a")}, "mode_names must be 3 different"),
        ({"mode_names": ("a", "b", "")}, "mode_names must be 3 different"),
        ({"mode_names": ("a", "b", 3)}, "mode_names must be 3 different"),
        ({"labels": [None, None]}, "labels must be one list .* per mode, got 2 for 3"),
        ({"labels": [["x"], None, None]}, "labels of mode 0 must be 2"),
        ({"labels": [None, ["x", "y", "x"], None]}, "labels of mode 1 must be different"),
        ({"labels": [None, None, "xy"]}, "labels of mode 2 must be 2"),
    ],
)
def test_each_kind_of_bad_input_has_its_own_clear_error(changed, message):
    with pytest.raises(InputError, match=message):
        small(**changed)


def test_nothing_at_all_is_refused():
    with pytest.raises(InputError):
        Observations([], [], (2, 3))


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
def test_entries_of_any_order_come_back_as_they_went_in(order):
    shape = tuple(range(2, 2 + order))
    coordinates = np.unique(random_entries(shape, 30, order)[0], axis=0)[::-1]
    values = np.arange(len(coordinates))
    observations = Observations(coordinates, values, shape)
    assert observations.order == order
    assert observations.shape == shape
    assert observations.mode_names == tuple(f"mode_{number}" for number in range(order))
    assert observations.labels == (None,) * order
    assert observations.coordinates.tolist() == coordinates.tolist()
    assert observations.values.tolist() == values.tolist()
    assert len(observations) == len(values)


def test_indices_up_to_the_largest_32_bit_number_are_kept_exactly():
    top = 2**32 - 2
    observations = Observations([[top, 0], [top - 1, 2], [2**31, 1]], [1, 2, 3], (2**32 - 1, 3))
    assert observations.coordinates.tolist() == [[top, 0], [top - 1, 2], [2**31, 1]]
    with pytest.raises(InputError, match="got 4294967295 in row 0"):
        Observations([[top + 1, 0]], [1], (2**32 - 1, 3))


HUGE = (2**31, 2**31, 5)  # more than 2**63 cells


@pytest.mark.parametrize("shape", [(4, 3, 5), HUGE, (2**31, 2**31, 2)])  # the last one has 2**63 cells exactly
def test_the_mean_of_duplicates_is_that_of_a_python_dict(shape):
    coordinates, values = random_entries((4, 3, 2), 200, 1)
    coordinates[:, 0] += shape[0] - 4
    heap: dict[tuple[int, ...], list[float]] = {}
    for where, value in zip(coordinates.tolist(), values.tolist(), strict=True):
        heap.setdefault(tuple(where), []).append(value)
    observations = Observations(coordinates, values, shape, duplicates="mean")
    result = as_dict(observations)
    assert len(observations) == len(result) == len(heap) < 200
    assert observations.duplicates == "mean"
    for where, found in heap.items():
        assert result[where] == pytest.approx(math.fsum(found) / len(found), abs=1e-14)


LARGEST = float(np.finfo(float).max)


@pytest.mark.parametrize(
    "values",
    [
        [1.7e308, 1.7e308],
        [1.7e308, 1.7e308, -1.7e308, -1.7e308],
        [LARGEST] * 7,
        [LARGEST, -LARGEST, LARGEST],
        [LARGEST, 5e-324],
        [5e-324, 1e-323],
        [0.0, -0.0],
        [0.1] * 10,
    ],
)
def test_the_mean_of_any_finite_values_is_finite_and_exact_to_the_last_digits(values):
    observations = Observations([[0, 0]] * len(values), values, (1, 1), duplicates="mean")
    exact = sum(map(Fraction, values)) / len(values)
    error = abs(Fraction(float(observations.values[0])) - exact)
    assert error <= Fraction(2) ** -50 * max(abs(Fraction(value)) for value in values) + Fraction(5e-324)
    assert min(values) <= observations.values[0] <= max(values)


def test_a_mean_does_not_depend_on_the_order_of_the_rows():
    values = np.array([0.1, 0.2, 0.3, 1e16, -1e16, 0.7, 1 / 3])
    where = np.zeros((len(values), 2), dtype=int)
    rng = np.random.default_rng(0)
    means = {Observations(where, rng.permutation(values), (1, 1), duplicates="mean").values[0] for _ in range(50)}
    assert len(means) == 1


@pytest.mark.parametrize("shape", [(4, 3, 5), HUGE])
def test_kept_duplicates_stay_as_they_are(shape):
    coordinates, values = random_entries((4, 3, 5), 200, 2)
    observations = Observations(coordinates, values, shape, duplicates="keep")
    assert observations.coordinates.tolist() == coordinates.tolist()
    assert observations.values.tolist() == values.tolist()
    assert observations.duplicates == "keep"


@pytest.mark.parametrize("shape", [(4, 3, 5), HUGE])
def test_the_error_counts_the_duplicates_and_names_the_first(shape):
    coordinates = [[0, 0, 0], [3, 2, 4], [1, 1, 1], [3, 2, 4], [0, 0, 0], [3, 2, 4]]
    with pytest.raises(InputError, match="got 3 repeated, the first in row 3"):
        Observations(coordinates, range(6), shape)


def test_cells_whose_numbers_differ_only_beyond_64_bits_are_no_duplicates():
    # raveled naively, [2**31, 0, 0] and [0, 0, 0] share a number modulo 2**64
    observations = Observations([[0, 0, 0], [2**31, 0, 0]], [1, 2], (2**32 - 1, 2**32 - 1, 2), duplicates="mean")
    assert len(observations) == 2


def test_duplicates_have_no_dense_form():
    observations = small(coordinates=[[0, 0, 1]] * 3, duplicates="keep")
    with pytest.raises(InputError, match="every cell must occur once"):
        observations.to_dense()


MISSING_OR_NUMBER = st.one_of(st.just(math.nan), st.floats(-1e6, 1e6))


@settings(deadline=None, max_examples=60)
@given(arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=6, max_side=4), elements=MISSING_OR_NUMBER))
def test_dense_to_sparse_and_back_changes_nothing(tensor):
    assume(not np.isnan(tensor).all())
    observations = Observations.from_dense(tensor)
    assert observations.shape == tensor.shape
    assert len(observations) == sum(not math.isnan(number) for number in tensor.ravel().tolist())
    assert np.array_equal(observations.to_dense(), tensor, equal_nan=True)
    for where, value in as_dict(observations).items():
        assert tensor[where] == value


def test_sparse_to_dense_and_back_changes_nothing_but_the_order_of_the_rows():
    observations = small()
    assert as_dict(Observations.from_dense(observations.to_dense())) == as_dict(observations)
    assert observations.to_dense(missing=0.0).sum() == pytest.approx(sum(VALUES))


@pytest.mark.parametrize(
    "tensor, message",
    [
        (np.full((2, 2), math.nan), "at least one entry"),
        (np.array([[1.0, math.inf]]), "values must be finite"),
        (np.ones(3), "2 to 6 modes, got 1"),
        (np.ones((1,) * 7), "2 to 6 modes, got 7"),
        (np.ones((0, 2)), "shape"),
    ],
)
def test_dense_arrays_that_are_no_tensor_are_refused(tensor, message):
    with pytest.raises(InputError, match=message):
        Observations.from_dense(tensor)


def test_the_mask_of_a_masked_array_is_not_ignored():
    tensor = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, True], [False, False]])
    try:
        observations = Observations.from_dense(tensor)
    except InputError:
        return  # refused: fine
    assert len(observations) == 3  # or understood: fine too


def test_an_absurd_dense_form_is_refused_with_its_size():
    observations = Observations([[0, 0, 0]], [1.0], (10**6, 10**6, 10**6))
    with pytest.raises(SizeError, match="1,000,000,000,000,000,000"):
        observations.to_dense()
    with pytest.raises(SizeError, match="at most 11 cells"):
        small().to_dense(max_cells=11)


def _split(observations, fraction, seed):
    """The two sides, or None twice if one would be empty."""
    try:
        return observations.split(fraction, seed=seed)
    except InputError:
        return None, None


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 200), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_a_split_is_a_partition(number, fraction, seed):
    observations = Observations([[row, row % 3] for row in range(number)], np.arange(number), (200, 3))
    first, second = _split(observations, fraction, seed)
    if first is None:
        assert min(fraction, 1 - fraction) * number < 30  # else with probability below e^-30
        return
    assert len(first) + len(second) == number
    assert as_dict(first).keys().isdisjoint(as_dict(second))
    assert as_dict(first) | as_dict(second) == as_dict(observations)
    assert first.shape == second.shape == observations.shape


def test_the_seed_decides_the_split():
    observations = Observations([[row, 0] for row in range(100)], range(100), (100, 2))
    assert observations.split(seed=3) == observations.split(seed=3)
    assert observations.split(seed=3) != observations.split(seed=4)
    assert observations.split() != observations.split()


def test_every_entry_comes_to_the_training_side_equally_often():
    observations = Observations([[row, 0] for row in range(40)], range(40), (40, 2))
    counts = np.zeros(40)
    for seed in range(400):
        counts[observations.split(0.5, seed=seed)[0].coordinates[:, 0]] += 1
    assert np.abs(counts - 200).max() < 5 * 10  # five standard deviations of Binomial(400, 1/2)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_sides_are_as_independent_coins(fraction):
    """Sizes of one split, runs of neighbouring cells, and two seeds, against the binomial law."""
    observations = Observations(np.argwhere(np.ones((300, 200))), np.arange(60_000), (300, 200))
    one, two = (
        np.isin(observations.values, observations.split(fraction, seed=seed)[0].values).reshape(300, 200)
        for seed in (1, 2)
    )
    for sides in (one[:, 1:] & one[:, :-1], one[1:] & one[:-1], one & two):
        assert stats.binomtest(int(sides.sum()), sides.size, fraction**2).pvalue > 1e-6
    assert stats.binomtest(int(one.sum()), one.size, fraction).pvalue > 1e-6
    away = (one.sum(axis=1) - 200 * fraction) ** 2 / (200 * fraction * (1 - fraction))
    assert 1e-6 < stats.chi2.sf(away.sum(), 300) < 1 - 1e-6


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(["value", "entry", "slice"]))
def test_neighbours_of_the_whole_are_neighbours_on_each_side(seed, unit):
    """A value replaced, an observation removed, a slice removed: what is left stays on its side."""
    coordinates, values = random_entries((9, 90, 2), 200, seed)
    whole = Observations(coordinates, values, (9, 90, 2), duplicates="keep")
    if unit == "value":
        other = whole.with_values(np.where(np.arange(200) == 17, 9.0, values))
    else:
        other = whole.take(np.arange(200) != 17 if unit == "entry" else coordinates[:, 1] != coordinates[17, 1])
    for by in (None, 1, "mode_1"):
        for side, near in zip(whole.split(0.5, by=by, seed=seed), other.split(0.5, by=by, seed=seed), strict=True):
            apart = Counter(as_rows(side)) - Counter(as_rows(near))
            assert not Counter(as_rows(near)) - Counter(as_rows(side)) or unit == "value"
            assert all(row[1] == coordinates[17, 1] for row in apart)
            assert unit == "slice" or sum(apart.values()) <= 1


def as_rows(observations):
    return [
        (*where, value) for where, value in zip(observations.coordinates.tolist(), observations.values, strict=True)
    ]


def test_a_split_by_a_mode_keeps_each_of_its_indices_whole():
    observations = Observations(np.argwhere(np.ones((400, 5))), np.arange(2000), (400, 5), mode_names=("user", "film"))
    first, second = observations.split(0.8, by="user", seed=3)
    users = [set(side.coordinates[:, 0].tolist()) for side in (first, second)]
    assert users[0].isdisjoint(users[1])
    assert stats.binomtest(len(users[0]), 400, 0.8).pvalue > 1e-6
    assert len(first) == 5 * len(users[0])
    assert observations.split(0.8, by=0, seed=3) == (first, second)
    with pytest.raises(InputError, match="mode must be one of"):
        observations.split(0.8, by="actor")


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([(3, 4, 3), HUGE]))
def test_a_split_depends_on_cells_alone_and_keeps_each_whole(seed, shape):
    coordinates, values = random_entries((3, 4, 3), 80, seed)
    observations = Observations(coordinates, values, shape, duplicates="keep")
    first, second = observations.split(0.6, seed=7)
    assert as_dict(first).keys().isdisjoint(as_dict(second))
    assert len(first) + len(second) == 80
    for order in (np.argsort(values), np.random.default_rng(seed).permutation(80)):
        other = Observations(coordinates[order], np.ones(80), shape, duplicates="keep").split(0.6, seed=7)[0]
        assert sorted(other.coordinates.tolist()) == sorted(first.coordinates.tolist())


def test_a_single_cell_is_not_split():
    with pytest.raises(InputError, match="both sides"):
        small(coordinates=[[0, 0, 1]] * 3, duplicates="keep").split(0.5)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, math.nan, "half", True])
def test_a_split_that_is_none_is_refused(fraction):
    with pytest.raises(InputError, match="fraction must be"):
        small().split(fraction)


def test_a_split_with_an_empty_side_is_refused():
    with pytest.raises(InputError, match="both sides"):
        small().split(0.01)


def test_sampling_keeps_observed_cells_and_zeroes_the_others():
    tensor = np.random.default_rng(5).standard_normal(SHAPE)
    sampled = small().sampled(tensor)
    for cell in np.ndindex(*SHAPE):
        assert sampled[cell] == (tensor[cell] if list(cell) in COORDINATES else 0.0)
    assert np.array_equal(small().sampled(sampled), sampled)  # a projection
    with pytest.raises(InputError, match=r"shape \(2, 3, 2\)"):
        small().sampled(np.ones((2, 3)))


def test_taking_rows_by_number_and_by_mask_is_the_same():
    observations = small(mode_names=("a", "b", "c"), labels=[["x", "y"], None, None])
    by_number, by_mask = observations.take([0, 2]), observations.take([True, False, True])
    assert by_number == by_mask
    assert by_number.coordinates.tolist() == [COORDINATES[0], COORDINATES[2]]
    assert by_number.values.tolist() == [VALUES[0], VALUES[2]]
    assert by_number.mode_names == ("a", "b", "c")
    assert by_number.labels[0].tolist() == ["x", "y"]


@pytest.mark.parametrize("rows", [[], [False, False, False], [3], [True], [0.0], 0])
def test_rows_that_are_none_are_refused(rows):
    with pytest.raises(InputError):
        small().take(rows)


def test_taking_a_row_twice_does_not_smuggle_a_duplicate_in():
    try:
        observations = small().take([0, 0])
    except InputError:
        return
    assert observations.duplicates == "keep"


def test_other_values_at_the_same_cells():
    observations = small(labels=[["x", "y"], None, None])
    other = observations.with_values([7, 8, 9])
    assert other.values.tolist() == [7.0, 8.0, 9.0]
    assert other.coordinates.tolist() == COORDINATES
    assert other.labels[0].tolist() == ["x", "y"]
    assert observations.values.tolist() == VALUES
    for bad in ([1, 2], [1, 2, math.nan], ["a", "b", "c"]):
        with pytest.raises(InputError):
            observations.with_values(bad)


def _writeable(*parts: np.ndarray) -> list[bool]:
    return [part.flags.writeable for part in parts]


@pytest.mark.parametrize("duplicates", ["error", "keep", "mean"])
def test_nobody_can_write_into_observations(duplicates):
    observations = small(labels=[["x", "y"], None, None], duplicates=duplicates)
    for one in (
        observations,
        observations.take([0, 1]),
        observations.with_values([1, 2, 3]),
        *observations.split(0.5, seed=1),
    ):
        assert _writeable(one.coordinates, one.values, one.labels[0]) == [False] * 3
        with pytest.raises(ValueError, match="read-only"):
            one.values[0] = 7
    with pytest.raises(AttributeError):
        observations.values = np.ones(3)
    with pytest.raises(AttributeError):
        observations.comment = "slots"


@pytest.mark.parametrize("duplicates", ["error", "keep", "mean"])
def test_what_the_caller_does_to_his_arrays_afterwards_changes_nothing(duplicates):
    coordinates, values = np.array(COORDINATES, dtype=np.uint32), np.array(VALUES)
    labels = np.array(["x", "y"], dtype=object)
    observations = small(coordinates=coordinates, values=values, labels=[labels, None, None], duplicates=duplicates)
    fresh = np.array(VALUES)
    other = observations.with_values(fresh)
    before = as_dict(observations)
    coordinates[:], values[:], labels[:], fresh[:] = 0, 99, "z", 99
    assert as_dict(observations) == before
    assert as_dict(other) == before
    assert observations.labels[0].tolist() == ["x", "y"]


def test_a_read_only_view_of_a_writeable_array_is_no_back_door():
    coordinates, values = np.array(COORDINATES, dtype=np.uint32), np.array(VALUES)
    views = coordinates[:], values[:]
    for view in views:
        view.setflags(write=False)
    observations, other = small(coordinates=views[0], values=views[1]), small().with_values(views[1])
    coordinates[:], values[:] = 0, 99
    assert observations.coordinates.tolist() == COORDINATES
    assert observations.values.tolist() == other.values.tolist() == VALUES


def test_a_buffer_or_a_series_of_the_caller_is_no_back_door():
    pandas = pytest.importorskip("pandas")
    for values in (array.array("d", VALUES), pandas.Series(VALUES)):
        observations = small(values=values)
        values[0] = 99.0
        assert observations.values.tolist() == VALUES


def test_the_callers_arrays_stay_writeable():
    coordinates, values = np.array(COORDINATES, dtype=np.uint32), np.array(VALUES)
    small(coordinates=coordinates, values=values)
    assert _writeable(coordinates, values) == [True, True]


def test_observations_are_equal_by_value():
    assert small() == small()
    assert small() != small(values=[1.0, -2.0, 0.6])
    assert small() != small(shape=(2, 3, 3))
    assert small() != small(mode_names=("a", "b", "c"))
    assert small() != small(labels=[["x", "y"], None, None])
    assert small() != small(duplicates="keep")
    assert small() != small(coordinates=COORDINATES[::-1], values=VALUES[::-1])
    assert small() != "observations"
    with pytest.raises(TypeError):
        hash(small())


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy, copy.copy])
def test_a_copy_or_a_pickle_is_equal_and_as_immutable(copied):
    observations = small(labels=[["x", "y"], None, None])
    other = copied(observations)
    assert other == observations
    assert _writeable(other.coordinates, other.values, other.labels[0]) == [False] * 3


def test_nothing_unmarks_labels_that_were_read_off_the_data():
    table = {"a": ["x", "y", "z"], "b": [1, 1, 2], "c": [5, 6, 5], "v": [1.0, 2.0, 3.0]}
    read = Observations.from_table(table, ["a", "b", "c"], "v", labels={"b": [1, 2]}, public_labels=["c"])
    kin = [
        read,
        read.take([0, 2]),
        read.with_values([4, 5, 6]),
        *read.split(0.5, seed=0),
        copy.copy(read),
        copy.deepcopy(read),
        pickle.loads(pickle.dumps(read)),
        read._described(),
        read._described(inferred_modes=["a"], public=["a"]),
    ]
    for one in kin:
        assert (one.inferred_modes, one.stated_modes) == (("a",), ("c",))
        with pytest.raises(AttributeError):
            one.inferred_modes = ()
    # what else makes observations of observations must be in the list above
    public = {name for name, part in vars(Observations).items() if not name.startswith("_") and callable(part)}
    assert public == {"take", "with_values", "split", "to_dense", "sampled"}
    with pytest.raises(TypeError):
        dataclasses.replace(read, inferred_modes=())


def test_the_text_says_how_much_is_observed():
    text = repr(small(mode_names=("user", "film", "day")))
    assert text == "Observations(3 values in 2 x 3 x 2 (user x film x day), 25 % observed)"
