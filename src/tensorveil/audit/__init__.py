"""Checks of privacy claims: replays against a neighbour, brute force, lower bounds."""

from tensorveil.audit.lower_bounds import LowerBound, lower_bound, lower_bound_from_scores
from tensorveil.audit.pictures import draw_scores
from tensorveil.audit.worlds import audit_mechanism

__all__ = ["LowerBound", "audit_mechanism", "draw_scores", "lower_bound", "lower_bound_from_scores"]
