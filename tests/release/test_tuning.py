"""`tune`: one release, and the model that its symbols favour."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.posterior.sampler import Posterior, PosteriorRun

QUICK = tv.InputPerturbation(solver=Posterior(sweeps=8, chains=2))
CELLS = np.argwhere(np.ones((10, 9)))
DATA = tv.Observations(CELLS, 1.0 + (CELLS.sum(axis=1) % 5), (10, 9))
MODELS = [tv.CP(1), tv.CP(3), tv.Tucker((2, 2))]


@pytest.mark.parametrize("favoured", MODELS)
def test_the_model_with_the_best_expected_fit_is_released_at_the_price_of_one(monkeypatch, favoured, tmp_path):
    monkeypatch.setattr(PosteriorRun, "expected_fit", lambda run, where, released: float(run.model.family == favoured))
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "films", "value", 4.0)
    paying = {"ledger": ledger, "dataset": "films"}
    release = tv.tune(DATA, MODELS, (1, 5), "value", 4.0, mechanism=QUICK, levels=range(1, 6), **paying)
    assert release.factors.family == favoured
    assert (release.guarantee.epsilon, release.guarantee.publishable) == (4.0, True)
    assert ledger.spent("films").epsilon == pytest.approx(4)
    loaded = tv.Release.load(release.save(tmp_path / "out"))
    assert loaded.factors.family == favoured
    assert {check.state for check in tv.verify(tmp_path / "out", tmp_path / "L.sqlite")} <= {"ok", "not run"}


def test_without_a_list_the_rules_give_candidates(monkeypatch):
    seen = set()
    monkeypatch.setattr(
        PosteriorRun, "expected_fit", lambda run, where, released: seen.add(str(run.model.family)) or 0.0
    )
    table = {"a": CELLS[:, 0], "b": CELLS[:, 1], "v": DATA.values}
    tv.tune(table, None, (1, 5), "value", 4.0, mechanism=QUICK, modes=["a", "b"], value="v")
    assert seen == {"CP(rank=9)", "CP(rank=3)", "Tucker(ranks=(5, 5))"}


@pytest.mark.parametrize(
    "models, unit, mechanism, message",
    [
        (MODELS, "entry", "auto", "released symbols of single values"),
        (MODELS, "value", "sums", "released symbols of single values"),
        (MODELS, "value", tv.InputPerturbation(solver="als"), "released symbols of single values"),
        ([], "value", "auto", "models must be a list"),
        (tv.CP(2), "value", "auto", "models must be a list"),
        ([tv.CP(1), tv.Tucker((2, 20))], "value", "input", "ranks"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_spent(models, unit, mechanism, message, tmp_path):
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "films", unit, 4.0)
    with pytest.raises(tv.InputError, match=message):
        tv.tune(DATA, models, (1, 5), unit, 4.0, mechanism=mechanism, ledger=ledger, dataset="films")
    assert ledger.spent("films").epsilon == 0
