"""How many cores this process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """The cores that the system lets this process run on; fewer than the machine has where it was given a share."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
