"""The data of benchmarks/accuracy.py: real ones where they are at hand, generated ones, floors."""

import numpy as np
import pytest
from accuracies import baselines, generated, halves, measuring

import tensorveil as tv

NUMBERS = {  # observations of the train half, cells of the test half, shape
    "ml-100k ua": (90_570, 9_430, (943, 1682)),
    "ml-100k ub": (90_570, 9_430, (943, 1682)),
    "filmtrust": (31_945, 3_549, (1508, 2071)),
    "birmingham": (3_539, 31_850, (30, 77, 18)),
    "birmingham log": (3_539, 31_850, (30, 77, 18)),
    "mimic": (6_420, 713, (88, 539, 164)),
    "ml-latest-small": (90_752, 10_084, (610, 9_724, 23)),
    "nyc-taxi": (131_760, 50_000, (30, 30, 1464)),
}


def cells(coordinates, shape):
    return set(np.ravel_multi_index(tuple(coordinates.T.astype(np.int64)), shape).tolist())


@pytest.fixture(scope="module")
def read():
    found = {}

    def one(name):
        reader, folder, _ = halves.REAL[name]
        if halves.folder_of(folder) is None:
            pytest.skip(f"{folder} is not here: set TENSORVEIL_DATA to the folder that holds it")
        if name not in found:
            found[name] = reader()
        return found[name]

    return one


@pytest.mark.parametrize("name", NUMBERS)
def test_real_data_have_the_known_numbers_and_disjoint_halves_within_bounds(read, name):
    data = read(name)
    assert (len(data.train), len(data.where), data.train.shape) == NUMBERS[name]
    assert cells(data.train.coordinates, data.train.shape).isdisjoint(cells(data.where, data.train.shape))
    for values in (data.train.values, data.measured):
        assert data.bounds.low <= values.min()
        assert values.max() <= data.bounds.high
    assert halves.REAL[name][2] in data.train.mode_names
    assert data.train.inferred_modes == ()  # else units that hide who is in the data would refuse them


def test_a_split_that_is_drawn_is_the_same_every_time(read):
    first, again = read("ml-latest-small"), halves.latest_small()
    assert np.array_equal(first.train.coordinates, again.train.coordinates)
    assert np.array_equal(first.measured, again.measured)


def test_values_are_those_of_the_files(read):
    assert set(read("filmtrust").train.values.tolist()) == {half / 2 for half in range(1, 9)}
    mimic = np.concatenate([read("mimic").train.values, read("mimic").measured])
    assert (mimic.min(), mimic.max(), round((mimic == 1).mean(), 2)) == (1, 10, 0.93)
    trips = read("nyc-taxi").train.values
    assert abs((trips > 0).mean() - 0.74) < 0.01


def test_features_of_movielens_have_a_row_per_index(read):
    shape = read("ml-100k ua").train.shape
    features = halves.movielens_features()
    assert (len(features["user"]), len(features["film"])) == shape
    assert np.isfinite(features["film"]).all()
    assert features["film"][:, :-1].sum() == 2893  # marks of genres in u.item, counted by awk


def test_development_reads_the_train_half_alone(read):
    data = read("filmtrust")
    mine = data.for_development()
    shape = data.train.shape
    train, test = cells(mine.train.coordinates, shape), cells(mine.where, shape)
    assert train | test == cells(data.train.coordinates, shape)
    assert train.isdisjoint(test)


def test_a_missing_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORVEIL_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="must hold filmtrust"):
        halves.filmtrust()
    assert len(halves.left_out()) == len({folder for _, folder, _ in halves.REAL.values()})


@pytest.fixture
def small():
    train = tv.Observations(np.argwhere(np.ones((4, 5))), np.arange(20.0), (4, 5))
    where = np.argwhere(np.ones((4, 5)))[:20].astype(np.uint32)
    return halves.Halves(train, where, np.arange(20.0), tv.Bounds(0, 20))


