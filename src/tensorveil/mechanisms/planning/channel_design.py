"""The design of channels: the table of chances that leaves the least error at a given epsilon.

Columns are intervals of levels: a symbol is likelier, by e^epsilon, inside of one interval than outside. Every column
with one mode whose chances differ by at most e^epsilon is a sum of such columns (cut it into layers: each layer is an
interval, and the rest is constant), so intervals lose nothing but columns with two modes. These say "very low or very
high": more about a mean that is known already, but they send a model that does not know it to the wrong end.

Nothing here is trusted: a `Channel` checks its own table.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.errors import InputError
from tensorveil.inference.scale import Scale
from tensorveil.privacy.noise.channels import TOTAL, Channel

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

RESIDUAL_SHARES = (0.1, 0.3, 0.6)  # of the latent variance that no model explains: from dense traffic to ratings
NODES, WEIGHTS = (np.asarray(part) for part in np.polynomial.hermite_e.hermegauss(21))  # of a standard normal law
ROUNDS = 3  # in which the spread that is left after learning is brought in line with the channel
STEPS = 15  # of Frank and Wolfe, at most, in a round
SMALL_GAP = 2e-4  # of the log of the expected squared error
MOST_SYMBOLS = 48  # of the best channel; randomized response may add one for each atom
TELLING_SHARE = 0.05  # of values, through randomized response where the best channel cannot tell all atoms apart
MAX_DESIGN_EPSILON = 16.0  # above it all is kept but 1e-6, and counts would get too small to round
MARGINS = (2.0**-32, 2.0**-24, 2.0**-16)  # share of epsilon left for rounding to whole counts; the first that fits


def design_channel(scale: Scale, epsilon: float, per_number: float) -> Channel:
    """The epsilon-private channel of interval columns that leaves the least squared error on the values' own scale.

    A latent value has mean m and residual variance r, of which several shares of the whole variance 1 are tried. After
    the model has learned, m is known to be about c up to a variance t, and the value's law is N(c, r + t). With p the
    levels' chances and d their derivatives by c, a column q adds (d . q)^2 / (p . q) to the information I about m, and

        error(r) = mean over c of s^2 / (1 / (1 - r) + n I)

    is left, with n the values per number of the model and s the slope of the expected value (on its own scale) by c.
    The design minimises the mean of log error(r) over r, where t is what this channel leaves. That is convex in the
    amounts of the columns, which add up to 1 for every level: Frank and Wolfe's method, a linear program in each step.

    Guarantee
    ---------
    Pure epsilon for the replacement of one value by any other, on the matrix of whole numbers: Channel checks it.
    """
    promised = checks.positive_number("epsilon", epsilon)
    number = checks.positive_number("per_number", per_number)
    designed = min(promised, MAX_DESIGN_EPSILON)
    amounts = _amounts(scale, designed, number)
    if scale.free:
        amounts = _telling(amounts, len(scale.cuts) + 1, designed)
    for margin in MARGINS:
        columns = _interval_columns(len(scale.cuts) + 1, designed * (1 - margin))[amounts > 0]
        masses = amounts[amounts > 0]
        masses = masses + np.linalg.lstsq(columns.T, 1 - columns.T @ masses, rcond=None)[0]  # the solver's last digits
        try:
            return Channel(promised, _whole_counts(np.maximum(masses, 0.0)[:, None] * columns))
        except InputError:
            continue  # rounding took more than the margin
    raise InputError(
        f"epsilon = {promised!r} on {len(scale.cuts) + 1} levels could not be rounded safely; use fewer levels"
    )


def kept_information(scale: Scale, channel: Channel) -> float:
    """The share of the information about latent means that the symbols keep, of that in the levels."""
    after = before = 0.0
    for share in RESIDUAL_SHARES:
        chances, derivatives = _laws(scale.cuts, share)
        after += float((_information(channel.chances.T, chances, derivatives) @ WEIGHTS).sum())
        before += float((_information(np.eye(chances.shape[1]), chances, derivatives) @ WEIGHTS).sum())
    return after / before


def _laws(cuts: Floats, variance: float) -> tuple[Floats, Floats]:
    """Chances of the levels and their derivatives by the centre, for all centres that a model may know."""
    from scipy.special import ndtr  # scipy only when a channel is designed

    centres = math.sqrt(1 - variance) * NODES
    away = (np.concatenate(([-np.inf], cuts, [np.inf])) - centres[:, None]) / math.sqrt(variance)
    density = np.exp(-(away**2) / 2) / math.sqrt(2 * math.pi * variance)
    return np.diff(ndtr(away), axis=1), -np.diff(density, axis=1)


def _importance(scale: Scale, variance: float) -> Floats:
    """Weights of the centres: their chance times the squared slope of the expected value, by Stein's identity."""
    values = scale.value(math.sqrt(1 - variance) * NODES[:, None] + math.sqrt(variance) * NODES)
    slopes = values @ (WEIGHTS * NODES) / (WEIGHTS.sum() * math.sqrt(variance))
    weights = WEIGHTS * slopes**2
    return np.asarray(weights / weights.sum() if weights.sum() > 0 else WEIGHTS / WEIGHTS.sum())


