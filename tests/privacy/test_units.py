"""Units: what they are called, what they refuse, and what they say."""

import dataclasses

import pytest

from tensorveil.errors import InputError
from tensorveil.privacy.plan import neighbours_of, public_facts
from tensorveil.privacy.units import Unit

NAMES = ("user", "film", "day")


@pytest.mark.parametrize(
    "text, unit",
    [
        ("value", Unit.value()),
        ("entry", Unit.entry()),
        ("slice:user", Unit.slice("user")),
        ("slice:2", Unit.slice(2)),
        ("slice_values:0", Unit.slice_values(0)),
        ("slice_values:-1", Unit.slice_values(-1)),
        ("slice:two words", Unit.slice("two words")),
    ],
)
def test_a_text_and_its_object_are_the_same_unit(text, unit):
    assert Unit.of(text) == unit
    assert Unit.of(unit) is unit
    assert str(unit) == text
    assert Unit.of(str(unit)) == unit


@pytest.mark.parametrize("text", ["", "user", "values", "Value", "entries", "slice_value:0", " value", ":user"])
def test_an_unknown_kind_is_an_error_that_names_the_known_ones(text):
    with pytest.raises(InputError, match="slice:MODE"):
        Unit.of(text)


@pytest.mark.parametrize("missing", [None, 0, 1.5, True, ["value"]])
def test_a_missing_unit_is_an_error_and_never_a_guess(missing):
    with pytest.raises(InputError, match="unit must be value, entry"):
        Unit.of(missing)


@pytest.mark.parametrize("text", ["slice", "slice:", "slice_values", "slice_values:"])
def test_a_slice_unit_must_name_its_mode(text):
    with pytest.raises(InputError, match="must name a mode"):
        Unit.of(text)


@pytest.mark.parametrize("text", ["value:0", "entry:user", "value:"])
def test_a_unit_of_single_observations_must_not_name_a_mode(text):
    with pytest.raises(InputError, match="must not name a mode"):
        Unit.of(text)


@pytest.mark.parametrize("text", ["value", "entry"])
def test_at_most_goes_with_slices_only(text):
    with pytest.raises(InputError, match="at_most must be used with a slice unit"):
        Unit.of(text, at_most=3)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
def test_at_most_is_a_positive_whole_number(wrong):
    with pytest.raises(InputError, match="at_most must be a positive whole number"):
        Unit.of("slice:0", at_most=wrong)


def test_at_most_is_kept_through_resolving():
    assert Unit.of("slice:film", at_most=7).resolved(NAMES) == Unit("slice", 1, 7)
    assert Unit.of(Unit.slice("film", at_most=7)).at_most == 7


@pytest.mark.parametrize("mode, number", [("user", 0), ("day", 2), (1, 1), (-1, 2), (-3, 0)])
def test_a_mode_is_found_by_name_or_number(mode, number):
    assert Unit.slice(mode).resolved(NAMES).mode_number == number


@pytest.mark.parametrize("mode", ["movie", "User", 3, -4, 1.5])
def test_a_mode_that_does_not_exist_is_an_error(mode):
    with pytest.raises(InputError, match="mode"):
        Unit.slice(mode).resolved(NAMES)


def test_an_unresolved_name_has_no_number():
    with pytest.raises(InputError, match="resolved"):
        _ = Unit.slice("user").mode_number


def test_units_without_a_mode_resolve_to_themselves():
    assert Unit.value().resolved(NAMES) == Unit.value()
    assert Unit.entry().resolved(()) == Unit.entry()


def test_a_unit_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Unit.value().kind = "entry"


@pytest.mark.parametrize(
    "unit, public, slices",
    [("value", True, False), ("slice_values:0", True, True), ("entry", False, False), ("slice:0", False, True)],
)
def test_only_replaced_values_leave_coordinates_public(unit, public, slices):
    found = Unit.of(unit)
    assert found.coordinates_public is public
    assert found.whole_slices is slices
    assert ("coordinates" in public_facts(found)) is public
    assert ("replaced" in neighbours_of(found, "user")) is public
    assert ("added or removed" in neighbours_of(found, "user")) is not public
    assert ("user" in neighbours_of(found, "user")) is slices


@pytest.mark.parametrize("text", ["slice:--1", "slice:²"])
def test_a_mode_that_only_looks_like_a_number_is_a_name_that_is_not_there(text):
    with pytest.raises(InputError):
        Unit.of(text).resolved(NAMES)
