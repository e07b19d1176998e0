"""ChaCha20 words of rows against published vectors and another implementation, and against what they must do."""

import numpy as np
import pytest
from randomgen import ChaCha

from tensorveil.kernels.sampling import random_words


def words_of(rows, key=bytes(range(32))):
    table = np.ascontiguousarray(rows, dtype=np.uint32)
    words = np.empty(len(table), dtype=np.uint64)
    random_words(table, np.frombuffer(key, dtype="<u4").astype(np.uint32), words)
    return words


NONCE = bytes.fromhex("000000090000004a00000000")


def test_words_are_the_block_of_rfc_8439():
    row = [1, *np.frombuffer(NONCE, dtype="<u4").tolist()]  # section 2.3.2: counter 1
    assert words_of([row])[0].tobytes() == bytes.fromhex("10f1e7e4d13b5915")


def test_words_of_wide_rows_take_their_key_from_hchacha20():
    """The vector of draft-irtf-cfrg-xchacha, section 2.2.1: the key for the second half of the row."""
    first = np.frombuffer(bytes.fromhex("000000090000004a0000000031415927"), dtype="<u4").tolist()
    inner = bytes.fromhex("82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc")
    for rest in ([5, 6, 7, 8], [5], [5, 6]):
        padded = rest + [0] * (4 - len(rest))
        assert words_of([[*first, *rest]])[0] == words_of([padded], inner)[0]


@pytest.mark.parametrize("counter", [0, 1, 2**32 - 1, 2**32, 2**59 + 12345])
def test_words_are_those_of_another_chacha20(counter):
    key = np.random.default_rng(counter % 1000).bytes(32)
    theirs = ChaCha(key=int.from_bytes(key, "little"), counter=16 * counter, rounds=20).random_raw(1)
    assert words_of([[counter % 2**32, counter // 2**32, 0, 0]], key)[0] == theirs[0]


@pytest.mark.parametrize("width", [2, 3, 4, 7])
def test_a_word_depends_on_its_own_row_alone(width):
    rows = np.random.default_rng(width).integers(0, 2**32, (50, width), dtype=np.uint64).astype(np.uint32)
    together = words_of(rows)
    np.testing.assert_array_equal(together, np.concatenate([words_of(row[None, :]) for row in rows]))
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(words_of(rows[order]), together[order])
    assert len(np.unique(together)) == 50
    for column in range(width):  # every number of a row counts
        changed = rows.copy()
        changed[:, column] ^= 1
        assert not (words_of(changed) == together).any()


def test_every_bit_of_the_words_of_neighbouring_cells_is_fair():
    rows = np.column_stack([np.argwhere(np.ones((32, 32, 16))), np.zeros(32 * 32 * 16)])
    bits = np.unpackbits(words_of(rows).view(np.uint8)).reshape(len(rows), 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(rows))
