"""Where chains begin: near least squares, with or without a mode along which all columns are constant."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.values.starts import least_squares
from tensorveil.models.cp import CP
from tensorveil.models.offsets import Offsets
from tensorveil.models.tucker import Tucker

SHAPE = (120, 60, 40)
NOISE = 2.0  # as a channel adds
RANK_TWO = CP(2)


def seen(days_per_user, days_matter, seed=0, each=60):
    """Coordinates and noisy values of 120 users, each seen on some days; factors depend on the day or do not."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(SHAPE[0]), each)
    films = rng.integers(SHAPE[1], size=len(users))
    own = rng.integers(SHAPE[2], size=(SHAPE[0], days_per_user))
    days = own[users, rng.integers(days_per_user, size=len(users))]
    rows = [rng.standard_normal((size, 2)) for size in SHAPE]
    if not days_matter:
        rows[2][:] = 1.0
    where = np.column_stack([users, films, days]).astype(np.uint32)
    truth = np.prod([row[index] for row, index in zip(rows, where.T, strict=True)], axis=0).sum(axis=1)
    truth += rng.normal(0, 0.5, SHAPE[2])[days]
    return where, truth + rng.normal(0, NOISE, len(truth)), rows


def start_of(where, values, family=RANK_TWO, noise=NOISE**2):
    return least_squares(values, noise, float(values.std()), where, family, SHAPE)


@pytest.mark.parametrize("days_per_user, days_matter, constant", [(2, False, 2), (30, True, None)])
def test_rows_are_alike_where_each_user_is_seen_on_few_days_that_do_not_matter(days_per_user, days_matter, constant):
    where, values, _ = seen(days_per_user, days_matter)
    start = start_of(where, values)
    assert start.constant == constant
    days = start.model.factors[2]
    assert (np.ptp(days, axis=0) == 0).all() == (constant == 2)


def test_a_start_with_equal_rows_predicts_days_on_which_users_were_not_seen():
    where, values, rows = seen(2, False)
    start = start_of(where, values)
    other = where.copy()
    other[:, 2] = (other[:, 2] + 17) % SHAPE[2]
    truth = (rows[0][other[:, 0]] * rows[1][other[:, 1]]).sum(axis=1)
    free = tv.ALS().solve(tv.Observations(where, values, SHAPE, duplicates="keep"), CP(2))
    errors = [float(np.std(model.predict(other) - truth)) / float(truth.std()) for model in (start.model, free.model)]
    assert errors[0] < 0.6
    assert errors[1] > 1.3 * errors[0]


def test_offsets_of_the_constant_mode_are_kept():
    where, values, _ = seen(2, False)
    start = start_of(where, values)
    offsets = Offsets(0.0, list(start.offsets))
    residuals = values - start.model.predict(where) - offsets.at(where)
    assert residuals.std() < 1.2 * NOISE
    assert start.offsets[2].std() == pytest.approx(0.5, rel=0.4)


def test_no_start_with_more_numbers_than_values_less_noise():
    where, values, _ = seen(2, False)
    assert start_of(where, values, CP(50)) is None
    assert start_of(where, values, noise=1e3) is None


@pytest.mark.parametrize("family", [Tucker((2, 2, 2)), CP(2, nonnegative=True)])
def test_other_families(family):
    where, values, _ = seen(2, False)
    start = start_of(where, values, family)
    assert start is None or start.constant in ((None,) if isinstance(family, Tucker) else (None, 2))
