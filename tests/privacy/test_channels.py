"""Finite channels against exact fractions, randomized response and other private channels."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.errors import InputError
from tensorveil.mechanisms.planning.channel_design import LatentPrior, design_channel, telling_channel
from tensorveil.mechanisms.planning.levels import level_edges
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds
from tensorveil.privacy.noise.channels import BITS, MOST_LEVELS, Channel
from tensorveil.privacy.queries.values.symbols import Symbols

STARS = (1.0, 2.0, 3.0, 4.0, 5.0)


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
    st.floats(0.05, 3.0),
)
def test_a_designed_channel_never_exceeds_epsilon(epsilon: float, places: list[int], spread: float) -> None:
    levels = sorted(float(place) for place in places)
    width = levels[-1] - levels[0]
    channel = design_channel(levels, epsilon, LatentPrior(levels[0], width / 3, spread * width)).table
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
        design_channel(STARS, 1.0).table.counts[0, 0] = 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_two_levels_give_randomized_response(epsilon: float) -> None:
    chances = design_channel((0.0, 1.0), epsilon).chances
    assert chances.shape == (2, 2)
    assert np.sort(chances[0]) == pytest.approx([1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))], abs=1e-8)


@pytest.mark.parametrize("epsilon, kept", [(10, 99.9), (5, 90.0), (3, 60.0), (2, 36.0), (1, 12.7)])
def test_information_kept_is_what_the_spike_measured(epsilon: float, kept: float) -> None:
    prior = LatentPrior(3.5, 0.5, 0.9)
    assert 100 * design_channel(STARS, epsilon, prior).information == pytest.approx(kept, abs=1.0)
    assert 100 * design_channel(STARS, epsilon).information == pytest.approx(kept, abs=3.0)  # the generic belief


def measured_information(chances: np.ndarray, prior: LatentPrior) -> float:
    """Mean information per latent mean by central differences of Monte-Carlo-free level chances."""
    from scipy.stats import norm

    def law(theta: float) -> np.ndarray:
        cuts = np.array([-np.inf, 1.5, 2.5, 3.5, 4.5, np.inf])
        return np.diff(norm.cdf(cuts, theta, prior.spread))

    def information(theta: float, matrix: np.ndarray) -> float:
        h = 1e-4
        slope = (law(theta + h) - law(theta - h)) @ matrix / (2 * h)
        return float((slope**2 / (law(theta) @ matrix)).sum())

    thetas = prior.mean + prior.mean_std * np.linspace(-4, 4, 401)
    weights = np.exp(-(np.linspace(-4, 4, 401) ** 2) / 2)
    through = sum(w * information(t, chances) for t, w in zip(thetas, weights, strict=True))
    return through / sum(w * information(t, np.eye(5)) for t, w in zip(thetas, weights, strict=True))


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_information_by_finite_differences_and_no_other_channel_keeps_more(epsilon: float) -> None:
    prior = LatentPrior(3.5, 0.5, 0.9)
    channel = design_channel(STARS, epsilon, prior)
    best = measured_information(channel.chances, prior)
    assert best == pytest.approx(channel.information, rel=0.01)
    response = np.full((5, 5), 1.0) + np.eye(5) * (math.exp(epsilon) - 1)
    assert measured_information(response / response.sum(axis=1, keepdims=True), prior) < best
    distances = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    exponential = np.exp(-epsilon * distances / 8)
    assert measured_information(exponential / exponential.sum(axis=1, keepdims=True), prior) < best


def test_pseudo_values_are_unbiased_where_there_are_enough_symbols() -> None:
    channel = design_channel(STARS, 5.0)
    assert channel.unbiased
    exact = [sum(Fraction(c, 2**BITS) * Fraction(z) for c, z in zip(row, channel.pseudo_values, strict=True))
             for row in channel.table.counts.tolist()]  # fmt: skip
    assert [float(mean) for mean in exact] == pytest.approx(STARS, abs=1e-12)
    draws = np.random.default_rng(1).choice(channel.pseudo_values, size=200_000, p=channel.chances[1])
    assert draws.var() == pytest.approx(channel.variances[1], rel=0.05)


def test_pseudo_values_of_few_symbols_follow_the_level_with_slope_one() -> None:
    channel = design_channel(STARS, 1.0)
    assert not channel.unbiased
    slope, at_zero = np.polyfit(STARS, channel.means, 1, w=np.sqrt(channel.weights))
    assert slope == pytest.approx(1)
    assert at_zero == pytest.approx(0, abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.sampled_from([(-10, 10), (0, 1), (2, 90)]))
def test_edges_half_way_give_the_nearest_level(values: list[float], ends: tuple[int, int]) -> None:
    """To half a step of the values; some levels may lie beyond the bounds."""
    bounds, levels = Bounds(*ends), np.array([-3.0, 0.5, 1.0, 7.0])
    steps = bounds.steps(np.array(values))
    chosen = Symbols(level_edges(levels, bounds)).levels(steps)
    distances = np.abs(np.subtract.outer(bounds.uncentred(steps / VALUE_STEPS), levels))
    assert (distances[np.arange(len(values)), chosen] <= distances.min(axis=1) + 1e-9 * bounds.width).all()


@pytest.mark.parametrize("levels", [1, MOST_LEVELS + 1])
def test_tables_have_two_to_64_levels(levels: int) -> None:
    with pytest.raises(InputError, match="one row per level"):
        Channel(1.0, np.full((levels, 2), 2 ** (BITS - 1)))
    assert Channel(1.0, np.full((MOST_LEVELS, 2), 2 ** (BITS - 1))).ratio() == pytest.approx(0.0, abs=1e-50)


@pytest.mark.parametrize("levels", [(1.0,), (1.0, 1.0), (2.0, 1.0), tuple(range(15)), (0.0, math.inf)])
def test_wrong_levels_are_refused(levels: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="levels"):
        design_channel(levels, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_wrong_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(InputError, match="epsilon"):
        design_channel(STARS, epsilon)


@pytest.mark.slow
def test_fourteen_levels() -> None:
    channel = design_channel(np.linspace(0, 1, 14), 5.0)
    assert within(channel.table, 5.0)
    assert channel.information > 0.8


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 3.0])
def test_a_telling_channel_keeps_epsilon_and_tells_how_often_each_level_occurs(epsilon: float) -> None:
    levels = (1.0, 2.0, 3.0, 4.0, 5.0)
    best = design_channel(levels, epsilon * (1 - 2.0**-30))
    assert np.linalg.matrix_rank(best.chances) < 5
    channel = telling_channel(best, epsilon)
    assert channel.table.ratio() <= epsilon
    assert np.linalg.matrix_rank(channel.chances) == 5
    assert 0.94 * best.information < channel.information < best.information
    shares = np.array([0.06, 0.11, 0.27, 0.35, 0.21])
    found = np.linalg.lstsq(channel.chances.T, shares @ channel.chances, rcond=None)[0]
    np.testing.assert_allclose(found, shares, atol=1e-9)
