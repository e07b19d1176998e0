"""Features of a block at many entries, and how long they are, against one entry at a time."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.models.block_features import block_features, largest_feature, typical_feature
from tensorveil.solvers.start import public_start

SHAPE = (8, 6, 4)
FAMILIES = [tv.CP(rank=3), tv.Tucker(ranks=(3, 2, 2))]
CELLS = np.argwhere(np.ones(SHAPE)).astype(np.uint32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_features_times_the_row_are_the_prediction(family, mode):
    model = public_start(family, SHAPE, std=0.5)
    predicted = (block_features(model, CELLS, mode) * model.factors[mode][CELLS[:, mode]]).sum(axis=1)
    np.testing.assert_allclose(predicted, model.predict(CELLS), atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_feature_is_larger_than_the_bound_and_the_typical_one_is_their_mean_square(family):
    model = public_start(family, SHAPE, std=0.5)
    for block in range(len(model.blocks)):
        lengths = [np.linalg.norm(model.features(cell)[block]) for cell in CELLS]
        assert np.sqrt(np.mean(np.square(lengths))) == pytest.approx(typical_feature(model, block))
        if block < 3:
            assert max(lengths) <= largest_feature(model, block) * (1 + 1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_with_one_block_replaced_has_the_others_as_they_were(family):
    model = public_start(family, SHAPE, std=0.5)
    for block, whole in enumerate(model.blocks):
        changed = model.with_block(block, 2 * whole.ravel())
        for place, (before, after) in enumerate(zip(model.blocks, changed.blocks, strict=True)):
            np.testing.assert_array_equal(after, 2 * before if place == block else before)
