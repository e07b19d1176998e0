"""Readings and rows that hurt, and the share of a bound that a change uses, for the tests of sums."""

import math
from fractions import Fraction

import numpy as np

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.queries.sums.row_sums import Rows
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.stages import Norm
from tensorveil.privacy.units import Unit

BOUNDS = tv.Bounds(-1, 1)
UNITS = ("value", "slice_values:0", "entry", "slice:0")
TINY = tv.Observations(
    [[0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [1, 2], [3, 1]],
    [0.3, -0.2, 1.0, 0.5, -1.0, 0.1, 0.7],
    (5, 4),
    duplicates="keep",
)
NONE = Offsets.none(2)
OFFSETS = Offsets(0.1, [None, np.array([0.1, -0.2, 0.0, 0.3])])
READINGS = {
    "values": ScoreReading.linear(0.0, 1.0, NONE),
    "short reach": ScoreReading(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), OFFSETS, 0.05),
    "not monotone": ScoreReading(np.linspace(-1, 1, 6), np.array([8.0, -8.0, 0.3, -0.1, 7.0, -8.0]), OFFSETS, 0.7),
    "a step": ScoreReading(np.zeros(2), np.array([-1.0, 1.0]), NONE, 1.0),
    "steeper than floats": ScoreReading(np.array([-5e-324, 5e-324]), np.array([-8.0, 8.0]), NONE, 3.0),
    "offsets beyond floats": ScoreReading(
        np.array([0.0]), np.array([1.0]), Offsets(1.7e308, [np.full(5, 1.7e308), None]), 1.0
    ),
    "tiny reach": ScoreReading(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), NONE, 5e-324),
    "all beyond floats": ScoreReading(
        np.array([-5e-324, 5e-324]), np.array([-8.0, 8.0]), Offsets(1.7e308, [None, np.full(4, 1.7e308)]), 5e-324
    ),
    "shared": ScoreReading(np.array([-1.0, 1.0]), np.array([-3.0, 3.0]), OFFSETS, 2.9, own=False),
}
MOVING = tuple(name for name in READINGS if not name.endswith("beyond floats"))  # all is read as -1 there
ROWS = {
    "of a mode": Rows.of_mode(1, 4),
    "of groups": Rows(8, ((1, 2 * np.arange(4)), (0, np.array([0, 1, 1, 0, 1])))),
    "all in one": Rows(1),
}


def bounded(observations, unit):
    return clip(observations, BOUNDS, Unit.of(unit).resolved(observations.mode_names), bytes(32))


def share_moved(query, one, other):
    """The part of the declared sensitivity that a change uses, in fractions; an error where it is more than all."""
    (change,) = query.sensitivity(one.unit)
    steps = [int(step) for step in query.of(one)[0] - query.of(other)[0]]
    most = Fraction(change.bound) / Fraction(change.grid)
    if change.norm is Norm.L1:
        assert sum(map(abs, steps)) <= most
        return float(sum(map(abs, steps)) / most)
    squares = sum(step**2 for step in steps)
    assert squares <= most**2
    return math.sqrt(squares / most**2)


def shares(query, unit, observations=TINY):
    """What every neighbour of a data set uses."""
    pairs = neighbours(observations, unit, BOUNDS)
    return [share_moved(query, bounded(one, unit), bounded(other, unit)) for one, other in pairs]


def crowd(seed=1, count=400):
    """Many observations of few cells, at random."""
    rng = np.random.default_rng(seed)
    where = np.column_stack([rng.integers(0, 5, count), rng.integers(0, 4, count)])
    return tv.Observations(where, rng.uniform(-1, 1, count), (5, 4), duplicates="keep")
