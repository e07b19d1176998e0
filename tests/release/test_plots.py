"""Pictures: what is drawn is what was given, every picture says what it shows, and nothing in it can act."""

import re
import warnings
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex

from tensorveil.release.report import plots

RNG = np.random.default_rng(0)
DAYS = np.arange("2020-01-01", "2020-04-10", dtype="datetime64[D]")
CURVE = [(1e-8, 2.0), (1e-7, 1.6), (1e-6, 1.2), (1e-5, 0.9)]
NASTY = ["<script>alert(1)</script>", "</svg><b>", "$\\frac{$", "a\x00b\x07\n\u202ec\ud800\ufffe", "日本語", "", "\"&'"]


def drawings():
    return {
        "curve": plots.curve_plot(CURVE, (1e-6, 1.2)),
        "pure curve": plots.curve_plot([(0.0, 1.0), (0.1, 0.75), (0.3, 0.5), (0.5, 0.0)], (0.0, 1.0)),
        "bars": plots.bar_plot(NASTY, np.array([3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -4.0]), hidden=93, split=4),
        "line": plots.line_plot(DAYS, RNG.normal(size=100)),
        "map": plots.heat_map(NASTY, NASTY[:5], RNG.uniform(1, 5, (7, 5)), 1, 5),
    }


DRAWINGS = drawings()


def texts(drawing):
    return [part.text for part in ElementTree.fromstring(drawing.svg).iter("text")]


def boxes(drawing, colour):
    """Left, right, top and bottom of every path of a colour."""
    found = []
    for part in ElementTree.fromstring(drawing.svg).iter("path"):
        if f"fill: {colour}" in part.get("style", ""):
            pairs = np.array(re.findall(r"[ML] ?(-?[\d.]+) (-?[\d.]+)", part.get("d")), dtype=float)
            found.append((*pairs.min(axis=0), *pairs.max(axis=0)))
    return found


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_one_element_that_says_what_it_shows(name):
    drawing = DRAWINGS[name]
    root = ElementTree.fromstring(drawing.svg)
    assert root.tag == "svg"
    assert root.get("role") == "img"
    assert root.get("aria-label") == drawing.description == root.find("title").text
    assert len(drawing.description) > 30


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_fetches_nothing_runs_nothing_and_styles_nothing_else(name):
    root = ElementTree.fromstring(DRAWINGS[name].svg)
    assert {part.tag for part in root.iter()} <= {"svg", "title", "path", "text"}
    for part in root.iter():
        for attribute, value in part.attrib.items():
            assert not attribute.startswith("on")
            assert "http" not in value
            assert attribute != "href" or value.startswith("#")
    assert "http" not in DRAWINGS[name].svg


def test_pictures_on_one_page_share_no_name_as_they_have_none():
    for drawing in DRAWINGS.values():
        for part in ElementTree.fromstring(drawing.svg).iter():
            assert not {"id", "href", "class"} & set(part.attrib)
            assert "url(" not in " ".join(part.attrib.values())


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings():
    settings = {"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path", "text.usetex": True}
    with matplotlib.rc_context(settings):
        RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state
        again = drawings()
        assert matplotlib.rcParams["font.size"] == 30
        assert matplotlib.rcParams["svg.fonttype"] == "path"
    assert again == DRAWINGS


def test_labels_stay_text_and_lose_what_steers_the_display():
    shown = texts(DRAWINGS["bars"])
    assert "<script>alert(1)</script>" in shown
    assert "</svg><b>" in shown
    assert "$\\frac{$" in shown
    assert "a b c" in shown
    assert "(blank)" in shown
    assert "日本語" in shown
    assert "&lt;script" in DRAWINGS["bars"].svg


def test_no_warning_for_letters_that_the_font_lacks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.bar_plot(["漢字", "العربية", "😀"], np.array([1.0, 0.5, 0.1]))


def test_bars_are_as_long_as_their_numbers():
    values = np.array([4.0, 1.0, -2.0])
    drawing = plots.bar_plot(["a", "b", "c"], values)
    above, below = boxes(drawing, plots.ABOVE), boxes(drawing, plots.BELOW)
    lengths = [right - left for left, _, right, _ in [*above, *below]]
    np.testing.assert_allclose(np.array(lengths) / lengths[1], [4, 1, 2], rtol=5e-3)
    assert above[0][0] == pytest.approx(below[0][2], abs=0.02)  # both start at zero
    assert [text for text in texts(drawing) if text[0] in "+−"] == ["+4.00", "+1.00", "−2.00"]


def test_bars_of_zeros_can_be_drawn():
    assert "+0.00" in texts(plots.bar_plot(["a", "b"], np.zeros(2)))


