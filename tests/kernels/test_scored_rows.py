"""Draws of rows through a table of what symbols tell, against sums and integrals that do without the kernel."""

import numpy as np
import pytest
from scipy.stats import norm

from oracles import ORDERS, RANKS, SHAPES, dense, random_blocks
from tensorveil.inference.posterior.sorted_symbols import SortedSymbols, fill_rows
from tensorveil.kernels.fast import scored_rows as fast_rows
from tensorveil.kernels.reference import blocks, scored_rows
from tensorveil.kernels.vectors import padded
from tensorveil.models.cp import CP
from tensorveil.models.offsets import Offsets
from tensorveil.models.tucker import Tucker

CASES = [(order, family) for order in ORDERS for family in (CP(rank=3), Tucker(ranks=RANKS[order]))]
MEAN = 0.3
CHANCES = np.array([[0.8, 0.15, 0.05], [0.2, 0.6, 0.2], [0.05, 0.15, 0.8]])
CUTS = np.array([-0.6, 0.9])
REACH, PLACES = 8.0, 400
INFORMATION = 0.4  # about that of a symbol in the middle


def log_chances(m):
    """Log chance of each symbol (rows) at means m, from the definition."""
    below = norm.cdf(CUTS[:, None] - m)
    return np.log(CHANCES.T @ np.diff(below, axis=0, prepend=0.0, append=1.0))


def table():
    places = np.linspace(-REACH, REACH, PLACES)
    slopes = (log_chances(places + 1e-5) - log_chances(places - 1e-5)) / 2e-5
    return np.ascontiguousarray(np.stack([log_chances(places), slopes], axis=2))


def sorted_by(where, mode, size):
    order = np.argsort(where[:, mode], kind="stable")
    return order, np.searchsorted(where[order, mode], np.arange(size + 1)).astype(np.int64)


def dense_features(model, where, mode):
    """phi of a mode at every entry: the tensor with unit vectors for its rows."""
    columns = []
    for unit in np.eye(model.ranks[mode]):
        factors = list(model.factors)
        factors[mode] = np.tile(unit, (model.shape[mode], 1))
        changed = model.family.model(factors if model.core is None else [*factors, model.core])
        columns.append(dense(changed)[tuple(where.T)])
    return np.column_stack(columns)


class Case:
    """A model with offsets, symbols, and everything that the kernels are handed."""

    def __init__(self, shape, family, count=40, mean=MEAN):
        self.shape, self.mean, self.information = shape, mean, INFORMATION
        self.model = family.model(random_blocks(family.block_shapes(shape), seed=len(shape)))
        generator = np.random.default_rng(len(shape))
        where = np.column_stack([generator.integers(0, size, count) for size in shape])
        self.where = np.ascontiguousarray(where[where[:, 0] != 1], dtype=np.uint32)  # some twice; row 1 has none
        self.symbols = generator.integers(0, 3, len(self.where)).astype(np.uint8)
        self.starts = np.concatenate([[0], np.cumsum(shape)[:-1]]).astype(np.int64)
        self.offsets = generator.normal(0, 0.2, sum(shape))
        self.priors = [generator.normal(size=(n, rank + 1)) for n, rank in zip(shape, self.model.ranks, strict=True)]
        self.strengths = [generator.uniform(0.5, 2.0, rank + 1) for rank in self.model.ranks]

    def given(self, parameters, offsets):
        layout = self.model.block_starts, self.model.block_widths
        room = None if self.model.core is None else blocks.work_size(self.model.block_widths, len(self.shape))
        return parameters, *layout, room, offsets, self.starts, self.where, self.mean

    def draw(self, mode, key, parts=None, keep=0.0, state=None, fast=False, signed=None):
        parameters, offsets = state or (self.model.parameters.copy(), self.offsets.copy())
        prior = self.priors[mode], self.strengths[mode], np.uint64(key)
        if fast:
            kernel, size, first = fast_rows.draw_rows, self.shape[mode], self.model.block_starts[mode]
            lists = SortedSymbols.of(self.where, self.symbols, self.shape, self.model.ranks, 2)
            given = lists.given(mode, lists.pack(parameters, offsets), self.core(parameters))
            law = lists.lists[mode].values, np.float32(table()), np.float32(REACH), self.information, keep
            own = (
                parameters[first : first + size * self.model.ranks[mode]],
                offsets[self.starts[mode] : self.starts[mode] + size],
            )
            arguments = *given, *law, *own, *prior
        else:
            kernel, listed = scored_rows.draw_rows, sorted_by(self.where, mode, self.shape[mode])
            law = self.symbols, table(), REACH, self.information, keep
            arguments = *self.given(parameters, offsets), *law, *listed, mode, *prior, signed
        for part in parts or [(0, self.shape[mode])]:
            kernel(*arguments, *part)
        return self.rows(mode, parameters, offsets)

    def core(self, parameters):
        return None if self.model.core is None else parameters[self.model.block_starts[-1] :].reshape(self.model.ranks)

    def rows(self, mode, parameters, offsets):
        rank, first, size = self.model.ranks[mode], self.model.block_starts[mode], self.shape[mode]
        own = offsets[self.starts[mode] : self.starts[mode] + size]
        return np.column_stack([parameters[first : first + size * rank].reshape(-1, rank), own])


