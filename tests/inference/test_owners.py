"""An owner's offset and row, from the release and the owner's own data."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.people.owners import OFFSET_RIDGE, ROW_RIDGE, SCALES, _regressions, with_owners
from tensorveil.models.block_features import block_features, largest_feature
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.start import public_start

SHAPE = (8, 6, 4)


@pytest.mark.parametrize("family", [tv.CP(rank=3), tv.Tucker(ranks=(3, 2, 2))])
def test_an_owner_finds_offset_and_row_together(family):
    """Offset and features overlap: the one after the other would leave part of what both can tell."""
    model = public_start(family, SHAPE, std=0.5)
    where = np.argwhere(np.ones((1, 6, 4)))[np.random.default_rng(3).permutation(24)[:20]].astype(np.uint32)
    where[:, 0] = 2
    where = np.tile(where, (400, 1))
    features = block_features(model, where, 0)
    truth = 0.2 + features @ np.linspace(-0.3, 0.3, features.shape[1])
    found = with_owners(Completion(Offsets.none(3), model, 1.0, 5.0, 0), where, truth, 0)
    offsets, rows = found.offsets.modes[0], found.factors.factors[0]
    np.testing.assert_allclose(found.centred(where), truth, atol=0.02)
    assert not np.delete(rows, 2, axis=0).any()
    assert not np.delete(offsets, 2).any()


def test_no_row_adds_more_than_its_limit():
    model = public_start(tv.CP(rank=2), SHAPE, std=0.5)
    where = np.argwhere(np.ones(SHAPE)).astype(np.uint32)
    wild = np.random.default_rng(1).choice([-1e4, 1e4], len(where))
    found = with_owners(Completion(Offsets.none(3), model, 1.0, 5.0, 0), where, wild, 0)
    offsets, rows = found.offsets.modes[0], found.factors.factors[0]
    assert np.abs(offsets).max() <= 2
    assert np.linalg.norm(rows, axis=1).max() * largest_feature(model, 0) <= 4 * (1 + 1e-12)


@pytest.mark.parametrize("signal, most", [(0.0, 0.12), (1.0, 1.25)])
def test_owners_keep_to_the_release_if_their_values_tell_nothing_and_find_what_they_tell(signal, most):
    """Squared errors of ten values per owner, as shares of those of least squares for each owner."""
    rng = np.random.default_rng(4)
    owners, each = 400, 10
    design = np.column_stack([np.ones(owners * each), rng.standard_normal((owners * each, 2))])
    truth = signal * rng.standard_normal((owners, 3)) * [0.5, 0.3, 0.3]
    means = np.einsum("ni,ni->n", design, np.repeat(truth, each, axis=0))
    residuals = means + rng.standard_normal(len(means))
    ridges = np.array([OFFSET_RIDGE, 2 * ROW_RIDGE, 2 * ROW_RIDGE]) / np.repeat(SCALES**2, [1, 2], axis=1)
    solved, _, _ = _regressions(design, residuals, each * np.arange(owners), ridges)
    parts = zip(design.reshape(owners, each, 3), residuals.reshape(owners, each), strict=True)
    least = np.array([np.linalg.lstsq(*part)[0] for part in parts])
    errors = [np.mean(np.sum((found - truth) ** 2, axis=1)) for found in (solved, least)]
    assert errors[0] < most * errors[1]
