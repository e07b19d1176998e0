"""Vectorised ridge rows against numpy's least squares, with and without offsets."""

import numpy as np
import pytest

from tensorveil.kernels.fast import ridge
from tensorveil.models.cp import CP
from tensorveil.solvers.layouts.sorted_entries import SortedEntries, mode_variances

SHAPES = {2: (9, 7), 3: (9, 5, 6), 4: (5, 4, 3, 4), 6: (4, 3, 2, 3, 2, 3)}
CASES = [(2, 1, True), (3, 3, False), (3, 10, True), (3, 16, False), (4, 5, True), (6, 2, True), (3, 65, False)]
TOLERANCE = {np.float64: 1e-9, np.float32: 2e-2}


def setting(order, rank, with_offsets, dtype, count=600, threads=1):
    """Entries with doubles among them; index 1 of the first mode has none."""
    generator = np.random.default_rng(order * 100 + rank)
    shape = SHAPES[order]
    model = CP(rank).model([generator.normal(0.5, 0.5, (size, rank)) for size in shape])
    where = np.column_stack([generator.integers(0, size, count) for size in shape]).astype(np.uint32)
    where = np.ascontiguousarray(where[where[:, 0] != 1])
    values = generator.normal(size=len(where))
    offsets = [generator.normal(size=size) for size in shape] if with_offsets else []
    return model, where, values, offsets, SortedEntries.of(where, values, shape, threads, dtype)


def features(model, where, mode, with_offsets):
    rows = [factor[where[:, n]] for n, factor in enumerate(model.factors) if n != mode]
    phi = np.einsum(",".join(["wr"] * len(rows)) + "->wr", *rows)
    return np.column_stack([phi, np.ones(len(where))]) if with_offsets else phi


def dense_sweep(model, where, values, offsets, mean, penalty, offset_penalties):
    """All modes in turn by numpy's least squares on stacked rows; the effective number by singular values."""
    effective = 0.0
    offsets = [part.copy() for part in offsets]
    for mode, size in enumerate(model.shape):
        phi = features(model, where, mode, bool(offsets))
        rest = values - mean
        for n, part in enumerate(offsets):
            rest = rest - (part[where[:, n]] if n != mode else 0.0)
        D = phi.shape[1]
        roots = np.sqrt(np.array([penalty] * model.ranks[0] + ([offset_penalties[mode]] if offsets else [])))
        solved = np.zeros((size, D))
        for i in range(size):
            own = where[:, mode] == i
            table = np.vstack([phi[own], np.diag(roots)])
            solved[i] = np.linalg.lstsq(table, np.concatenate([rest[own], np.zeros(D)]), rcond=None)[0]
            effective += sum(s**2 / (s**2 + 1) for s in np.linalg.svd(phi[own] / roots, compute_uv=False))
        blocks = [np.array(factor) for factor in model.factors]
        blocks[mode] = solved[:, : model.ranks[0]]
        model = CP(model.ranks[0]).model(blocks)
        if offsets:
            offsets[mode] = solved[:, -1]
    return model, offsets, effective


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order, rank, with_offsets", CASES)
def test_a_sweep_solves_the_dense_problems(order, rank, with_offsets, dtype):
    model, where, values, offsets, entries = setting(order, rank, with_offsets, dtype)
    penalties = [0.7 + n for n in range(order)] if with_offsets else []
    packed = entries.pack(model, model.parameters, offsets)
    effective = entries.sweep(packed, rank, 0.25, 2.0, penalties)
    parameters, found = entries.unpack(packed, model, offsets)
    expected, expected_offsets, degrees = dense_sweep(model, where, values, offsets, 0.25, 2.0, penalties)
    np.testing.assert_allclose(parameters, expected.parameters, atol=TOLERANCE[dtype])
    for mine, theirs in zip(found, expected_offsets, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE[dtype])
    assert effective == pytest.approx(degrees, rel=1e-9 if dtype == np.float64 else 1e-3)
    assert not parameters[rank : 2 * rank].any()  # a row without entries


@pytest.mark.parametrize("order, rank, with_offsets", CASES)
def test_residuals_are_those_of_the_model(order, rank, with_offsets):
    model, where, values, offsets, entries = setting(order, rank, with_offsets, np.float64)
    packed = entries.pack(model, model.parameters, offsets)
    total, squares = entries.residuals(packed, rank, 0.25, with_offsets)
    errors = values - 0.25 - model.predict(where) - sum(part[where[:, n]] for n, part in enumerate(offsets))
    assert total == pytest.approx(errors.sum(), rel=1e-9)
    assert squares == pytest.approx((errors**2).sum(), rel=1e-12)


def test_the_number_of_threads_does_not_show_in_a_single_bit():
    found = []
    for threads in (1, 2, 3):
        model, _, _, offsets, entries = setting(3, 10, True, np.float64, count=5000, threads=threads)
        packed = entries.pack(model, model.parameters, offsets)
        effective = entries.sweep(packed, 10, 0.1, 1.0, [1.0, 2.0, 3.0])
        found.append((packed.tobytes(), effective, entries.residuals(packed, 10, 0.1, True)))
    assert found[0] == found[1] == found[2]


def test_a_mode_without_variance_between_its_indices_gets_no_offsets():
    model, _, _, offsets, entries = setting(3, 3, True, np.float32)
    packed = entries.pack(model, model.parameters, offsets)
    entries.sweep(packed, 3, 0.0, 1.0, [1.0, np.inf, 1.0])
    parameters, found = entries.unpack(packed, model, offsets)
    assert np.abs(found[1]).max() < 1e-20
    assert np.abs(found[0]).max() > 1e-3
    assert np.isfinite(parameters).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_whose_matrix_is_not_positive_definite_stay(dtype):
    model, _, _, _, entries = setting(3, 3, False, dtype)
    packed = entries.pack(model, model.parameters, [])
    before = packed.copy()
    entries.sweep(packed, 3, 0.0, -1e6, [])
    np.testing.assert_array_equal(packed, before)


@pytest.mark.parametrize("rows", range(1, 40))
@pytest.mark.parametrize("lanes", [4, 8])
def test_tiles_cover_the_lower_triangle_once_and_fit_the_registers(rows, lanes):
    vectors = -(-rows // lanes)
    cells = [
        (first + a, begin + v)
        for first, high, begin, width in ridge.triangle_tiles(rows, lanes, vectors)
        for a in range(high)
        for v in range(width)
    ]
    assert len(cells) == len(set(cells))
    assert {(a, v) for a in range(rows) for v in range(a // lanes + 1)} <= set(cells)
    assert all(a < rows and v < vectors for a, v in cells)
    assert all(high * width <= 12 for _, high, _, width in ridge.triangle_tiles(rows, lanes, vectors))


def test_sums_by_mode():
    _, where, values, _, _ = setting(3, 3, False, np.float64)
    mean, variance, parts = mode_variances(where, values, SHAPES[3])
    assert mean == pytest.approx(values.mean())
    assert variance == pytest.approx(values.var())
    for mode, (sums, counts) in enumerate(parts):
        np.testing.assert_array_equal(counts, np.bincount(where[:, mode], minlength=SHAPES[3][mode]))
        expected = [(values - mean)[where[:, mode] == i].sum() for i in range(SHAPES[3][mode])]
        np.testing.assert_allclose(sums, expected, atol=1e-9)
