"""`tv.randomize`: values through a local protocol, with NumPy alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.privacy.local.client import LocalProtocol
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.noise.local_words import system_words
from tensorveil.privacy.theorems import proves


def randomize(values: ArrayLike, protocol: LocalProtocol | str | os.PathLike[str]) -> Integers:
    """One symbol per value, drawn at the source by a protocol, so that no server has to be trusted.

    Each call draws anew and costs its epsilon anew. `tensorveil randomize` remembers its answers, and repeats them.

    Parameters
    ----------
    values : finite numbers; those beyond the bounds of the protocol belong to its outer levels
    protocol : a protocol or the path of its file. Its table is checked here, by two methods.

    Guarantee
    ---------
    For any two values, the probability of any symbol differs by a factor of at most e^epsilon. A person who gives m
    answers spends m epsilon. The number of answers is not hidden.

    Examples
    --------
    >>> import tensorveil as tv
    >>> protocol = tv.design_protocol(tv.Bounds(1, 5), 2.0, levels=[1, 2, 3, 4, 5])
    >>> tv.randomize([1.0, 4.5, 3.0], protocol).shape
    (3,)
    """
    known = protocol if isinstance(protocol, LocalProtocol) else LocalProtocol.load(protocol)
    return channel_of(known).drawn(levels_of(known, finite_values(values)), system_words)


def finite_values(values: ArrayLike) -> Floats:
    """Numbers as floats, all of them finite."""
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise InputError("values must be finite, got others; leave them out")
    return numbers


def levels_of(protocol: LocalProtocol, values: Floats) -> Integers:
    """The level of each value, from that value alone."""
    return np.asarray(np.searchsorted(np.array(protocol.edges), values, side="right"), dtype=np.int64)


def channel_of(protocol: LocalProtocol) -> Channel:
    """The table of a protocol, checked once more: by logarithms that are rounded up."""
    return Channel(protocol.epsilon, np.array(protocol.counts, dtype=np.int64))


def drawn_symbols(values: Sequence[float], protocol: LocalProtocol) -> list[int]:
    """`randomize` in the form that the client's `answer` calls."""
    return [int(symbol) for symbol in randomize(np.array(values, dtype=np.float64), protocol)]


@proves("local-channel")
def spent(epsilon: float, answers: int) -> float:
    """What a person who gave so many first answers has spent at most, rounded up."""
    total = epsilon * answers
    return total if Fraction(total) >= Fraction(epsilon) * answers else float(np.nextafter(total, np.inf))  # [L5]
