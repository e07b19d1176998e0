"""The paper's synthetic tensors."""

import math

import numpy as np
import pytest
from scipy import stats

from tensorveil.data.datasets import synthetic
from tensorveil.errors import InputError


def unfolding_ranks(tensor: np.ndarray) -> tuple[int, ...]:
    """Numerical rank of each unfolding."""
    return tuple(
        int(np.linalg.matrix_rank(np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1), tol=1e-10))
        for mode in range(tensor.ndim)
    )


def noise_everywhere(data: synthetic.SyntheticTensor) -> np.ndarray:
    """The noise of every cell, where none is missing: what was observed less the truth."""
    noisy = data.train.to_dense(missing=0.0) + data.test.to_dense(missing=0.0)
    return noisy - data.truth


@pytest.mark.parametrize("shape, rank", [((20, 20, 20), 3), ((6, 7), 2), ((4, 5, 3, 4), 2), ((3, 3, 3, 3, 3, 3), 2)])
def test_a_cp_tensor_has_its_rank_in_every_unfolding(shape, rank):
    tensor = synthetic.cp_tensor(shape, rank, seed=1)
    assert tensor.shape == shape
    assert unfolding_ranks(tensor) == (rank,) * len(shape)


@pytest.mark.parametrize("shape", [(20, 20, 20), (4, 9), (3, 4, 5, 2)])
def test_one_component_of_unit_columns_has_unit_norm(shape):
    for seed in range(5):
        assert np.linalg.norm(synthetic.cp_tensor(shape, 1, seed=seed)) == pytest.approx(1.0)


def test_cp_components_of_unit_length_point_anywhere():
    # E |T|^2 = rank: the components have unit norm and their inner products average out
    squares = [np.sum(synthetic.cp_tensor((6, 6, 6), 3, seed=seed) ** 2) for seed in range(400)]
    assert np.mean(squares) == pytest.approx(3.0, abs=5 * np.std(squares) / 20)
    assert np.std(squares) > 0.01


@pytest.mark.parametrize(
    "shape, ranks, expected",
    [
        ((20, 20, 20), 3, (3, 3, 3)),
        ((8, 7, 6), (4, 3, 2), (4, 3, 2)),
        ((5, 6), (2, 2), (2, 2)),
        ((4, 4, 4, 4), 2, (2,) * 4),
        ((8, 7, 6), np.int64(2), (2, 2, 2)),
    ],
)
def test_a_tucker_tensor_has_its_ranks(shape, ranks, expected):
    tensor = synthetic.tucker_tensor(shape, ranks, seed=2)
    assert tensor.shape == shape
    assert unfolding_ranks(tensor) == expected


def test_orthonormal_factors_leave_the_law_of_the_cores_norm_alone():
    # |T|^2 = |G|^2, a chi-square with one degree of freedom a cell of the standard normal core
    squares = [np.sum(synthetic.tucker_tensor((6, 5, 4), (3, 3, 3), seed=seed) ** 2) for seed in range(400)]
    assert stats.kstest(squares, stats.chi2(27).cdf).pvalue > 0.001


@pytest.mark.parametrize("ranks", [5, (2, 2), (2, 2, 5), (2, 2, 2, 2), 0, (2, 0, 2), True, (2, 2.0, 2)])
def test_tucker_ranks_that_do_not_fit_are_refused(ranks):
    with pytest.raises(InputError):
        synthetic.tucker_tensor((4, 4, 4), ranks)


@pytest.mark.parametrize("rank", [0, -1, 1.5, True])
def test_cp_ranks_that_do_not_fit_are_refused(rank):
    with pytest.raises(InputError):
        synthetic.cp_tensor((4, 4, 4), rank)


@pytest.mark.parametrize("generate", [synthetic.cp_tensor, synthetic.tucker_tensor])
def test_the_seed_decides_the_tensor(generate):
    assert np.array_equal(generate(seed=5), generate(seed=5))
    assert not np.array_equal(generate(seed=5), generate(seed=6))
    assert not np.array_equal(generate(), generate())


TENSOR = synthetic.cp_tensor(seed=11)


def test_the_truth_is_scaled_as_asked():
    truths = {scaling: synthetic.observe(TENSOR, scaling=scaling, seed=0).truth for scaling in synthetic.SCALINGS}
    assert (truths["min-max"].min(), truths["min-max"].max()) == (0.0, 1.0)
    assert np.corrcoef(truths["min-max"].ravel(), TENSOR.ravel())[0, 1] == pytest.approx(1.0)
    assert np.abs(truths["max-abs"]).max() == 1.0
    assert np.linalg.matrix_rank(np.stack([truths["max-abs"].ravel(), TENSOR.ravel()])) == 1  # no offset
    assert np.array_equal(truths["none"], TENSOR)


