"""README and the first pages of the site: commands and Python run word for word, numbers and links are right."""

import doctest
import json
import re
import shlex
from pathlib import Path

import pytest
import readme_picture
from typer.testing import CliRunner

from tensorveil.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FIRST_RELEASE = ROOT / "docs" / "first_release.md"
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/proofs/*.md"), ROOT / "experiments/README.md"]
)


def blocks(text, kind):
    """Contents of the fenced blocks of one kind."""
    fenced = re.findall(r"^```(\S*)\n(.*?)^```$", text, re.M | re.S)
    return [content for found, content in fenced if found == kind]


def commands(text, kind):
    """The lines of these blocks that call the program."""
    return [line for block in blocks(text, kind) for line in block.splitlines() if line.startswith("tensorveil ")]


def run(command):
    """The output of a command, as it is typed after `tensorveil`; it must succeed."""
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, f"{command}\n{result.output}\n{result.exception!r}"
    return result.output


def test_commands_and_python_of_the_readme_run_word_for_word(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = commands(README, "sh")
    assert [command.split()[1] for command in asked] == ["demo", "complete", "verify"]
    outputs = [run(command) for command in asked]
    assert "Verified" in outputs[-1]
    (python,) = blocks(README, "python")
    (shown,) = blocks(README, "text")
    capsys.readouterr()
    exec(compile(python, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert shown.strip() in printed
    assert shown.strip() in outputs[1]  # the same guarantee on the command line
    assert "prediction" in printed.replace(shown, "")


@pytest.mark.slow
def test_the_first_release_runs_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = FIRST_RELEASE.read_text()
    asked = commands(text, "")
    assert len(asked) >= 7
    for command in asked:
        run(command)
    failed, tried = doctest.testfile(str(FIRST_RELEASE), module_relative=False)
    assert (failed, tried >= 5) == (0, True)


def test_numbers_of_the_readme_are_those_of_the_committed_rows():
    found = readme_picture.curves()
    for number in (found.ours[5.0], found.svdpp, found.mean):
        assert f"{number:.3f}" in README
    rows = [json.loads(line) for line in readme_picture.ROWS.read_text().splitlines()]
    wanted = {"filmtrust": ".3f", "birmingham": ".0f", "mimic": ".3f"}
    for data, form in wanted.items():
        mine = [row for row in rows if row["data"] == data and row["unit"] == "value" and row["epsilon"] == 5.0]
        ours, mean = (
            next(row["rmse"] for row in mine if row["method"] == method and row["variant"] == "default")
            for method in ("ours", "private mean")
        )
        assert re.search(rf"\b{ours:{form}} on [^(]*\(mean {mean:{form}}\)", README), (data, ours, mean)


def test_the_picture_of_the_readme_is_drawn_from_rows(tmp_path):
    found = readme_picture.curves()
    path = tmp_path / "picture.svg"
    readme_picture.draw(found, path)
    first = path.read_bytes()
    readme_picture.draw(found, path)
    assert path.read_bytes() == first
    readme_picture.draw(readme_picture.Curves({1.0: 1.0}, {1.0: 1.1}, 0.9, 1.2), path)
    assert path.read_bytes() != first
    empty = tmp_path / "rows.jsonl"
    with pytest.raises(LookupError, match="must have a row"):
        readme_picture.curves(empty)


def without_code(text):
    """A page without its fenced blocks and inline code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page):
    made_by_the_site = ("gallery/",)
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    inside = [link.partition("#")[0] for link in links if not link.startswith(("http", "#", *made_by_the_site))]
    assert [link for link in inside if not (page.parent / link).exists()] == []
