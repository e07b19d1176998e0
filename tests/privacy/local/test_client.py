"""The client at the source: its table, its symbols, its memory and its files; against fractions and counts."""

import ast
import json
import math
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tensorveil as tv
from tensorveil.errors import InputError
from tensorveil.privacy.local import client, randomizing
from tensorveil.privacy.local.client import LocalProtocol, Memory, answer, check_table

ROOT = Path(__file__).parents[3]
VECTORS = json.loads((ROOT / "docs" / "local_test_vectors.json").read_text())
UNLIKELY = 1e-6
TOTAL = 2**62


def five_stars(epsilon: float = 2.0) -> LocalProtocol:
    return tv.design_protocol(tv.Bounds(1, 5), epsilon, levels=[1, 2, 3, 4, 5])


def two_symbols(chance: int, other: int) -> tuple[tuple[int, int], ...]:
    return ((chance, TOTAL - chance), (other, TOTAL - other))


def log_ratio(counts) -> Decimal:
    """The largest log ratio with 80 digits, by another method than the client's."""
    with localcontext() as context:
        context.prec = 80
        return max((Decimal(max(column)) / Decimal(min(column))).ln() for column in zip(*counts, strict=True))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, TOTAL - 1), st.integers(1, TOTAL - 1), st.floats(-1e-9, 1e-9))
def test_a_table_is_refused_exactly_if_its_ratio_is_above_epsilon(one, other, away):
    counts = two_symbols(one, other)
    true = log_ratio(counts)
    epsilon = max(float(true) * (1 + away), 5e-324)
    if abs(Decimal(epsilon) - true) < Decimal("1e-60"):
        return  # nearer than 80 digits can tell
    if Decimal(epsilon) > true:
        check_table(counts, epsilon)
    else:
        with pytest.raises(InputError, match="keep within epsilon"):
            check_table(counts, epsilon)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 5.0, 16.0, 300.0])
def test_designed_tables_pass_and_one_count_more_than_epsilon_allows_is_refused(epsilon):
    check_table(five_stars(epsilon).counts, epsilon)
    high = int(Fraction(TOTAL) * Fraction(math.exp(min(epsilon, 40))) / (1 + Fraction(math.exp(min(epsilon, 40)))))
    if epsilon < 40:
        with pytest.raises(InputError, match="keep within epsilon"):
            check_table(two_symbols(high + 2**20, TOTAL - high), epsilon)


@pytest.mark.parametrize(
    "counts",
    [
        ((TOTAL,),),  # one level
        ((TOTAL, 0), (TOTAL - 1, 1)),  # a symbol that excludes a level
        ((TOTAL, 1), (TOTAL, 1)),  # too much
        ((TOTAL + 1, -1), (TOTAL + 1, -1)),
        ((TOTAL,), (TOTAL - 1, 1)),
        tuple((TOTAL,) for _ in range(65)),
    ],
)
def test_tables_that_are_no_tables_of_chances_are_refused(counts):
    with pytest.raises(InputError):
        check_table(counts, 60.0)


def test_a_wrong_table_is_refused_by_the_client_even_with_a_matching_hash():
    facts = json.loads(five_stars(2.0).to_json())
    facts["epsilon"] = 1.9
    for broken in (facts, facts | {"sha256": "0" * 64}):
        with pytest.raises(InputError, match="keep within epsilon"):
            LocalProtocol.from_json(json.dumps(broken))
    facts["epsilon"] = 2.5  # the table is fine, the hash is not
    with pytest.raises(InputError, match="sha256"):
        LocalProtocol.from_json(json.dumps(facts))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "another"},
        {"bits": 61},
        {"more": 1},
        {"counts": [[1.5, 2], [1, 2]]},
        {"edges": [1.5, 2.5, 2.5, 4.5]},
        {"edges": [1.5, 2.5, 3.5]},
        {"levels": [1, 2, 3, 4, 4.2]},
        {"epsilon": True},
        {"epsilon": -1.0},
        {"low": 7.0},
        {"edges": [1.5, 2.5, 3.5, float("nan")]},
    ],
)
def test_files_that_are_no_protocols_are_refused(change):
    with pytest.raises(InputError):
        LocalProtocol.from_json(json.dumps(json.loads(five_stars().to_json()) | change))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"low": 1, "low": 2}', "[" * 100_000])
def test_other_texts_are_refused(text):
    with pytest.raises(InputError):
        LocalProtocol.from_json(text)


