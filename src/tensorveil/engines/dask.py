"""Work on shards on a Dask cluster: one task per shard and pass, sums added in a tree, the same bits as in one process.

Workers, the scheduler and its dashboard see raw shards and must be trusted (docs/cluster.md). Every task is a function
of its shard, of the pass's state and of secrets: it repeats its bits wherever and however often it runs. Shards are
futures whose recipe leads back to the files, so the shards of a worker that died are made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final
from uuid import uuid4

import numpy as np

from tensorveil.arrays import Integers
from tensorveil.errors import InputError, MissingDependencyError, TensorveilError
from tensorveil.kernels.cores import available_cores, one_blas_thread

Parts = tuple[Integers, ...]

BRANCHES = 8  # arrays that one task adds
TRIES = 4  # of a pass whose state was lost with its workers


class ClusterError(TensorveilError):
    """The cluster lost a pass several times: too few workers live long enough, or they run out of memory."""


@final
@dataclass(frozen=True)
class Dask:
    """The engine of a Dask cluster that runs already.

    Parameters
    ----------
    client : a `distributed.Client`
    keep_shards : whether workers keep shards in memory between passes. False: shards are read again from their files
        in every pass, so that there may be more rows than memory
    """

    client: Any
    keep_shards: bool = True

    def __post_init__(self) -> None:
        if not all(callable(getattr(self.client, name, None)) for name in ("submit", "scatter", "gather")):
            raise InputError(
                f"client must be a distributed.Client, got {type(self.client).__name__}; write Dask(Client(address))"
            )

    def map(self, function: Callable[..., Any], shards: Sequence[Any], *secrets: object) -> list[Any]:
        """The function of every shard, in the order of the shards."""
        return list(self._gathered(lambda: self._pass(function, shards, secrets)))

    def sum(self, function: Callable[..., Parts], shards: Sequence[Any], *secrets: object) -> Parts:
        """The sum over shards, exact in whole numbers: neither the split nor the order in which tasks end matters."""

        def tree() -> list[Any]:
            parts = self._pass(function, shards, secrets)
            while len(parts) > 1:
                groups = [parts[first : first + BRANCHES] for first in range(0, len(parts), BRANCHES)]
                parts = [self._submit("add", _added, group) for group in groups]
            return parts

        (total,) = self._gathered(tree)
        return tuple(np.array(part) for part in total)

    def keep(self, function: Callable[..., Any], shards: Sequence[Any], *secrets: object) -> list[Shard]:
        """The function of every shard as new shards, which stay on the workers, or are made again in every pass."""
        step = (self._submit("state", _itself, function), secrets)  # a task: it can be made again, too
        made = [_as_shard(shard) for shard in shards]
        if not self.keep_shards:
            return [Shard(shard.source, (*shard.steps, step)) for shard in made]
        return [Shard(self._submit("shard", _made, shard.source, [*shard.steps, step])) for shard in made]

    def _pass(self, function: Callable[..., Any], shards: Sequence[Any], secrets: tuple[object, ...]) -> list[Any]:
        """One task per shard. The function, which holds the state of the pass, goes to every worker once."""
        step = (self.client.scatter(function, broadcast=True, hash=False), secrets)
        made = [_as_shard(shard) for shard in shards]
        return [self._submit("pass", _made, shard.source, [*shard.steps, step]) for shard in made]

    def _submit(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.client.submit(function, *arguments, key=f"tensorveil-{name}-{uuid4().hex}", pure=False)

    def _gathered(self, submit: Callable[[], list[Any]]) -> Sequence[Any]:
        """The results of a pass. Where its state died with all workers that had it, the pass is begun again."""
        cancelled: Any = import_module("distributed.client").FutureCancelledError
        for _ in range(TRIES):
            try:
                results: Sequence[Any] = self.client.gather(submit())
                return results
            except (CancelledError, cancelled, TimeoutError):  # of the last: no worker took the state in time
                continue
        raise ClusterError(
            f"a pass must end on the cluster, got its state lost {TRIES} times with its workers; give them more memory"
        )


@final
@dataclass(frozen=True, eq=False)
class Shard:
    """Where a shard comes from: a future or what a file is, and the steps that make it in the task that needs it."""

    source: Any
    steps: tuple[tuple[Any, tuple[object, ...]], ...] = ()


@contextmanager
def cluster(address: str | None = None, size: int = 0) -> Iterator[Dask]:
    """The engine of the cluster at an address or, without one, of a new one here: a worker per core, memory shared.

    `size` are the bytes of all shards. Workers keep them between passes if they fill at most a third of their memory.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise MissingDependencyError("the engine must have Dask, got none; pip install 'tensorveil[dask]'") from error
    if address is not None:
        with distributed.Client(address, set_as_default=False) as client:
            yield Dask(client, _fits(client, size))
        return
    workers = {"n_workers": available_cores(), "threads_per_worker": 1, "memory_limit": "auto"}
    with (
        distributed.LocalCluster(processes=True, dashboard_address="127.0.0.1:0", **workers) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        yield Dask(client, _fits(client, size))


def _fits(client: Any, size: int) -> bool:
    limits = [worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    return not all(limits) or 3 * size <= sum(limits)  # a worker without a limit says 0 or None


def _as_shard(shard: Any) -> Shard:
    return shard if isinstance(shard, Shard) else Shard(shard)


def _itself(function: Any) -> Any:
    return function


def _made(source: Any, steps: list[tuple[Callable[..., Any], tuple[object, ...]]]) -> Any:
    """The steps' functions of the source, one after the other."""
    with one_blas_thread():  # results of linear algebra could depend on the number of its threads
        for function, secrets in steps:
            source = function(source, *secrets)
    return source


def _added(parts: list[Parts]) -> Parts:
    """Sums of whole numbers, exact in any order."""
    totals = tuple(np.array(part) for part in parts[0])
    for others in parts[1:]:
        for total, part in zip(totals, others, strict=True):
            total += part
    return totals
