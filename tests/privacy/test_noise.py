"""Noise against scipy's laws, exact fractions and OpenDP's exact samplers."""

import copy
import math
import multiprocessing
import os
import pickle
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tensorveil.errors import InputError
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.kernels import sampling
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.privacy.bounds import VALUE_STEPS
from tensorveil.privacy.noise import secret_words
from tensorveil.privacy.noise import source as noise
from tensorveil.privacy.noise.source import NoiseSource, grid_for

STARS = public_scale((-1.0, -0.5, 0.0, 0.5, 1.0), VALUE_STEPS)
UNLIKELY = 1e-6  # seeds are fixed: a failure is a change of the code, not bad luck


def laplace_noise(scale: float, count: int, seed: int = 1) -> np.ndarray:
    source = NoiseSource(seed)
    zeros = np.zeros(count, np.int64)
    steps = max(1, round(scale))
    return source.laplace(zeros, grid=1.0, sensitivity=steps, epsilon=steps / scale).astype(np.int64)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 4.7, 15.9, 16.1, 40.0, 100.0])
def test_laplace_of_small_scale_by_its_exact_chances(scale: float) -> None:
    count = 400_000
    drawn = laplace_noise(scale, count)
    law = stats.dlaplace(1 / scale)
    edge = int(law.isf(20 / count))
    inside = np.arange(-edge, edge + 1)
    observed = [np.sum(drawn == k) for k in inside] + [np.sum(drawn < -edge), np.sum(drawn > edge)]
    tail = law.sf(edge)
    expected = count * np.concatenate((law.pmf(inside), [tail, tail]))
    observed, expected = np.array(observed, float), expected
    if tail * count < 1:  # nearly all the mass is inside
        assert observed[-2:].sum() < 20
        observed, expected = observed[:-2], expected[:-2]
    expected *= observed.sum() / expected.sum()
    if len(observed) > 1:
        assert stats.chisquare(observed, expected).pvalue > UNLIKELY


@pytest.mark.parametrize("scale", [2.0**17 * 1.2, 2.0**20 * 1.7, 2.0**28 * 1.1, 2.0**31 * 1.9, 2.0**33, 2.0**45])
def test_laplace_of_large_scale_and_its_far_tail(scale: float) -> None:
    count = 1_000_000
    drawn = laplace_noise(scale, count)
    jitter = np.random.default_rng(0).uniform(-0.5, 0.5, count)  # the continuous law, once the steps are filled
    assert stats.kstest(drawn + jitter, stats.laplace(scale=scale).cdf).pvalue > UNLIKELY
    for quantile in (1e-2, 1e-3, 1e-4):  # beyond one, two, three rounds of the table
        far = np.sum(np.abs(drawn) > -math.log(quantile) * scale)
        assert stats.binomtest(int(far), count, quantile).pvalue > UNLIKELY
    excess = np.abs(drawn)[np.abs(drawn) > 6 * scale] / scale - 6  # the tail forgets where it began
    assert stats.kstest(excess, stats.expon().cdf).pvalue > UNLIKELY
    low = np.abs(drawn) % 16  # the lowest bits are uniform
    assert stats.chisquare(np.bincount(low, minlength=16)).pvalue > UNLIKELY


def exp_fraction(x: Fraction) -> Fraction:
    """e^x by its series, to far more than 2^-100."""
    power, total = Fraction(1), Fraction(1)
    for n in range(1, 40):
        power = (power * x / n).limit_denominator(2**400)
        total += power
    return total


