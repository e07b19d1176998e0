"""Normal laws against scipy, and streams that behave like random numbers and belong to their places."""

import numpy as np
import pytest
from scipy import special, stats

from tensorveil.kernels import normals

UNLIKELY = 1e-6


def test_chances_and_quantiles_are_those_of_scipy():
    for x in np.concatenate([np.linspace(-8, 8, 161), [-37.0, -20.0]]):
        assert normals.below(x) == pytest.approx(special.ndtr(x), rel=1e-13, abs=1e-300)
    for p in [1e-290, 1e-100, 1e-12, 0.02, 0.075, 0.3, 0.5, 0.7, 0.925, 0.98, 1 - 1e-12]:
        assert normals.quantile(p) == pytest.approx(special.ndtri(p), rel=1e-12, abs=1e-14)


def test_a_stream_is_uniform_and_belongs_to_key_and_place():
    key = np.uint64(12345)
    first, second, other = (
        np.array([normals.uniform(np.uint64(normals.stream(start, place)) + further) for place in range(20_000)])
        for start, further in ((key, np.uint64(0)), (key, np.uint64(1)), (np.uint64(12346), np.uint64(0)))
    )
    assert stats.kstest(first, "uniform").pvalue > UNLIKELY
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.04
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.04
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.04
    assert 0 < first.min() < first.max() < 1


@pytest.mark.parametrize("low, high", [(-1.0, 0.5), (-np.inf, -3.0), (2.0, np.inf), (6.0, 6.5), (-30.0, -29.0)])
def test_a_cut_normal_number_has_the_law_of_scipys(low, high):
    u = (np.arange(4000) + 0.5) / 4000
    drawn = np.array([normals.between(low, high, part) for part in u])
    assert stats.kstest(drawn, stats.truncnorm(low, high).cdf).pvalue > 0.99  # u is evenly spread: no chance in it


def test_where_chances_vanish_it_is_the_nearer_end():
    assert normals.between(60.0, 61.0, 0.5) == 60.0
    assert normals.between(-61.0, -60.0, 0.5) == -60.0
