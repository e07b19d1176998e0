"""The house rules of the source: imports go downwards, files stay short, input is never checked by assert."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorveil

ROOT = Path(tensorveil.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MAX_LINES = 500

# from the ground up: a module may import from its own room and from those before it; a new room gets a place here
ROOMS = (
    "errors",
    "checks",
    "metrics",
    "data",
    "kernels",
    "models",
    "engines",
    "solvers",
    "privacy",
    "inference",
    "mechanisms",
    "published",
    "release",
    "audit",
    "demo",
    "cli",
    "__main__",
)
DOOR = ""  # tensorveil/__init__.py: below everything, since anyone may import it; it imports nothing itself


def _room(module: str) -> str:
    """The room of a module's dotted name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else DOOR


def _name(path: Path) -> str:
    parts = ["tensorveil", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path) for path in FILES}


def _height(room: str) -> int:
    if room == DOOR:
        return -1
    assert room in ROOMS, f"{room} has no place yet: put it into ROOMS, in the order of the way the data take"
    return ROOMS.index(room)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, those below `if TYPE_CHECKING` excepted."""
    for child in ast.iter_child_nodes(tree):
        if _is_for_type_checkers(child):
            for other in child.orelse:
                yield other
                yield from _nodes(other)
            continue
        yield child
        yield from _nodes(child)


def _imports(text: str) -> set[str]:
    """Dotted names of what a source imports from the package, inside functions too."""
    found = set()
    for node in _nodes(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "tensorveil"}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            if node.module == "tensorveil":
                found |= {f"tensorveil.{alias.name}" for alias in node.names if alias.name != "__version__"}
            elif node.module and node.module.startswith("tensorveil."):
                modules = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES
                found |= modules or {node.module}
    return found


def _upward(module: str, text: str) -> list[str]:
    """Imports that go up."""
    mine = _height(_room(module))
    return sorted(other for other in _imports(text) if _height(_room(other)) > mine)


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_go_downwards_only(path):
    assert _upward(_name(path), path.read_text()) == []


def test_every_module_has_a_place():
    for path in FILES:
        _height(_room(_name(path)))


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
    assert _upward(module, text) != []


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
    assert _upward(module, text) == []


def test_a_module_without_a_place_makes_the_rule_fail():
    with pytest.raises(AssertionError, match="has no place yet"):
        _upward("tensorveil.attic", "")
    with pytest.raises(AssertionError, match="has no place yet"):
        _upward("tensorveil.cli", "from tensorveil.attic import box")


def test_modules_of_one_room_do_not_import_each_other_in_a_circle():
    needs = {_name(path): _imports(path.read_text()) for path in FILES}

    def reach(start: str, seen: frozenset[str]) -> None:
        for other in needs.get(start, ()):
            assert other not in seen, f"a circle through {start} and {other}"
            reach(other, seen | {other})

    for module in needs:
        reach(module, frozenset({module}))


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_file_is_longer_than_five_hundred_lines(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_input_is_checked_by_assert(path):
    lines = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert lines == []


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_nothing_is_left_to_do(path):
    text = path.read_text().upper()
    assert [word for word in ("TODO", "FIXME", "XXX") if word in text] == []


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text()))
