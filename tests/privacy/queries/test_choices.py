"""Quantiles of a public grid: whole scores that one value moves by one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorveil.data.observations import Observations
from tensorveil.privacy.bounds import VALUE_STEPS, Bounds, clip
from tensorveil.privacy.queries.choices import CELLS, EDGE_STEPS, Quantile
from tensorveil.privacy.units import Unit

LOW, HIGH = Quantile(0.1), Quantile(0.9)


def shard(steps):
    where = np.zeros((len(steps), 2), dtype=np.int64)
    bounds = Bounds(-VALUE_STEPS, VALUE_STEPS)  # a step is one
    return clip(Observations(where, steps, (1, 1), duplicates="keep"), bounds, Unit.value(), bytes(32))


def scores(query, steps):
    return query.scores(query.of(shard(steps))[0])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-VALUE_STEPS, VALUE_STEPS), min_size=1, max_size=30), st.integers(-VALUE_STEPS, VALUE_STEPS)
)
def test_scores_of_neighbours_differ_by_one_at_most(steps, other):
    for query in (LOW, HIGH):
        one, two = scores(query, steps), scores(query, [other, *steps[1:]])
        assert one.shape == (CELLS + 1,)
        assert np.abs(one - two).max() <= query.sensitivity(Unit.value())
        np.testing.assert_array_equal(one, np.rint(one))


def test_a_value_that_crosses_the_bounds_moves_scores_by_one():
    steps = np.linspace(-VALUE_STEPS, VALUE_STEPS, 20).round()
    moved = np.append(steps[1:], VALUE_STEPS)  # the lowest goes to the top
    assert np.abs(scores(LOW, steps) - scores(LOW, moved)).max() == LOW.sensitivity(Unit.value())


def test_scores_count_the_values_below_an_edge():
    generator = np.random.default_rng(0)
    steps = generator.integers(-VALUE_STEPS, VALUE_STEPS + 1, 500)
    low, high = scores(LOW, steps), scores(HIGH, steps)
    for cell in (0, 1, 700, 9000, CELLS):
        below = sum(step < -VALUE_STEPS + EDGE_STEPS * cell for step in steps.tolist())
        assert low[cell] == -abs(below - 50)
        assert high[cell] == -abs(below - 450)


def test_shards_add_up_to_the_whole():
    whole = shard(np.random.default_rng(1).integers(-VALUE_STEPS, VALUE_STEPS + 1, 50))
    parts = [LOW.of(whole.kept(np.arange(50) % 3 == part))[0] for part in range(3)]
    np.testing.assert_array_equal(LOW.of(whole)[0], sum(parts))