@pytest.mark.parametrize("symbol", [0, 1, 2])
def test_a_table_is_read_between_its_places(symbol):
    means = np.random.default_rng(0).uniform(-4, 4, 200)
    found = np.array([scored_rows.look_up(table(), REACH, symbol, m) for m in means])
    slopes = (log_chances(means + 1e-5) - log_chances(means - 1e-5)) / 2e-5
    np.testing.assert_allclose(found[:, 0], log_chances(means)[symbol], atol=1e-7)
    np.testing.assert_allclose(found[:, 1], slopes[symbol], atol=1e-3)


def test_weights_at_places_give_the_log_likelihood():
    generator = np.random.default_rng(0)
    means, symbols = generator.normal(0, 2, 500), generator.integers(0, 3, 500).astype(np.uint8)
    values = table()
    weights = np.zeros((3, PLACES, 2))
    for part in ((0, 100), (100, 500)):
        scored_rows.spread_means(symbols, means, REACH, weights, *part)
    total = scored_rows.scores(symbols, values, REACH, means, np.empty(500), 0, 500)
    direct = log_chances(means)[symbols, np.arange(500)].sum()
    assert total == pytest.approx(direct, abs=1e-4)
    assert (weights * values).sum() == pytest.approx(direct, abs=1e-4)


@pytest.mark.parametrize("order, family", CASES, ids=str)
def test_features_and_equations_are_the_dense_ones(order, family):
    case = Case(SHAPES[order], family)
    values, model = table(), case.model
    for mode in range(order):
        R = model.ranks[mode]
        order_of, _ = sorted_by(case.where, mode, case.shape[mode])
        count = len(order_of)
        length = (R + 4) // 4 * 4
        features, base = np.zeros((count + 3, length)), np.empty(count)
        room = np.empty(model.block_starts.size, np.int64)
        work = np.empty(10**4)
        parameters, starts, widths, needed, *rest = case.given(model.parameters, case.offsets)
        scored_rows.gather(
            parameters,
            starts,
            widths,
            *rest,
            order_of,
            0,
            count,
            mode,
            work,
            room,
            None if needed is None else work.copy(),
            features,
            base,
        )
        phi = np.column_stack([dense_features(model, case.where, mode), np.ones(count)])[order_of]
        np.testing.assert_allclose(features[:count, : R + 1], phi, rtol=1e-10, atol=1e-12)
        row = np.linspace(-0.3, 0.4, R + 1)
        g, H = np.zeros(R + 1), np.zeros((R + 1, length))
        total = scored_rows.add_scores(case.symbols, values, REACH, order_of, 0, count, row, features, base, g)
        scored_rows.add_outer(features, count, H)
        m = base + phi @ row
        seen = [scored_rows.look_up(values, REACH, s, x) for s, x in zip(case.symbols[order_of], m, strict=True)]
        logs, slopes = np.array(seen).T
        assert total == pytest.approx(logs.sum(), rel=1e-12)
        np.testing.assert_allclose(g, slopes @ phi, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(H[:, : R + 1], phi.T @ phi, rtol=1e-10, atol=1e-12)


def exact_moments(case, copies, phi, base, symbols, folded=False):
    """Means and covariance of a row with its offset, by a sum over a fine grid."""
    axis = np.linspace(-6, 6, 300 if folded else 301)
    rows = np.array(np.meshgrid(axis, axis, indexing="ij")).reshape(2, -1).T
    logs = -0.5 * (case.strengths[0] * (rows - case.priors[0][0]) ** 2).sum(axis=1)
    for one, start, symbol in zip(phi, base, symbols, strict=True):
        logs += log_chances(start + (np.abs(rows[:, 0]) if folded else rows[:, 0]) * one + rows[:, 1])[symbol]
    mass = np.exp(logs - logs.max())
    mass /= mass.sum()
    mean = mass @ rows
    return mean, (rows - mean).T @ (mass[:, None] * (rows - mean)), rows, mass


@pytest.mark.parametrize("kind", ["reference", "fast", "folded"])
@pytest.mark.parametrize("keep", [0.0, 0.5])
@pytest.mark.parametrize("start", ["its law", "far away"])
def test_draws_have_the_law_of_a_sum_over_a_grid(keep, start, kind):
    fast, folded = kind == "fast", kind == "folded"
    copies, columns = 4000, 4  # so many rows that see the same symbols: one step of all shows the law of a step
    case = Case((copies, columns), CP(1), mean=0.0 if fast else MEAN)  # the fast kernel knows of none
    case.where = np.ascontiguousarray(
        np.column_stack([np.repeat(np.arange(copies), columns), np.tile(np.arange(columns), copies)]), dtype=np.uint32
    )
    symbols = np.array([2, 2, 0, 1])
    case.symbols = np.tile(symbols, copies).astype(np.uint8)
    case.priors[0][:] = [0.4, -0.2]
    phi = case.model.factors[1][:, 0]
    base = case.mean + case.offsets[case.starts[1] :]
    mean, covariance, rows, mass = exact_moments(case, copies, phi, base, symbols, folded)
    generator = np.random.default_rng(1)
    begin = rows[generator.choice(len(rows), copies, p=mass)] if start == "its law" else np.full((copies, 2), 3.0)
    parameters, offsets = case.model.parameters.copy(), case.offsets.copy()
    parameters[:copies], offsets[:copies] = begin.T
    signed = parameters.copy() if folded else None
    if folded:
        parameters[:copies] = np.abs(begin[:, 0])
    for key in range(2 if start == "its law" else 60):
        found = case.draw(0, key, keep=keep, state=(parameters, offsets), fast=fast, signed=signed)
    if folded:
        np.testing.assert_array_equal(found[:, 0], np.abs(signed[:copies]))
        found[:, 0] = signed[:copies]
    assert (found != begin).mean() > 0.7
    spread = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found.mean(axis=0), mean, atol=4.5 * spread.max() / np.sqrt(copies))
    np.testing.assert_allclose(np.cov(found.T), covariance, atol=0.1 * spread.max() ** 2)
    third = mass @ ((rows - mean) / spread) ** 3  # the law is skewed: a normal one would not do
    np.testing.assert_allclose((((found - mean) / spread) ** 3).mean(axis=0), third, atol=0.25)