@pytest.mark.parametrize("scale", [0.01, 0.7, 16.0, 31.999, 12345.678, 2.0**40 / 3])
def test_the_table_of_the_laplace_law_is_within_its_slack(scale: float) -> None:
    """Chances read off the integer thresholds against e^-x in fractions; half the slack is for the table."""
    law = sampling.laplace_law(scale)
    step = Fraction(2) ** (law.shift - law.coarse) / Fraction(scale)
    assert Fraction(1, 32) <= step <= Fraction(1, 16)
    tails = [Fraction(1)] + [Fraction(int(t), 2**64) for t in law.thresholds[1:]]
    ratio = exp_fraction(-step)
    slack = Fraction(noise.LAPLACE_SLACK) / 4
    for v in range(len(tails) - 1):
        exact = exp_fraction(-step * v) * (1 - ratio)
        assert abs((tails[v] - tails[v + 1]) / exact - 1) < slack
    assert abs(tails[-1] / exp_fraction(-step * (len(tails) - 1)) - 1) < Fraction(1, 2**58)


class ScaleSeenError(Exception):
    pass


@settings(deadline=None)
@given(st.integers(1, 2**30), st.integers(-30, 6), st.floats(1, 2), st.integers(1, 100))
def test_the_stated_epsilon_pays_for_the_finite_precision(steps: int, power: int, part: float, size: int) -> None:
    """What the proof adds up, in fractions, for the scale that is really used."""
    epsilon = part * 2.0**power
    seen: list[float] = []

    def see(scale: float) -> sampling.Law:
        seen.append(scale)
        raise ScaleSeenError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "laplace_law", see)
        try:
            NoiseSource(1).laplace(np.zeros(size, np.int64), grid=1.0, sensitivity=steps, epsilon=epsilon)
        except ScaleSeenError:
            changed = min(steps, size)
            spent = steps / Fraction(seen[0]) * (1 + Fraction(1, 2**61)) + changed * Fraction(noise.LAPLACE_SLACK)
            assert spent <= Fraction(epsilon)
            assert spent >= Fraction(epsilon) * (1 - Fraction(1, 2**40))  # no budget wasted
        except InputError:
            assert steps / epsilon > 2**49  # beyond the scales that are drawn


@settings(deadline=None)
@given(st.floats(0, 0.62))
def test_exp_minus(x: float) -> None:
    exact = exp_fraction(-Fraction(x))
    error = abs(Fraction(sampling.exp_minus(x)) / exact - 1)
    assert error <= Fraction(2.0**-53 if x <= 1 / 16 else 2.0**-50.8)


def test_the_last_bits_of_a_word_decide_at_a_threshold() -> None:
    """Words made by hand: U = 0, plus sign; V = 1 below the first threshold, V = 0 from it on, to the last bit."""
    law = sampling.laplace_law(2.0**30)
    threshold, low = int(law.thresholds[1]), 2**40 - 1
    for full, expected in ((threshold - 1, 2**law.shift), (threshold, 0)):
        words = np.array([full & ~low, (full & low) << 24], dtype=np.uint64)
        drawn = np.full(1, -1, np.int64)
        assert sampling.magnitudes(words, law, True, drawn, 0) == (1, 2)
        assert drawn[0] == expected


def test_the_last_bits_of_a_coin_decide() -> None:
    """V = 0 and the largest U, kept if the coin, first bits and next word together, is below e^-x in fractions."""
    law = sampling.laplace_law(2.0**30)
    bits, largest = 39 - law.shift, 2**law.shift - 1
    chance = exp_fraction(-Fraction(largest) / 2**30) * 2**bits
    coin = math.floor(chance)
    first = ((2**24 - 1) << 40) | (coin << (law.shift + 1)) | (largest << 1)
    again = ((2**24 - 1) << 40) | (7 << 1)  # U = 7 and a coin of 0: always kept
    edge = (chance - coin) * 2**64
    for more, expected in ((edge * (1 - Fraction(1, 2**20)), largest), (edge * (1 + Fraction(1, 2**20)), 7)):
        drawn = np.full(1, -1, np.int64)
        sampling.magnitudes(np.array([first, int(more), again, 0], dtype=np.uint64), law, True, drawn, 0)
        assert drawn[0] == expected


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    "law", [sampling.laplace_law(3.0), sampling.laplace_law(2.0**30), sampling.gaussian_law(2.0**40)]
)
def test_noise_does_not_depend_on_how_the_words_are_cut(law: sampling.Law, signed: bool) -> None:
    words = np.random.default_rng(3).integers(0, 2**64, 4000, dtype=np.uint64)
    whole = np.empty(900, np.int64)
    assert sampling.magnitudes(words, law, signed, whole, 0)[0] == 900
    pieces, filled, used, held, given_so_far = np.empty(900, np.int64), 0, 0, words[:0], 0
    while filled < 900:
        held = np.concatenate((held[used:], words[given_so_far : given_so_far + 3]))
        given_so_far += 3
        filled, used = sampling.magnitudes(held, law, signed, pieces, filled)
    assert (whole == pieces).all()


