"""Finite channels against exact fractions, randomized response and other private channels."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.errors import InputError
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.noise.channels import BITS, MOST_LEVELS, Channel
from tensorveil.privacy.queries.values.symbols import Symbols

STARS = public_scale((-1.0, -0.5, 0.0, 0.5, 1.0), VALUE_STEPS)


def exp_below(x: float) -> Fraction:
    """A lower bound on e^x from the series, in fractions: every term left out is positive."""
    power, total = Fraction(1), Fraction(1)
    for n in range(1, 200):
        power *= Fraction(x) / n
        total += power
    return total


def within(channel: Channel, epsilon: float) -> bool:
    bound = exp_below(epsilon)
    return all(max(column) <= bound * min(column) for column in channel.counts.T.tolist())


@settings(max_examples=40, deadline=None)
@given(
    st.floats(1e-3, 25.0),
    st.lists(st.integers(-50, 50), min_size=2, max_size=7, unique=True),
    st.floats(0.1, 1e4),
)
def test_a_designed_channel_never_exceeds_epsilon(epsilon: float, places: list[int], per_index: float) -> None:
    channel = design_channel(public_scale([place / 50 for place in sorted(places)], VALUE_STEPS), epsilon, per_index)
    assert within(channel, epsilon)
    assert all(sum(row) == 2**BITS for row in channel.counts.tolist())
    assert channel.ratio() <= epsilon
    if epsilon < 16:
        assert channel.ratio() >= epsilon * (1 - 1e-4)  # no budget wasted
    assert within(channel, channel.ratio())  # ratio() is an upper bound


def test_ratio_is_the_log_of_the_largest_quotient() -> None:
    quarter = 2 ** (BITS - 2)
    channel = Channel(1.2, np.array([[quarter, 3 * quarter], [3 * quarter, quarter]]))
    assert channel.ratio() == pytest.approx(math.log(3), rel=1e-15)
    assert Fraction(channel.ratio()) >= Fraction(math.nextafter(math.log(3), 0))


@pytest.mark.parametrize("extra", [0, 1])
def test_one_count_too_many_is_refused(extra: int) -> None:
    """The boundary between whole numbers: the largest count within e^epsilon is taken, the next one refused."""
    epsilon = 0.7
    bound = exp_below(epsilon)
    low = math.ceil(2**BITS / (1 + bound))  # low + high = 2^BITS with high / low just within the bound
    counts = np.array([[low - extra, 2**BITS - low + extra], [2**BITS - low + extra, low - extra]])
    if extra:
        with pytest.raises(InputError, match="keep within epsilon"):
            Channel(epsilon, counts)
    else:
        assert Channel(epsilon, counts).ratio() <= epsilon


def test_a_symbol_that_excludes_a_level_is_refused() -> None:
    counts = np.array([[2**BITS, 0], [2**BITS - 5, 5]])
    with pytest.raises(InputError, match="got inf"):
        Channel(50.0, counts)


def test_rows_that_do_not_add_up_are_refused() -> None:
    half = 2 ** (BITS - 1)
    with pytest.raises(InputError, match="add up"):
        Channel(1.0, np.array([[half, half], [half, half - 1]]))


def test_counts_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="read-only"):
        design_channel(STARS, 1.0, 1.0).counts[0, 0] = 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_two_levels_are_told_apart_as_by_randomized_response(epsilon: float) -> None:
    low, high = design_channel(public_scale((-1.0, 1.0), VALUE_STEPS), epsilon, 1.0).chances
    assert np.abs(low - high).sum() / 2 == pytest.approx(
        math.tanh(epsilon / 2), rel=1.1e-4
    )  # 1e-4 of a symbol that says nothing


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.sampled_from([(-10, 10), (0, 1), (2, 90)]))
def test_edges_half_way_give_the_nearest_level(values: list[float], ends: tuple[int, int]) -> None:
    """To half a step of the values; some levels may lie beyond the bounds."""
    bounds, levels = Bounds(*ends), np.array([-3.0, 0.5, 1.0, 7.0])
    steps = bounds.steps(np.array(values))
    chosen = Symbols(tuple(public_scale(bounds.centred(levels), VALUE_STEPS).edges.tolist())).levels(steps)
    distances = np.abs(np.subtract.outer(bounds.uncentred(steps / VALUE_STEPS), levels))
    assert (distances[np.arange(len(values)), chosen] <= distances.min(axis=1) + 1e-9 * bounds.width).all()


@pytest.mark.parametrize("levels", [1, MOST_LEVELS + 1])
def test_tables_have_two_to_64_levels(levels: int) -> None:
    with pytest.raises(InputError, match="one row per level"):
        Channel(1.0, np.full((levels, 2), 2 ** (BITS - 1)))
    assert Channel(1.0, np.full((MOST_LEVELS, 2), 2 ** (BITS - 1))).ratio() == pytest.approx(0.0, abs=1e-50)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_wrong_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match="epsilon"):
        design_channel(STARS, epsilon, 1.0)
