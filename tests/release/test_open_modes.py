"""Predictions with modes left open and ranked ones, against averages and sorting of all cells."""

import numpy as np
import pyarrow as pa
import pytest

import tensorveil as tv
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.release.cells.open_modes import OpenModes, weights_of
from tensorveil.release.cells.top import top_table
from tensorveil.release.predictions import predicted_arrow

SHAPE, NAMES = (6, 5, 4), ("user", "film", "day")
LABELS = (list("abcdef"), [10, 20, 30, 40, 50], ["mo", "tu", "we", "th"])


@pytest.fixture(scope="module", params=["posterior", "levels", "statistic"])
def release(request):
    generator = np.random.default_rng(0)
    where = np.argwhere(np.ones(SHAPE))
    values = np.clip(3 + generator.standard_normal(6)[where[:, 0]] + 0.5 * generator.standard_normal(120), 1, 5)
    values = np.rint(values) if request.param == "levels" else values
    data = tv.Observations(where, values, SHAPE, mode_names=NAMES, labels=LABELS)
    solver = Posterior(sweeps=30, chains=2, threads=1)
    levels = [1, 2, 3, 4, 5] if request.param == "levels" else None
    mechanism = tv.InputPerturbation(solver=solver, levels=levels)
    mechanism = tv.StatisticPerturbation() if request.param == "statistic" else mechanism
    return tv.complete(data, tv.CP(2), tv.Bounds(1, 5), "value", 9.0, mechanism=mechanism, seed=0)


def everything(release):
    return release.predict(np.argwhere(np.ones(SHAPE))).reshape(SHAPE)


def test_a_mode_left_open_is_averaged_with_its_weights(release):
    table = {"user": ["c", "a"], "film": [20, 50]}
    dense = everything(release)[[2, 0], [1, 4]]
    found = release.predict_table(table, averaged={})["prediction"]
    np.testing.assert_allclose(found, dense.mean(axis=1), rtol=1e-3)  # expected values are read off tables
    found = release.predict_table(table, averaged={"day": [3, 0, 1, 0]})["prediction"]
    np.testing.assert_allclose(found, dense @ [0.75, 0, 0.25, 0], rtol=1e-3)
    both = release.predict_table({"user": ["c"]}, averaged={"day": [1, 1, 0, 0]})["prediction"]
    np.testing.assert_allclose(both, [everything(release)[2, :, :2].mean()], rtol=1e-3)
    unknown = release.predict_table({"user": ["c", "zoe"], "film": [20, 20]}, averaged={}, unknown="offsets")
    np.testing.assert_allclose(unknown["prediction"][0], dense[0].mean(), rtol=1e-3)
    days = [
        release.predict_table({"user": ["zoe"], "film": [20], "day": [day]}, unknown="offsets") for day in LABELS[2]
    ]
    average = np.mean([found["prediction"] for found in days])
    np.testing.assert_allclose(unknown["prediction"][1], average, rtol=1e-3)
    with pytest.raises(tv.InputError, match="labels of 'user' must be known"):
        release.predict_table({"user": ["zoe"], "film": [20]}, averaged={})
    with pytest.raises(tv.InputError, match="must have the columns"):
        release.predict_table(table)  # a forgotten column is an error unless averaging is asked for


def test_the_interval_of_an_open_cell_is_that_of_the_mixture(release):
    if release.model.draws is None:
        with pytest.raises(tv.InputError, match="posterior draws"):
            predicted_arrow(release, {"user": ["a"], "film": [10]}, averaged={}, interval=0.8)
        return
    draws, weights = release.model.draws, np.array([0.5, 0.25, 0.25, 0.0])
    found, _ = predicted_arrow(release, {"user": ["b"], "film": [30]}, averaged={"day": weights}, interval=0.8)
    cells = np.array([[1, 2, day] for day in range(4)], dtype=np.uint32)
    means = draws.latent_means(cells, release.model.offsets)
    generator, count = np.random.default_rng(1), 40_000
    draw, cell = generator.integers(0, len(draws), count), generator.choice(4, count, p=weights)
    latent = means[draw, cell] + draws.sigmas[draw] * generator.standard_normal(count)
    knots = draws.knots[draw]
    level = (latent[:, None] > knots[:, 1:-1]).sum(axis=1)
    left, right = knots[np.arange(count), level], knots[np.arange(count), level + 1]
    share = np.clip((latent - left) / np.maximum(right - left, 1e-12), 0, 1)
    values = 3 + 2 * (draws.low[level] + share * (draws.high - draws.low)[level])
    low, high = found["low"][0].as_py(), found["high"][0].as_py()
    assert np.mean((values >= low - 1e-6) & (values <= high + 1e-6)) >= 0.79
    if not (draws.low == draws.high).all():
        assert np.mean(values < low - 1e-6) <= 0.11
        assert np.mean(values > high + 1e-6) <= 0.11
        assert np.mean(values < low + 1e-6) >= 0.09
        assert np.mean(values > high - 1e-6) >= 0.09


