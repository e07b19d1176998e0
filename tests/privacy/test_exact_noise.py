"""OpenDP's exact samplers behind NoiseSource's interface: laws, fits that may be published, and what is refused."""

import copy
import os
import pickle
import sys

import numpy as np
import pytest
from scipy import stats

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.errors import InputError, MissingDependencyError
from tensorveil.privacy.noise import exact as exact_noise
from tensorveil.privacy.noise.exact import ExactNoise
from tensorveil.privacy.noise.source import NoiseSource

pytest.importorskip("opendp.prelude")

UNLIKELY = 1e-9  # the generator cannot be seeded: so rarely does a sound sampler fail
BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)


def observations() -> tv.Observations:
    where = np.argwhere(np.ones(SHAPE))
    return tv.Observations(where, np.random.default_rng(0).uniform(1, 5, len(where)), SHAPE)


def cells(drawn: np.ndarray, edge: int) -> np.ndarray:
    """How often each whole number came, those beyond the edge counted together on either side."""
    return np.bincount(np.clip(drawn, -edge - 1, edge + 1) + edge + 1, minlength=2 * edge + 3).astype(float)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.7, 40.0])
def test_laplace_by_its_exact_chances(scale: float) -> None:
    count = 60_000
    steps = max(1, round(scale))
    drawn = ExactNoise().laplace(np.zeros(count, np.int64), grid=1.0, sensitivity=steps, epsilon=steps / scale)
    law = stats.dlaplace(1 / scale)
    edge = int(law.isf(20 / count))
    expected = count * np.concatenate(([law.sf(edge)], law.pmf(np.arange(-edge, edge + 1)), [law.sf(edge)]))
    assert stats.chisquare(cells(drawn.astype(np.int64), edge), expected, sum_check=False).pvalue > UNLIKELY


@pytest.mark.slow
@pytest.mark.parametrize("scale", [2.0**31 * 1.3, 2.0**49])
def test_noise_of_large_scale_is_not_cut_off(scale: float) -> None:
    """Beyond 32 bits, where OpenDP's default whole numbers end."""
    count, zeros = 40_000, np.zeros(40_000, np.int64)
    laplace = ExactNoise().laplace(zeros, grid=0.5, sensitivity=round(scale), epsilon=round(scale) / scale) * 2
    gaussian = ExactNoise().gaussian(zeros, grid=0.5, sensitivity=1.0, noise_std=scale / 2) * 2
    jitter = np.random.default_rng(0).uniform(-0.5, 0.5, count)
    assert stats.kstest(laplace + jitter, stats.laplace(scale=scale).cdf).pvalue > UNLIKELY
    assert stats.kstest(gaussian + jitter, stats.norm(scale=scale).cdf).pvalue > UNLIKELY
    assert np.abs(laplace).max() > 2.0**32


@pytest.mark.slow
def test_gaussian_of_the_integers_by_its_exact_chances() -> None:
    """The same sampler at a coarse scale, which `gaussian` itself refuses, where each number is seen often."""
    count, scale = 60_000, 9.0
    drawn = ExactNoise()._gaussian_steps(scale, count)
    numbers = np.arange(-200, 201)
    chances = np.exp(-(numbers**2) / (2 * scale**2))
    chances /= chances.sum()
    inside = np.abs(numbers) <= 27
    tail = chances[numbers > 27].sum()
    expected = count * np.concatenate(([tail], chances[inside], [tail]))
    assert stats.chisquare(cells(drawn, 27), expected, sum_check=False).pvalue > UNLIKELY


@pytest.mark.slow
@pytest.mark.parametrize("method", ["laplace", "gaussian"])
def test_both_backends_draw_one_law(method: str) -> None:
    zeros, options = np.zeros(30_000, np.int64), {"grid": 2.0**-30, "sensitivity": 2**30 if method == "laplace" else 1}
    options |= {"epsilon": 0.5} if method == "laplace" else {"noise_std": 2.0}
    exact, ours = (getattr(source, method)(zeros, **options) for source in (ExactNoise(), NoiseSource(3)))
    assert stats.ks_2samp(exact, ours).pvalue > UNLIKELY


@pytest.mark.parametrize("method", ["laplace", "gaussian"])
def test_the_release_is_on_the_grid_around_the_statistic(method: str) -> None:
    statistic = np.array([[2**40, -(2**40)], [0, 7]])
    options = {"grid": 0.25, "sensitivity": 1} | ({"epsilon": 0.5} if method == "laplace" else {"noise_std": 2.0**27})
    released = getattr(ExactNoise(), method)(statistic, **options)
    assert released.shape == statistic.shape
    assert (released * 4 == np.rint(released * 4)).all()
    assert np.abs(released * 4 - statistic).max() < (200 if method == "laplace" else 2.0**33)
    assert (released * 4 != statistic).any()


def test_extreme_statistics_are_clamped_not_wrapped() -> None:
    statistic = np.tile([2**63 - 1, -(2**63), 2**61, -(2**61)], 10)
    released = ExactNoise().laplace(statistic, grid=1.0, sensitivity=2**50, epsilon=1.1)
    assert (np.sign(released) == np.tile([1, -1, 1, -1], 10)).all()
    assert (np.abs(released) <= 2.0**61).all()


def test_saturated_noise_is_cut_where_the_sum_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ExactNoise()
    ends = [2**63 - 1, -(2**63), 2**62, -(2**62)]
    monkeypatch.setattr(source._opendp.m, "make_laplace", lambda *_, **__: lambda zeros: (ends * 3)[: len(zeros)])
    statistic = np.repeat([-(2**63), 0, 2**63 - 1], 4)
    released = source.laplace(statistic, grid=1.0, sensitivity=1, epsilon=1.0)
    assert (released == np.tile([2.0**61, -(2.0**61)], 6)).all()