@pytest.mark.parametrize("ratio", [2.0**28, 2.0**31 * 1.3, 2.0**36 * 1.99, 2.0**49])
def test_gaussian(ratio: float) -> None:
    count = 1_000_000
    released = NoiseSource(2).gaussian(np.zeros(count, np.int64), grid=0.25, sensitivity=1.0, noise_std=ratio / 4)
    assert (released * 4 == np.rint(released * 4)).all()
    normal = released / (ratio / 4)
    assert stats.kstest(normal, stats.norm().cdf).pvalue > UNLIKELY
    for z in (2.0, 3.0, 4.0):
        assert stats.binomtest(int(np.sum(np.abs(normal) > z)), count, 2 * stats.norm.sf(z)).pvalue > UNLIKELY
    bins = stats.norm.cdf(normal * 64 % 1.0 / 64)  # inside the table's steps the law is nearly flat
    assert stats.kstest((bins - 0.5) / (stats.norm.cdf(1 / 64) - 0.5), "uniform").statistic < 0.01


def test_gaussian_of_the_integers_by_its_exact_chances() -> None:
    """The same sampler at a coarse grid, where each number is seen often."""
    scale, count = 40.0, 400_000
    source = NoiseSource(4)
    drawn = source._draw(sampling.gaussian_law(scale), count, signed=True)
    inside = np.arange(-120, 121)
    weights = np.exp(-(np.arange(-400, 401) ** 2) / (2 * scale**2))
    expected = count * weights[280:521] / weights.sum()
    observed = np.array([np.sum(drawn == k) for k in inside], float)
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > UNLIKELY


def test_channel_frequencies() -> None:
    channel = design_channel(STARS, 3.0, 1.0)
    symbols = np.repeat(np.arange(5), 40_000)
    outputs = NoiseSource(7).channel(np.random.default_rng(0).permutation(symbols), channel)
    inputs = np.random.default_rng(0).permutation(symbols)
    for level in range(5):
        observed = np.bincount(outputs[inputs == level], minlength=channel.counts.shape[1])
        expected = [40_000 * float(Fraction(c, 2**62)) for c in channel.counts[level].tolist()]
        assert stats.chisquare(observed, expected, sum_check=False).pvalue > UNLIKELY


def test_channel_at_the_edges_of_its_table() -> None:
    """The last word of a symbol's share and the first of the next one's."""
    channel = design_channel(public_scale((-1.0, 0.0, 1.0), VALUE_STEPS), 1.0, 1.0)
    ends = [sum(channel.counts[1, : symbol + 1].tolist()) for symbol in range(channel.counts.shape[1])]

    class Edges(NoiseSource):
        def _words(self, count: int) -> np.ndarray:
            return np.array([word << 2 for end in ends for word in (end - 1, end)][:count], dtype=np.uint64)

    outputs = Edges(1).channel(np.ones(2 * len(ends) - 1, np.int64), channel)
    assert outputs.tolist() == [symbol + after for symbol in range(len(ends)) for after in (0, 1)][:-1]