def test_a_protocol_survives_its_file(tmp_path):
    for bounds in (tv.Bounds(1, 5), tv.Bounds(0.1, 0.7), tv.Bounds(-3e8, 1e9)):
        protocol = tv.design_protocol(bounds, 1.5)
        assert LocalProtocol.load(protocol.save(tmp_path / "p.json")) == protocol


def test_symbols_have_the_chances_of_the_table():
    protocol, count = five_stars(1.0), 60_000
    for value in (1.0, 4.0):
        chances = np.array([float(Fraction(one, TOTAL)) for one in protocol.counts[round(value) - 1]])
        for drawn in (tv.randomize(np.full(count, value), protocol), client.draw([value] * count, protocol)):
            found = np.bincount(drawn, minlength=len(chances))
            assert stats.chisquare(found, chances * count).pvalue > UNLIKELY


def test_the_test_vectors_hold_in_both_clients(monkeypatch):
    protocol = LocalProtocol.from_json(VECTORS["protocol"])
    assert protocol.sha256 == VECTORS["sha256"]
    assert json.loads(VECTORS["canonical_json"]) == protocol.facts()
    rows = [(value, int(word), level, symbol) for value, word, level, symbol in VECTORS["rows"]]
    assert len(rows) == 60
    assert len({symbol for *_, symbol in rows}) == len(protocol.counts[0])
    for value, word, level, symbol in rows:
        below = sum(Fraction(edge) <= Fraction(value) for edge in protocol.edges)
        ends = [sum(protocol.counts[level][: place + 1]) for place in range(len(protocol.counts[level]))]
        assert level == below == protocol.level(value)
        assert symbol == sum(end <= word for end in ends) == protocol.symbol(level, word)
    words = iter(word for _, word, *_ in rows)
    monkeypatch.setattr(client.secrets, "randbits", lambda bits: next(words))
    assert client.draw([value for value, *_ in rows], protocol) == [symbol for *_, symbol in rows]
    all_words = np.array([word for _, word, *_ in rows], dtype=np.uint64) << np.uint64(2)  # the upper 62 bits
    monkeypatch.setattr(randomizing, "system_words", lambda count: all_words)
    assert tv.randomize([value for value, *_ in rows], protocol).tolist() == [symbol for *_, symbol in rows]


def test_a_replaced_value_changes_its_own_answer_alone_under_the_same_words(monkeypatch):
    protocol, generator = five_stars(2.0), np.random.default_rng(0)
    words = generator.integers(0, 2**64, 50, dtype=np.uint64)
    monkeypatch.setattr(randomizing, "system_words", lambda count: words)
    values = generator.uniform(1, 5, 50)
    before = tv.randomize(values, protocol)
    for place in (0, 17, 49):
        for other in (1.0, 5.0, 1e30):
            after = tv.randomize(np.where(np.arange(50) == place, other, values), protocol)
            assert np.delete(after, place).tolist() == np.delete(before, place).tolist()


def test_the_order_of_the_rows_is_forgotten(monkeypatch):
    protocol = five_stars()
    cells, values = [("b", "1"), ("a", "2"), ("a", "2"), ("a", "1")], [1.0, 5.0, 2.0, 3.0]
    word_of = dict(zip(values, (5, 2**61, 2**60, 2**62 - 1), strict=True))

    def drawn(numbers, protocol):  # each value by a word of its own, in whichever row it is
        return [protocol.symbol(protocol.level(number), word_of[number]) for number in numbers]

    found = {
        tuple(answer([cells[place] for place in order], [values[place] for place in order], protocol, None, drawn)[0])
        for order in permutations(range(4))
    }
    assert len(found) == 1
    assert [cell for cell, _ in next(iter(found))] == sorted(cells)


def test_a_question_asked_again_gets_its_first_answer_whatever_the_value_is_now(tmp_path):
    protocol, path = five_stars(0.5), tmp_path / "memory.json"
    cells = [(str(place), "x") for place in range(300)]
    first, new = answer(cells, [1.0] * 300, protocol, Memory(protocol, path))
    assert new == 300
    again, new = answer(cells[::-1], [5.0] * 300, protocol, Memory(protocol, path))
    assert (again, new) == (first, 0)
    more, new = answer([*cells, ("300", "x")], [5.0] * 301, protocol, Memory(protocol, path))
    assert new == 1
    assert set(first) <= set(more)
    assert answer(cells, [1.0] * 300, protocol, None)[0] != first  # without a memory: drawn anew
    kept = path.read_text()
    assert set(json.loads(kept)) == {"protocol", "columns", "answers"}  # cells and symbols, no value
    with pytest.raises(InputError, match="same protocol"):
        Memory(five_stars(0.6), path)
    with pytest.raises(InputError, match="occur once"):
        answer([("1", "x")] * 2, [1.0, 2.0], protocol, Memory(protocol))
    with pytest.raises(InputError, match="tabs"):
        answer([("1\t", "x")], [1.0], protocol, Memory(protocol))


