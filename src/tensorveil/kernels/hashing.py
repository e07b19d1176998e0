"""SipHash-2-4 (Aumasson, Bernstein 2012) of rows of coordinates: a keyed hash, one 64-bit number a row."""

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels.compiling import compiled

Word = np.uint64


@compiled
def rotate(x: np.uint64, bits: int) -> np.uint64:
    """Rotate to the left."""
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@compiled
def sip_round(a: Word, b: Word, c: Word, d: Word) -> tuple[Word, Word, Word, Word]:
    """One round on the four words of state."""
    a = a + b
    b = rotate(b, 13) ^ a
    a = rotate(a, 32)
    c = c + d
    d = rotate(d, 16) ^ c
    a = a + d
    d = rotate(d, 21) ^ a
    c = c + b
    b = rotate(b, 17) ^ c
    c = rotate(c, 32)
    return a, b, c, d


@compiled
def hash_rows(rows: NDArray[np.uint32], first: np.uint64, second: np.uint64, hashes: NDArray[np.uint64]) -> None:
    """hashes[w] = SipHash-2-4 of the little-endian bytes of row w, under the key (first, second)."""
    words = rows.shape[1]
    for w in range(rows.shape[0]):
        a = first ^ np.uint64(0x736F6D6570736575)
        b = second ^ np.uint64(0x646F72616E646F6D)
        c = first ^ np.uint64(0x6C7967656E657261)
        d = second ^ np.uint64(0x7465646279746573)
        for pair in range(words // 2 + 1):
            message = np.uint64(rows[w, 2 * pair]) if 2 * pair < words else np.uint64(0)
            if pair < words // 2:
                message |= np.uint64(rows[w, 2 * pair + 1]) << np.uint64(32)
            else:  # the last one ends with the number of bytes
                message |= np.uint64((4 * words) & 0xFF) << np.uint64(56)
            d ^= message
            a, b, c, d = sip_round(a, b, c, d)
            a, b, c, d = sip_round(a, b, c, d)
            a ^= message
        c ^= np.uint64(0xFF)
        for _ in range(4):
            a, b, c, d = sip_round(a, b, c, d)
        hashes[w] = a ^ b ^ c ^ d
