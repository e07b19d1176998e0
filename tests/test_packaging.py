"""What people install: one version, documented extras, files that are not Python, a workflow of our own checks."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import tensorveil as tv

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_has_one_place_and_the_papers_agree():
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tensorveil.__version__"}
    assert version("tensorveil") == tv.__version__
    assert re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == tv.__version__
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == tv.__version__


def test_every_extra_is_documented_and_in_the_tools():
    extras = PROJECT["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "extras.md").read_text()
    for name in set(extras) - {"dev"}:
        assert f"| `{name}` |" in page, name


def test_files_that_are_not_python_are_packed():
    source = ROOT / "src" / "tensorveil"
    packed = PROJECT["tool"]["setuptools"]["package-data"]["tensorveil"]
    for path in source.rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc", ".nbi", ".nbc"):
            assert any(path.relative_to(source).match(pattern) for pattern in packed), path


@pytest.mark.parametrize("words", [".ci/run", "make docs", "make dist"])
def test_the_workflow_runs_what_we_run(words):
    assert f"- run: {words}\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
