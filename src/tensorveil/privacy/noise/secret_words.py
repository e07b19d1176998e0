"""Where the random bits of privacy noise come from: ChaCha20, keyed by the operating system."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, final

import numpy as np
from numpy.typing import NDArray
from randomgen import ChaCha

from tensorveil import checks
from tensorveil.kernels.sampling import random_words

ROUNDS = 20
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


@final
@dataclass(frozen=True, repr=False)
class RowWords:
    """A secret word for each row of whole numbers, the same in any task: ChaCha20 under a key that no text shows."""

    key: bytes

    def of(self, rows: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """One word per row; rows that differ have words of their own. All rows under one key have one width."""
        words = np.empty(len(rows), dtype=np.uint64)
        random_words(np.ascontiguousarray(rows), np.frombuffer(self.key, dtype="<u4").astype(np.uint32), words)
        return words


@final
@dataclass(frozen=True)
class Coins:
    """Independent secret coins, one for each row of whole numbers: heads if its word is below a limit."""

    words: RowWords
    limit: int

    def of(self, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Which rows have heads."""
        return self.words.of(rows) < np.uint64(self.limit) if self.limit < 2**64 else np.ones(len(rows), dtype=np.bool_)


class SecretWords:
    """A stream of random words that no two processes share, and that is told once and for all if a seed gave it.

    With a seed, for experiments only, the key is not drawn from the operating system.
    """

    __slots__ = ("_chacha", "_keys", "_owner", "_seed")

    _chacha: np.random.Generator
    _keys: int
    _owner: tuple[int, int]
    _seed: int | None
    generator: ClassVar[str] = f"ChaCha20 ({ROUNDS} rounds)"

    def __init__(self, seed: int | None = None) -> None:
        object.__setattr__(self, "_seed", checks.seed(seed))
        object.__setattr__(self, "_keys", 0)
        self._take_new_key()

    @property
    def seeded(self) -> bool:
        """Whether the noise came from a seed, so that nothing made with it may be published."""
        return self._seed is not None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SecretWords.__slots__:
            raise AttributeError(f"{name} is set once, when a NoiseSource is made; make a new one")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a NoiseSource cannot be taken away; make a new one")

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._generator().bit_generator.random_raw(count), dtype=np.uint64)

    def _generator(self) -> np.random.Generator:
        """The generator, with a new key if this process is not the one that made it."""
        if self._owner != (os.getpid(), _forks):  # the number of forks too: a process number can come back
            self._take_new_key()
        return self._chacha

    def _take_new_key(self) -> None:
        object.__setattr__(self, "_owner", (os.getpid(), _forks))
        fresh = secrets.token_bytes(32)
        if self._seed is not None:
            fresh = hashlib.sha256(f"tensorveil noise {self._seed} {self._keys}".encode()).digest()
        object.__setattr__(self, "_keys", self._keys + 1)
        words = np.random.Generator(ChaCha(key=int.from_bytes(fresh, "little"), rounds=ROUNDS))
        object.__setattr__(self, "_chacha", words)

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("a NoiseSource must not be copied or pickled: noise used twice cancels; make a new one")

    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = __getstate__ = __setstate__ = _refuse
