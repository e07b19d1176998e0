"""A release in a notebook, as Matplotlib axes and as a tensor of TensorLy."""

import dataclasses
import itertools

import matplotlib.pyplot
import numpy as np
import pytest

import tensorveil as tv
from saved_releases import CELLS, NAMES, SHAPE, made
from tensorveil.release.display import tensorly as display

tl = pytest.importorskip("tensorly")
matplotlib.use("agg")


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    matplotlib.pyplot.close("all")


def dense(tensor):
    return tl.cp_to_tensor(tensor) if hasattr(tensor, "weights") else tl.tucker_to_tensor(tensor)


def test_an_average_of_draws_goes_to_tensorly_with_the_error_that_it_has():
    release = made("drawn")
    tensor = release.to_tensorly()
    predicted = release.predict(CELLS).reshape(SHAPE)
    assert tensor.rmse == pytest.approx(np.sqrt(np.mean((dense(tensor) - predicted) ** 2)), rel=1e-9)
    distance = np.linalg.norm(dense(tensor) - predicted) / np.linalg.norm(predicted)
    assert tensor.relative_error == pytest.approx(distance, rel=1e-9)
    mean_alone = np.linalg.norm(predicted.mean() - predicted) / np.linalg.norm(predicted)
    assert 0 < tensor.relative_error < 0.7 * mean_alone


def test_the_fit_is_no_worse_than_tensorlys_own():
    """TensorLy's parafac of the dense predictions, of the rank that mean, offsets and factors have together."""
    from tensorly.decomposition import parafac

    release = made("drawn")
    predicted = release.predict(CELLS).reshape(SHAPE)
    theirs = parafac(predicted, rank=3, n_iter_max=200, init="svd", tol=1e-9)
    ours = release.to_tensorly(rank=3)  # with a mean and offsets beside these three components
    assert ours.rmse <= 1.02 * np.sqrt(np.mean((dense(theirs) - predicted) ** 2))


