"""Replay where there are enough observations for the kernels that work on whole vectors."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.replays import replay

SHAPE = (40, 30, 20)
BOUNDS = tv.Bounds(1, 5)


def worlds():
    """All cells but a few of a box, and the same with one value moved from one bound to the other."""
    where = np.argwhere(np.ones(SHAPE))[:-1000]
    values = np.random.default_rng(1).uniform(1, 5, len(where))
    values[77] = 1.0
    changed = values.copy()
    changed[77] = 5.0
    return tv.Observations(where, values, SHAPE), tv.Observations(where, changed, SHAPE)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("mechanism", [tv.StatisticPerturbation(), tv.GradientPerturbation()], ids=lambda one: one.name)
def test_the_fast_kernels_keep_to_the_stated_sensitivities(mechanism, delta):
    plan = mechanism.plan(tv.CP(3), BOUNDS, "value", 2.0, delta, shape=SHAPE)
    found = replay(*worlds(), plan)
    assert 0.05 < found.largest <= 1


def test_an_added_entry_moves_the_fast_gradients_by_no_more_than_stated():
    first, _ = worlds()
    where = np.vstack([first.coordinates, [[39, 29, 19]]])
    more = tv.Observations(where, np.append(first.values, 5.0), SHAPE)
    plan = tv.GradientPerturbation().plan(tv.CP(3), BOUNDS, "entry", 2.0, 1e-6, shape=SHAPE, expected_count=23_000)
    assert 0.05 < replay(first, more, plan).largest <= 1
