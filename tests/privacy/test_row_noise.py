"""Noise on whole rows: its chances in sixty digits, by brute force over the lattice, and against the continuous law."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tensorveil.errors import InputError
from tensorveil.kernels.sampling import row_excess, row_law
from tensorveil.privacy.noise import source as noise
from tensorveil.privacy.noise.source import NoiseSource, row_slack

UNLIKELY = 1e-6  # seeds are fixed: a failure is a change of the code, not bad luck


def drawn_rows(scale: float, count: int, width: int, seed: int = 1) -> np.ndarray:
    return NoiseSource(seed)._row_steps(scale, count, width)


def rows_of_all_lengths(scale: float, width: int) -> np.ndarray:
    """Rows in many directions (along one axis, along the diagonal, any), from zero to the radius, and neighbours."""
    rng = np.random.default_rng(width)
    lengths = np.concatenate(([0.0, 1.0], np.geomspace(0.01, 0.999 * row_law(width).radius, 40) * scale))
    directions = [np.eye(width)[0], np.ones(width) / math.sqrt(width), *rng.normal(size=(2, width))]
    rows = [np.rint(d / np.linalg.norm(d) * length) for length in lengths for d in directions]
    rows += [row + np.eye(width)[-1] for row in rows[::7]]
    return np.unique(np.array(rows).astype(np.int64), axis=0)


@pytest.mark.parametrize(
    "width, scale", [(1, 16.0), (1, 2.0**40), (2, 17.3), (10, 2.0**22 / 3), (64, 99.9), (512, 1e9)]
)
def test_mixture_and_coin_make_the_norm_exponential_law_within_its_slack(width: int, scale: float) -> None:
    """ln P(k) + |k| / scale is one number for all k, down to chances of e^-20000; sixty digits, normalised parts."""
    law, rows = row_law(width), rows_of_all_lengths(scale, width)
    excess = row_excess(rows, scale, law)
    assert (excess > 0).all()  # chances of acceptance
    assert excess.max() < 4 * law.radius  # where coins end
    chances = np.diff(law.ends.astype(object), prepend=0)
    assert chances.sum() == 2**62
    assert chances.min() > 0
    with mpmath.workdps(60):
        stds = [mpmath.mpf(float(std) * scale) for std in law.stds]
        heights = [
            mpmath.mpf(int(chance)) / (mpmath.sqrt(2 * mpmath.pi) * std) ** width
            for chance, std in zip(chances, stds, strict=True)
        ]
        found = []
        for row, coin in zip(rows.tolist(), excess.tolist(), strict=True):
            square = sum(number * number for number in row)
            mixture = mpmath.fsum(
                height * mpmath.exp(-square / (2 * std * std)) for height, std in zip(heights, stds, strict=True)
            )
            found.append(mpmath.log(mixture) - coin + mpmath.sqrt(square) / scale)
        assert max(found) - min(found) < row_slack(width) / 2  # the other half is for the parts' samplers


def test_a_part_is_a_gaussian_whose_sum_over_the_lattice_is_the_integral() -> None:
    """Parts are weighted by their integrals; the narrowest has two grid steps."""
    with mpmath.workdps(60):
        std = mpmath.mpf(noise.SMALLEST_ROW_SCALE * float(row_law(1).stds[0]))
        assert std == 2
        total = mpmath.fsum(mpmath.exp(-(k**2) / (2 * std**2)) for k in range(-60, 61))
        assert abs(total / (mpmath.sqrt(2 * mpmath.pi) * std) - 1) < mpmath.mpf(2) ** -100


@pytest.mark.parametrize("std", [2.0, 2.9, 40.3, 2.0**20 * 1.4])
def test_parts_by_their_exact_chances(std: float) -> None:
    count = 400_000
    drawn = NoiseSource(3)._gaussian_tails(row_law(3), std, count)
    if std > 1000:
        assert stats.kstest(drawn / std, stats.norm.cdf).pvalue > UNLIKELY
        return
    inside = np.arange(-int(3.5 * std), int(3.5 * std) + 1)
    weights = np.exp(-(np.arange(-int(20 * std), int(20 * std) + 1) ** 2) / (2 * std**2))
    middle = weights[int(20 * std) - inside[-1] : int(20 * std) + inside[-1] + 1]
    observed = np.array([np.sum(drawn == k) for k in inside], float)
    expected = count * middle / weights.sum()
    rest = count - observed.sum()
    observed, expected = np.append(observed, rest), np.append(expected, count - expected.sum())
    assert stats.chisquare(observed, expected).pvalue > UNLIKELY


@pytest.mark.parametrize("exponent", [0.001, 0.7, 3.0, 8.0])
def test_coins_are_right_where_they_are_rare(exponent: float) -> None:
    tossed = NoiseSource(4)._exponential_coins(row_law(5), np.full(2_000_000, exponent))
    assert stats.binomtest(int(tossed.sum()), 2_000_000, math.exp(-exponent)).pvalue > UNLIKELY


@pytest.mark.parametrize("scale", [16.0, 21.7])
def test_single_numbers_by_their_exact_chances(scale: float) -> None:
    """A row of one number is discrete Laplace noise."""
    count = 1_000_000
    drawn = drawn_rows(scale, count, 1)[:, 0]
    law = stats.dlaplace(1 / scale)
    edge = int(law.isf(20 / count))
    inside = np.arange(-edge, edge + 1)
    observed = [np.sum(drawn == k) for k in inside] + [np.sum(drawn < -edge), np.sum(drawn > edge)]
    expected = count * np.concatenate((law.pmf(inside), [law.sf(edge)] * 2))
    assert stats.chisquare(observed, expected * count / expected.sum()).pvalue > UNLIKELY


def test_pairs_by_brute_force_over_the_lattice() -> None:
    """Every pair near the middle by itself, those farther out in squares."""
    scale, count, edge = 16.0, 1_000_000, 640
    drawn = drawn_rows(scale, count, 2)
    axis = np.arange(-edge, edge)
    chances = np.exp(-np.hypot(axis[:, None], axis) / scale)
    chances /= chances.sum()
    assert (np.abs(drawn) < edge).all()
    counted = np.zeros((2 * edge, 2 * edge))
    np.add.at(counted, tuple(drawn.T + edge), 1)
    middle = slice(edge - 12, edge + 12)
    squares = [table.reshape(80, 16, 80, 16).sum(axis=(1, 3)) for table in (counted, chances)]
    for observed, expected in ((counted[middle, middle], chances[middle, middle]), squares):
        seen = expected * count > 20
        observed = np.append(observed[seen], count - observed[seen].sum())
        expected = np.append(expected[seen], 1 - expected[seen].sum())
        assert stats.chisquare(observed, expected * count).pvalue > UNLIKELY


@pytest.mark.parametrize("width", [1, 2, 3, 10, 64, 300])
def test_rows_have_a_gamma_radius_and_no_direction(width: int) -> None:
    count = 60_000 if width < 100 else 5000
    released = NoiseSource(5).rows(np.zeros((count, width), np.int64), grid=2.0**-24, sensitivity=3.0, epsilon=2.0)
    radius = np.linalg.norm(released, axis=1)
    assert stats.kstest(radius, stats.gamma(width, scale=1.5).cdf).pvalue > UNLIKELY
    direction = released / radius[:, None]
    for axis in (np.eye(width)[0], np.ones(width) / math.sqrt(width)):  # a projection's square is a beta number
        squares = (direction @ axis) ** 2
        if width > 1:
            assert stats.kstest(squares, stats.beta(0.5, (width - 1) / 2).cdf).pvalue > UNLIKELY
        assert abs(np.mean(direction @ axis)) < 5 / math.sqrt(count * width)
    assert stats.kstest(radius * np.sign(released[:, 0]), radius * -np.sign(released[:, 0])).pvalue > UNLIKELY
    if width > 1:  # radius and direction have nothing to do with one another
        assert abs(stats.spearmanr(radius, direction[:, 0] ** 2).statistic) < 5 / math.sqrt(count)


def test_the_lowest_bits_are_uniform() -> None:
    drawn = drawn_rows(2.0**24 * 1.3, 100_000, 3)
    assert stats.chisquare(np.bincount((drawn & 15).ravel(), minlength=16)).pvalue > UNLIKELY


def test_chances_of_neighbours_differ_by_no_more_than_is_paid_for() -> None:
    """Pairs of rows drawn often, moved by a vector of the declared length: ratios of frequencies stay within e^1."""
    count, step = 600_000, np.array([12, 11])
    sensitivity = math.hypot(*step)
    seen = []
    for seed, statistic in enumerate((np.zeros(2, np.int64), step)):
        released = NoiseSource(seed).rows(
            np.tile(statistic, (count, 1)), grid=1.0, sensitivity=sensitivity, epsilon=1.0
        )
        near = released[(np.abs(released) < 16).all(axis=1)].astype(int) // 4
        table = np.zeros((8, 8))
        np.add.at(table, tuple(near.T + 4), 1)
        seen.append(table)
    logs = np.abs(np.log(seen[0] / seen[1]))
    assert logs.max() < 1 + 5 / math.sqrt(min(table.min() for table in seen))
    assert logs.max() > 0.8  # and no noise is wasted


class ScaleSeenError(Exception):
    pass


@settings(deadline=None)
@given(st.floats(1e-3, 1e6), st.integers(-30, 6), st.floats(1, 2), st.integers(1, 1000), st.integers(1, 600))
def test_the_stated_epsilon_pays_for_the_finite_precision(
    sensitivity: float, power: int, part: float, count: int, width: int
) -> None:
    """What the proof adds up, in fractions, for the scale that is really used."""
    epsilon, grid = part * 2.0**power, 2.0**-20
    seen: list[float] = []

    class Seeing(NoiseSource):
        def _row_steps(self, scale: float, count: int, width: int) -> np.ndarray:
            seen.append(scale)
            raise ScaleSeenError

    steps = Fraction(sensitivity) / Fraction(grid)
    changed = min(Fraction(count), steps)
    try:
        Seeing(1).rows(np.zeros((count, width), np.int64), grid=grid, sensitivity=sensitivity, epsilon=epsilon)
    except ScaleSeenError:
        spent = steps / Fraction(seen[0]) + changed * Fraction(row_slack(width))
        assert spent <= Fraction(epsilon)
        assert spent >= Fraction(epsilon) * (1 - Fraction(1, 2**40))  # no budget wasted
    except InputError:
        costly = 2 * changed * Fraction(row_slack(width)) >= Fraction(epsilon)
        scale = steps / Fraction(epsilon)
        assert costly or scale <= 16 or 2 * scale * row_law(width).radius > 2**58


def test_rare_uniform_rows_cover_what_the_noise_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row in 2^64 is uniform; here half of them are."""
    assert noise.UNIFORM_WORDS == 1
    monkeypatch.setattr(noise, "UNIFORM_WORDS", np.uint64(2**63))
    statistic = np.full((20_000, 2), 2**60)
    released = NoiseSource(1).rows(statistic, grid=1.0, sensitivity=2.0**20, epsilon=1.0)
    near = (np.abs(released - 2.0**60) < 2.0**26).all(axis=1)
    assert stats.binomtest(int(near.sum()), 20_000, 0.5).pvalue > UNLIKELY
    uniform = released[~near]
    for end in (-(2.0**61), 2.0**61):  # half of the range is clamped
        assert stats.binomtest(int((uniform == end).sum()), uniform.size, 0.25).pvalue > UNLIKELY
    inside = uniform[np.abs(uniform) < 2.0**61]
    assert stats.kstest(inside / 2.0**62 + 0.5, "uniform").pvalue > UNLIKELY