def test_hidden_labels_are_counted():
    assert "93 more in between" in texts(DRAWINGS["bars"])
    assert "93 labels" in DRAWINGS["bars"].description


def test_a_heat_map_has_one_tile_a_prediction_in_the_colour_of_its_value():
    values = np.array([[1.0, 5.0], [2.0, 3.0], [4.0, 1.5]])
    drawing = plots.heat_map(["a", "b", "c"], ["x", "y"], values, 1.0, 5.0)
    scale = colormaps["cividis"]
    tiles = {}
    for value in values.ravel():
        [tile, *rest] = boxes(drawing, to_hex(scale((value - 1) / 4)))
        tiles[value] = tile
        assert len(rest) <= 1  # the same colour once more in the scale
    assert tiles[1.0][0] < tiles[5.0][0]
    assert tiles[1.0][1] == tiles[5.0][1] < tiles[2.0][1] < tiles[4.0][1]
    assert "from 1 (a, x) to 5 (a, y)" in drawing.description


def test_maps_of_one_number_and_of_one_cell_can_be_drawn():
    assert "to 3 (" in plots.heat_map(["a"], ["x"], np.array([[3.0]]), 3.0, 3.0).description


def test_a_long_series_is_averaged_and_says_so():
    hours = np.datetime64("2020-01-01T00") + np.arange(9000)
    drawing = plots.line_plot(hours, np.sin(np.arange(9000) / 500))
    assert "9,000 points are averaged to 240" in drawing.description
    assert len(drawing.svg) < 10_000
    assert "averaged" not in DRAWINGS["line"].description


def test_a_series_is_drawn_in_the_order_of_time():
    turned = plots.line_plot(DAYS[::-1], np.arange(100.0)[::-1])
    assert turned == plots.line_plot(DAYS, np.arange(100.0))
    assert "lowest +0.00 at 2020-01-01, highest +99.00 at 2020-04-09" in turned.description


def test_the_curve_never_lies_below_what_is_known():
    """Between two known deltas only the epsilon of the smaller one is known to hold."""
    figure = ElementTree.fromstring(DRAWINGS["curve"].svg)
    [line] = [
        part.get("d")
        for part in figure.iter("path")
        if f"stroke: {plots.ABOVE}" in part.get("style") and part.get("d") and "fill: none" in part.get("style")
    ]
    points = np.array(re.findall(r"[ML] ?(-?[\d.]+) (-?[\d.]+)", line), dtype=float)
    moves = np.diff(points, axis=0)
    assert ((moves == 0).any(axis=1)).all()  # steps, along first and then down
    assert moves[0, 1] == 0
    assert (moves >= 0).all()
    assert "epsilon 1.2 at delta 1e-06" in DRAWINGS["curve"].description


@pytest.mark.parametrize("points", [[], [(1e-6, 1.0)], [(0.0, 1.0)], [(0.0, 1.0), (1e-6, 1.0)], [(1e-6, np.inf)]])
def test_no_curve_where_there_is_none(points):
    assert plots.curve_plot(points, (1e-6, 1.0)) is None


@pytest.mark.parametrize(
    "labels, first",
    [
        (np.array(["1997-09-20", "1997-09-21"], dtype="datetime64[D]"), "1997-09-20"),
        (["2024-02", "2024-01"], "2024-02-01"),
        (["2024-W01", "2024-W02"], "2024-01-01"),
        (["2024-02-29 13:00", "2024-02-29 14:00"], "2024-02-29 13:00"),
        (["2024-02-29T13:30:00Z", "2024-02-29T14:30:00Z"], "2024-02-29 13:30"),
    ],
)
def test_times_are_known_by_their_form(labels, first):
    assert plots.day(plots.times_of(labels)[0]) == first


@pytest.mark.parametrize(
    "labels",
    [
        None,
        ["2024-01-01"],
        ["2024-01-01", "none"],
        ["2024-02-31", "2024-03-01"],
        ["2024-W60", "2024-W01"],
        [1, 2, 3],
        np.array(["NaT", "2020-01-01"], dtype="datetime64[D]"),
    ],
)
def test_other_labels_are_no_times(labels):
    assert plots.times_of(labels) is None


@pytest.mark.parametrize(
    "number, text", [(0, "+0.00"), (1234.5, "+1.2e+03"), (-0.001, "−0.001"), (-2.345, "−2.35"), (0.5, "+0.50")]
)
def test_numbers_are_short_and_signed(number, text):
    assert plots.signed(number) == text


@pytest.mark.parametrize("number", [1e17, -1e150, 0.0])
def test_a_map_of_one_large_number_can_be_drawn(number):
    drawing = plots.heat_map(["a", "b"], ["c"], np.full((2, 1), number), number, number)
    assert "nan" not in drawing.svg
