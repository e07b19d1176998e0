"""Methods of others in benchmarks/peers: exactly low-rank tensors, their steps by other means, and refusals."""

import numpy as np
import pytest
from accuracies import halves
from peers import bgcp, halrtc, silrtc, tensor_train, trmf
from scipy.optimize import minimize

import tensorveil as tv

SHORT = {"rank": 4, "burn_in": 150, "draws": 50}  # enough for these small tensors
# method, its settings, and the error that is allowed on an exactly low-rank tensor, as a share of the truth's spread
RECOVERING = {
    "HaLRTC": (halrtc, {}, 1e-3),
    "SiLRTC": (silrtc, {}, 0.01),  # its threshold ends above zero
    "BGCP": (bgcp, SHORT, 1e-3),
    "tensor train": (tensor_train, {}, 0.01),  # ridge penalties shrink
    "TRMF": (trmf, {"rank": 3}, 0.05),  # and the autoregression is not exact
}


@pytest.fixture(scope="module")
def low_rank():
    """A tensor of CP rank 2 whose last mode is a smooth time, and a mask that shows half of it."""
    random = np.random.default_rng(3)
    steps = np.arange(60)
    times = np.column_stack([1.5 + np.sin(steps / 4), np.cos(steps / 7)])
    tensor = np.einsum("ir,jr,kr->ijk", random.normal(size=(12, 2)), random.normal(size=(10, 2)), times)
    return tensor, random.random(tensor.shape) < 0.5


def error(predicted, expected):
    return np.sqrt(np.mean((predicted - expected) ** 2))


@pytest.mark.parametrize("name", RECOVERING)
def test_an_exactly_low_rank_tensor_is_recovered_from_half_of_its_cells(low_rank, name):
    tensor, seen = low_rank
    method, settings, most = RECOVERING[name]
    predicted = method.complete(np.argwhere(seen), tensor[seen], tensor.shape, np.argwhere(~seen), **settings)
    assert error(predicted, tensor[~seen]) < most * tensor.std()


@pytest.mark.parametrize("name", RECOVERING)
def test_with_noise_it_beats_the_mean_and_neither_order_nor_unit_nor_seed_matter_much(low_rank, name):
    tensor, seen = low_rank
    noisy = tensor + 0.5 * tensor.std() * np.random.default_rng(4).normal(size=tensor.shape)
    method, settings, _ = RECOVERING[name]
    where, asked = np.argwhere(seen), np.argwhere(~seen)
    predicted = method.complete(where, noisy[seen], tensor.shape, asked, **settings)
    assert error(predicted, tensor[~seen]) < 0.7 * error(noisy[seen].mean(), tensor[~seen])
    order = np.random.default_rng(5).permutation(len(where))
    thousands = method.complete(where[order], 1000 * noisy[seen][order], tensor.shape, asked, **settings) / 1000
    assert error(thousands, tensor[~seen]) == pytest.approx(error(predicted, tensor[~seen]), rel=0.1)
    again = method.complete(where, noisy[seen], tensor.shape, asked, **settings)
    assert np.array_equal(again, predicted)


