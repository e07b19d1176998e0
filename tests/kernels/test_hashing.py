"""SipHash-2-4 against the vectors of its authors, and against what a hash must do."""

import numpy as np
import pytest

from tensorveil.kernels.hashing import hash_rows

KEY = np.frombuffer(bytes(range(16)), dtype="<u8")


def hashed(rows, key=KEY):
    table = np.ascontiguousarray(rows, dtype=np.uint32)
    hashes = np.empty(len(table), dtype=np.uint64)
    hash_rows(table, np.uint64(key[0]), np.uint64(key[1]), hashes)
    return hashes


# Aumasson, Bernstein: the vectors of the reference implementation, key 00..0f, message 00 01 ... n-1
@pytest.mark.parametrize(
    "length, expected", [(4, 0xCF2794E0277187B7), (8, 0x93F5F5799A932462), (12, 0x751E8FBC860EE5FB)]
)
def test_the_hash_gives_the_reference_vectors(length, expected):
    words = np.frombuffer(bytes(range(length)), dtype="<u4")[None, :]
    assert int(hashed(words)[0]) == expected


def test_a_row_is_hashed_alone():
    rows = np.random.default_rng(0).integers(0, 2**32, (50, 3), dtype=np.uint64).astype(np.uint32)
    alone = np.concatenate([hashed(row[None, :]) for row in rows])
    np.testing.assert_array_equal(hashed(rows), alone)


def test_every_bit_of_the_hashes_of_neighbouring_cells_is_fair():
    rows = np.argwhere(np.ones((32, 32, 16)))
    bits = np.unpackbits(hashed(rows).view(np.uint8)).reshape(len(rows), 64)
    # a fair mean of 16,384 bits is within 5 standard deviations of one half
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(rows))


def test_one_bit_of_coordinate_or_key_changes_half_of_the_hash():
    rows = np.argwhere(np.ones((16, 16, 8)))
    before = hashed(rows)
    flipped = rows.copy()
    flipped[:, 1] ^= 1
    other_key = KEY.copy()
    other_key[0] ^= np.uint64(1)
    for after in (hashed(flipped), hashed(rows, other_key)):
        changed = np.unpackbits((before ^ after).view(np.uint8)).mean()
        assert abs(changed - 0.5) < 0.01


def test_no_two_cells_of_a_large_box_share_a_hash():
    assert len(np.unique(hashed(np.argwhere(np.ones((64, 64, 32)))))) == 64 * 64 * 32