class GivenWords(NoiseSource):
    """Hands out words made by hand."""

    def __init__(self, words: np.ndarray) -> None:
        super().__init__(1)
        self.given = words

    def _words(self, count: int) -> np.ndarray:
        assert len(self.given) == count
        return self.given


def test_a_symbol_depends_on_its_own_word_and_not_on_its_place() -> None:
    channel = design_channel(STARS, 2.0, 1.0)
    rng = np.random.default_rng(4)
    levels, words = rng.integers(0, 5, 3000), rng.integers(0, 2**64, 3000, dtype=np.uint64)
    drawn = GivenWords(words).channel(levels, channel)
    order = rng.permutation(3000)
    assert (GivenWords(words[order]).channel(levels[order], channel) == drawn[order]).all()
    changed = levels.copy()
    changed[7] = 4 - changed[7]
    assert set(np.flatnonzero(GivenWords(words).channel(changed, channel) != drawn)) <= {7}
    assert len(set(GivenWords(np.full(3000, words[0])).channel(np.full(3000, 2), channel).tolist())) == 1


def test_noise_does_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = laplace_noise(0.3, 2000)
    monkeypatch.setattr(noise, "BLOCK", 5)
    assert (laplace_noise(0.3, 2000) == whole).all()


@pytest.mark.parametrize("probability", [1e-3, 0.3, 0.999])
def test_coins(probability: float) -> None:
    units = np.arange(1_000_000, dtype=np.uint32)[:, None]
    coins = NoiseSource(9).coins(probability).of(units)
    assert stats.binomtest(int(coins.sum()), 1_000_000, probability).pvalue > UNLIKELY
    assert NoiseSource(9).coins(1.0).of(units[:100]).all()


def test_no_text_of_secret_words_shows_their_key() -> None:
    coins = NoiseSource(9).coins(0.5)
    key = coins.words.key
    for text in (repr(coins), str(coins), f"{coins.words!r} {coins.words}"):
        assert repr(key)[2:8] not in text
        assert key.hex()[:8] not in text
    source = NoiseSource()
    assert source.coins(0.5).words.key != source.coins(0.5).words.key  # fresh for every answer


@pytest.mark.parametrize("method", ["laplace", "gaussian", "rows"])
def test_the_statistic_shifts_the_release_and_nothing_else(method: str) -> None:
    statistic = np.random.default_rng(0).integers(-(2**40), 2**40, (30, 4))
    options = {"grid": 2.0**-30, "sensitivity": 5}
    options |= {"noise_std": 1.0} if method == "gaussian" else {"epsilon": 0.5}
    noisy = getattr(NoiseSource(1), method)(statistic, **options)
    alone = getattr(NoiseSource(1), method)(np.zeros_like(statistic), **options)
    assert ((noisy - alone) / 2.0**-30 == statistic).all()
    assert alone.any()


def test_extreme_statistics_are_clamped_not_wrapped() -> None:
    statistic = np.tile([2**63 - 1, -(2**63), 2**61, -(2**61)], 20)  # noise of both signs on each
    released = NoiseSource(1).laplace(statistic, grid=1.0, sensitivity=2**50, epsilon=1.1)
    assert (np.sign(released) == np.tile([1, -1, 1, -1], 20)).all()
    assert (np.abs(released) <= 2.0**61).all()


@settings(deadline=None)
@given(st.floats(1e-200, 1e200))
def test_grid_is_the_power_of_two_below(scale: float) -> None:
    grid = Fraction(grid_for(scale))
    assert grid * 2**28 <= Fraction(scale) < grid * 2**29
    assert math.log2(grid_for(scale)).is_integer()


