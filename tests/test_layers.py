"""The house rules of the source: imports go downwards, rooms and files stay small, input is never checked by assert."""

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
layers = importlib.import_module("layers")
trust = importlib.import_module("trust")
sys.path.remove(str(DOCS))

FILES, name_of = layers.FILES, layers.name_of
MAX_LINES = 400
MOST_MODULES = 8


def upward(module: str, text: str) -> list[str]:
    """Imports that go up."""
    mine = layers.height(layers.room_of(module))
    return sorted(other for other in layers.imports(text) if layers.height(layers.room_of(other)) > mine)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_downwards_only(path):
    assert upward(name_of(path), path.read_text()) == []


@pytest.mark.parametrize(
    "module, text",
    [
        ("tensorveil.data.observations", "from tensorveil.models.cp import CP"),
        ("tensorveil.data.observations", "from tensorveil import models"),
        ("tensorveil.solvers.sgd", "def f():\n    import tensorveil.privacy.guarantee"),
        ("tensorveil.checks", "from tensorveil.metrics import rmse"),
        ("tensorveil", "from tensorveil.errors import InputError"),
    ],
)
def test_the_rule_finds_an_import_that_goes_up(module, text):
    assert upward(module, text) != []


@pytest.mark.parametrize(
    "module, text",
    [
        ("tensorveil.models.cp", "from tensorveil.models.tucker import Tucker"),
        ("tensorveil.published", "from tensorveil import checks"),
        ("tensorveil.data.observations", "if TYPE_CHECKING:\n    from tensorveil.models.cp import CP"),
        ("tensorveil.cli", "from tensorveil import __version__"),
        ("tensorveil.data.observations", "import numpy"),
    ],
)
def test_the_rule_lets_pass_what_goes_down_or_is_for_type_checkers(module, text):
    assert upward(module, text) == []


def test_a_module_without_a_place_makes_the_rule_fail():
    with pytest.raises(LookupError, match="has no place yet"):
        upward("tensorveil.attic", "")
    with pytest.raises(LookupError, match="has no place yet"):
        upward("tensorveil.cli", "from tensorveil.attic import box")


def test_modules_do_not_import_each_other_in_a_circle():
    needs = {name_of(path): layers.imports(path.read_text()) for path in FILES}
    done = set()

    def reach(start: str, seen: tuple[str, ...]) -> None:
        if start in done:
            return
        for other in needs.get(start, ()):
            assert other not in seen, f"a circle through {start} and {other}"
            reach(other, (*seen, other))
        done.add(start)

    for module in needs:
        reach(module, (module,))


def private_side(text: str) -> list[str]:
    """Imports by which a source could reach private values: observations, shards, noise, kernels of queries."""
    forbidden = ("tensorveil.data.observations", "tensorveil.data.readers")
    return sorted(name for name in layers.imports(text) if name.startswith(forbidden)) + sorted(
        alias.name
        for node in layers.run_nodes(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in ("BoundedObservations", "Observations", "NoiseSource", "clip")
    )


MECHANISMS = [path for path in FILES if layers.room_of(name_of(path)) == "mechanisms"]


@pytest.mark.parametrize("path", MECHANISMS, ids=name_of)
def test_a_mechanism_reaches_no_observation_no_shard_and_no_noise(path):
    assert private_side(path.read_text()) == []


def test_the_rule_for_mechanisms_finds_what_it_forbids():
    assert private_side("from tensorveil.privacy.bounds import BoundedObservations")
    assert private_side("from tensorveil.privacy.noise.source import NoiseSource")
    assert private_side("def f():\n    from tensorveil.data.observations import Observations")


@pytest.mark.parametrize("path", [path for path in FILES if layers.room_of(name_of(path)) == "inference"], ids=name_of)
def test_inference_knows_nothing_of_privacy_but_the_law_of_the_noise(path):
    read = {name for name in layers.imports(path.read_text()) if name.startswith("tensorveil.privacy")}
    assert read <= {"tensorveil.privacy.noise.laws"}


def test_no_room_has_more_than_eight_modules():
    rooms = Counter(path.parent for path in FILES if path.name not in ("__init__.py", "__main__.py"))
    assert {str(room.relative_to(layers.ROOT)): n for room, n in rooms.items() if n > MOST_MODULES} == {}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_is_longer_than_four_hundred_lines(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("mechanism", trust.MECHANISMS)
def test_what_must_be_trusted_for_a_mechanism_can_be_read_in_an_afternoon(mechanism):
    lines = trust.trusted(mechanism)
    assert "tensorveil.privacy.vault" in lines
    assert any(module.startswith("tensorveil.privacy.queries.") for module in trust.queries_of(mechanism))
    assert sum(lines.values()) <= trust.MOST_LINES == 2500


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_input_is_checked_by_assert(path):
    lines = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert lines == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_left_to_do(path):
    text = path.read_text().upper()
    assert [word for word in ("TODO", "FIXME", "XXX") if word in text] == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))