def test_errors_clip_predictions_and_coverage_goes_by_tenths_of_the_predictions(small):
    assert small.errors(np.full(20, 50.0)) == small.errors(np.full(20, 20.0))
    assert small.errors(small.measured + 1)["mae"] == pytest.approx(19 / 20 + 1 / 20)
    predicted = -np.arange(20.0)  # the largest values are predicted smallest
    low = np.where(small.measured >= 18, 100.0, 0.0)  # and theirs are the intervals that miss
    assert small.coverage(predicted, low, np.full(20, 200.0)) == [0.0] + [1.0] * 9


def test_ends_that_differ_from_a_level_by_rounding_cover_it_and_others_do_not(small):
    above = np.nextafter(small.measured, np.inf)
    assert small.coverage(small.measured, above, above) == [1.0] * 10
    assert small.coverage(small.measured, small.measured + 1e-3, small.measured + 1) == [0.0] * 10


def test_variants_change_what_they_say(small):
    wide = measuring.varied(small, measuring.WIDE).bounds
    assert (wide.low, wide.high) == (0, 200)
    permuted = measuring.varied(small, measuring.PERMUTED).train
    assert not np.array_equal(permuted.values, small.train.values)
    assert np.array_equal(np.sort(permuted.values), small.train.values)
    assert measuring.varied(small, measuring.DEFAULT) is small


@pytest.mark.parametrize("name", generated.KINDS)
def test_generated_data_are_within_bounds_and_of_the_stated_size(name):
    kind = generated.KINDS[name]
    data = kind.draw(3)
    assert len(data.train) == round(kind.seen * np.prod(kind.shape))
    assert cells(data.train.coordinates, kind.shape).isdisjoint(cells(data.where, kind.shape))
    for values in (data.train.values, data.measured):
        assert data.bounds.low <= values.min()
        assert values.max() <= data.bounds.high
    again, other = kind.draw(3), kind.draw(4)
    assert np.array_equal(again.train.values, data.train.values)
    assert not np.array_equal(other.train.values, data.train.values)


def test_generated_values_have_the_stated_law():
    stars = generated.Kind((60, 50), 0.5, stars=5).draw(0).train.values
    assert set(stars.tolist()) == {1, 2, 3, 4, 5}
    zeros = generated.Kind((60, 50), 0.9, skew=1.0, zeros=0.4).draw(0).train.values
    assert abs((zeros == 0).mean() - 0.4) < 0.03
    counts = generated.Kind((60, 50), 0.5, skew=1.0, counts=4.0).draw(0).train.values
    assert np.array_equal(counts, np.round(counts))
    logs = np.log(generated.Kind((60, 50), 0.9, skew=0.5).draw(0).train.values)
    assert abs(logs.std() - 0.5) < 0.02


@pytest.mark.parametrize("signal", [0.0, 0.5, 0.9])
def test_the_signal_is_the_share_of_variance_that_a_low_rank_matrix_explains(signal):
    """Against singular values: rank and offsets span four directions, where noise alone has a share too."""

    def leading(dense):
        squares = np.linalg.svd(dense, compute_uv=False) ** 2
        return squares[:4].sum() / squares.sum()

    kind = generated.Kind((300, 200), 1.0, signal=signal, rank=2)
    noise = leading(np.random.default_rng(1).normal(size=(300, 200)))
    assert abs(leading(kind._latent(np.random.default_rng(0))) - (signal + (1 - signal) * noise)) < 0.03


def test_missing_by_rows_gives_rows_of_very_different_length():
    counts = [
        np.bincount(generated.Kind((100, 80), 0.2, by_rows=rows).draw(1).train.coordinates[:, 0], minlength=100)
        for rows in (False, True)
    ]
    assert counts[0].std() < 5 < counts[1].std()


def test_the_report_never_sees_the_data_of_development():
    seeds = [{generated.report_seed(seed, development) for seed in range(100)} for development in (True, False)]
    assert seeds[0].isdisjoint(seeds[1])