ZEROS = np.zeros(3, np.int64)
PAIRS = np.zeros((3, 2), np.int64)
TWO_LEVELS = design_channel(public_scale((-1.0, 1.0), VALUE_STEPS), 1.0, 1.0)
WRONG: list[tuple[str, Callable[[NoiseSource], object]]] = [
    ("whole numbers", lambda s: s.laplace(np.zeros(3), grid=1.0, sensitivity=1, epsilon=1.0)),  # type: ignore[arg-type]
    ("sensitivity", lambda s: s.laplace(ZEROS, grid=1.0, sensitivity=0, epsilon=1.0)),
    ("sensitivity", lambda s: s.laplace(ZEROS, grid=1.0, sensitivity=1.5, epsilon=1.0)),  # type: ignore[arg-type]
    ("epsilon", lambda s: s.laplace(ZEROS, grid=1.0, sensitivity=1, epsilon=0.0)),
    ("epsilon", lambda s: s.laplace(ZEROS, grid=1.0, sensitivity=1, epsilon=math.inf)),
    ("epsilon", lambda s: s.laplace(ZEROS, grid=1.0, sensitivity=5, epsilon=2.0**-49)),
    ("2\\^50", lambda s: s.laplace(ZEROS, grid=1.0, sensitivity=2**60, epsilon=1.0)),
    ("power of two", lambda s: s.laplace(ZEROS, grid=0.3, sensitivity=1, epsilon=1.0)),
    ("sensitivity", lambda s: s.gaussian(ZEROS, grid=2.0**-30, sensitivity=0.0, noise_std=1.0)),
    ("noise_std", lambda s: s.gaussian(ZEROS, grid=2.0**-20, sensitivity=1.0, noise_std=1.0)),
    ("noise_std", lambda s: s.gaussian(ZEROS, grid=2.0**-60, sensitivity=1.0, noise_std=1.0)),
    ("whole numbers", lambda s: s.rows(np.zeros((2, 2)), grid=2.0**-20, sensitivity=1.0, epsilon=1.0)),  # type: ignore[arg-type]
    ("table", lambda s: s.rows(ZEROS, grid=2.0**-20, sensitivity=1.0, epsilon=1.0)),
    ("table", lambda s: s.rows(np.zeros((3, 0), np.int64), grid=2.0**-20, sensitivity=1.0, epsilon=1.0)),
    ("sensitivity", lambda s: s.rows(PAIRS, grid=2.0**-20, sensitivity=0.0, epsilon=1.0)),
    ("epsilon", lambda s: s.rows(PAIRS, grid=2.0**-20, sensitivity=1.0, epsilon=math.nan)),
    ("epsilon", lambda s: s.rows(PAIRS, grid=2.0**-20, sensitivity=1.0, epsilon=1e-11)),
    ("power of two", lambda s: s.rows(PAIRS, grid=0.3, sensitivity=100.0, epsilon=1.0)),
    ("change the grid", lambda s: s.rows(PAIRS, grid=0.125, sensitivity=1.0, epsilon=1.0)),
    ("change the grid", lambda s: s.rows(PAIRS, grid=2.0**-51, sensitivity=1.0, epsilon=1.0)),
    ("symbols", lambda s: s.channel(np.array([2]), TWO_LEVELS)),
    ("symbols", lambda s: s.channel(np.array([-1]), TWO_LEVELS)),
    ("probability", lambda s: s.coins(1.5)),
    ("probability", lambda s: s.coins(0.0)),
]


@pytest.mark.parametrize("message, call", WRONG)
def test_wrong_use_is_refused_before_anything_is_drawn(message: str, call: Callable[[NoiseSource], object]) -> None:
    source = NoiseSource(1)
    before = source._chacha.bit_generator.state["state"]
    with pytest.raises(InputError, match=message):
        call(source)
    after = source._chacha.bit_generator.state["state"]
    assert all(np.array_equal(before[part], after[part]) for part in before)


