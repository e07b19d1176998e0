"""The attack on low bits of float noise succeeds on a naive Laplace sampler and fails on ours.

After Mironov, "On significance of the least significant bits for differential privacy" (CCS 2012): a value x with float
noise scale * log(u) can only become some of the floats, and which ones depends on x. One output then tells the worlds
x = 0 and x = 1 apart with a certainty that no epsilon allows. Two forms: an output that x = 0 could not have given, and
an output whose last bits are finer than x = 1 could have given. Both are scores of an empirical audit here, at
confidence 1 - 1e-6, against the stated epsilon of 1.

What is shown for ours. `laplace`, `gaussian`, `rows`: every output is a multiple of a grid that knows public numbers
only; the last six bits of the number of steps are uniform in both worlds; neither form of the attack shows anything. On
a coarse grid, where multiples can be counted one by one, `laplace` and `rows` give all near ones in both worlds.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from tensorveil.audit.lower_bounds import LowerBound, lower_bound_from_scores
from tensorveil.privacy.noise.exact import ExactNoise
from tensorveil.privacy.noise.source import NoiseSource, grid_for

RUNS = 20_000
EPSILON = 1.0  # of every mechanism here, for x in [0, 1]: the noise has scale 1
DELTA = 1e-5  # of the Gaussian one
STD = 3.731  # its standard deviation: continuous noise is (1, 1e-5)-private with it
SURE = 1 - 1e-6
UNLIKELY = 1e-6
GRID = grid_for(1.0)
Mechanism = Callable[[float], np.ndarray]


def naive_laplace(x: float) -> np.ndarray:
    """What a textbook says, in floats: x plus a sign times scale * log(u), u uniform with 53 bits."""
    rng = np.random.default_rng([5, int(x)])
    u = rng.integers(1, 2**53, RUNS) * 2.0**-53
    return x + rng.choice([-1.0, 1.0], RUNS) * np.log(u)


def steps(x: float) -> np.ndarray:
    return np.full(RUNS, round(x / GRID), dtype=np.int64)


def our_laplace(x: float) -> np.ndarray:
    return NoiseSource(int(x)).laplace(steps(x), grid=GRID, sensitivity=round(1 / GRID), epsilon=EPSILON)


def our_gaussian(x: float) -> np.ndarray:
    return NoiseSource(int(x)).gaussian(steps(x), grid=GRID, sensitivity=1.0, noise_std=STD)


def exact_laplace(x: float) -> np.ndarray:
    pytest.importorskip("opendp.prelude")
    return ExactNoise().laplace(steps(x), grid=GRID, sensitivity=round(1 / GRID), epsilon=EPSILON)


def exact_gaussian(x: float) -> np.ndarray:
    pytest.importorskip("opendp.prelude")
    return ExactNoise().gaussian(steps(x), grid=GRID, sensitivity=1.0, noise_std=STD)


def our_rows(x: float) -> np.ndarray:
    return NoiseSource(int(x)).rows(steps(x)[:, None], grid=GRID, sensitivity=1.0, epsilon=EPSILON)[:, 0]


def our_wide_rows(x: float) -> np.ndarray:
    rows = np.zeros((RUNS, 3), np.int64)
    rows[:, 1] = steps(x)
    return NoiseSource(int(x)).rows(rows, grid=GRID, sensitivity=1.0, epsilon=EPSILON)[:, 1]


def impossible_from_zero(outputs: np.ndarray) -> np.ndarray:
    """1 where no u of 53 bits gives log(u) = -|output|, so that x was not 0; u is searched for around e^-|output|."""
    sizes = np.abs(outputs)
    nearest = np.rint(np.exp(-sizes) * 2.0**53)
    tried = [np.clip(nearest + shift, 1, 2**53 - 1) * 2.0**-53 for shift in range(-8, 9)]
    return 1.0 - np.any([np.log(u) == -sizes for u in tried], axis=0)


def lowest_bit(outputs: np.ndarray) -> np.ndarray:
    """The exponent of the lowest bit that is set: below -53 where x was not 1."""
    mantissas, exponents = np.frexp(outputs)
    whole = (mantissas * 2.0**53).astype(np.int64)
    zeros = np.log2(np.where(whole == 0, 1, whole & -whole).astype(np.float64))
    return np.where(whole == 0, 0.0, exponents - 53 + zeros)


ATTACKS = [impossible_from_zero, lowest_bit]


def shown(mechanism: Mechanism, attack: Callable[[np.ndarray], np.ndarray], delta: float = 0.0) -> LowerBound:
    return lower_bound_from_scores(attack(mechanism(0.0)), attack(mechanism(1.0)), delta=delta, confidence=SURE)


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_attack_breaks_a_naive_laplace(attack: Callable[[np.ndarray], np.ndarray]) -> None:
    found = shown(naive_laplace, attack)
    assert found.epsilon > 4  # stated: 1
    assert found.false_positives == 0  # in the other world it does not happen at all
    assert found.hits > 0.1 * found.counted  # and in its own it is nothing rare


def test_without_its_low_bits_the_naive_laplace_is_what_it_says() -> None:
    """The law itself is right, so only the bits gave it away: an audit of the numbers' size shows no more than 1."""
    found = shown(naive_laplace, lambda outputs: outputs)
    assert 0.8 < found.epsilon <= EPSILON


OURS = [
    pytest.param(our_laplace, 0.0, id="laplace"),
    pytest.param(our_gaussian, DELTA, id="gaussian"),
    pytest.param(our_rows, 0.0, id="rows"),
    pytest.param(our_wide_rows, 0.0, id="wide rows"),
    pytest.param(exact_laplace, 0.0, id="exact laplace", marks=pytest.mark.slow),
    pytest.param(exact_gaussian, DELTA, id="exact gaussian", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("mechanism, delta", OURS)
def test_the_attack_shows_nothing_of_ours(
    mechanism: Mechanism, delta: float, attack: Callable[[np.ndarray], np.ndarray]
) -> None:
    found = shown(mechanism, attack, delta)
    assert not found.refutes(EPSILON)
    assert found.epsilon < 0.1


@pytest.mark.parametrize("mechanism, delta", OURS)
def test_every_output_is_on_the_public_grid_and_its_last_bits_are_the_same_in_both_worlds(
    mechanism: Mechanism, delta: float
) -> None:
    tables = []
    for x in (0.0, 1.0):
        numbers = mechanism(x) / GRID
        assert (numbers == np.rint(numbers)).all()
        tables.append(np.bincount(numbers.astype(np.int64) % 64, minlength=64))
    assert stats.chi2_contingency(tables).pvalue > UNLIKELY
    assert stats.chisquare(np.sum(tables, axis=0)).pvalue > UNLIKELY  # all of them, equally often


@pytest.mark.parametrize("method", ["laplace", "rows"])
def test_every_multiple_of_the_grid_comes_in_both_worlds(method: str) -> None:
    """A coarse grid, so that single multiples are seen: nothing is reachable from one world alone."""
    seen = []
    apart = {"laplace": 3, "rows": 16}[method]
    for x in (0, apart):
        statistic = np.full((400_000, 1), x, np.int64)
        sensitivity = {"laplace": apart, "rows": apart * 0.5}[method]
        drawn = getattr(NoiseSource(x), method)(statistic, grid=0.5, sensitivity=sensitivity, epsilon=EPSILON) / 0.5
        numbers, counts = np.unique(drawn, return_counts=True)
        seen.append(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    near = range(-18, 22)
    assert all(number in world for world in seen for number in near)
    assert max(abs(np.log(seen[0][number] / seen[1][number])) for number in near if seen[0][number] > 2000) < 1.1
