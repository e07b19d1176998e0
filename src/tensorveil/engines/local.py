"""Work on shards in this process, with threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.kernels.cores import available_cores

Result = TypeVar("Result")
Parts = tuple[Integers, ...]


class Engine(Protocol):
    """The verbs that a vault needs from the place where its shards live. Secrets are handed on, never kept or shown."""

    def map(self, function: Callable[..., Result], shards: Sequence[Any], *secrets: object) -> list[Result]:
        """The function of every shard, in the order of the shards."""

    def sum(self, function: Callable[..., Parts], shards: Sequence[Any], *secrets: object) -> Parts:
        """The sum over shards of the function's arrays of whole numbers, part by part."""

    def keep(self, function: Callable[..., Any], shards: Sequence[Any], *secrets: object) -> Sequence[Any]:
        """The function of every shard as new shards, which stay where the work runs."""


@final
@dataclass(frozen=True)
class LocalEngine:
    """Shards in the memory of this process; a single shard is worked on without a thread of its own.

    Examples
    --------
    >>> LocalEngine().sum(lambda shard: (np.array(shard),), [[1, 2], [10, 20]])
    (array([11, 22]),)
    """

    def map(self, function: Callable[..., Result], shards: Sequence[Any], *secrets: object) -> list[Result]:
        """The function of every shard, in the order of the shards."""
        if len(shards) == 1:
            return [function(shards[0], *secrets)]
        with ThreadPoolExecutor(available_cores()) as threads:
            return list(threads.map(lambda shard: function(shard, *secrets), shards))

    keep = map

    def sum(self, function: Callable[..., Parts], shards: Sequence[Any], *secrets: object) -> Parts:
        """The sum over shards, exact in whole numbers: neither the split nor the order of the shards matters."""
        totals: Parts = ()
        for begin in range(0, len(shards), available_cores()):  # arrays may be large: of so many shards at a time
            for parts in self.map(function, shards[begin : begin + available_cores()], *secrets):
                totals = tuple(map(np.add, totals, parts)) if totals else tuple(map(np.array, parts))
        return totals
