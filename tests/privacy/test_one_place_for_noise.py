"""Random bits for privacy come from secret_words.py alone, and at the source from the operating system; the noise that
is merely claimed, from published.py.
"""

import ast
from pathlib import Path

import pytest

import tensorveil

ROOT = Path(tensorveil.__file__).parent
DRAWERS = {"privacy/noise/secret_words.py", "privacy/noise/local_words.py", "privacy/local/client.py", "published.py"}
PRIVATE_ROOMS = ("privacy", "mechanisms", "release", "audit", "kernels")
FILES = sorted(path for room in PRIVATE_ROOMS for path in (ROOT / room).rglob("*.py"))
# randomness that is no noise: which names a file may use, and what for
NOT_NOISE = {
    "audit/runs.py": ({"random"}, "a forked process seeds the global generator anew, for pipelines of others"),
    "audit/worlds.py": ({"random", "default_rng"}, "the audit's data set, the same in every audit"),
    "release/advice/made_up.py": ({"random", "default_rng"}, "made-up tensors, which hold no private value"),
    "release/cells/ranking.py": ({"random", "default_rng"}, "which people a ranking is evaluated for"),
    "release/display/tensorly.py": ({"random", "default_rng"}, "which cells of a large tensor are approximated"),
    "release/evaluation.py": ({"random", "default_rng"}, "which cells two releases are compared at"),
    "release/ledger/ledger.py": ({"secrets"}, "the token of a reservation"),
    "release/report/variation.py": ({"random", "default_rng"}, "which cells' predictions are compared"),
}
MODULES = {"random", "secrets", "randomgen", "numpy.random"}
NAMES = {"random", "default_rng", "RandomState", "SeedSequence", "urandom"}  # np.random, and what comes from it


def randomness(text: str) -> list[str]:
    """Where a source imports or names a generator of random numbers; `np.random.Generator` as a type is allowed."""
    found = []
    tree = ast.parse(text)
    types = {id(part) for node in ast.walk(tree) for part in _annotations(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module for _ in [0] if node.module in MODULES]
            found += [alias.name for alias in node.names if alias.name in NAMES]
        elif isinstance(node, ast.Attribute) and node.attr in NAMES and id(node) not in types:
            found.append(node.attr)
    return found


def _annotations(node: ast.AST) -> list[ast.AST]:
    roots = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [part for root in roots if root is not None for part in ast.walk(root)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_other_file_of_the_private_rooms_draws_anything(path):
    if path.relative_to(ROOT).as_posix() in DRAWERS:
        pytest.skip("the place where it is drawn")
    allowed, _ = NOT_NOISE.get(path.relative_to(ROOT).as_posix(), (set(), ""))
    assert set(randomness(path.read_text())) == allowed


@pytest.mark.parametrize("drawer", sorted(DRAWERS))
def test_the_search_finds_randomness_where_there_is_some(drawer):
    assert randomness((ROOT / drawer).read_text())


@pytest.mark.parametrize(
    "line",
    [
        "import random",
        "import secrets",
        "x = os.urandom(8)",
        "from randomgen import ChaCha",
        "import numpy.random",
        "from numpy import random",
        "from numpy.random import default_rng",
        "x = np.random.normal()",
        "g = numpy.random.default_rng(1)",
    ],
)
def test_every_way_to_reach_a_generator_is_found(line):
    assert randomness(line)
