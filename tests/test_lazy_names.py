"""The public names of the package, resolved on first use."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tensorveil

HEAVY = ("numpy", "numba", "scipy", "pyarrow", "pandas", "matplotlib", "typer", "rich", "tensorly")


def test_importing_the_package_imports_none_of_the_large_libraries():
    code = f"import sys, tensorveil; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(found) == []


@pytest.mark.parametrize("name", sorted(set(tensorveil.__all__) - {"__version__"}))
def test_each_public_name_is_the_thing_in_its_home(name):
    found = getattr(tensorveil, name)
    home = importlib.import_module(tensorveil._HOMES[name])
    assert found is home or found is getattr(home, name)
    assert tensorveil.__dict__[name] is found  # the second time no search is needed


def test_public_modules_are_modules_and_classes_are_classes():
    assert tensorveil.published.__name__ == "tensorveil.published"
    assert tensorveil.synthetic.__name__ == "tensorveil.data.datasets.synthetic"
    assert tensorveil.CP.__module__ == "tensorveil.models.cp"


def test_type_checkers_see_the_same_names_from_the_same_homes():
    tree = ast.parse(Path(tensorveil.__file__).read_text())
    seen = {}
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    assert alias.asname == alias.name, "without 'as' a type checker takes the name for private"
                    whole = f"{statement.module}.{alias.name}"
                    home = tensorveil._HOMES.get(alias.name)
                    seen[alias.name] = whole if home == whole else statement.module
    assert seen == tensorveil._HOMES


def test_the_list_of_names_is_what_dir_says_and_holds_the_version():
    assert dir(tensorveil) == sorted(tensorveil.__all__)
    assert len(set(tensorveil.__all__)) == len(tensorveil.__all__)
    assert tensorveil.__version__ == "0.1.0"


def test_a_star_import_gives_every_name():
    names: dict[str, object] = {}
    exec("from tensorveil import *", names)
    assert set(tensorveil.__all__) <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tensorveil.nonsense
    assert not hasattr(tensorveil, "__path__x")