def test_the_bits_are_chacha20() -> None:
    """First words of the key stream of RFC 8439, appendix A.1, test vectors 1 and 2 (key 0, counters 0 and 1)."""
    from randomgen import ChaCha

    words = ChaCha(key=0, rounds=secret_words.ROUNDS).random_raw(16).view("<u4")
    assert [hex(word) for word in words[:4]] == ["0xade0b876", "0x903df1a0", "0xe56a5d40", "0x28bd8653"]
    assert [hex(word) for word in words[16:20]] == ["0xbee7079f", "0x7a385155", "0x7c97ba98", "0xd082d73"]
    assert NoiseSource()._chacha.bit_generator.state["state"]["rounds"] == 20


def test_seeds() -> None:
    assert NoiseSource(3).key() == NoiseSource(3).key()
    assert NoiseSource(3).key() != NoiseSource(4).key()
    assert NoiseSource(3).seeded
    assert NoiseSource(0).seeded
    assert not NoiseSource().seeded
    source = NoiseSource()
    assert len({source.key(), source.key(), NoiseSource().key(), NoiseSource().key()}) == 4
    with pytest.raises(InputError, match="seed"):
        NoiseSource(-1)


@pytest.mark.parametrize("seed", [5, None])
def test_a_source_cannot_be_told_another_seed_nor_be_given_other_methods(seed: int | None) -> None:
    source = NoiseSource(seed)
    for name, value in (("seeded", False), ("_seed", None), ("laplace", lambda statistic, **_: statistic)):
        with pytest.raises(AttributeError):
            setattr(source, name, value)
    assert source.seeded == (seed is not None)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, pickle.dumps, lambda source: pickle.dumps(source, protocol=0)]
)
def test_copies_are_refused(duplicate: Callable[[NoiseSource], object]) -> None:
    with pytest.raises(TypeError, match="must not be copied or pickled"):
        duplicate(NoiseSource())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("seed", [None, 1])
def test_a_forked_child_has_its_own_noise(seed: int | None) -> None:
    source = NoiseSource(seed)
    source.key()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            grandchild = os.fork()  # before the child has drawn
            os.write(write, source.key() + source.key())
            if grandchild:
                os.waitpid(grandchild, 0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    mine = [source.key(), source.key()]
    with os.fdopen(read, "rb") as pipe:
        theirs = pipe.read()
    assert len(theirs) == 128
    keys = [theirs[start : start + 32] for start in range(0, 128, 32)]
    assert not set(mine) & set(keys)
    if seed is None:
        assert len(set(keys)) == 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_workers_have_their_own_noise() -> None:
    shared = NoiseSource()
    queue = multiprocessing.get_context("fork").SimpleQueue()
    workers = [multiprocessing.get_context("fork").Process(target=lambda: queue.put(shared.key())) for _ in range(3)]
    for worker in workers:
        worker.start()
    keys = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert len({*keys, shared.key()}) == 4


@pytest.mark.slow
def test_laplace_against_opendp() -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    count = 20_000
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    for scale in (0.8, 5.0, 700.0):
        exact = np.array(dp.m.make_laplace(*space, scale=scale)([0] * count))
        ours = laplace_noise(scale, count, seed=11)
        if scale < 100:
            edge = int(6 * scale) + 1
            table = [np.bincount(np.clip(x, -edge, edge) + edge, minlength=2 * edge + 1) for x in (exact, ours)]
            filled = np.array(table)[:, np.sum(table, axis=0) > 10]
            assert stats.chi2_contingency(filled).pvalue > UNLIKELY
        else:
            assert stats.ks_2samp(exact, ours).pvalue > UNLIKELY


@pytest.mark.slow
def test_gaussian_against_opendp() -> None:
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    count, scale = 20_000, 2.0**28 * 1.5
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    exact = np.array(dp.m.make_gaussian(*space, scale=scale)([0] * count))
    ours = NoiseSource(12).gaussian(np.zeros(count, np.int64), grid=1.0, sensitivity=1.0, noise_std=scale)
    assert stats.ks_2samp(exact, ours).pvalue > UNLIKELY
