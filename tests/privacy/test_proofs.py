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


QUERY = "tensorveil.privacy.queries.values.dense.DenseCells.sensitivity"
SUMS = "tensorveil.privacy.queries.sums"
QUERIES = "tensorveil.privacy.queries."


@pytest.mark.parametrize(
    ("name", "module", "old", "new"),
    [
        ("tensorveil.privacy.theorems.covering", None, "unit_kind in theorem.units", "True"),
        (QUERY, None, "changes * largest, VALUE_GRID", "largest, VALUE_GRID"),  # the marked method
        (QUERY, None, "shard.steps - self.default", "2 * shard.steps"),  # `of`
        (QUERY, None, "np.clip(totals[0], -VALUE_STEPS", "np.clip(totals[0], -2 * VALUE_STEPS"),  # `finish`
        (QUERY, None, "min(unit.at_most or cells, cells)", "1"),  # `changes`
        (SUMS + ".lengths.Lengths.sensitivity", None, "1 - 2.0**-20", "1"),  # a constant
        (SUMS + ".row_sums.RowSums.sensitivity", None, "where.shape[mode]", "0"),  # a class beside it
        (SUMS + ".row_sums.RowSums.sensitivity", SUMS + ".scores", "-1.0, 1.0)  # [V1]", "-2.0, 2.0)  # [V1]"),
        (SUMS + ".lengths.Lengths.sensitivity", QUERIES + "base", "2.0**28", "2.0**40"),  # through two modules
        (SUMS + ".row_sums.RowSums.sensitivity", QUERIES + "contributions", "np.trunc(contrib", "np.rint(contrib"),
        (SUMS + ".row_sums.RowSums.sensitivity", QUERIES + "contributions", "STEPS = 2**30", "STEPS = 2**31"),
        ("tensorveil.privacy.queries.values.histogram.Histogram.sensitivity", None, "weights[counted]", "2 * counted"),
    ],
)
def test_changed_code_would_be_noticed_and_changed_words_would_not(monkeypatch, name, module, old, new):
    original, before, home = lock.source_of, lock.hash_of(name), module or lock.module_of(name)[0]
    source = original(home)
    assert old in source
    changed = source.replace(old, new)
    monkeypatch.setattr(lock, "source_of", lambda module: changed if module == home else original(module))
    assert lock.hash_of(name) != before
    reworded = re.sub(r'"""(?=\w)', '"""Other words. ', source).replace("  # ", "    # other ")
    monkeypatch.setattr(lock, "source_of", lambda module: reworded if module == home else original(module))
    assert lock.hash_of(name) == before


@pytest.mark.parametrize("wanted", [[], ["all"], ["histogram", "sums-rows"], ["no-such-theorem"]])
def test_theorems_are_locked_one_at_a_time(monkeypatch, wanted):
    before = lock.LOCK.read_text()
    monkeypatch.setattr(lock.sys, "argv", ["lock.py", *wanted])
    with pytest.raises(SystemExit, match="NAME must be one of"):
        lock.main()
    assert lock.LOCK.read_text() == before


def test_no_page_cites_a_page_that_is_not_there():
    for page in PROOFS.glob("*.md"):
        for cited in re.findall(r"\b([a-z_]+\.md)\b", page.read_text()):
            assert (PROOFS / cited).exists(), f"{page.name} cites {cited}"
