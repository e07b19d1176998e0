"""Rows of new indices: against a numerical optimum, against the rows of a posterior, and blind to other people."""

import numpy as np
import pytest
from scipy import optimize, stats

import tensorveil as tv
from tensorveil.inference.people import new_rows
from tensorveil.inference.people.new_rows import with_new_rows
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.kernels.reference.rows.new_rows import fold_rows, pull
from tensorveil.release.people.newcomers import newcomers

BOUNDS = tv.Bounds(1, 5)


@pytest.mark.parametrize("low, high", [(-np.inf, np.inf), (-1.0, 0.5), (2.0, 2.5), (-np.inf, -3.0), (4.0, np.inf)])
def test_the_pull_of_a_level_is_the_mean_of_a_truncated_normal_number(low, high):
    law = stats.truncnorm(low, high)
    mean, weight = pull(low, high)
    assert mean == pytest.approx(law.mean(), abs=1e-6)
    assert weight == pytest.approx(max(1 - law.var(), 1e-9), abs=1e-6)


def test_a_level_too_far_away_pulls_to_its_nearest_end():
    assert pull(50.0, 51.0)[0] == 50.0
    assert pull(-51.0, -50.0)[0] == -50.0


def test_the_row_without_noise_is_the_likeliest_one():
    generator = np.random.default_rng(0)
    width, count = 4, 30
    features, bases = generator.standard_normal((count, width - 1)), generator.standard_normal(count)
    ends = np.array([-np.inf, -1.0, 0.0, 1.5, np.inf])
    levels = generator.integers(0, 4, count)
    root = generator.standard_normal((width, width))
    precision, mean = root @ root.T + np.eye(width), generator.standard_normal(width) / 2
    rows = np.empty((2, width))
    starts = np.array([0, 0, count])  # the first person gave nothing
    fold_rows(features, bases, levels, ends, starts, mean, precision, np.zeros((2, width)), rows)

    def loss(row):
        latent = bases + features @ row[:-1] + row[-1]
        chances = stats.norm.cdf(ends[levels + 1] - latent) - stats.norm.cdf(ends[levels] - latent)
        return (row - mean) @ precision @ (row - mean) / 2 - np.log(chances).sum()

    found = optimize.minimize(loss, mean, tol=1e-12)
    np.testing.assert_allclose(rows[0], mean)
    np.testing.assert_allclose(rows[1], found.x, atol=1e-4)


def test_the_draws_of_a_row_have_the_covariance_of_the_curvature():
    width, count = 3, 40_000
    precision = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 4.0]])
    noise, rows = np.random.default_rng(1).standard_normal((count, width)), np.empty((count, width))
    nothing = np.empty(0, np.int64)
    starts, ends = np.zeros(count + 1, np.int64), np.array([-np.inf, 0.0, np.inf])
    fold_rows(np.empty((0, 2)), np.empty(0), nothing, ends, starts, np.zeros(width), precision, noise, rows)
    np.testing.assert_allclose(np.cov(rows, rowvar=False), np.linalg.inv(precision), atol=0.03)


@pytest.fixture(scope="module", params=[tv.CP(2), tv.Tucker(2)], ids=["cp", "tucker"])
def released(request):
    """A release of 120 users, and 40 more whom it never saw, all of one population."""
    generator = np.random.default_rng(2)
    users, films = 160, 40
    taste = generator.standard_normal((users, 2)) @ generator.standard_normal((2, films)) * 0.6
    latent = 3 + taste + 0.6 * generator.standard_normal((users, 1)) + 0.6 * generator.standard_normal(films)
    seen = generator.random((users, films)) < 0.6
    values = np.clip(np.rint(latent + 0.4 * generator.standard_normal((users, films))), 1, 5)
    where = np.argwhere(seen[:120])
    data = tv.Observations(where, values[:120][seen[:120]], (120, films), mode_names=("user", "film"))
    mechanism = tv.InputPerturbation(solver=Posterior(sweeps=120, chains=2, threads=1))
    release = tv.complete(data, request.param, BOUNDS, "value", 8.0, mechanism=mechanism, seed=0)
    return release, values, seen


def own(values, seen, people):
    where = np.argwhere(seen[people])
    return tv.Observations(
        where, values[people][seen[people]], (len(people), seen.shape[1]), mode_names=("user", "film")
    )