@pytest.mark.parametrize("shape", [(6, 40), (40, 6), (9, 9)])
def test_the_proximal_step_is_that_of_a_dense_svd(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    for threshold in (0.0, np.median(singular), 2 * singular[0]):
        expected = left @ np.diag(np.maximum(singular - threshold, 0)) @ right
        np.testing.assert_allclose(halrtc.shrunk(matrix, threshold), expected, atol=1e-10)


def test_halrtc_has_the_least_sum_of_nuclear_norms_that_a_search_finds():
    tensor = np.random.default_rng(1).normal(size=(4, 3, 3))
    seen = np.ones(tensor.shape, dtype=bool)
    seen[[0, 1, 3], [0, 2, 1], [1, 0, 2]] = False

    def norms(missing):
        filled = tensor.copy()
        filled[~seen] = missing
        unfoldings = [np.moveaxis(filled, mode, 0).reshape(size, -1) for mode, size in enumerate(filled.shape)]
        return sum(np.linalg.norm(one, "nuc") for one in unfoldings)

    searched = minimize(norms, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    found = halrtc.complete(np.argwhere(seen), tensor[seen], tensor.shape, np.argwhere(~seen))
    np.testing.assert_allclose(found, searched.x, atol=1e-3)


def test_a_pass_of_the_tensor_train_never_raises_its_objective_and_cells_are_products_of_matrices(low_rank):
    tensor, seen = low_rank
    where = np.argwhere(seen)
    objectives = []
    for passes in (1, 2, 4, 8):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tensor_train, "PASSES", passes)
            cores = tensor_train.fitted(where, tensor[seen], tensor.shape, 3, 0.5, 0)
        dense = np.einsum("iab,jbc,kcd->ijk", *cores)  # outer ranks are one
        np.testing.assert_allclose(tensor_train.products(cores, where, range(3))[:, 0, 0], dense[seen], rtol=1e-9)
        objectives.append(((dense - tensor)[seen] ** 2).sum() + 0.5 * sum((core**2).sum() for core in cores))
    assert objectives == sorted(objectives, reverse=True)


def test_rows_of_bgcp_have_the_law_of_a_bayesian_regression():
    """Mean by least squares with the prior as further observations, spread by many draws."""
    random = np.random.default_rng(0)
    features, numbers = random.normal(size=(30, 3)), random.normal(size=30)
    indices = np.sort(random.integers(0, 2, 30))
    root = np.array([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 0.2, 1.5]])
    mean, noise_precision = np.array([1.0, -1.0, 0.5]), 4.0
    draws = np.array([
        bgcp._rows(features, numbers, indices, 3, noise_precision, mean, root @ root.T, random) for _ in range(4000)
    ])  # fmt: skip
    for index in range(3):  # the last has no cells: its law is the prior
        mine = indices == index
        design = np.vstack([2 * features[mine], root.T])
        expected = np.linalg.lstsq(design, np.concatenate([2 * numbers[mine], root.T @ mean]), rcond=None)[0]
        spread = np.linalg.pinv(design) @ np.linalg.pinv(design).T
        np.testing.assert_allclose(draws[:, index].mean(axis=0), expected, atol=5 * np.sqrt(spread.max() / 4000))
        np.testing.assert_allclose(np.cov(draws[:, index].T), spread, atol=0.1 * spread.max())


def test_hyperparameters_of_bgcp_find_the_law_of_many_rows():
    random = np.random.default_rng(2)
    covariance = np.array([[2.0, 0.8], [0.8, 1.0]])
    rows = random.multivariate_normal([3.0, -1.0], covariance, 20_000)
    drawn = [bgcp._hyperparameters(rows, random) for _ in range(200)]
    np.testing.assert_allclose(np.mean([mean for mean, _ in drawn], axis=0), [3.0, -1.0], atol=0.05)
    np.testing.assert_allclose(np.linalg.inv(np.mean([one for _, one in drawn], axis=0)), covariance, atol=0.06)


@pytest.mark.slow
def test_bgcp_and_our_posterior_without_privacy_have_close_errors():
    """Two implementations of nearly the same model, on rank 2 and noise of a third of the spread."""
    random = np.random.default_rng(6)
    truth = np.einsum("ir,jr,kr->ijk", *(random.normal(size=(size, 2)) for size in (15, 14, 12)))
    seen = random.random(truth.shape) < 0.4
    noisy = truth + truth.std() / 3 * random.normal(size=truth.shape)
    where, asked = np.argwhere(seen), np.argwhere(~seen)
    theirs = bgcp.complete(where, noisy[seen], truth.shape, asked, rank=4, burn_in=300, draws=200)
    data = tv.Observations(where, noisy[seen], truth.shape)
    release = tv.complete(data, tv.CP(4), tv.Bounds(-20, 20), "value", np.inf, seed=0)
    ours = release.predict(asked)
    assert error(theirs, truth[~seen]) < 0.25 * truth.std()
    assert error(ours, truth[~seen]) == pytest.approx(error(theirs, truth[~seen]), rel=0.3)


