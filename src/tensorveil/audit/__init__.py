"""Checks of privacy claims: replays against a neighbour, brute force, lower bounds.

The names below are resolved on first use: `tv.audit.lower_bound(...)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorveil.audit.lower_bounds import LowerBound as LowerBound
    from tensorveil.audit.lower_bounds import lower_bound as lower_bound
    from tensorveil.audit.lower_bounds import lower_bound_from_scores as lower_bound_from_scores
    from tensorveil.audit.pictures import draw_scores as draw_scores
    from tensorveil.audit.worlds import audit_mechanism as audit_mechanism

_HOMES = {
    "LowerBound": "tensorveil.audit.lower_bounds",
    "audit_mechanism": "tensorveil.audit.worlds",
    "draw_scores": "tensorveil.audit.pictures",
    "lower_bound": "tensorveil.audit.lower_bounds",
    "lower_bound_from_scores": "tensorveil.audit.lower_bounds",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tensorveil.audit' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(_HOMES)