SPELLINGS = [
    ["7", "7.0", " 7", "7 ", "7.", "+7", "07", "7e0", "7.000", "\uff17"],
    ["1000", "1e3", "1E+03", "1000.0", "1_000"],
    ["0", "-0", "0.0", "-0.0"],
    ["0.1", "0.10", "1e-1", repr(float(np.float32(0.1))), str(np.float32(0.1))],
    ["12345678901234567890", "1.2345678901234567e+19", str(float(12345678901234567890))],
    ["2024-05-03", "2024-05-03 00:00:00", "2024-05-03T00:00", "2024-05-03T00:00:00.000000000", "2024-05-03T00:00:00Z",
     "2024-05-03 00:00:00+00:00", "2024-05-03T02:00:00+02:00", "2024-05-03 00:00:00 UTC", "2024-05-02T19:00:00-0500"],
    ["2024-05-03 14:30:00.123456", "2024-05-03T14:30:00.123456789"],
    ["True", "true", "TRUE"],
    ["caf\u00e9", "cafe\u0301"],
    ["Ann"], ["ann"], ["7a"], ["8"], ["0.2"], ["2024-05-04"], ["16777216.5"], ["16777217.5"], ["2024-05"], ["f7"],
]  # fmt: skip


def test_a_label_that_a_program_wrote_is_known_again():
    found = [{client.label_key(text) for text in texts} for texts in SPELLINGS]
    assert [len(keys) for keys in found] == [1] * len(SPELLINGS)
    assert len(set().union(*found)) == len(SPELLINGS)  # and what is different stays so


@settings(max_examples=300, deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_number_has_one_key_in_single_and_double_precision(number):
    """Against NumPy and Python, as they write it: in its own precision, in double precision, as a whole number."""
    texts = {repr(number), f"{number:.17e}", f" {number!r}"}
    if number.is_integer():
        texts.add(str(int(number)))
    if abs(number) < 2**24:  # above, single precision confuses labels, and files that have it are refused
        texts.add(str(np.float32(number)))
    assert len(set(map(client.label_key, texts))) == 1


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.floats().map(repr), st.datetimes(timezones=st.timezones()).map(str)))
def test_the_key_of_a_key_is_itself(text):
    """A memory is read by the keys of what it has, which are keys already."""
    assert client.label_key(client.label_key(text)) == client.label_key(text)


def test_labels_of_one_key_share_an_answer_that_the_order_of_the_rows_does_not_choose():
    protocol, cells, values = five_stars(40.0), [("7", "x"), ("007", "x"), ("8", "x")], [1.0, 5.0, 3.0]
    told = {
        tuple(
            answer([cells[place] for place in order], [values[place] for place in order], protocol, Memory(protocol))[0]
        )
        for order in permutations(range(3))
    }
    high, middle = (int(np.argmax(protocol.counts[level])) for level in (4, 2))
    assert told == {((("007", "x"), high), (("7", "x"), high), (("8", "x"), middle))}


def test_a_memory_of_an_earlier_version_is_read_by_keys(tmp_path):
    protocol, path = five_stars(0.5), tmp_path / "memory.json"
    kept = {"7.0\t2024-05-03 00:00:00": 1, "7\t2024-05-03": 0, "ann\tx": 1}
    path.write_text(json.dumps({"protocol": protocol.sha256, "columns": [], "answers": kept}))
    cells = [("7", "2024-05-03"), ("ann", "x")]
    for _ in range(20):
        assert answer(cells, [5.0, 5.0], protocol, Memory(protocol, path)) == ([(cells[0], 1), (cells[1], 1)], 0)


def test_a_link_and_its_file_are_one_memory(tmp_path):
    (tmp_path / "real").mkdir()
    protocol, real, link = five_stars(0.5), tmp_path / "real" / "memory.json", tmp_path / "link.json"
    cells = [(str(place), "x") for place in range(300)]
    link.symlink_to(real)  # to a file that is not there yet
    first, new = answer(cells, [1.0] * 300, protocol, Memory(protocol, link))
    assert (new, link.is_symlink()) == (300, True)
    assert answer(cells, [5.0] * 300, protocol, Memory(protocol, real)) == (first, 0)
    (tmp_path / "hard.json").hardlink_to(real)
    with pytest.raises(InputError, match="hard links"):
        Memory(protocol, tmp_path / "hard.json")


