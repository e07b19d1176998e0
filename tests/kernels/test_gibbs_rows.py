"""The vectorised draws of rows against the plain ones: the same streams, so the same numbers."""

import numpy as np
import pytest

from tensorveil.kernels.fast import gibbs_rows
from tensorveil.kernels.reference import posterior
from tensorveil.models.cp import CP
from tensorveil.solvers.layouts.latent_lists import LatentLists

SHAPES = {2: (30, 21), 3: (19, 8, 13), 4: (7, 5, 6, 4)}
MEAN = 0.3


class Case:
    """A model with offsets, latent values of unequal precisions, and rows without entries."""

    def __init__(self, order, rank, count=700):
        self.shape, self.rank = SHAPES[order], rank
        generator = np.random.default_rng(10 * order + rank)
        self.model = CP(rank).model([generator.normal(0.5, 0.5, (size, rank)) for size in self.shape])
        where = np.column_stack([generator.integers(0, size, count) for size in self.shape])
        self.where = np.ascontiguousarray(where[where[:, 0] != 1], dtype=np.uint32)
        self.values = generator.standard_normal(len(self.where))
        self.precisions = generator.uniform(0.5, 2.0, len(self.where))
        self.offsets = generator.normal(0, 0.2, sum(self.shape))
        self.firsts = np.concatenate([[0], np.cumsum(self.shape)[:-1]]).astype(np.int64)
        self.orders = [np.argsort(column, kind="stable") for column in self.where.T]
        self.begins = [
            np.searchsorted(np.sort(self.where[:, mode]), np.arange(size + 1)).astype(np.int64)
            for mode, size in enumerate(self.shape)
        ]
        self.priors = [generator.normal(size=(size, rank + 1)) for size in self.shape]
        self.strengths = generator.uniform(0.5, 2.0, rank + 1)
        self.lists = LatentLists(self.where, self.begins, self.shape, rank)
        gibbs_rows.pair_up(self.values, self.precisions, self.lists.latent, 0, len(self.values))

    def plain(self, mode, reflection):
        parameters, offsets = self.model.parameters.copy(), self.offsets.copy()
        centres = np.zeros((self.shape[mode], self.rank + 1))
        posterior.draw_rows(
            parameters, self.model.block_starts, self.model.block_widths, offsets, self.firsts, self.where, MEAN,
            self.values, self.precisions, self.orders[mode], self.begins[mode], mode, self.priors[mode],
            self.strengths, reflection, centres, np.uint64(7), 0, self.shape[mode],
        )  # fmt: skip
        return parameters, offsets, centres

    def fast(self, mode, reflection, parts=None):
        parameters, offsets = self.model.parameters.copy(), self.offsets.copy()
        centres = np.zeros((self.shape[mode], self.rank + 1))
        self.lists.pack(parameters, offsets)
        for part in parts or [(0, self.shape[mode])]:
            gibbs_rows.cp_draw_rows(
                *self.lists.place(mode), MEAN, self.lists.latent, self.rank + 1, self.priors[mode], self.strengths,
                reflection, centres, np.uint64(7), *part,
            )  # fmt: skip
        self.lists.unpack(mode, parameters, offsets)
        return parameters, offsets, centres


@pytest.mark.parametrize("order, rank", [(2, 1), (3, 5), (4, 3)])
def test_draws_and_centres_are_those_of_the_plain_kernel(order, rank):
    case = Case(order, rank)
    for mode in range(order):
        for reflection in (0.0, -0.7):
            pairs = zip(case.fast(mode, reflection), case.plain(mode, reflection), strict=True)
            for fast, plain in pairs:
                np.testing.assert_allclose(fast, plain, rtol=1e-9, atol=1e-10)


def test_a_row_does_not_depend_on_the_part_it_is_drawn_in():
    case = Case(3, 5)
    parts = [(11, 19), (0, 3), (3, 11)]
    for whole, cut in zip(case.fast(0, -0.7), case.fast(0, -0.7, parts), strict=True):
        np.testing.assert_array_equal(whole, cut)


@pytest.mark.parametrize("order, rank", [(2, 1), (3, 5), (4, 3)])
def test_means_are_those_of_the_plain_kernel(order, rank):
    case = Case(order, rank)
    fast, plain = np.full((2, len(case.where)), np.nan)
    case.lists.pack(case.model.parameters, case.offsets)
    gibbs_rows.cp_means(*case.lists.place(0), MEAN, fast, 0, case.shape[0])
    posterior.predict_means(
        case.model.parameters, case.model.block_starts, case.model.block_widths, case.offsets, case.firsts, case.where,
        MEAN, plain, 0, len(plain),
    )  # fmt: skip
    np.testing.assert_allclose(fast, plain, rtol=1e-12, atol=1e-12)


def test_a_row_whose_matrix_is_not_positive_definite_stays():
    case = Case(3, 5)
    case.strengths[:] = 0.0
    before = case.model.parameters.copy()
    after, _, centres = case.fast(0, 0.0)
    np.testing.assert_array_equal(after[5:10], before[5:10])  # row 1 of the first mode has no entries
    assert not centres[1].any()
    assert (after[:5] != before[:5]).all()