def _information(columns: Floats, chances: Floats, derivatives: Floats) -> Floats:
    """What each column (rows of the result) adds to the information at each centre."""
    return np.asarray((columns @ derivatives.T) ** 2 / np.maximum(columns @ chances.T, 1e-30))


def _interval_columns(levels: int, epsilon: float) -> Floats:
    """All intervals of levels: 1 inside, e^-epsilon outside."""
    begin, end = np.triu_indices(levels)
    inside = (np.arange(levels) >= begin[:, None]) & (np.arange(levels) <= end[:, None])
    return np.where(inside, 1.0, math.exp(-epsilon))


def _amounts(scale: Scale, epsilon: float, number: float) -> Floats:
    """How much of each interval column the best channel has."""
    columns = _interval_columns(len(scale.cuts) + 1, epsilon)
    shares = np.array(RESIDUAL_SHARES)
    known = np.zeros(len(shares))  # precision that the values add, at first none
    amounts = np.zeros(len(columns))
    for _ in range(ROUNDS):
        variances = np.minimum(shares + 1 / (1 / (1 - shares) + known), 1.0)
        weights = np.stack([_importance(scale, variance) for variance in variances])
        gains = number * np.stack(
            [_information(columns, *_laws(scale.cuts, variance)) for variance in variances], axis=1
        )
        amounts = _frank_wolfe(columns, gains, 1 / (1 - shares), weights, amounts)
        known = (np.tensordot(amounts, gains, 1) * weights).sum(axis=1)
    return amounts


def _frank_wolfe(columns: Floats, gains: Floats, priors: Floats, weights: Floats, start: Floats) -> Floats:
    """Amounts with the least mean log error, from a start of zeros or of amounts that add up.

    gains : (columns, shares, centres); weights : (shares, centres); priors : (shares)
    """
    from scipy.optimize import linprog

    def falls(precisions: Floats) -> Floats:
        """How the mean log error falls with each precision."""
        errors = weights / precisions
        return np.asarray(errors / precisions / errors.sum(axis=1, keepdims=True) / len(priors))

    amounts = start
    for _ in range(STEPS):
        precisions = priors[:, None] + np.tensordot(amounts, gains, 1)
        slopes = np.tensordot(gains, falls(precisions), 2)
        best: Any = linprog(-slopes / slopes.max(), A_eq=columns.T, b_eq=np.ones(columns.shape[1]), method="highs")
        if best.status != 0:
            raise InputError(f"no channel was found for {columns.shape[1]} levels, {best.message}; use fewer levels")
        corner = np.where(best.x > 1e-12, best.x, 0.0)
        if not amounts.any():
            amounts = corner
            continue
        step = corner - amounts
        if slopes @ step < SMALL_GAP or ((corner > 0) | (amounts > 0)).sum() > MOST_SYMBOLS:
            break
        low, high, moved = 0.0, 1.0, np.tensordot(step, gains, 1)
        for _ in range(30):  # the fall lessens along the step
            middle = (low + high) / 2
            more = (falls(precisions + middle * moved) * moved).sum() > 0
            low, high = (middle, high) if more else (low, middle)
        amounts = corner if low > 1 - 1e-6 else amounts + low * step
    return amounts


def _telling(amounts: Floats, levels: int, epsilon: float) -> Floats:
    """Amounts of columns, mixed with a little randomized response unless symbols show how often each level occurs.

    The best channel may merge levels. Only the prior then determines how often each of them occurs, which biases cuts,
    means and all predictions.
    """
    columns = _interval_columns(levels, epsilon)
    begin, end = np.triu_indices(levels)
    response = np.where(begin == end, 1 / (1 + (levels - 1) * math.exp(-epsilon)), 0.0)
    clearness = [np.linalg.svd(each[:, None] * columns, compute_uv=False)[-1] for each in (amounts, response)]
    if clearness[0] >= TELLING_SHARE * clearness[1]:
        return amounts
    return (1 - TELLING_SHARE) * amounts + TELLING_SHARE * response


def _whole_counts(columns: Floats) -> Integers:
    """Chances (symbols, levels) as counts (levels, symbols): rounded down, what is missing goes to the likeliest."""
    counts = np.floor(columns.T * float(TOTAL)).astype(np.int64)
    for row in counts:
        row[row.argmax()] += TOTAL - sum(row.tolist())
    return counts