def test_a_row_longer_than_a_batch_is_drawn_as_a_short_one(monkeypatch):
    case = Case((3, 50), CP(2), count=3 * scored_rows.BATCH)
    assert np.bincount(case.where[:, 0]).max() > scored_rows.BATCH
    model = case.model
    listed, _ = sorted_by(case.where, 0, 3)
    phi = np.column_stack([dense_features(model, case.where, 0), np.ones(len(listed))])
    base = MEAN + case.offsets[case.starts[1] + case.where[:, 1].astype(np.int64)]
    before = case.rows(0, model.parameters, case.offsets)
    key, accepted = 0, False
    while not accepted:  # a proposal is what is accepted: its distance from the centre has the law that H gives
        after = case.draw(0, key)
        accepted = (after[0] != before[0]).all()
        key += 1
    own = case.where[:, 0] == 0
    seen = [scored_rows.look_up(table(), REACH, s, x)
            for s, x in zip(case.symbols[own], base[own] + phi[own] @ before[0], strict=True)]  # fmt: skip
    _, slopes = np.array(seen).T
    H = INFORMATION * phi[own].T @ phi[own] + np.diag(case.strengths[0])
    centre = before[0] + np.linalg.solve(H, slopes @ phi[own] + case.strengths[0] * (case.priors[0][0] - before[0]))
    standard = np.linalg.cholesky(H).T @ (after[0] - centre)
    assert np.abs(standard).max() < 4.5


@pytest.mark.parametrize("order, family", CASES[:2], ids=str)
def test_a_row_does_not_depend_on_which_thread_draws_it(order, family):
    case = Case(SHAPES[order], family)
    size = case.shape[0]
    whole = case.draw(0, 7)
    np.testing.assert_array_equal(whole, case.draw(0, 7, [(2, size), (0, 1), (1, 2)]))
    assert (whole != case.draw(0, 8)).any()


@pytest.mark.parametrize("order, family", CASES, ids=str)
def test_means_are_those_of_offsets_and_model(order, family):
    case = Case(SHAPES[order], family)
    means = np.empty(len(case.where))
    for part in ((0, 10), (10, len(means))):
        scored_rows.predict_means(*case.given(case.model.parameters, case.offsets), means, *part)
    offsets = Offsets(MEAN, np.split(case.offsets, case.starts[1:]))
    np.testing.assert_allclose(means, offsets.at(case.where) + case.model.predict(case.where), rtol=1e-12, atol=1e-12)


FAST = [(order, CP(rank)) for order, rank in [(2, 1), (2, 33), (3, 4), (3, 6), (3, 12), (4, 7), (6, 13)]]
FAST += [(2, Tucker((3, 5))), (3, Tucker((4, 4, 4))), (3, Tucker((2, 7, 3))), (4, Tucker((3, 2, 4, 2)))]


