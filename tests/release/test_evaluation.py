"""Errors are those of the definitions, beside the floor; differences are of common cells alone."""

import dataclasses

import numpy as np
import pytest

import tensorveil as tv
from saved_releases import CELLS, LABELS, NAMES, SHAPE, made, observations
from tensorveil.release.evaluation import difference, evaluate_table


def table(values, **changes):
    found = {name: LABELS[mode][CELLS[:, mode]].tolist() for mode, name in enumerate(NAMES)}
    return {**found, "rating": values, **changes}


def test_errors_are_root_mean_square_and_mean_absolute_beside_the_floor():
    release, truth = made("gaussian"), observations(5).values
    found = evaluate_table(release, table(truth))
    errors = truth - release.predict(CELLS)
    assert (found.rows, found.unknown_rows, found.unknown) == (120, 0, {})
    assert found.rmse == pytest.approx(np.linalg.norm(errors) / np.sqrt(120))
    assert found.mae == pytest.approx(np.abs(errors).sum() / 120)
    assert found.known_rmse == found.rmse
    assert found.test_mean_rmse == pytest.approx(truth.std())
    mean = np.clip(3 + 2 * release.model.offsets.mean, 1, 5)
    assert found.release_mean_rmse == pytest.approx(np.sqrt(((truth - mean) ** 2).mean()))
    assert found.release_mean_mae == pytest.approx(np.abs(truth - mean).mean())


def test_rows_with_unknown_labels_are_counted_and_predicted_by_known_offsets():
    release, truth = made("gaussian"), observations(5).values
    users = ["zoe"] * 20 + LABELS[0][CELLS[20:, 0]].tolist()
    found = evaluate_table(release, table(truth, user=users))
    assert (found.unknown_rows, found.unknown) == (20, {"user": 20})
    assert found.known_rmse == pytest.approx(tv.rmse(truth[20:], release.predict(CELLS[20:])))
    assert found.rmse != found.known_rmse


@pytest.mark.parametrize("kind", ["gaussian", "drawn"])
def test_a_mode_can_be_averaged_over(kind):
    release, truth = made(kind), observations(5).values
    given = table(truth)
    del given[NAMES[2]]
    found = evaluate_table(release, given, average=[NAMES[2]])
    cells = np.repeat(CELLS, SHAPE[2], axis=0)
    cells[:, 2] = np.tile(np.arange(SHAPE[2]), len(CELLS))
    means = release.predict(cells).reshape(-1, SHAPE[2]).mean(axis=1)
    assert found.rmse == pytest.approx(tv.rmse(truth, means))
    assert (found.unknown_rows, found.unknown) == (0, {})
    assert (found.coverage is not None) == (kind == "drawn")
    assert evaluate_table(release, table(truth), average=[NAMES[2]]) == found  # its column is not read
    with pytest.raises(tv.InputError, match="must have the columns"):
        evaluate_table(release, given)
    with pytest.raises(tv.InputError, match="average must be one of"):
        evaluate_table(release, given, average=["month"])
    del given[NAMES[0]]
    with pytest.raises(tv.InputError, match=f"not averaged over.*{NAMES[0]}"):
        evaluate_table(release, given, average=[NAMES[2]])


def test_a_joint_release_is_evaluated_with_the_rows_of_their_owners_or_by_public_offsets():
    release, data = made("joint"), observations()
    truth = data.values
    public = evaluate_table(release, table(truth))
    offsets = release.model.offsets
    by_hand = offsets.mean + offsets.modes[1][CELLS[:, 1]] + offsets.modes[2][CELLS[:, 2]]
    assert public.rmse == pytest.approx(tv.rmse(truth, np.clip(3 + 2 * by_hand, 1, 5)))
    assert "without personal rows" in public.personal
    personal = evaluate_table(release, table(truth), own=data)
    predictions = np.concatenate(
        [
            release.personalize(data.take(data.coordinates[:, 0] == owner)).predict(CELLS[CELLS[:, 0] == owner])
            for owner in range(SHAPE[0])
        ]
    )
    assert personal.rmse == pytest.approx(tv.rmse(truth, predictions))
    with pytest.raises(tv.InputError, match="joint release"):
        evaluate_table(made("pure"), table(truth), own=data)


def test_a_published_model_has_no_floor_of_its_own():
    truth = observations().values
    found = evaluate_table(made("claimed"), table(truth))
    assert found.release_mean_rmse is None
    assert found.rmse == pytest.approx(tv.rmse(truth, made("claimed").predict(CELLS)))


def test_values_must_be_there_and_finite():
    truth = observations().values
    for wrong, rule in (
        ({"value": "stars"}, "must have a column 'stars' of values"),
        ({"table": table([np.nan, *truth[1:]])}, "finite"),
        ({"table": table(["x"] * 120)}, "finite"),
        ({"table": {name: part[:0] for name, part in table(truth).items()}}, "finite|at least one"),
    ):
        with pytest.raises(tv.InputError, match=rule):
            evaluate_table(made("pure"), **{"table": table(truth), **wrong})


def test_two_releases_are_compared_on_the_cells_that_both_have():
    first, second = made("gaussian"), made("pure")
    whole = difference(first, second)
    assert whole.cells == 120
    assert whole.rms == pytest.approx(tv.rmse(first.predict(CELLS), second.predict(CELLS)))
    assert difference(first, first).rms == 0
    turned = dataclasses.replace(second, labels=(LABELS[0][::-1].copy(), *LABELS[1:]))
    mirrored = CELLS.copy()
    mirrored[:, 0] = 5 - mirrored[:, 0]
    assert difference(first, turned).rms == pytest.approx(tv.rmse(first.predict(CELLS), second.predict(mirrored)))


def test_what_cannot_be_compared_says_why():
    first = made("gaussian")
    assert "personalized" in difference(first, made("joint")).why
    renamed = dataclasses.replace(made("pure"), mode_names=("a", "b", "c"))
    assert "names" in difference(first, renamed).why
    apart = dataclasses.replace(made("pure"), labels=(np.arange(6), *LABELS[1:]))
    found = difference(first, apart)
    assert (found.cells, found.rms) == (0, None)
    assert "user" in found.why
