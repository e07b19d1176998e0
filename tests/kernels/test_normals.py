"""Normal quantiles against scipy, and streams that behave like random numbers and belong to their places."""

import numpy as np
import pytest
from scipy import special, stats

from tensorveil.kernels import normals

UNLIKELY = 1e-6


def test_quantiles_are_those_of_scipy():
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


def test_a_normal_number_above_a_bound_has_its_law():
    for least in (-40.0, -3.0, 0.0, 2.0, 29.9, 30.1, 200.0):
        log_tail = special.log_ndtr(-least)
        assert normals.log_tail(least) == pytest.approx(log_tail, rel=1e-8, abs=1e-300)
        for u in (1e-9, 0.01, 0.3, 0.9, 1 - 1e-9):  # the chance of more than the excess is u
            excess = normals.above(u, least)
            assert excess >= 0
            assert special.log_ndtr(-least - excess) - log_tail == pytest.approx(np.log(u), rel=1e-5, abs=1e-6)
