"""How good a completion is."""

import math

import numpy as np
import pytest

from tensorveil.errors import InputError
from tensorveil.metrics import rmse


def test_the_error_of_a_triangle_is_known_by_heart():
    # residuals 3 and 4: sqrt((9 + 16) / 2)
    assert rmse([0.0, 0.0], [3.0, -4.0]) == pytest.approx(math.sqrt(12.5))


def test_it_equals_a_plain_loop_on_any_shape():
    generator = np.random.default_rng(0)
    truth, prediction = generator.standard_normal((2, 3, 4)), generator.standard_normal((2, 3, 4))
    total = 0.0
    for one, other in zip(truth.ravel().tolist(), prediction.ravel().tolist(), strict=True):
        total += (one - other) ** 2
    assert rmse(truth, prediction) == pytest.approx(math.sqrt(total / 24), rel=1e-14)


def test_it_is_zero_for_a_perfect_prediction_and_a_plain_float():
    result = rmse([1, 2, 3], [1, 2, 3])
    assert result == 0.0
    assert type(result) is float


def test_it_does_not_care_which_side_is_the_truth():
    assert rmse([1.0, 5.0], [2.0, 2.0]) == rmse([2.0, 2.0], [1.0, 5.0])


def test_whole_numbers_do_not_overflow():
    assert rmse(np.array([200], dtype=np.uint8), np.array([100], dtype=np.uint8)) == 100.0
    assert rmse(np.array([100], dtype=np.uint8), np.array([200], dtype=np.uint8)) == 100.0


@pytest.mark.parametrize("truth, prediction", [([1.0, 2.0], [1.0]), ([[1.0]], [1.0]), ([], []), (1.0, [1.0])])
def test_shapes_that_differ_or_hold_nothing_are_refused(truth, prediction):
    with pytest.raises(InputError, match="one common, non-empty shape"):
        rmse(truth, prediction)
