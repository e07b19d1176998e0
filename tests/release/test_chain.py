"""The file of entries: it only grows, and no byte of it changes unnoticed."""

import sqlite3
from contextlib import closing

import pytest

import tensorveil as tv
from tensorveil.release.ledger import chain
from tensorveil.release.ledger.chain import SCHEMA, Chain, Entry, first_fault


@pytest.fixture
def written(tmp_path):
    found = Chain(tmp_path / "L.sqlite")
    found.create()
    for word in ("one", "two", "three"):
        found.append(lambda _, word=word: {"kind": word})
    return found


def tamper(path, statement, *numbers):
    """Change a row behind the triggers, and put the triggers back."""
    with closing(sqlite3.connect(path)) as connection:
        for name in SCHEMA:
            if name != "entries":
                connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement, numbers)
        for name, sql in SCHEMA.items():
            if name != "entries":
                connection.execute(sql)
        connection.commit()


def test_entries_come_back_in_order_with_who_and_when(written):
    bodies = [entry.body for entry in written.read()]
    assert [body["kind"] for body in bodies] == ["one", "two", "three"]
    assert [body["number"] for body in bodies] == [1, 2, 3]
    assert all(body["time"].endswith("+00:00") and body["process"] > 0 for body in bodies)


def test_an_error_in_the_decision_adds_nothing(written):
    def refuse(entries):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        written.append(refuse)
    assert len(written.read()) == 3


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = '{}' WHERE number = 2",
        "DELETE FROM entries WHERE number = 3",
        "DELETE FROM entries",
        "INSERT OR REPLACE INTO entries SELECT number, previous, body, hash FROM entries WHERE number = 2",
        "INSERT INTO entries VALUES (5, 'x', '{}', 'y')",
        "INSERT INTO entries VALUES (4, 'x', '{}', 'y')",
        "INSERT INTO entries VALUES (0, 'x', '{}', 'y')",
        "INSERT INTO entries VALUES (NULL, 'x', '{}', 'y')",
    ],
)
def test_the_file_itself_refuses_everything_but_the_next_entry(written, statement):
    with closing(sqlite3.connect(written.path)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    assert len(written.read()) == 3


def test_every_changed_character_of_a_row_is_found(written):
    entries = written.read()
    assert first_fault(entries) is None
    for place, entry in enumerate(entries):
        for column in ("previous", "text", "hash"):
            text = getattr(entry, column)
            for at in range(len(text)):
                values = vars(entry) | {column: text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]}
                changed = [*entries[:place], Entry(**values), *entries[place + 1 :]]
                assert first_fault(changed).startswith(f"entry {place + 1}, ")
        assert first_fault([*entries[:place], Entry(**vars(entry) | {"number": 9}), *entries[place + 1 :]])
    assert first_fault(entries[1:]).startswith("entry 1")
    assert first_fault([entries[0], entries[2]]).startswith("entry 2")
    assert first_fault([entries[1], entries[0]]).startswith("entry 1")


@pytest.mark.parametrize("column", ["previous", "body", "hash"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_changed_row_in_the_file_is_refused_by_its_number(written, column, number):
    tamper(written.path, f"UPDATE entries SET {column} = {column} || ' ' WHERE number = ?", number)
    with pytest.raises(tv.BudgetError, match=f"got entry {number}, "):
        written.read()
    with pytest.raises(tv.BudgetError, match=f"got entry {number}, "):
        written.append(lambda _: {"kind": "four"})
    assert len(written.read_unverified()) == 3


def test_a_removed_row_is_found_but_not_the_last_one(written):
    head = written.read()[-1].hash
    tamper(written.path, "DELETE FROM entries WHERE number = ?", 3)
    assert written.read()[-1].hash != head  # only the hash that was kept elsewhere tells
    tamper(written.path, "DELETE FROM entries WHERE number = ?", 1)
    with pytest.raises(tv.BudgetError, match="got entry 1, which is missing"):
        written.read()


def test_a_flipped_bit_in_the_bytes_of_a_row_is_found(written):
    whole = written.path.read_bytes()
    for entry in written.read():
        for part in (entry.text.encode(), entry.hash.encode()):
            at = whole.index(part) + len(part) // 2
            written.path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            with pytest.raises(tv.BudgetError):
                written.read()
    written.path.write_bytes(whole)
    assert len(written.read()) == 3


def test_no_flipped_bit_anywhere_in_the_file_changes_what_is_read(written):
    whole, entries = written.path.read_bytes(), written.read()
    refused = 0
    for at in [*range(100), *range(100, len(whole), 29)]:
        written.path.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            assert written.read() == entries
        except (tv.BudgetError, tv.InputError):
            refused += 1
    assert refused > 20


def test_a_missing_trigger_is_found(written):
    with closing(sqlite3.connect(written.path)) as connection:
        connection.execute("DROP TRIGGER entries_are_not_changed")
    with pytest.raises(tv.BudgetError, match="rules"):
        written.read()


def test_a_text_that_hashes_well_but_is_no_entry_is_refused(written):
    text = "[]"
    tamper(
        written.path,
        "UPDATE entries SET body = ?, hash = ? WHERE number = 3",
        text,
        chain.hash_of(written.read()[1].hash, text),
    )
    with pytest.raises(tv.BudgetError, match="entry 3"):
        written.read()


def test_other_files_are_refused_and_left_as_they_are(tmp_path):
    with pytest.raises(tv.InputError, match="existing file"):
        Chain(tmp_path / "none.sqlite").read()
    assert not (tmp_path / "none.sqlite").exists()
    words = tmp_path / "words.txt"
    words.write_text("not a database, but long enough to be taken for one at first sight " * 40)
    before = words.read_bytes()
    for act in (Chain(words).read, Chain(words).create):
        with pytest.raises(tv.InputError, match=r"made by tensorveil ledger create"):
            act()
    assert words.read_bytes() == before
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE entries (number)")
    for act in (Chain(other).read, Chain(other).create):
        with pytest.raises(tv.InputError, match=r"made by tensorveil ledger create"):
            act()
    with pytest.raises(tv.InputError, match="can be written"):
        Chain(tmp_path / "no" / "such" / "folder.sqlite").create()


def test_creating_twice_keeps_what_is_there(written):
    written.create()
    assert len(written.read()) == 3
    empty = Chain(written.path.with_name("empty.sqlite"))
    empty.path.touch()  # it may have been a ledger that was cut off
    for use in (empty.create, empty.read, lambda: empty.append(lambda entries: {})):
        with pytest.raises(tv.BudgetError, match="got an empty file"):
            use()
    assert empty.path.read_bytes() == b""


def test_creating_leaves_nothing_but_the_file(tmp_path):
    Chain(tmp_path / "L.sqlite").create()
    assert [path.name for path in tmp_path.iterdir()] == ["L.sqlite"]


def test_a_file_that_somebody_holds_is_waited_for_and_then_refused(written, monkeypatch, caplog):
    monkeypatch.setattr(chain, "PATIENCE", 0.05)
    written.append(lambda _: {"kind": "three and a half"})
    assert caplog.text == ""
    with closing(sqlite3.connect(written.path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        for use in (lambda: written.append(lambda _: {"kind": "four"}), written.read):
            with pytest.raises(tv.BudgetError, match="must become free"):
                use()
            assert f"waiting for the ledger {written.path}" in caplog.text
            caplog.clear()
    written.append(lambda _: {"kind": "four"})
    assert len(written.read()) == 5
