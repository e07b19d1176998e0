"""The design of channels: the table of chances that tells most at a given epsilon.

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
from tensorveil.arrays import Floats, Integers
from tensorveil.errors import InputError
from tensorveil.inference.values.public_scales import UNKNOWN
from tensorveil.inference.values.scale import Scale
from tensorveil.mechanisms.planning.information import weakened
from tensorveil.privacy.noise.channels import TOTAL, Channel

RESIDUAL_SHARES = (0.05, 0.2, 0.6, 0.85)  # of the latent variance, not known of a value: dense traffic to ratings
CENTRES = np.concatenate(([0.001], (np.arange(23) + 0.5) / 23, [0.999]))  # quantiles of what is known
STEPS = 25  # of Frank and Wolfe, at most
SMALL_GAP = 1e-3  # of the squared error
MOST_SYMBOLS = 60  # of the best channel; randomized response may add one for each atom
TELLING_SHARE = 0.05  # of values, through randomized response where the best channel cannot tell all atoms apart
MAX_DESIGN_EPSILON = 16.0  # above it all is kept but 1e-6, and counts would get too small to round
MARGIN = 2.0**-20  # share of epsilon that is left for rounding to whole counts
SMALLEST_AMOUNT = 1e-6  # of a column: a smaller one would not survive the rounding
SMALLEST_EPSILON = 1e-6  # below it, whole counts and the solver's last digits would not leave MARGIN of it
SMALLEST_SOLVED = 0.01  # epsilon: below it, columns are too much alike for the solver's tolerance
LEAST_DESIGNED = 0.1  # epsilon of intervals, where hardly any cell is observed: less tells nothing either way
NOTHING = 1e-4  # chance of a symbol that takes up what the solver's last digits leave over


def design_channel(scale: Scale, epsilon: float, per_index: float) -> Channel:
    """The epsilon-private channel of interval columns that tells most about mean values.

    Suppose that a value's latent number is known to be N(c, r). With p the levels' chances and d their derivatives by
    c, a column q adds (d . q)^2 / (p . q) to the information I about c. With v the levels' values, the mean value
    moves by d . v with c. The design minimises the squared error of mean values that is left,

        mean over c of (d . v)^2 / (1 / (1 - r) + n I),  as a share of that with I = 0,  mean over several r,

    n the values per index of a mode: rare high values count by what they add to the squared error. It is convex in the
    amounts of the columns, which add up to 1 for every level: Frank and Wolfe's method, a linear program in each step.

    Guarantee
    ---------
    Pure epsilon for the replacement of one value by any other, on the matrix of whole numbers: Channel checks it.
    """
    promised = check_epsilon(epsilon)
    designed = min(promised, MAX_DESIGN_EPSILON)
    outside = math.exp(-designed * (1 - MARGIN))
    if designed >= SMALLEST_SOLVED:
        inside, amounts = _best_intervals(scale, designed, per_index)
    else:  # information falls with the square of epsilon, and rows add up to the same number at every epsilon
        inside, amounts = _best_intervals(scale, SMALLEST_SOLVED, per_index * (designed / SMALLEST_SOLVED) ** 2)
        amounts /= (1 - outside) * (amounts @ inside).mean() + outside * amounts.sum()
    return _channel(promised, np.where(inside, 1.0, outside), amounts)


def check_epsilon(epsilon: float, changes: int = 1) -> float:
    """The epsilon of each of so many symbols that one unit changes; an error where no table can be made for it."""
    each = checks.positive_number("epsilon", epsilon) / changes
    if each < SMALLEST_EPSILON:
        raise InputError(
            f"epsilon must be at least {SMALLEST_EPSILON:g} for each symbol of a channel, got {each:.2g} where one "
            f"unit changes {changes:,}; use more epsilon, a smaller at_most, or noise='laplace'"
        )
    return each


def design_cell_channel(scale: Scale, epsilon: float, density: float, per_index: float) -> Channel:
    """The epsilon-private channel of all cells of a box, of which a share `density` is observed.

    The first row is that of a missing cell, the first symbol says "missing", and the last nothing. The others are
    intervals of levels, which a missing cell is outside of. For a cell that is observed with this chance, a symbol is
    likelier by

        e^weakened = 1 + density (e^epsilon - 1)

    if the value would be inside of the interval than if it would not, so the intervals are the best ones for that
    epsilon. The amounts of the intervals that a level is inside of add up to the same for all levels, as the rows of a
    table do, and are scaled so that the rows here add up to one.

    Guarantee
    ---------
    Pure epsilon for any change of one cell, on the matrix of whole numbers: Channel checks it.
    """
    promised = check_epsilon(epsilon)
    designed = min(promised, MAX_DESIGN_EPSILON)
    inside, amounts = _best_intervals(scale, max(weakened(designed, density), LEAST_DESIGNED), per_index)
    amounts /= (amounts @ inside).mean()  # of the intervals that a level is inside of
    outside = math.exp(-designed * (1 - MARGIN))
    amounts /= 1 + outside * amounts.sum()
    of_cells = np.zeros((len(inside) + 1, inside.shape[1] + 1), np.bool_)
    of_cells[0, 0], of_cells[1:, 1:] = True, inside
    amounts = np.concatenate([[1 - outside * amounts.sum()], amounts])
    return _channel(promised, np.where(of_cells, 1.0, outside), amounts)


def _best_intervals(scale: Scale, epsilon: float, per_index: float) -> tuple[NDArray[np.bool_], Floats]:
    """Intervals of levels of the best channel at an epsilon, one row each, and how much of each it has."""
    amounts = _amounts(scale, epsilon, checks.positive_number("per_index", per_index))
    if scale.free or scale.doubt >= UNKNOWN:  # nothing else shows how often each level occurs
        amounts = _telling(amounts, len(scale.cuts) + 1, epsilon)
    used = amounts > SMALLEST_AMOUNT
    return _intervals(len(scale.cuts) + 1)[used], amounts[used]


def _channel(epsilon: float, columns: Floats, amounts: Floats) -> Channel:
    """The channel of so much of each column, made to add up to one in every row."""
    masses = amounts + np.linalg.lstsq(columns.T, 1 - columns.T @ amounts, rcond=None)[0]
    chances = (1 - NOTHING) * np.maximum(masses, 0.0)[:, None] * columns
    rest = 1 - chances.sum(axis=0)  # nearly the same for all levels: a symbol that tells nothing
    return Channel(epsilon, _whole_counts(np.vstack([chances, rest])))


def kept_information(scale: Scale, channel: Channel) -> float:
    """The share of the information about latent means that the symbols keep, of that in the levels."""
    chances, derivatives = _laws(scale)
    after = _information(channel.chances.T, chances, derivatives).sum()
    return float(after / _information(np.eye(chances.shape[1]), chances, derivatives).sum())


def _laws(scale: Scale) -> tuple[Floats, Floats]:
    """Chances of the levels and their derivatives by the centre, for all centres and residual variances.

    Centres are quantiles of the values on the latent scale. Where no link makes tails normal, they lie further out than
    normal ones: a channel that took all large values for one would leave nothing to learn them from.
    """
    from scipy.special import ndtr, ndtri  # scipy only when a channel is designed

    places = ndtri(CENTRES)
    if not scale.free:
        shares = np.append(0.0, np.cumsum(scale.masses)) / scale.masses.sum()
        places = np.interp(CENTRES, shares, scale.knots)
    variances = np.repeat(RESIDUAL_SHARES, len(CENTRES))[:, None]
    centres = np.sqrt(1 - variances) * np.tile(places, len(RESIDUAL_SHARES))[:, None]
    away = (np.concatenate(([-np.inf], scale.cuts, [np.inf])) - centres) / np.sqrt(variances)
    density = np.exp(-(away**2) / 2) / np.sqrt(2 * math.pi * variances)
    return np.diff(ndtr(away), axis=1), -np.diff(density, axis=1)


def _information(columns: Floats, chances: Floats, derivatives: Floats) -> Floats:
    """What each column (rows of the result) adds to the information at each centre."""
    return np.asarray((columns @ derivatives.T) ** 2 / np.maximum(columns @ chances.T, 1e-30))


def _intervals(levels: int) -> NDArray[np.bool_]:
    """All intervals of levels, one row each: whether a level is inside."""
    begin, end = np.triu_indices(levels)
    return np.asarray((np.arange(levels) >= begin[:, None]) & (np.arange(levels) <= end[:, None]))


def _interval_columns(levels: int, epsilon: float) -> Floats:
    """All intervals of levels: 1 inside, e^-epsilon outside."""
    return np.where(_intervals(levels), 1.0, math.exp(-epsilon))


def _amounts(scale: Scale, epsilon: float, number: float) -> Floats:
    """How much of each interval column the best channel has."""
    from scipy.optimize import linprog

    columns = _interval_columns(len(scale.cuts) + 1, epsilon)
    chances, derivatives = _laws(scale)
    gains = number * _information(columns, chances, derivatives)
    prior = np.repeat(1 / (1 - np.array(RESIDUAL_SHARES)), len(CENTRES))
    errors = ((derivatives @ (scale.low + scale.high)) ** 2 / prior).reshape(len(RESIDUAL_SHARES), -1)
    weights = prior * (errors / errors.sum(axis=1, keepdims=True)).ravel() / len(RESIDUAL_SHARES)
    amounts = np.zeros(len(columns))
    for _ in range(STEPS):
        precisions = prior + amounts @ gains
        slopes = gains @ (weights / precisions**2)
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
        low, high, moved = 0.0, 1.0, step @ gains
        for _ in range(30):  # the gain lessens along the step
            middle = (low + high) / 2
            more = moved @ (weights / (precisions + middle * moved) ** 2) > 0
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
