"""How many cores this process may use."""

import os
from contextlib import AbstractContextManager


def available_cores() -> int:
    """The cores that the system lets this process run on; fewer than the machine has where it was given a share."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def one_blas_thread() -> AbstractContextManager[object]:
    """A context in which matrix products run in the thread that asks for them.

    Models have many small matrices, and chains have threads of their own: threads of the linear algebra library would
    only wait for each other. Its results could depend on their number, too.
    """
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limits