def test_one_cell_of_weight_one_is_that_cell(release):
    where = np.array([[4, 3, 0]])
    only = OpenModes.of(release, [2], {"day": [0, 0, 1, 0]})
    np.testing.assert_allclose(only.predict(release.model, where), release.predict([[4, 3, 2]]))
    if release.model.draws is not None:
        mine, plain = only.interval(release.model, where, 0.9), release.model.interval([[4, 3, 2]], 0.9)
        np.testing.assert_allclose(np.ravel(mine), np.ravel(plain))


def test_weights_by_label(release):
    np.testing.assert_array_equal(weights_of(release, 2, {"day": ["we", "mo"], "weight": [2, 1]}), [1, 0, 2, 0])
    for wrong in (
        {"day": ["we"], "share": [1]},
        {"day": ["no"], "weight": [1]},
        {"day": ["we", "we"], "weight": [1, 1]},
        {"day": ["we"], "weight": [-1]},
        {"day": ["we"], "weight": [0]},
    ):
        with pytest.raises(tv.InputError, match="weights"):
            weights_of(release, 2, wrong)
    with pytest.raises(tv.InputError, match="left open"):
        OpenModes.of(release, [2], {"film": [1] * 5})
    with pytest.raises(tv.InputError, match="a column of at least one of the modes"):
        OpenModes.of(release, [0, 1, 2])


def test_the_best_films_on_average_without_those_known_already(release):
    dense = release.predict_table({"user": np.repeat(LABELS[0], 5), "film": np.tile(LABELS[1], 6)}, averaged={})[
        "prediction"
    ].reshape(6, 5)
    known = {"user": ["a", "a", "c", "a"], "film": [LABELS[1][int(dense[0].argmax())], 10, 50, 99]}
    found = top_table(release, {"user": ["a", "c"]}, 3, averaged={"day": None}, exclude=pa.table(known))
    assert found.column_names == ["user", "film", "prediction", "rank", "tied"]
    for user in ("a", "c"):
        hidden = {film for who, film in zip(known["user"], known["film"], strict=True) if who == user}
        mine = [row for row in found.to_pylist() if row["user"] == user]
        left = [place for place in range(5) if LABELS[1][place] not in hidden]
        best = sorted(dense[LABELS[0].index(user), left], reverse=True)[:3]
        np.testing.assert_allclose([row["prediction"] for row in mine], best, rtol=1e-3)
        assert not hidden & {row["film"] for row in mine}
        assert [row["rank"] for row in mine] == list(range(1, len(mine) + 1))


def test_ties_are_counted():
    plan = tv.StatisticPerturbation().plan(tv.CP(1), tv.Bounds(1, 5), "value", 0.01, shape=(3, 4))
    data = tv.Observations(np.argwhere(np.ones((3, 4))), np.full(12, 3.0), (3, 4), mode_names=("user", "film"))
    release = tv.fit(data, plan, seed=0)
    found = release.top({"user": 0}, k=2)
    values = release.predict([[0, film] for film in range(4)])
    assert found["tied"].to_pylist() == [int((values == value).sum()) for value in np.sort(values)[::-1][:2]]


def test_what_to_average_and_to_exclude_is_checked(release):
    with pytest.raises(tv.InputError, match="must not be columns"):
        top_table(release, {"user": ["a"], "day": ["mo"]}, 1, averaged={"day": None})
    with pytest.raises(tv.InputError, match="must leave out"):
        top_table(release, {"user": ["a"], "film": [10]}, 1, averaged={"day": None})
    with pytest.raises(tv.InputError, match="columns of modes"):
        top_table(release, {"user": ["a"]}, 1, exclude={"movie": [1]})
    assert top_table(release, {"user": ["a"]}, 99, exclude={"user": ["a"]}).num_rows == 0