@pytest.mark.parametrize("order, family", FAST, ids=str)
@pytest.mark.parametrize("count", [5, 40, 3 * fast_rows.BATCH])
def test_the_fast_kernels_draw_and_predict_what_the_reference_does(order, family, count):
    shape = (6, 60) if order == 2 else SHAPES[order]  # matrices of few columns are singular: rounding shows
    if family.name == "tucker":
        shape = tuple(size + 7 for size in shape)
    case = Case(shape, family, count, mean=0.0)
    case.information = 2.0  # short steps: more of them are accepted
    parameters = 0.3 * case.model.parameters
    for key in range(60):  # to where proposals are accepted
        case.draw(key % order, key, keep=0.9, state=(parameters, case.offsets))
    case.model = case.model.replace_parameters(parameters)
    lists = SortedSymbols.of(case.where, case.symbols, case.shape, case.model.ranks, 1)
    means, plain = np.empty(len(case.where), np.float32), np.empty(len(case.where))
    given = lists.given(0, lists.pack(case.model.parameters, case.offsets), case.core(case.model.parameters))
    for part in ((0, 1), (1, case.shape[0])):
        fast_rows.predict_means(*given, means, *part)
    scored_rows.predict_means(*case.given(case.model.parameters, case.offsets), plain, 0, len(plain))
    listed, _ = sorted_by(case.where, 0, case.shape[0])
    np.testing.assert_allclose(means, plain[listed], atol=1e-5 * np.abs(plain).max())
    np.testing.assert_array_equal(lists.symbols, case.symbols[listed])
    moved = []
    for mode in range(order):
        before = case.rows(mode, case.model.parameters, case.offsets)
        for keep in (0.0, 0.9):
            plain = case.draw(mode, 3, keep=keep)
            fast = case.draw(mode, 3, [(1, case.shape[mode]), (0, 1)], keep=keep, fast=True)
            np.testing.assert_allclose(fast, plain, atol=2e-4 * np.abs(plain).max())
            moved.append((plain != before).mean())
    assert np.mean(moved) > 0.1


@pytest.mark.parametrize("ranks", [(4, 3), (2, 3, 4), (3, 2, 2, 3)])
def test_what_symbols_tell_of_a_core_is_what_they_tell_of_its_dense_features(ranks):
    case = Case(tuple(range(9, 9 + len(ranks))), Tucker(ranks), 3 * fast_rows.BATCH, mean=0.0)
    parameters, offsets, cells = case.model.parameters, case.offsets, int(np.prod(ranks[1:]))
    lists = SortedSymbols.of(case.where, case.symbols, case.shape, case.model.ranks, 1)
    given = lists.given(0, lists.pack(parameters, offsets), np.eye(cells).reshape(cells, *ranks[1:]))
    factor = case.model.factors[0]
    own = np.zeros((len(factor), padded(cells + fast_rows.EXTRA, np.float32)), np.float32)
    fill_rows(own, factor @ case.model.core.reshape(ranks[0], cells), offsets[: len(factor)])
    law = lists.lists[0].values, np.float32(table()), np.float32(REACH)
    g, H = np.zeros(case.model.core.size), np.zeros((case.model.core.size,) * 2)
    value = sum(
        fast_rows.core_scores(*given, *law, factor.copy(), own.ravel(), g, H, *part)
        for part in ((0, 3), (3, len(factor)))
    )
    units = [case.model.replace_parameters(np.append(parameters[: -g.size], one)) for one in np.eye(g.size)]
    phi = np.column_stack([dense(one)[tuple(case.where.T)] for one in units])
    means = Offsets(0.0, np.split(offsets, case.starts[1:])).at(case.where) + case.model.predict(case.where)
    seen = [scored_rows.look_up(table(), REACH, s, x) for s, x in zip(case.symbols, means, strict=True)]
    logs, slopes = np.array(seen).T
    assert value == pytest.approx(logs.sum(), rel=1e-5)
    np.testing.assert_allclose(g, slopes @ phi, atol=1e-5 * (np.abs(slopes) @ np.abs(phi)).max())
    np.testing.assert_allclose(np.tril(H), np.tril(phi.T @ phi), atol=1e-5 * np.abs(H).max())
    np.testing.assert_array_equal(lists.coordinates, case.where[np.argsort(case.where[:, 0], kind="stable")])


def test_means_beyond_the_table_and_those_that_are_no_numbers_do_no_harm():
    case = Case((4, 5, 6), CP(3), count=200)
    for bad in (1e20, np.nan):
        parameters = case.model.parameters.copy()
        parameters[case.model.block_starts[1] :] = bad
        before = case.rows(0, parameters, case.offsets)
        after = case.draw(0, 1, state=(parameters, case.offsets.copy()), fast=True)
        np.testing.assert_array_equal(after[2:], before[2:])