@pytest.mark.parametrize("snr", [1.0, 0.25, 10.0])
@pytest.mark.parametrize("scaling", synthetic.SCALINGS)
def test_the_ratio_of_squared_norms_is_the_snr(snr, scaling):
    data = synthetic.observe(TENSOR, missing_ratio=0, snr=snr, scaling=scaling, seed=1)
    noise = noise_everywhere(data)
    assert (data.truth**2).sum() / (noise**2).sum() == pytest.approx(snr)
    assert noise.std() == pytest.approx(data.noise_std)


@pytest.mark.parametrize("snr", [1.0, 0.25, 10.0])
@pytest.mark.parametrize("scaling", synthetic.SCALINGS)
def test_the_ratio_of_variances_is_the_snr_in_the_other_reading(snr, scaling):
    data = synthetic.observe(TENSOR, missing_ratio=0, snr=snr, snr_kind="variances", scaling=scaling, seed=1)
    noise = noise_everywhere(data)
    assert np.var(data.truth) / np.var(noise) == pytest.approx(snr)
    assert noise.std() == pytest.approx(data.noise_std)


def test_an_offset_of_the_truth_inflates_one_reading_and_not_the_other():
    norms, variances = (synthetic.observe(TENSOR, snr_kind=kind, seed=1).noise_std for kind in synthetic.SNR_KINDS)
    assert norms > 3 * variances


def test_the_noise_is_gaussian_with_mean_zero_and_the_same_in_train_and_test():
    data = synthetic.observe(TENSOR, missing_ratio=0.5, seed=3)
    for part in (data.train, data.test):
        residual = part.values - data.truth[tuple(part.coordinates.T)]
        assert stats.kstest(residual / data.noise_std, stats.norm.cdf).pvalue > 0.001


@pytest.mark.parametrize("missing_ratio", [0, 0.1, 0.5, 0.9, 0.99])
def test_missing_cells_and_the_split_are_counted_exactly(missing_ratio):
    data = synthetic.observe(TENSOR, missing_ratio=missing_ratio, seed=4)
    observed = 8000 - round(8000 * missing_ratio)
    assert len(data.train) == round(0.8 * observed)
    assert len(data.train) + len(data.test) == observed
    cells = [set(map(tuple, part.coordinates.tolist())) for part in (data.train, data.test)]
    assert cells[0].isdisjoint(cells[1])
    assert len(cells[0] | cells[1]) == observed
    assert data.train.shape == data.test.shape == (20, 20, 20)


def test_another_share_for_training():
    data = synthetic.observe(TENSOR, train_fraction=0.25, seed=4)
    assert (len(data.train), len(data.test)) == (1000, 3000)


def test_cells_go_missing_everywhere_alike():
    counts = np.zeros(27)
    tensor = synthetic.cp_tensor((3, 3, 3), 2, seed=0)
    for seed in range(300):
        data = synthetic.observe(tensor, missing_ratio=1 / 3, seed=seed)
        counts += ~np.isnan(data.train.to_dense()).ravel()
    expected = 300 * len(data.train) / 27
    assert counts.sum() == 300 * len(data.train)
    assert np.abs(counts - expected).max() < 5 * math.sqrt(expected * (1 - len(data.train) / 27))


def test_the_truth_at_coordinates_is_the_noise_free_value():
    data = synthetic.observe(TENSOR, seed=5)
    found = data.truth_at(data.test.coordinates)
    for row, (i, j, k) in enumerate(data.test.coordinates.tolist()[:50]):
        assert found[row] == data.truth[i, j, k]
    assert np.abs(found - data.test.values).max() > 0.1


def test_the_seed_decides_noise_and_cells():
    first, second, third = (synthetic.observe(TENSOR, seed=seed) for seed in (6, 6, 7))
    assert first.train == second.train
    assert first.test == second.test
    assert first.noise_std == second.noise_std
    assert first.train != third.train


def test_the_callers_tensor_is_left_alone_and_the_truth_is_read_only():
    tensor = TENSOR.copy()
    data = synthetic.observe(tensor, scaling="none", seed=0)
    assert np.array_equal(tensor, TENSOR)
    assert tensor.flags.writeable
    tensor[:] = 0
    assert np.array_equal(data.truth, TENSOR)
    with pytest.raises(ValueError, match="read-only"):
        data.truth[0, 0, 0] = 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"missing_ratio": 1},
        {"missing_ratio": -0.1},
        {"missing_ratio": math.nan},
        {"snr": 0},
        {"snr": -1},
        {"snr": math.inf},
        {"snr_kind": "decibel"},
        {"scaling": "z-score"},
        {"train_fraction": 0},
        {"train_fraction": 1},
        {"seed": -1},
    ],
)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(InputError):
        synthetic.observe(TENSOR, **arguments)


@pytest.mark.parametrize("tensor", [np.ones(8), np.ones((2,) * 7), np.ones((3, 3)), np.full((3, 3), math.nan)])
def test_what_is_no_truth_is_refused(tensor):
    with pytest.raises(InputError):
        synthetic.observe(tensor)
