"""Answers of the vault: noise of the stated law on the sums, around the sums."""

from dataclasses import dataclass

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.base import Change, Query
from tensorveil.privacy.stages import LAW_OF_NORM, Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault

GRID = 2.0**-30


@dataclass(frozen=True)
class Fixed(Query):
    """Numbers that no data change: what comes out is they and the noise."""

    totals: np.ndarray
    norm: Norm
    bound: float = 1.0

    def theorem(self, unit):
        return "sums-pairs"

    def of(self, shard):
        return (self.totals,)

    def sensitivity(self, unit):
        return (Change(self.norm, self.bound, GRID),)


def answered(query, event, seed=0):
    data = clip(tv.Observations([[0, 0]], [0.0], (1, 1)), tv.Bounds(-1, 1), Unit.entry(), bytes(32))
    stage = Stage(
        "sums", "sums-pairs", event, Sensitivity(query.bound, query.norm, ""), LAW_OF_NORM[query.norm], "sums"
    )
    return Vault([data], [stage], query.totals.size, NoiseSource(seed)).answer("sums", query)


CASES = [(PureEvent(0.5), Norm.L1), (GaussianEvent(3.0), Norm.L2), (PureEvent(0.5), Norm.ROWS)]


@pytest.mark.parametrize("event, norm", CASES)
def test_the_noise_has_the_variance_that_is_stated(event, norm):
    zeros = np.zeros((20_000, 3) if norm is Norm.ROWS else 40_000, dtype=np.int64)
    answer = answered(Fixed(zeros, norm, 2.0), event, seed=3)
    assert answer.values.mean() == pytest.approx(0.0, abs=5 * np.sqrt(answer.law.variance / 40_000))
    assert answer.values.var() == pytest.approx(answer.law.variance, rel=0.05)


def test_the_noise_grows_with_sensitivity_and_with_less_budget():
    def spread(event, bound):
        norm = Norm.L1 if isinstance(event, PureEvent) else Norm.L2
        return answered(Fixed(np.zeros(2000, dtype=np.int64), norm, bound), event, seed=1).values.std()

    assert spread(PureEvent(1.0), 2.0) == pytest.approx(2 * spread(PureEvent(1.0), 1.0), rel=0.1)
    assert spread(PureEvent(0.5), 1.0) == pytest.approx(2 * spread(PureEvent(1.0), 1.0), rel=0.1)
    assert spread(GaussianEvent(4.0), 1.0) == pytest.approx(2 * spread(GaussianEvent(2.0), 1.0), rel=0.1)


@pytest.mark.parametrize("event, norm", [(PureEvent(10.0), Norm.L1), (GaussianEvent(0.5), Norm.L2)])
def test_sums_come_through_the_noise_at_their_place(event, norm):
    answer = answered(Fixed(np.arange(-50, 50, dtype=np.int64) * 2**30 * 1000, norm), event)
    assert np.abs(answer.values - np.arange(-50, 50) * 1000).max() < 12 * np.sqrt(answer.law.variance)


def test_the_words_for_noise_state_its_scale():
    for event, norm, words in (
        (PureEvent(0.5), Norm.L1, "sums with discrete Laplace noise of scale 4"),
        (GaussianEvent(3.0), Norm.L2, "sums with discrete Gaussian noise of std 6"),
    ):
        stage = Stage("sums", "sums-pairs", event, Sensitivity(2.0, norm, ""), LAW_OF_NORM[norm], "sums")
        assert stage.noise == words