def _answer_once(path, value, go):
    protocol = five_stars(0.5)
    memory = Memory(protocol, path)
    go.wait()  # both have read the empty memory by now
    return answer([(str(place), "x") for place in range(200)], [value] * 200, protocol, memory)[0]


def test_two_clients_with_one_memory_at_once_give_one_answer(tmp_path):
    go = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda value: _answer_once(tmp_path / "memory.json", value, go), [1.0, 5.0])
    assert one == two


def test_an_answer_that_could_not_be_stored_is_drawn_anew(tmp_path, monkeypatch):
    protocol, path = five_stars(0.5), tmp_path / "memory.json"
    memory, cells = Memory(protocol, path), [(str(place), "x") for place in range(200)]

    def full(*arguments):
        raise InputError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(client, "write_aside", full)
        with pytest.raises(InputError, match="full"):
            answer(cells, [1.0] * 200, protocol, memory)
    first, new = answer(cells, [1.0] * 200, protocol, memory)
    assert new == 200
    assert answer(cells, [5.0] * 200, protocol, Memory(protocol, path)) == (first, 0)


@pytest.mark.parametrize("text", ["", "[]", '{"protocol": "x", "answers": {"a": 99}}', '{"answers": {"a": "b"}}'])
def test_a_damaged_memory_is_refused(tmp_path, text):
    path = tmp_path / "memory.json"
    path.write_text(text)
    with pytest.raises(InputError, match="memory must be"):
        Memory(five_stars(), path)


def test_a_number_beyond_the_range_of_floats_is_refused():
    found = json.loads(five_stars().to_json())
    with pytest.raises(InputError, match="must be numbers"):
        client.LocalProtocol.from_json(json.dumps({**found, "high": 10**400}))


def test_a_memory_of_other_columns_is_refused(tmp_path):
    path = tmp_path / "memory.json"
    memory = Memory(five_stars(), path, ["user", "film", "rating"])
    first, _ = client.answer([("u", "f")], [4.0], five_stars(), memory)
    again = Memory(five_stars(), path, ["user", "film", "rating"])
    assert client.answer([("u", "f")], [1.0], five_stars(), again) == (first, 0)
    for others in (["film", "user", "rating"], ["user", "film", "price"]):
        with pytest.raises(InputError, match="same protocol, modes and value"):
            Memory(five_stars(), path, others)


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-300, 1e300), st.integers(1, 10**6))
def test_what_a_person_spent_is_never_rounded_down(epsilon, answers):
    total = randomizing.spent(epsilon, answers)
    exact = Fraction(epsilon) * answers
    assert Fraction(total) >= exact
    assert Fraction(math.nextafter(total, 0.0)) < exact or Fraction(total) == exact


def test_values_that_are_no_numbers_are_refused():
    for wrong in ([math.nan], [1.0, math.inf]):
        with pytest.raises(InputError, match="finite"):
            tv.randomize(wrong, five_stars())
        with pytest.raises(InputError, match="finite"):
            client.draw(wrong, five_stars())


def test_the_client_runs_alone_without_any_library_and_repeats_itself(tmp_path):
    """The file is copied elsewhere and run in isolated mode, where neither tensorveil nor NumPy can be imported."""
    shutil.copy(client.__file__, tmp_path / "client.py")
    five_stars(3.0).save(tmp_path / "p.json")
    (tmp_path / "mine.csv").write_text("user,film,rating,secret\nb,7,4,x\na,9,1.5,y\n")
    block = "import sys; sys.modules['numpy'] = sys.modules['tensorveil'] = None\n"
    arguments = ["mine.csv", "--modes", "user,film", "--value", "rating", "--protocol", "p.json", "--out", "out.csv"]
    code = f"{block}import runpy; sys.argv[1:] = {arguments!r}; runpy.run_path('client.py', run_name='__main__')"
    outputs = []
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        outputs.append((tmp_path / "out.csv").read_text())
        assert "2 answers" in told
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert lines[0] == "user,film,rating_symbol"
    assert [line.rsplit(",", 1)[0] for line in lines[1:]] == ["a,9", "b,7"]


def test_randomize_imports_numpy_and_no_other_large_library():
    heavy = ("numba", "scipy", "pyarrow", "pandas", "randomgen", "typer", "pydantic", "rich")
    code = (
        "import sys, tensorveil as tv; tv.randomize; import tensorveil.cli.local.randomize, tensorveil.__main__;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(found) == []
