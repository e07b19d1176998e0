"""The estimator: scikit-learn's own checks, pipelines and cross-validation, and what every fit costs."""

import numpy as np
import pytest

import tensorveil as tv

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from tensorveil.sklearn import TensorCompleter

FAST = tv.StatisticPerturbation(sweeps=1)
TEN_COLUMNS = "the check has more columns than the 6 modes that a tensor can have"
EXPECTED_FAILURES = {
    "check_dtype_object": TEN_COLUMNS,
    "check_regressor_data_not_an_array": TEN_COLUMNS,
    "check_regressors_int": TEN_COLUMNS,
    "check_regressors_train": TEN_COLUMNS,
}


def completer(**changed):
    chosen = {"bounds": (-4, 4), "unit": "value", "epsilon": 5.0, "each_fit_is_a_release": True}
    return TensorCompleter(**{**chosen, "model": tv.CP(1), "mechanism": FAST, **changed})


@pytest.mark.parametrize("name", ["bounds", "unit", "epsilon"])
def test_what_is_promised_has_no_default(name):
    X, y = ratings(frame=False)
    with pytest.raises(tv.InputError, match=f"^{name} must be .*, got None"):
        completer(**{name: None}).fit(X, y)
    assert TensorCompleter().get_params()[name] is None


@parametrize_with_checks([completer(random_state=0)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def ratings(frame=True):
    pd = pytest.importorskip("pandas")
    cells = np.argwhere(np.ones((12, 8)))
    rows = pd.DataFrame({"user": [f"u{user}" for user in cells[:, 0]], "film": cells[:, 1] + 100})
    values = np.clip(3 + np.sin(cells[:, 0]) + np.cos(cells[:, 1]), 1, 5)
    return (rows if frame else rows.to_numpy()), values


def test_a_fit_is_the_release_that_complete_makes():
    X, y = ratings()
    model = completer(bounds=(1, 5), random_state=3).fit(X, y)
    table = {"user": X["user"], "film": X["film"], "value": y}
    how = {"mechanism": FAST, "seed": 3, "modes": ["user", "film"], "value": "value", "duplicates": "keep"}
    same = tv.complete(table, tv.CP(1), (1, 5), "value", 5.0, **how)
    np.testing.assert_array_equal(model.predict(X), same.predict_table(X)["prediction"])
    assert (model.guarantee_.seeded, model.guarantee_.publishable) == (True, False)
    assert model.release_.mode_names == tuple(model.feature_names_in_) == ("user", "film")
    assert not completer(bounds=(1, 5)).fit(X, y).guarantee_.seeded


def test_labels_of_an_array_are_those_of_the_frame():
    values = [
        completer(bounds=(1, 5), random_state=3).fit(X, y).predict(X) for X, y in (ratings(), ratings(frame=False))
    ]
    np.testing.assert_array_equal(*values)


def test_labels_that_a_fit_did_not_see_are_predicted_from_the_others_or_refused():
    X, y = ratings()
    model = completer(bounds=(1, 5)).fit(X, y)
    unknown = X.head(2).assign(user=["somebody", "u1"])
    assert np.isfinite(model.predict(unknown)).all()
    with pytest.raises(tv.InputError, match="must be known to the release"):
        model.set_params(unknown="error").predict(unknown)


def test_a_fit_without_ledger_needs_a_word():
    X, y = ratings()
    for word in (False, None, "yes"):
        with pytest.raises(tv.InputError, match="every fit is a release"):
            completer(each_fit_is_a_release=word).fit(X, y)


def test_every_fit_is_charged_until_the_ledger_refuses(tmp_path):
    X, y = ratings()
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "films", "value", 2.0)
    given = {"bounds": (1, 5), "epsilon": 1.0, "dataset": "films", "each_fit_is_a_release": False}
    completer(ledger=ledger, **given).fit(X, y)
    copied = clone(completer(ledger=str(tmp_path / "L.sqlite"), **given)).fit(X, y)
    assert ledger.spent("films").epsilon == pytest.approx(2)
    assert copied.release_.ledger["dataset"] == "films"
    with pytest.raises(tv.BudgetError, match="no budget is left"):
        copied.fit(X, y)
    with pytest.raises(tv.InputError, match="secret noise"):
        completer(ledger=ledger, **given, random_state=1).fit(X, y)


def test_cross_validation_is_one_release_per_fold(tmp_path):
    X, y = ratings()
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "films", "value", 9.0)
    given = {"bounds": (1, 5), "epsilon": 1.0, "ledger": ledger, "dataset": "films", "each_fit_is_a_release": False}
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows), completer(**given))
    found = cross_val_predict(pipeline, X, y, cv=3)
    assert found.shape == y.shape
    assert ledger.spent("films").epsilon == pytest.approx(3)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"bounds": None}, "bounds must be"),
        ({"epsilon": None}, "epsilon must be"),
        ({"unit": "entry", "delta": 1e-6}, "labels must be public"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_spent(given, message):
    with pytest.raises(tv.InputError, match=message):
        completer(**{"bounds": (1, 5), **given}).fit(*ratings())


def test_intervals_come_from_the_release():
    X, y = ratings()
    model = completer(bounds=(1, 5)).fit(X, y)
    with pytest.raises(tv.InputError, match="posterior draws"):
        model.predict_interval(X)


def test_a_column_of_times_becomes_two_modes_at_fit_and_at_predict():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    hours = rng.choice(240, 60, replace=False)
    times = np.datetime64("2024-03-01", "s") + hours * np.timedelta64(1, "h")
    cells = pd.DataFrame({"street": rng.choice(["a", "b", "c"], 60), "time": times})
    found = TensorCompleter(
        bounds=(0, 9),
        unit="value",
        epsilon=2.0,
        mechanism="sums",
        bins={"time": "day+hour"},
        smooth={"hour": "periodic"},
        each_fit_is_a_release=True,
        random_state=0,
    ).fit(cells, rng.integers(0, 10, 60))
    assert found.release_.mode_names == ("street", "day", "hour")
    assert [(one.mode, one.name) for one in found.release_.plan.public_inputs] == [("hour", "smooth, periodic")]
    by_label = {
        "street": cells["street"].tolist(),
        "day": [str(time)[:10] for time in times],
        "hour": [str(time)[11:13] for time in times],
    }
    np.testing.assert_array_equal(found.predict(cells), found.release_.predict_table(by_label)["prediction"])


def test_predictions_do_not_show_whether_a_label_occurred_at_fit():
    """Under `entry` the labels are public, and which of them occurred is not, though another kind of cell came with it.

    A column of whole numbers was one of texts with one row more, and a text that is a known label was known only then.
    """
    rows = [[user, f"f{film}", 1000.0] for user in range(1, 9) for film in range(6)]
    labels = {"mode_0": [*map(str, range(1, 9)), "x"], "mode_1": [f"f{film}" for film in range(6)]}
    public = {"labels": {**labels, "mode_2": ["1970-01-01"]}, "bins": {"mode_2": "day"}, "unit": "entry"}
    asked = np.array([["x", "f1", 1000], [3.0, "f1", "1000.5"], [3, "f1", 1000]], dtype=object)
    for more in ([], [["x", "f0", 1000.5]]):
        cells = np.array([*rows, *more], dtype=object)
        options = {"bounds": (1, 5), "epsilon": 1.0, "model": tv.CP(1), "unknown": "error", "random_state": 0}
        completer = TensorCompleter(**options, **public, each_fit_is_a_release=True)
        found = completer.fit(cells, 1.0 + np.arange(len(cells)) % 5)
        _, one, other = found.predict(asked)
        assert one == other
