"""The pictures of a report show what the release predicts, in units of the values."""

import dataclasses
import re

import numpy as np
import pytest

import tensorveil as tv
from reported import NAMES, Page, release_of
from saved_releases import made
from tensorveil.models.offsets import Offsets
from tensorveil.release.certificate.certificate import Certificate
from tensorveil.release.report import pictures
from tensorveil.release.report.report import report_html
from tensorveil.release.report.variation import level_and_unit, variation_of


@pytest.mark.parametrize("family", [tv.CP(rank=3), tv.Tucker(ranks=(2, 3, 2))])
def test_the_effect_of_a_component_is_measured_over_all_cells(family):
    release = release_of(family=family)
    factors = release.factors
    for mode in range(3):
        expected = []
        for number in range(factors.ranks[mode]):
            blocks = [np.array(factor) for factor in factors.factors]
            blocks[mode] = np.where(np.arange(factors.ranks[mode]) == number, blocks[mode], 0)
            if factors.core is not None:
                blocks.append(factors.core)
            expected.append(2 * np.sqrt(np.mean(family.model(blocks).to_dense() ** 2)))
        np.testing.assert_allclose(pictures._strengths(release, mode), expected)


def test_slices_show_predictions_of_the_labels_they_name():
    release = release_of((40, 3, 20), labels=(np.array([f"u{number}" for number in range(40)]), None, None))
    group = pictures.slice_group(release)
    assert len(group.pictures) == 3
    dense = release.predict(np.argwhere(np.ones((40, 3, 20)))).reshape(40, 3, 20)
    seen = []
    for film, picture in enumerate(group.pictures):
        assert picture.title == f"Predicted value, film {film}"
        found = re.search(r"to ([\d.]+) \(u(\d+), day (\d+)\)", picture.drawing.description)
        assert float(found[1]) == pytest.approx(dense[int(found[2]), film, int(found[3])], abs=0.006)
        seen.append(picture.drawing.description)
    assert len(set(seen)) == 3


def test_what_stands_out_in_a_mode_is_drawn():
    release = release_of((100, 5, 4))
    offsets = 2 * release.model.offsets.modes[0]
    drawing = pictures.mode_groups(release)[0].pictures[0].drawing
    assert f"user {offsets.argmax()} (" in drawing.description
    assert f"user {offsets.argmin()} (" in drawing.description
    assert "90 labels in between" in drawing.description


def test_a_mode_that_holds_zeros_is_not_drawn():
    release = release_of()
    blocks = [np.zeros_like(factor) for factor in release.factors.factors]
    model = dataclasses.replace(release.model, offsets=Offsets.none(3), factors=tv.CPModel(blocks))
    empty = dataclasses.replace(release, model=model)
    assert [group.pictures for group in pictures.mode_groups(empty)] == [(), (), ()]
    assert "all are zero in the release" in Page(report_html(empty, Certificate.of(empty))).text


def test_the_spread_of_values_is_that_of_the_released_marginal():
    """Against numbers drawn from the marginal: latent normal ones, put into the levels of the draws."""
    model = made("drawn").model
    found, draws = variation_of(model), model.draws
    latent = np.random.default_rng(0).standard_normal(400_000)
    level = np.searchsorted(draws.knots.mean(axis=0)[1:-1], latent)
    values = 1 + 2 * (1 + np.random.default_rng(1).uniform(draws.low[level], draws.high[level]))
    assert found["values"] == pytest.approx(values.std(), rel=0.01)
    everywhere = model.predict(np.argwhere(np.ones(model.shape)))
    assert found["predictions"] == pytest.approx(np.sqrt(np.mean((everywhere - everywhere.mean()) ** 2)), rel=1e-5)


def test_components_are_numbered_by_their_effect():
    release = release_of((6, 5, 4), tv.CP(rank=3))
    for mode, group in enumerate(pictures.mode_groups(release)):
        shown = [picture for picture in group.pictures if picture.title.startswith("Component")]
        assert [picture.title for picture in shown] == [
            f"Component {place} of {NAMES[mode]}" for place in range(1, len(shown) + 1)
        ]
        effects = [float(picture.caption.split()[-1]) for picture in shown]
        assert effects == sorted(effects, reverse=True)


@pytest.mark.parametrize(
    "name, labels",
    [("hour", None), ("slot", ["00:00", "06:30", "13:00", "23:59"]), ("year", np.array([1997, 1998, 2001, 2005]))],
)
def test_modes_of_time_are_lines(name, labels):
    release = release_of((3, 4), mode_names=("user", name), labels=(None, labels))
    drawings = [picture.drawing.description for picture in pictures.mode_groups(release)[1].pictures]
    assert drawings
    first, last = ("0", "3") if labels is None else (labels[0], labels[-1])
    assert all(text.startswith(f"A line from {first} to {last}") for text in drawings)


def test_offsets_and_level_of_latent_models_are_in_units_of_the_values():
    """Against averages of the predictions: draws live on a latent scale, where a number is not a number of stars."""
    rng = np.random.default_rng(3)
    where = np.argwhere(np.ones((40, 30)))
    means = 3 + rng.normal(0, 0.7, 40)[where[:, 0]] + rng.normal(0, 0.3, 30)[where[:, 1]]
    stars = np.clip(np.round(means + rng.normal(0, 0.5, len(where))), 1, 5)
    release = tv.complete(tv.Observations(where, stars, (40, 30)), tv.CP(1), tv.Bounds(1, 5), "value", 20.0, seed=1)
    assert release.model.draws is not None
    predicted = release.predict(where).reshape(40, 30)
    level, _ = level_and_unit(release.model)
    assert level == pytest.approx(predicted.mean(), abs=0.02)
    for mode in (0, 1):
        effects = predicted.mean(axis=1 - mode)
        offsets = pictures._offsets(release, mode)
        slope = np.polyfit(offsets - offsets.mean(), effects - effects.mean(), 1)[0]
        assert 0.8 < slope < 1.25
