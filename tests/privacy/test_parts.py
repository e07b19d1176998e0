"""What two releases cost together, against an attack that attains it."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorveil.privacy.accounting.parts import cost_of_both, in_common, never_in_both
from tensorveil.privacy.units import Unit

EPSILONS, DELTAS = st.floats(1e-9, 1e3), st.floats(0, 0.5)


@given(EPSILONS, DELTAS, EPSILONS, DELTAS)
def test_both_releases_cost_the_larger_one_or_the_sum(one, small, two, other):
    assert cost_of_both((one, small), (two, other), apart=True) == (max(one, two), max(small, other))
    epsilon, delta = cost_of_both((one, small), (two, other), apart=False)
    assert Fraction(epsilon) >= Fraction(one) + Fraction(two)
    assert Fraction(delta) >= Fraction(small) + Fraction(other)
    assert epsilon <= math.nextafter(one + two, math.inf)


@pytest.mark.parametrize("time", [0, 1, 2])
def test_a_unit_in_both_parts_is_found(time):
    """All pairs of observations of one unit, one in each part, by brute force over small tensors."""
    shape, before, after = (2, 2, 4), {0, 1}, {2, 3}
    before, after = (before, after) if time == 2 else ({0}, {1})
    cells = list(product(*map(range, shape)))
    first, second = ([cell for cell in cells if cell[time] in part] for part in (before, after))
    for unit in (
        Unit.value(),
        Unit.entry(),
        *(kind(mode) for kind in (Unit.slice, Unit.slice_values) for mode in range(3)),
    ):
        together = any(
            one[unit.mode_number] == two[unit.mode_number] if unit.whole_slices else one == two
            for one, two in product(first, second)
        )
        assert never_in_both(unit, time, before, after) == (not together)
        assert not never_in_both(unit, time, before, after | before)


@pytest.mark.parametrize(
    "one, other, common",
    [
        ([1, 2], [1.0], True),
        ([1, 2], ["2.0"], True),
        ([np.float32(7)], ["7"], True),
        (["2024-05"], ["2024-05 "], True),
        (["May"], ["May", "June"], True),
        (["2024-05-03"], ["2024-05-03T00:00:00.000000000"], True),
        ([np.datetime64("2024-05")], [np.datetime64("2024-05-01")], True),
        ([2024], ["2024-05-01"], True),
        (["2024-05", "2024-06-01"], ["2024-05-07"], True),  # of two resolutions
        (["2024-05-03", "2024-05-04"], ["2024-05-04 14:00"], True),
        (["2024-05-04 14:00", "2024-05-04 15:00"], ["2024-05-04 14:30"], True),
        (["2024-05-04 00:00", "2024-05-04 15:00"], ["2024-05-04 00:30"], True),
        (["2024-W18"], ["2024-05-03"], True),
        ([1, 2], [3.0], False),
        (["May"], ["June"], False),
        (["2024-05"], ["2024-06-01"], False),
        (["2024-05-03 23:00", "2024-05-04 00:00"], ["2024-05-04 01:00", "2024-05-04 02:00"], False),
        (["2024-05-03 22:00", "2024-05-03 23:00"], ["2024-05-04 00:00"], False),
        (["2024-W18"], ["2024-W19"], False),
        ([], ["2024"], False),
    ],
)
def test_labels_that_may_be_one_are_in_common(one, other, common):
    assert in_common(one, other) == in_common(other, one) == common
    for unit in (Unit.value(), Unit.slice(0)):
        assert never_in_both(unit, 0, one, other) == (not common)


TIMES = st.tuples(st.sampled_from("YMDhms"), st.lists(st.integers(0, 500), min_size=1, max_size=4))


@given(TIMES, TIMES)
def test_times_are_in_common_if_their_spans_are(first, second):
    """Against the spans that NumPy's units stand for. Times that are apart may be found in common, but rarely."""

    def labels(unit, tens):  # of minutes
        return [(np.datetime64("2024-02-28T12:00") + 10 * ten).astype(f"datetime64[{unit}]") for ten in tens]

    def spans(times):
        return [(one.astype("datetime64[s]"), (one + 1).astype("datetime64[s]")) for one in times]

    one, two = labels(*first), labels(*second)
    together = any(a < d and c < b for a, b in spans(one) for c, d in spans(two))
    assert in_common(one, two) or not together
    assert in_common(one, two) == in_common(two, one) == in_common(map(str, one), two)
    if first[0] == second[0] in "YMD":
        assert in_common(one, two) == together


@pytest.mark.parametrize("apart", [True, False])
def test_randomized_response_on_both_parts_attains_the_stated_cost(apart):
    """The exact largest log ratio of two answers, the second of which is asked in a way that depends on the first."""
    first, second = 0.7, 1.3

    def truth(epsilon):
        return math.exp(epsilon) / (1 + math.exp(epsilon))

    def chance(answers, bits):
        total = 1.0
        for answer, bit, epsilon in zip(answers, bits, (first, second), strict=True):
            asked = bit ^ answers[0] if epsilon == second else bit  # the later question depends on the earlier answer
            total *= truth(epsilon) if answer == asked else 1 - truth(epsilon)
        return total

    worlds = list(product((0, 1), repeat=2))
    near = [
        (one, two)
        for one, two in product(worlds, repeat=2)
        if one != two and (not apart or sum(a != b for a, b in zip(one, two, strict=True)) == 1)
    ]
    largest = max(math.log(chance(seen, one) / chance(seen, two)) for one, two in near for seen in worlds)
    assert largest == pytest.approx(cost_of_both((first, 0.0), (second, 0.0), apart=apart)[0])