def test_a_higher_rank_comes_nearer():
    errors = [made("drawn").to_tensorly(rank=rank).relative_error for rank in (1, 3, 12)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02
    with pytest.raises(tv.InputError, match="rank must be a positive whole number"):
        made("drawn").to_tensorly(rank=0)


def test_a_sample_of_a_large_tensor_is_judged_on_other_cells(monkeypatch):
    whole = made("drawn").to_tensorly(rank=2)
    monkeypatch.setattr(display, "MOST_CELLS", 100)  # of 120
    sampled = made("drawn").to_tensorly(rank=2)
    predicted = made("drawn").predict(CELLS).reshape(SHAPE)
    true = np.sqrt(np.mean((dense(sampled) - predicted) ** 2))
    assert sampled.rmse != whole.rmse
    assert sampled.rmse == pytest.approx(true, rel=0.5)


def test_a_joint_release_goes_to_tensorly_for_somebody_unknown():
    tensor = made("joint").to_tensorly()
    table = dense(tensor)
    np.testing.assert_allclose(table, np.broadcast_to(table[:1], table.shape), atol=1e-6)
    shown = made("joint").evaluate({**cells(), "rating": np.clip(table.ravel(), 1, 5)})
    assert shown.rmse == pytest.approx(tensor.rmse, abs=1e-4), "evaluate predicts for somebody unknown, too"


def cells():
    labels = made("pure").labels
    return {name: [labels[mode][index] for index in CELLS[:, mode]] for mode, name in enumerate(NAMES)}


def test_an_exact_tensor_has_no_error():
    assert (made("pure").to_tensorly().relative_error, made("claimed").to_tensorly().rmse) == (0.0, 0.0)


@pytest.mark.parametrize("kind", ["pure", "drawn", "joint", "claimed", "seeded"])
def test_a_notebook_shows_what_is_guaranteed(kind):
    release = made(kind)
    page = release._repr_html_()
    assert "6 user" in page
    assert (">yes<" in page) == (kind in ("pure", "drawn", "joint"))
    assert release.guarantee.status in release.guarantee._repr_html_()
    if release.plan is not None:
        assert all(stage.name in release.plan._repr_html_() for stage in release.plan.stages)


def test_a_notebook_runs_nothing_that_a_name_says():
    evil = dataclasses.replace(made("pure"), value_name="<script>alert(1)</script>")
    assert "<script" not in evil._repr_html_()


def test_offsets_are_drawn_from_the_highest_to_the_lowest_or_over_time():
    release = made("mixed")
    bars = release.plot_offsets("user")
    widths = [bar.get_width() for bar in bars.patches]
    offsets = release.model.offsets.modes[0] * 2  # half the width of the bounds 1 to 5
    assert widths == sorted(offsets.tolist(), reverse=True)
    line = release.plot_offsets("day").lines[0]
    np.testing.assert_allclose(line.get_ydata(), release.model.offsets.modes[2] * 2)
    assert "day" in line.axes.get_title()


def test_components_are_columns_of_the_factors():
    axes = made("gaussian").plot_components("film", 2)
    matrix = made("gaussian").factors.factors[1]
    assert len(axes.lines) == 2
    for line in axes.lines:
        ratios = np.asarray(line.get_ydata())[:, None] / matrix
        assert any(np.allclose(column, column[0]) for column in ratios.T)


def test_a_slice_is_drawn_cell_by_cell_on_the_given_axes():
    release = made("drawn")
    _, mine = matplotlib.pyplot.subplots()
    axes = release.plot_slice("film", "user", day="1998-03-09", ax=mine)
    assert axes is mine
    shown = np.asarray(axes.images[0].get_array())
    for film, user in itertools.product(range(5), range(6)):
        assert shown[film, user] == pytest.approx(release.predict([[user, film, 2]])[0], abs=1e-3)


def test_the_curve_has_the_stated_pair():
    axes = made("gaussian").plot_curve()
    told = made("gaussian").guarantee
    assert any((told.delta, told.epsilon) in zip(*line.get_data(), strict=True) for line in axes.lines)


@pytest.mark.parametrize(
    "draw, message",
    [
        (lambda: made("joint").plot_components("user"), "its rows are for their owners alone"),
        (lambda: made("joint").plot_offsets("user"), "its rows are for their owners alone"),
        (lambda: made("drawn").plot_offsets("nobody"), "mode must be one of"),
        (lambda: made("claimed").plot_offsets("user"), "mode must have offsets"),
        (lambda: made("claimed").plot_curve(), "must have a curve"),
        (lambda: made("drawn").plot_slice("user", "film"), r"must be given, \['day'\]"),
        (lambda: made("drawn").plot_slice("user", "user"), "two modes"),
        (lambda: made("drawn").plot_slice("user", "film", day="2020-01-01"), "must be known to the release"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_error(draw, message):
    with pytest.raises(tv.InputError, match=message):
        draw()


def test_intervals_are_added_to_the_same_kind_of_table():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    release, rows = made("drawn"), {name: column[:7] for name, column in cells().items()}
    wanted = release.predict(CELLS[:7], interval=0.8)
    for table in (rows, pd.DataFrame(rows, index=list("abcdefg")), pl.DataFrame(rows)):
        found = release.predict_table(table, interval=0.8)
        assert type(found) is type(table)
        for name, numbers in zip(("prediction", "low", "high"), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(found[name]), numbers)
    with pytest.raises(tv.InputError, match="interval"):
        made("pure").predict_table(rows, interval=0.8)


def test_errors_are_those_of_the_predictions():
    truth = np.linspace(1, 5, len(CELLS))
    found = made("pure").evaluate({**cells(), "stars": truth}, "stars")
    assert found.rmse == pytest.approx(np.sqrt(np.mean((made("pure").predict(CELLS) - truth) ** 2)))