MECHANISMS = [
    (tv.InputPerturbation(), "value", 0.0),
    (tv.InputPerturbation(noise="laplace"), "value", 0.0),
    (tv.InputPerturbation(noise="gaussian"), "entry", 1e-6),
    (tv.StatisticPerturbation(), "value", 1e-6),
    (tv.StatisticPerturbation(), "entry", 1e-6),
    (tv.StatisticPerturbation(), "slice:0", 1e-6),
    (tv.GradientPerturbation(steps=3), "entry", 1e-6),
    (tv.OutputPerturbation(), "value", 1e-6),
]


@pytest.mark.parametrize("mechanism, unit, delta", MECHANISMS)
def test_a_fit_with_exact_noise_may_be_published(mechanism: tv.StatisticPerturbation, unit: str, delta: float) -> None:
    plan = mechanism.plan(tv.CP(2), BOUNDS, unit, 4.0, delta, shape=SHAPE)
    told = tv.fit(observations(), plan, noise=ExactNoise()).guarantee
    assert told.publishable
    assert (told.epsilon, told.delta) == (plan.epsilon, plan.delta)
    assert [text for text in told.assumptions_checked if text.startswith("noise comes from")]


def test_two_fits_differ() -> None:
    plan = tv.StatisticPerturbation().plan(tv.CP(2), BOUNDS, "value", 4.0, 1e-6, shape=SHAPE)
    first, second = (tv.fit(observations(), plan, noise=ExactNoise()).model for _ in range(2))
    assert first != second


class Recording(NoiseSource):
    """A subclass that changes nothing, and might."""


def test_no_subclass_is_trusted_and_none_can_be_made_of_exact_noise_by_accident() -> None:
    plan = tv.InputPerturbation().plan(tv.CP(2), BOUNDS, "value", 4.0, shape=SHAPE)
    own = type("Own", (ExactNoise,), {})  # a type checker refuses it; if made all the same, it is not trusted
    for source in (Recording(), own()):
        told = tv.fit(observations(), plan, noise=source).guarantee
        assert not told.publishable
        assert not [text for text in told.assumptions_checked if text.startswith("noise comes from")]
    assert ExactNoise.__final__


def test_what_a_replay_runs_with_is_not_trusted() -> None:
    released = []

    def listening(*arguments, **options):
        released.append(tv.fit(*arguments, **options))
        return released[-1]

    plan = tv.InputPerturbation().plan(tv.CP(2), BOUNDS, "value", 4.0, shape=SHAPE)
    replay(*next(neighbours(observations(), "value", BOUNDS)), plan, run=listening)
    assert len(released) == 2
    assert not any(release.guarantee.publishable for release in released)


@pytest.mark.parametrize("width", [1, 4])
def test_rows_have_a_gamma_radius_from_opendp_gaussians(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    taken = ExactNoise._gaussian_steps

    def seen(self: ExactNoise, scale: float, count: int) -> np.ndarray:
        drawn.append(count)
        return taken(self, scale, count)

    monkeypatch.setattr(ExactNoise, "_gaussian_steps", seen)
    released = ExactNoise().rows(np.zeros((2000, width), np.int64), grid=2.0**-22, sensitivity=3.0, epsilon=2.0)
    assert sum(drawn) >= 2000 * width
    assert stats.kstest(np.linalg.norm(released, axis=1), stats.gamma(width, scale=1.5).cdf).pvalue > UNLIKELY


def test_a_plan_with_noise_on_rows_may_be_published() -> None:
    plan = tv.GradientPerturbation().plan(tv.CP(2), BOUNDS, "value", 4.0, shape=SHAPE)
    assert tv.fit(observations(), plan, noise=ExactNoise()).guarantee.publishable


def test_seeds_and_wrong_use_are_refused() -> None:
    with pytest.raises(InputError, match="seed must be left out of ExactNoise, got 3"):
        ExactNoise(3)
    with pytest.raises(InputError, match="power of two"):
        ExactNoise().laplace(np.zeros(3, np.int64), grid=0.3, sensitivity=1, epsilon=1.0)
    with pytest.raises(InputError, match=r"noise_std must be from 2\^28"):
        ExactNoise().gaussian(np.zeros(3, np.int64), grid=1.0, sensitivity=1.0, noise_std=10.0)
    assert not ExactNoise().seeded


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(duplicate) -> None:
    with pytest.raises(TypeError, match="must not be copied or pickled"):
        duplicate(ExactNoise())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_its_own_noise() -> None:
    source = ExactNoise()

    def drawn() -> np.ndarray:
        return source.gaussian(np.zeros(64, np.int64), grid=1.0, sensitivity=1.0, noise_std=2.0**40)

    drawn()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, drawn().tobytes())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        theirs = np.frombuffer(pipe.read())
    assert len(theirs) == 64
    assert not set(drawn()) & set(theirs)


def test_without_opendp_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(MissingDependencyError, match=r"not installed; pip install 'tensorveil\[exact\]'"):
        ExactNoise()


def test_an_old_opendp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_noise, "version", lambda name: "0.12.1")
    with pytest.raises(MissingDependencyError, match=r"0\.16 or newer, got 0\.12\.1"):
        ExactNoise()


def test_opendp_is_imported_only_when_it_is_used() -> None:
    import subprocess

    code = "import sys, tensorveil as tv; tv.ExactNoise; tv.fit; print('opendp' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
