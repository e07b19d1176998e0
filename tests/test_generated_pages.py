"""Pages that are made from the code are as the code is."""

import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

import tensorveil as tv
from tensorveil.cli.app import app

DOCS = Path(__file__).parents[1] / "docs"

_spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.fixture(scope="module")
def pages():
    return generate.pages()


@pytest.mark.parametrize(
    "name",
    [
        "choose_a_mechanism.md",
        "data_flow.md",
        "command_line.md",
        "theorems.md",
        "api.md",
        "guarantee.schema.json",
        "certificate.schema.json",
    ],
)
def test_a_generated_page_is_up_to_date(pages, name):
    assert (DOCS / name).read_text() == pages[name], "run: make docs"


def test_every_theorem_of_a_mechanism_but_those_of_options_is_in_the_table(pages):
    named = {name for name in generate.THEOREMS if name in pages["choose_a_mechanism.md"]}
    optional = {"gradient-sampled", "local-channel"}  # chosen by an option, and by clients, not by default
    assert (
        named
        >= {name for name, one in generate.THEOREMS.items() if one.mechanism not in ("offsets", "ledger")} - optional
    )


def test_every_public_name_command_and_theorem_has_its_line(pages):
    named = set(re.findall(r"^   tensorveil\.(\w+)$", pages["api.md"], re.M))
    assert named == {name for name in tv.__all__ if not name.startswith("_")}
    sections = re.findall(r"^## tensorveil (.+)$", pages["command_line.md"], re.M)
    helped = CliRunner().invoke(app, ["--help"]).output
    assert {section.split()[0] for section in sections} == set(
        re.findall(r"^  (\w+)  ", helped.split("Commands:")[1], re.M)
    )
    assert "--epsilon" in pages["command_line.md"].split("## tensorveil complete")[1].split("## ")[0]
    assert all(f"[{theorem}](proofs/" in pages["theorems.md"] for theorem in generate.THEOREMS)


def test_guarantees_keep_to_the_published_schema():
    schema = json.loads((DOCS / "guarantee.schema.json").read_text())
    data = tv.Observations(np.argwhere(np.ones((4, 3, 2))), np.linspace(1, 5, 24), (4, 3, 2))
    plan = tv.StatisticPerturbation().plan(tv.CP(2), tv.Bounds(1, 5), "value", 1.0, shape=(4, 3, 2))
    claimed = tv.published.PublishedInput().run(data, tv.CP(2), 1.0, tv.SGD(iterations=1), seed=0)
    for guarantee in (tv.fit(data, plan).guarantee, claimed.guarantee):
        jsonschema.validate(json.loads(guarantee.to_json()), schema)
    broken = json.loads(claimed.guarantee.to_json()) | {"epsilon": -1.0}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)