def rmse(model, values, seen, people):
    cells = np.argwhere(~seen[people])
    return np.sqrt(np.mean((model.predict(cells) - values[people][~seen[people]]) ** 2))


def test_new_people_are_predicted_as_well_as_those_inside(released):
    release, values, seen = released
    new, known = np.arange(120, 160), np.arange(120)
    folded = newcomers(release, own(values, seen, new), "user")
    inside = rmse(release.model, values, seen, known)
    assert rmse(folded, values, seen, new) < 1.1 * inside
    assert inside < 0.75 * values[~seen].std()  # the comparison is of models that know something
    low, high = folded.interval(np.argwhere(~seen[new]), 0.9)
    truth = values[new][~seen[new]]
    assert 0.85 < np.mean((truth >= low) & (truth <= high)) < 0.99


def test_a_personal_prediction_reads_the_release_and_the_own_rows_only(released):
    """Replay: everybody else's values changed, the same bits; the own ones changed, others."""
    release, values, seen = released
    new, cells = np.arange(120, 130), np.column_stack([np.full(40, 3), np.arange(40)])
    before = newcomers(release, own(values, seen, new), "user")
    changed = np.where((np.arange(160) == 123)[:, None], values, 6 - values)
    after = newcomers(release, own(changed, seen, new), "user")
    np.testing.assert_array_equal(before.predict(cells), after.predict(cells))
    assert (before.predict(cells) != newcomers(release, own(6 - values, seen, new), "user").predict(cells)).any()
    order = np.random.default_rng(0).permutation(int(seen[new].sum()))
    mine = own(values, seen, new)
    shuffled = tv.Observations(mine.coordinates[order], mine.values[order], mine.shape, mode_names=mine.mode_names)
    np.testing.assert_array_equal(before.predict(cells), newcomers(release, shuffled, "user").predict(cells))


def test_how_much_others_observed_moves_nobody(released, monkeypatch):
    """Replay: the others have no rows, or many; the number of draws, of which memory is short here, stays the same."""
    release, values, seen = released
    monkeypatch.setattr(new_rows, "VISITS", 2000)
    monkeypatch.setattr(new_rows, "ENTRIES_AT_ONCE", 64)
    all_rows = own(values, seen, np.arange(120, 130))
    alone = all_rows.take(all_rows.coordinates[:, 0] == 3)
    cells = np.column_stack([np.full(40, 3), np.arange(40)])
    before, after = (newcomers(release, rows, "user") for rows in (alone, all_rows))
    assert len(before.draws) == len(after.draws)
    np.testing.assert_array_equal(before.predict(cells), after.predict(cells))
    np.testing.assert_array_equal(before.interval(cells, 0.9), after.interval(cells, 0.9))
    monkeypatch.setattr(new_rows, "VISITS", 200)  # of ten people: 20 draws
    assert len(newcomers(release, alone, "user").draws) == min(20, len(release.model.draws))


def test_somebody_without_rows_gets_the_population_and_one_with_high_values_more(released):
    release, _, _ = released
    cells = np.column_stack([np.zeros(40, np.int64), np.arange(40)])
    nothing = with_new_rows(release.model, np.empty((0, 2), np.uint32), np.empty(0), 0, 1)
    average = np.mean([release.predict(np.column_stack([np.full(40, user), np.arange(40)])) for user in range(120)])
    assert nothing.predict(cells).mean() == pytest.approx(average, abs=0.2)
    high, low = (
        release.personalize(tv.Observations(cells, np.full(40, stars), (1, 40)), mode="user").predict(cells).mean()
        for stars in (5.0, 1.0)
    )
    assert high > average + 0.5
    assert low < average - 0.5
    second = tv.Observations(cells + np.array([1, 0]), np.full(40, 5.0), (2, 40))
    with pytest.raises(tv.InputError, match="index 1"):
        release.personalize(second, mode="user").predict([[0, 0]])


def test_a_new_index_of_another_mode(released):
    """A new film, by the ratings that it got."""
    release, values, _ = released
    where = np.column_stack([np.arange(120), np.zeros(120, np.int64)])
    found = release.personalize(tv.Observations(where, values[:120, 3], (120, 1)), mode="film")
    error = np.sqrt(np.mean((found.predict(where) - values[:120, 3]) ** 2))
    assert error < 0.8 * values[:120, 3].std()
