"""Advice comes from public facts alone, is what the mechanism does on made-up data, and says when there is no hope."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.release.advice import advisor, cache
from tensorveil.release.advice.advisor import outlook
from tensorveil.release.advice.made_up import SIGNALS, made_up, scaled_down
from tensorveil.release.advice.results import Advice, Row

BOUNDS = tv.Bounds(1, 5)
TRIED = ((6, 5, 4), 100)


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "shape, count, most", [((943, 1682), 90_570, 8_000), ((30, 30, 1464), 131_000, 8_000), ((9, 8), 500, 100)]
)
def test_a_smaller_tensor_has_as_many_observations_per_index(shape, count, most):
    sizes, number = scaled_down(shape, count, most)
    assert number <= min(most, 0.9 * np.prod(sizes))
    for before, after in zip(shape, sizes, strict=True):
        assert after == before if before <= 32 else after >= 32
    largest = int(np.argmax(shape))
    if shape[largest] > 32:
        assert number / sizes[largest] == pytest.approx(count / shape[largest], rel=0.1)


@pytest.mark.parametrize("explained", [0.3, 0.9])
def test_offsets_explain_half_of_what_is_explained_in_a_made_up_tensor(explained):
    """By ordinary least squares on one dummy column per index."""
    shares = []
    for seed in range(6):
        data = made_up((40, 30), 1000, explained, BOUNDS, 1 / 20, seed).train
        assert len(np.unique(data.coordinates, axis=0)) == 1000
        dummies = np.column_stack(
            [np.eye(size)[column] for size, column in zip((40, 30), data.coordinates.T, strict=True)]
        )
        centred = data.values - data.values.mean()
        rest = centred - dummies @ np.linalg.lstsq(dummies, centred, rcond=None)[0]
        used = np.linalg.matrix_rank(dummies)
        shares.append(1 - rest @ rest / (1000 - used) / centred.var())
    assert np.mean(shares) == pytest.approx(explained / 2, abs=0.08)


def test_values_are_in_the_bounds_and_have_the_spread():
    data = made_up((50, 40), 1500, 0.5, BOUNDS, 1 / 20)
    assert data.train.values.std() == pytest.approx(4 / 20, rel=0.1)
    assert data.train.values.mean() == pytest.approx(3, abs=0.05)
    wide = made_up((50, 40), 1500, 0.5, BOUNDS, 2.0).train.values
    assert (wide.min(), wide.max()) == (1, 5)
    assert data.error(data.values) == 0
    assert data.error(np.full(len(data.values), data.values.mean())) == pytest.approx(1)


def test_nearly_full_tensors_can_be_made_up():
    data = made_up((6, 5, 4), 108, 0.5, BOUNDS, 1 / 6).train
    assert len(np.unique(data.coordinates, axis=0)) == 108


def observed(rows, values=3.0):
    cells = np.argwhere(np.ones((12, 10)))[:rows]
    return tv.Observations(cells, np.full(rows, values), (12, 10), mode_names=("user", "film"))


def test_only_public_facts_are_read(monkeypatch):
    """Values never matter, and where the number of observations is private it does not matter either."""
    monkeypatch.setattr(advisor, "_error", lambda planned, signal, spread: 0.5)
    facts = {"bounds": BOUNDS, "epsilons": [1.0]}
    assert tv.advise(observed(50), unit="value", **facts) == tv.advise(observed(50, 1.0), unit="value", **facts)
    assert tv.advise(observed(50), unit="value", **facts).count == 50
    hidden = tv.advise(observed(50), unit="entry", **facts)
    assert hidden == tv.advise(observed(90), unit="entry", **facts)
    assert tv.advise(observed(50), unit="entry", expected_count=77, **facts).count == 77
    assert tv.advise((12, 10), unit="slice:film", mode_names=("user", "film"), **facts).unit == "slice:film"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"unit": "value"}, "expected_count must be given"),
        ({"unit": "entry", "models": ["svd"]}, "models must be"),
        ({"unit": "entry", "ranks": []}, "at least one model"),
        ({"unit": "entry", "ranks": [0]}, "ranks must be"),
        ({"unit": "entry", "epsilons": [0.0]}, "epsilons must be"),
        ({"unit": "entry", "epsilons": []}, "epsilons must be"),
        ({"unit": "entry", "spread": 0.1}, "spread must be given with bounds"),
        ({"unit": "entry", "spread": 3.0, "bounds": BOUNDS}, "at most half"),
        ({"unit": "entry", "wanted": -1.0}, "wanted must be"),
        ({"unit": "slice:film"}, "unit must name one of"),
    ],
)
def test_wrong_requests_are_errors_before_anything_is_tried(options, words, monkeypatch):
    monkeypatch.setattr(advisor, "_error", lambda *_: pytest.fail("a made-up tensor was tried"))
    with pytest.raises(tv.InputError, match=words):
        tv.advise((12, 10), **options)


def advice_of(errors, epsilons):
    rows = [
        Row("CP(rank=2)", epsilon, "sum perturbation", dict.fromkeys(SIGNALS, error), 1.0, TRIED)
        for epsilon, error in zip(epsilons, errors, strict=True)
    ]
    return Advice(tuple(rows), *TRIED, "value", 0.6)


def test_the_smallest_epsilon_lies_where_the_error_falls_to_the_wanted_one():
    """Against the first of many interpolated errors that is small enough."""
    epsilons, errors = [0.1, 1.0, 3.0, 10.0], [1.0, 0.9, 0.95, 0.3]
    found = advice_of(errors, epsilons).smallest_epsilon("CP(rank=2)", "weak", 0.6)
    grid = np.exp(np.linspace(np.log(0.1), np.log(10), 100_001))
    falling = np.interp(np.log(grid), np.log(epsilons), [1.0, 0.9, 0.9, 0.3])
    assert found == pytest.approx(grid[np.argmax(falling <= 0.6)], rel=1e-3)
    assert advice_of(errors, epsilons).smallest_epsilon("CP(rank=2)", "weak", 0.2) is None
    assert advice_of(errors, epsilons).smallest_epsilon("CP(rank=2)", "weak", 1.5) == 0.1


def test_where_nothing_can_be_learned_it_is_said():
    hopeless, hopeful = advice_of([1.0, 0.5], [0.1, 5.0]), advice_of([0.8, 0.5], [0.1, 5.0])
    assert any("at epsilon 0.1, nothing beyond the mean can be learned, even" in one for one in hopeless.sentences())
    assert not any("nothing beyond" in one for one in hopeful.sentences())
    assert "smallest epsilon for an error of 0.6" in str(hopeful)
    assert hopeful.to_json()["rows"][0]["learned"] == list(SIGNALS)


def test_the_mechanism_is_run_and_its_results_are_kept(own_folder, monkeypatch):
    asked = {"unit": "entry", "epsilons": [0.05, 400.0], "expected_count": 500}
    advice = tv.advise((25, 20), **asked)
    small, large = advice.rows
    assert small.learned == ()
    assert "strong" in large.learned
    assert large.errors["strong"] < large.errors["weak"] < small.errors["weak"] + 0.05
    monkeypatch.setattr(advisor, "fit", lambda *_, **__: pytest.fail("it was run again"))
    assert tv.advise((25, 20), **asked) == advice
    for path in cache.folder().glob("*.json"):
        path.write_text("{")
    with pytest.raises(pytest.fail.Exception, match="run again"):
        tv.advise((25, 20), **asked)


def test_without_a_folder_for_results_there_is_advice_all_the_same(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    facts = {"one": 1}
    cache.keep(facts, 0.5)
    assert cache.known(facts) is None


def test_the_outlook_is_an_estimate_until_there_is_advice(own_folder):
    planned = tv.plan(observed(100), tv.CP(5), BOUNDS, "entry", 0.01)
    assert "a rough estimate" in outlook(planned)
    assert "at this budget nothing beyond the mean can be learned" in outlook(planned)
    for name in SIGNALS:
        cache.keep(advisor._facts(planned, name, 1 / 6), 0.25)
    assert "0.25 (weak signal)" in outlook(planned)
    assert "measured earlier" in outlook(planned)
    assert "nothing" not in outlook(planned)


@pytest.mark.parametrize("unit", ["value", "entry", "slice:0"])
def test_estimates_fall_with_epsilon_and_stay_between_the_floor_and_the_mean(unit):
    for name, explained in SIGNALS.items():
        errors = []
        for epsilon in (0.01, 0.1, 1.0, 10.0, 100.0):
            planned = tv.SumPerturbation().plan(
                tv.CP(3), BOUNDS, unit, epsilon, shape=(200, 100), expected_count=10_000
            )
            errors.append(advisor.expected_error(planned, explained))
        assert errors == sorted(errors, reverse=True), name
        assert np.sqrt(1 - explained) <= errors[-1] <= errors[0] <= 1 + 1e-9