@pytest.mark.parametrize("width", [1, 2, 10, 512, 10_000])
def test_beyond_the_radius_a_row_is_less_likely_than_uniform_noise(width: int) -> None:
    with mpmath.workdps(60):
        uniform = mpmath.mpf(2) ** (-64 - 63 * width)
        assert mpmath.exp(-row_law(width).radius * (1 - mpmath.mpf(2) ** -40)) < uniform * mpmath.mpf(2) ** -53


def test_extreme_statistics_are_clamped_not_wrapped() -> None:
    statistic = np.tile([2**63 - 1, -(2**63), 2**61, -(2**61)], (20, 1))
    released = NoiseSource(1).rows(statistic, grid=1.0, sensitivity=2.0**45, epsilon=1.1)
    assert (np.sign(released) == [1, -1, 1, -1]).all()
    assert (np.abs(released) <= 2.0**61).all()


def test_no_rows_and_rows_wider_than_a_block() -> None:
    assert NoiseSource(1).rows(np.zeros((0, 3), np.int64), grid=1.0, sensitivity=99.0, epsilon=1.0).shape == (0, 3)
    wide = NoiseSource(1).rows(np.zeros((1, 70_000), np.int64), grid=2.0**-20, sensitivity=1.0, epsilon=1.0)
    assert np.linalg.norm(wide) == pytest.approx(70_000, rel=0.03)
