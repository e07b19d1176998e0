"""Checks of privacy claims: replays against a neighbour, brute force, lower bounds."""
