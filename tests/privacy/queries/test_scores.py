"""What sums read of values: numbers from -1 to 1, of a unit's own observations and released numbers alone."""

from dataclasses import replace

import numpy as np
import pytest

import tensorveil as tv
from privacy.queries.sums_cases import NONE, OFFSETS, READINGS, TINY, UNITS, bounded, crowd
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.bounds import VALUE_STEPS
from tensorveil.privacy.queries.sums.scores import ScoreReading

ENDS = np.array([-1.0, 1.0])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reading", READINGS)
def test_what_is_read_is_a_number_from_minus_one_to_one(reading, unit):
    data = bounded(crowd(), unit)
    every_step = data.with_steps(np.linspace(-VALUE_STEPS, VALUE_STEPS, len(data)).astype(np.int64))
    for shard in (data, every_step, data.with_steps(np.arange(len(data)) - 200)):
        read = READINGS[reading].of(shard)  # without a warning, which would tell of the data
        assert np.isfinite(read).all()
        assert np.abs(read).max() <= 1


def test_scores_are_a_table_that_is_linear_between_its_places():
    data = bounded(crowd(), "entry")
    table = ScoreReading(np.array([-0.5, 0.0, 0.5]), np.array([3.0, -1.0, 2.0]), NONE, 4.0)
    for value, read in zip(data.centred, table.of(data), strict=True):
        left, right = (-1.0, 3.0) if value < 0 else (-1.0, 2.0)
        expected = left + (right - left) * min(abs(value) / 0.5, 1.0)
        assert read == pytest.approx(expected / 4)


@pytest.mark.parametrize("unit", UNITS)
def test_only_slices_subtract_their_own_offsets(unit):
    data = bounded(TINY, unit)
    own, shared = (replace(READINGS["shared"], own=own).of(data) for own in (True, False))
    assert np.array_equal(own, shared) == (unit != "slice:0")


def test_a_slices_own_offset_is_the_shrunk_mean_of_its_residuals():
    data = bounded(crowd(), "slice:0")
    wide = ScoreReading(ENDS, ENDS, OFFSETS, 10.0)  # nothing is clipped
    residuals = data.centred - OFFSETS.at(data.coordinates)
    for owner in range(5):
        mine = data.index(0) == owner
        expected = residuals[mine] - residuals[mine].sum() / (mine.sum() + 2)
        np.testing.assert_allclose(10 * wide.of(data)[mine], expected, atol=1e-7)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("reading", READINGS)
def test_what_is_read_of_a_unit_does_not_depend_on_the_others(reading, unit):
    data = bounded(crowd(), unit)
    mine = data.index(0) == 2 if "slice" in unit else np.arange(len(data)) == 7
    together, alone = READINGS[reading].of(data)[mine], READINGS[reading].of(data.kept(mine))
    assert together.tobytes() == alone.tobytes()


@pytest.mark.parametrize("unit", UNITS)
def test_offsets_of_another_shape_are_refused_whichever_cells_are_observed(unit):
    """Index 3 of the second mode is not observed: an error that depends on it would tell who is there."""
    for modes in ([None, np.zeros(3)], [np.zeros(4), None], [None, None, None]):
        with pytest.raises(tv.InputError, match="offsets must be one per index"):
            ScoreReading(ENDS, ENDS, Offsets(0.0, modes), 1.0).of(bounded(TINY, unit))


@pytest.mark.parametrize(
    "places, scores",
    [
        (np.array([0.0, np.nan]), ENDS),
        (np.array([0.0, np.inf]), ENDS),
        (ENDS, np.array([0.0, np.nan])),
        (ENDS, np.array([0.0, -np.inf])),
        (ENDS, np.array([0.0, 8.1])),
        (ENDS[::-1], ENDS),
        (ENDS, np.zeros(3)),
        (np.zeros(0), np.zeros(0)),
        (np.zeros((2, 2)), np.zeros((2, 2))),
        (np.float64(0.0), np.float64(0.0)),
    ],
)
def test_a_table_that_is_none_is_refused(places, scores):
    with pytest.raises(tv.InputError, match="places"):
        ScoreReading(places, scores, NONE, 1.0)


@pytest.mark.parametrize("reach", [0.0, -1.0, np.nan, np.inf])
def test_a_reach_that_is_none_is_refused(reach):
    with pytest.raises(tv.InputError, match="reach"):
        ScoreReading(ENDS, ENDS, NONE, reach)


def test_a_table_cannot_be_changed_after_its_check():
    places, scores = ENDS.copy(), ENDS.copy()
    reading = ScoreReading(places, scores, NONE, 1.0)
    before = reading.of(bounded(TINY, "entry"))
    places[:], scores[:] = np.nan, np.nan
    np.testing.assert_array_equal(reading.of(bounded(TINY, "entry")), before)
    with pytest.raises(ValueError, match="read-only"):
        reading.scores[0] = 9.0
