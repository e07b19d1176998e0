"""Start values."""

import math

import numpy as np
import pytest
from scipy import stats

import oracles
from tensorveil.errors import InputError
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.solvers.start import NormalStart, Start, UniformStart

STARTS = [UniformStart(), UniformStart(-2, 0.5), NormalStart(), NormalStart(1.0, 3.0)]


@pytest.mark.parametrize(
    "start, law",
    [
        (UniformStart(), stats.uniform(0, 1)),
        (UniformStart(-2, 0.5), stats.uniform(-2, 2.5)),
        (NormalStart(), stats.norm(0, 0.1)),
        (NormalStart(1.0, 3.0), stats.norm(1, 3)),
    ],
)
@pytest.mark.parametrize("family", [CP(4), Tucker((4, 5, 6))])
def test_every_block_follows_the_law_it_says(start, law, family):
    model = start.model(family, (60, 70, 80), np.random.default_rng(1))
    for block in [*model.factors] if model.core is None else [*model.factors, model.core]:
        assert stats.kstest(block.ravel(), law.cdf).pvalue > 0.001


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("order", oracles.ORDERS)
def test_the_model_has_the_familys_shape(start, order):
    shape, ranks = oracles.SHAPES[order], oracles.RANKS[order]
    assert start.model(CP(2), shape, np.random.default_rng(0)).ranks == (2,) * order
    tucker = start.model(Tucker(ranks), shape, np.random.default_rng(0))
    assert (tucker.shape, tucker.ranks, tucker.core.shape) == (shape, ranks, ranks)


@pytest.mark.parametrize("start", STARTS)
def test_the_generator_alone_decides(start):
    models = [start.model(CP(3), (4, 4, 4), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert models[0] == models[1]
    assert models[0] != models[2]


def test_blocks_are_not_copies_of_each_other():
    model = UniformStart().model(CP(3), (4, 4, 4), np.random.default_rng(0))
    assert len({factor.tobytes() for factor in model.factors}) == 3


@pytest.mark.parametrize("low, high", [(1, 1), (1, 0), (math.nan, 1), (0, math.inf), ("a", 1), (False, True)])
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(InputError):
        UniformStart(low, high)


@pytest.mark.parametrize("mean, std", [(0, 0), (0, -1), (math.nan, 1), (0, math.inf), ("0", 1)])
def test_a_normal_law_that_is_none_is_refused(mean, std):
    with pytest.raises(InputError):
        NormalStart(mean, std)


def test_a_rule_of_ones_own_needs_one_method():
    class Ones(Start):
        def draw(self, shape, generator):
            return np.ones(shape)

    assert Ones().model(CP(2), (3, 3), np.random.default_rng(0)).to_dense().tolist() == [[2.0] * 3] * 3
    with pytest.raises(TypeError):
        Start()