def test_the_times_of_trmf_are_those_of_one_least_squares_problem():
    random = np.random.default_rng(7)
    steps, rank, lags, penalty = 14, 2, np.array([1, 3]), 0.7
    weights = 0.4 * random.normal(size=(2, rank))
    features = [random.normal(size=(count, rank)) for count in random.integers(0, 5, steps)]
    numbers = [random.normal(size=len(one)) for one in features]
    matrices, sides = (
        np.array([one.T @ one for one in features]),
        np.array([one.T @ what for one, what in zip(features, numbers, strict=True)]),
    )
    design, right = [], []
    for step in range(steps):
        for row, number in zip(features[step], numbers[step], strict=True):
            design.append(np.kron(np.eye(steps)[step], row))
            right.append(number)
        for column in range(rank):
            design.append(np.sqrt(penalty * trmf.ETA) * np.kron(np.eye(steps)[step], np.eye(rank)[column]))
            right.append(0.0)
            if step >= 3:
                series = np.eye(steps)[step] - weights[0, column] * np.eye(steps)[step - 1]
                series -= weights[1, column] * np.eye(steps)[step - 3]
                design.append(np.sqrt(penalty) * np.kron(series, np.eye(rank)[column]))
                right.append(0.0)
    expected = np.linalg.lstsq(np.array(design), np.array(right), rcond=None)[0].reshape(steps, rank)
    found = trmf._times(matrices, sides, np.zeros((steps, rank)), weights, lags, penalty)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_trmf_reads_the_order_of_time_from_its_modes():
    """A clock of days and hours is one series: the same numbers as a matrix give the same predictions."""
    random = np.random.default_rng(8)
    series = np.cumsum(random.normal(size=(6, 40)), axis=1)
    seen = random.random(series.shape) < 0.6
    flat = trmf.complete(np.argwhere(seen), series[seen], (6, 40), np.argwhere(~seen), lags=(1, 2, 8), rank=3)
    folded, mask = series.reshape(6, 5, 8).transpose(2, 0, 1), seen.reshape(6, 5, 8).transpose(2, 0, 1)
    found = trmf.complete(np.argwhere(mask), folded[mask], folded.shape, np.argwhere(~mask), time=(2, 0), rank=3)
    # the order of the cells differs, and with it the held-out tenth, but not what the factors can explain
    assert error(found, folded[~mask]) == pytest.approx(error(flat, series[~seen]), rel=0.2)


def test_tensors_too_large_for_memory_and_wrong_cells_are_refused():
    cells = np.array([[0, 0, 0], [1, 1, 1]])
    for name, method in (("HaLRTC", halrtc), ("SiLRTC", silrtc)):
        with pytest.raises(ValueError, match=f"{name} keeps the whole tensor in memory and takes at most 10,000,000"):
            method.complete(cells, [1.0, 2.0], (1000, 1000, 1000), cells)
    for method, _, _ in RECOVERING.values():
        with pytest.raises(ValueError, match="observed at most once"):
            method.complete(cells[[0, 0]], [1.0, 2.0], (2, 2, 2), cells)
        with pytest.raises(ValueError, match="must lie within the shape"):
            method.complete(cells, [1.0, 2.0], (2, 2, 1), cells)
        with pytest.raises(ValueError, match="one finite number per row"):
            method.complete(cells, [1.0, np.nan], (2, 2, 2), cells)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method, settings, hidden, published",
    [
        (bgcp, {}, 0.4, 25.6),  # Chen and Sun, Bayesian temporal factorization, random missing
        (trmf, {"time": (1, 2)}, 0.3, 20.5),  # the notebook of the same authors, rank 20, lags 1, 2 and 18
    ],
)
def test_errors_on_car_parks_are_those_that_were_published(method, settings, hidden, published):
    """The same cells of Birmingham's car parks in all, and the same share hidden, but not the same ones."""
    if halves.folder_of("birmingham-parking") is None:
        pytest.skip("birmingham-parking is not here: set TENSORVEIL_DATA to the folder that holds it")
    data = halves.birmingham()
    where = np.vstack([data.train.coordinates, data.where])
    values = np.concatenate([data.train.values, data.measured])
    hide = np.random.default_rng(0).random(len(values)) < hidden
    predicted = method.complete(where[~hide], values[~hide], data.train.shape, where[hide], **settings)
    assert error(predicted, values[hide]) == pytest.approx(published, rel=0.2)
