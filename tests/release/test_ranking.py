"""Ranking quality and coverage, against brute force over all cells."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.posterior.sampler import Posterior
from tensorveil.metrics import ndcg, recall
from tensorveil.release.cells.ranking import offsets_alone, rank_items
from tensorveil.release.evaluation import evaluate_table

SHAPE = (12, 9)
GENERATOR = np.random.default_rng(5)
VALUES = np.clip(np.rint(3 + GENERATOR.standard_normal(SHAPE) + GENERATOR.standard_normal(9)), 1, 5)


@pytest.fixture(scope="module")
def release():
    data = tv.Observations(np.argwhere(np.ones(SHAPE)), VALUES.ravel(), SHAPE, mode_names=("user", "film"))
    mechanism = tv.InputPerturbation(levels=[1, 2, 3, 4, 5], solver=Posterior(sweeps=40, chains=2, threads=1))
    return tv.complete(data, tv.CP(2), tv.Bounds(1, 5), "value", 9.0, mechanism=mechanism, seed=0)


def table(rows):
    return {"user": rows[:, 0], "film": rows[:, 1], "value": VALUES[tuple(rows.T)]}


def test_recall_and_ndcg_by_hand():
    assert recall([1, 2, 3], [3, 4]) == 0.5
    best = sum(1 / np.log2(rank + 1) for rank in (1, 2))
    assert ndcg([5, 3, 4], [3, 4]) == pytest.approx((1 / np.log2(3) + 1 / np.log2(4)) / best)
    assert ndcg([3, 4, 5], [4, 3]) == pytest.approx(1.0)
    assert ndcg([3], [4, 3]) == pytest.approx(1.0)  # a list of one cannot hold both
    for wrong in (recall, ndcg):
        with pytest.raises(tv.InputError, match="at least one"):
            wrong([1], [])


def test_the_ranking_is_that_of_sorted_predictions(release):
    rows = np.argwhere(np.random.default_rng(0).random(SHAPE) < 0.6)
    known = np.argwhere(np.random.default_rng(1).random(SHAPE) < 0.3)
    found = rank_items(release, release.model, table(rows), 3, known=table(known), relevant=4.0)
    dense = release.predict(np.argwhere(np.ones(SHAPE))).reshape(SHAPE)
    popular = np.bincount(known[:, 1], minlength=9)
    expected = {"the release": [], "popularity": []}
    for user in range(12):
        out = set(known[known[:, 0] == user, 1])
        good = {film for film in rows[rows[:, 0] == user, 1] if VALUES[user, film] >= 4} - out
        if not good:
            continue
        for name, scores in (("the release", dense[user]), ("popularity", popular)):
            best = [film for film in sorted(range(9), key=lambda film: (-scores[film], film)) if film not in out][:3]
            gain = sum(1 / np.log2(place + 2) for place, film in enumerate(best) if film in good)
            ideal = sum(1 / np.log2(place + 2) for place in range(min(len(good), len(best))))
            expected[name].append((len(good & set(best)) / len(good), gain / ideal))
    for name, pairs in expected.items():
        np.testing.assert_allclose(found.scores[name], np.mean(pairs, axis=0), atol=0.02)  # predictions by tables
    assert found.people == len(expected["the release"])
    assert set(found.scores) == {"the release", "its offsets alone", "popularity"}


def test_the_baseline_of_offsets_has_no_factors(release):
    plain = offsets_alone(release.model)
    draws, where = release.model.draws, np.argwhere(np.ones(SHAPE)).astype(np.uint32)
    latent = release.model.offsets.at(where) + draws.offsets[:, :1].mean()
    found = plain.predict(where)
    assert stats_order(latent, found) > 0.95


def stats_order(one, other):
    from scipy import stats

    return stats.spearmanr(one, other).statistic


def test_coverage_is_the_share_inside_and_offsets_are_beside(release):
    rows = np.argwhere(np.ones(SHAPE))
    found = evaluate_table(release, table(rows))
    low, high = release.model.interval(rows, 0.9)
    truth = VALUES.ravel()
    assert found.coverage == pytest.approx(np.mean((truth >= low - 1e-9) & (truth <= high + 1e-9)))
    assert found.interval_width == pytest.approx(np.mean(high - low))
    assert found.offsets_rmse > found.rmse
    assert found.offsets_mae > 0


def test_wrong_questions_are_refused(release):
    rows = np.argwhere(np.ones(SHAPE))
    with pytest.raises(tv.InputError, match="two modes"):
        rank_items(release, release.model, table(rows), 3, person="film", item="film")
    with pytest.raises(tv.InputError, match="lower it"):
        rank_items(release, release.model, table(rows), 3, relevant=9.0)
    with pytest.raises(tv.InputError, match="check both files"):
        rank_items(release, release.model, table(rows), 3, known=table(rows))