@pytest.mark.parametrize("unit", ["value", "entry", "slice:0"])
def test_the_private_mean_is_near_the_mean_and_moves_with_its_noise(unit):
    data = generated.Kind((40, 30), 0.5).draw(0)
    found = [baselines.private_mean(data, unit, 1.0, seed)[0] for seed in range(400)]
    half = (data.bounds.high - data.bounds.low) / 2
    count = 40 if unit.startswith("slice") else len(data.train)
    assert abs(np.mean(found) - data.train.values.mean()) < 0.1
    # Laplace noise of scale 2 on the sum, in half widths; the count's noise moves a mean near the middle little
    assert np.std(found) == pytest.approx(np.sqrt(8) * half / count, rel=0.2)


def test_offsets_are_those_of_a_ridge_regression_solved_at_once():
    """Offsets of mode after mode, against the normal equations of all of them."""
    data = generated.Kind((30, 25), 0.6, signal=0.8).draw(0)
    train, spread = data.train, data.train.values.var()
    design = np.hstack([np.eye(size)[train.coordinates[:, mode]] for mode, size in enumerate(train.shape)])
    penalty = spread / (spread / 4) * np.eye(design.shape[1])
    mean = train.values.mean()
    offsets = np.linalg.solve(design.T @ design + penalty, design.T @ (train.values - mean))
    expected = mean + offsets[data.where[:, 0]] + offsets[30 + data.where[:, 1].astype(int)]
    np.testing.assert_allclose(baselines.exact_offsets(data), expected, atol=1e-3)


@pytest.mark.parametrize("unit", ["value", "entry"])
def test_private_offsets_with_a_huge_budget_are_ridge_regressions_one_after_the_other_and_noise_makes_them_worse(unit):
    data = generated.Kind((30, 25), 0.6, signal=0.8).draw(0)
    half = (data.bounds.high - data.bounds.low) / 2
    expected = np.full(len(data.where), data.train.values.mean())
    residuals = data.train.values - data.train.values.mean()
    for mode, size in enumerate(data.train.shape):
        design = np.eye(size)[data.train.coordinates[:, mode]]
        penalty = (baselines.VALUE_SPREAD / baselines.OFFSET_SPREAD) ** 2 * np.eye(size)
        clipped = np.clip(residuals, -half, half)  # what bounds the sensitivity: one value here is at the end
        offsets = np.linalg.solve(design.T @ design + penalty, design.T @ clipped)
        residuals = residuals - design @ offsets
        expected += offsets[data.where[:, mode]]
    np.testing.assert_allclose(baselines.private_offsets(data, unit, 1e9, 0), expected, atol=1e-5)
    errors = [
        np.mean([data.errors(baselines.private_offsets(data, unit, epsilon, seed))["rmse"] for seed in range(20)])
        for epsilon in (1e9, 5.0, 0.5)
    ]
    assert errors == sorted(errors)


def test_rhat_is_near_one_for_independent_draws_and_large_for_chains_that_disagree():
    draws = np.random.default_rng(0).normal(size=(200, 50))
    assert measuring.rhat(draws) < 1.05
    assert measuring.rhat(draws + np.repeat([0, 0, 2, 2], 50)[:, None]) > 1.3
    assert measuring.rhat(np.ones((200, 3))) == 1.0


def test_drawn_halves_have_an_exact_share_and_whole_cells():
    where = np.random.default_rng(0).integers(0, 9, (500, 3))
    data = tv.Observations(where, np.arange(500), (9, 9, 9), duplicates="keep")
    first, second = halves.permuted_split(data, 0.9, 7)
    assert sorted([*first.values, *second.values]) == list(range(500))
    assert cells(first.coordinates, (9, 9, 9)).isdisjoint(cells(second.coordinates, (9, 9, 9)))
    assert 450 - np.unique(where, axis=0, return_counts=True)[1].max() < len(first) <= 450
