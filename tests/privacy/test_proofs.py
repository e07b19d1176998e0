"""Theorems, proof pages, labels in the source, tests that are named, and the lock all fit together."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tensorveil.privacy.theorems import THEOREMS

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "docs" / "proofs"
PARTS = ("Promise", "Assumptions", "Proof", "Numerics not covered", "Tests")

_spec = importlib.util.spec_from_file_location("proof_lock", PROOFS / "lock.py")
lock = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lock)


def section(theorem: str) -> str:
    page = (PROOFS / THEOREMS[theorem].page).read_text()
    found = re.search(rf"^## {re.escape(theorem)}\b.*?(?=^## |\Z)", page, re.M | re.S)
    return found.group(0) if found else ""


@pytest.mark.parametrize("theorem", THEOREMS)
def test_every_theorem_has_a_section_with_all_its_parts(theorem):
    text = section(theorem)
    missing = [part for part in PARTS if not re.search(rf"^(\*\*|### ){part}", text, re.M)]
    assert text, f"no section ## {theorem} in {THEOREMS[theorem].page}"
    assert not missing, f"{theorem} lacks {missing}"


@pytest.mark.parametrize("theorem", THEOREMS)
def test_every_theorem_is_stated_by_a_function_and_locked_as_it_is(theorem):
    functions = lock.proven_functions().get(theorem)
    assert functions, f"no function is marked @proves({theorem!r})"
    locked = json.loads(lock.LOCK.read_text()).get(theorem)
    assert locked == lock.hashes(theorem), f"read the proof again, then: make reprove NAME={theorem}"


def test_every_label_that_a_page_cites_is_in_a_source_that_it_names():
    cited = 0
    for page in PROOFS.glob("*.md"):
        text = page.read_text()
        sources = "".join((ROOT / path).read_text() for path in set(re.findall(r"`(src/[\w/]+\.py)`", text)))
        for label in set(re.findall(r"\[[A-Z]\d+\]", text)):
            cited += 1
            assert label in sources, f"{page.name} cites {label}, which none of the sources it names has"
    assert cited > 20


def test_every_test_that_a_page_names_exists():
    named = 0
    for page in PROOFS.glob("*.md"):
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text()):
            named += 1
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), f"{page.name}: {path}::{name}"
    assert named > 10


def test_the_lock_holds_nothing_but_theorems():
    assert set(json.loads(lock.LOCK.read_text())) == set(THEOREMS)


def test_a_changed_function_would_be_noticed(monkeypatch):
    before = lock.hash_of("tensorveil.privacy.theorems.covering")
    source = lock.inspect.getsource(lock.find_function("tensorveil.privacy.theorems.covering"))
    monkeypatch.setattr(lock.inspect, "getsource", lambda _: source.replace("unit_kind in theorem.units", "True"))
    assert lock.hash_of("tensorveil.privacy.theorems.covering") != before
    monkeypatch.setattr(lock.inspect, "getsource", lambda _: source.replace("found = tuple(", "found   =   tuple("))
    assert lock.hash_of("tensorveil.privacy.theorems.covering") == before
