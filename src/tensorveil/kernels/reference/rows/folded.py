"""Proposals of rows of non-negative factors: a walk of Gibbs steps.

A number of a factor is y = |u|, with u ~ N(mu, 1 / precision) a priori: a folded normal law, half-normal if mu is zero.
So the priors of u are those of a free model. Near a row, the log likelihood is taken for quadratic in y, with gradient
g and curvature H. A walk draws one number of the row after the other, up and down, each given the others by that
quadratic: exactly, as the law of u is normal on either side of zero. The way back is the same steps in reverse, by the
quadratic around the new row. If the log likelihood is quadratic, every proposal is accepted. The last number of a row,
its offset, is not folded: y = u.

The prior of u drops out of the chance of acceptance: that of each new number is in the density of its step, and that of
the number before in the density of the step back. So `walk` and `walk_back` leave it out.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled

Floats = NDArray[np.float64]

WALKS = 1  # up and down the numbers of a row


@compiled
def fold(row: Floats, y: Floats) -> None:
    """y = |row| but for the offset."""
    for a in range(row.size - 1):
        y[a] = abs(row[a])
    y[row.size - 1] = row[row.size - 1]


@compiled
def step_of(number: int, D: int) -> int:
    """The number that a step of a walk draws: up from the first to the last, then down, and so on."""
    place = number % (2 * D)
    return place if place < D else 2 * D - 1 - place


@compiled
def walk(
    H: Floats,
    g: Floats,
    prior_means: Floats,
    prior_precisions: Floats,
    row: Floats,
    y: Floats,
    seen: Floats,
    keep: float,
    state: np.uint64,
) -> tuple[float, np.uint64]:
    """Draw a row by Gibbs steps; returns the log density of the steps without the prior, and the state that follows.

    `row` holds u, `y` its folded numbers and g the gradient there; all are changed. `seen` keeps each number as it was
    before its step. With `keep` above 0 the new row is nearer: steps are those of the gradient g / (1 + keep) and the
    curvature H / (1 - keep^2).
    """
    D = row.size
    total = 0.0
    for a in range(D):
        g[a] /= 1.0 + keep
    for t in range(seen.size):
        a = step_of(t, D)
        h, mu, precision = H[a, a] / (1.0 - keep * keep), prior_means[a], prior_precisions[a]
        b = g[a] + h * y[a]
        root = math.sqrt(h + precision)
        seen[t] = row[a]
        state += normals.STEP
        side = normals.uniform(state)
        state += normals.STEP
        u = normals.uniform(state)
        if a == D - 1:
            new = (b + precision * mu) / (root * root) + normals.quantile(u) / root
        else:
            above, below = log_mass(b, h, mu, precision, False), log_mass(b, h, -mu, precision, False)
            sign = 1.0 if side * (1.0 + math.exp(min(below - above, 700.0))) < 1.0 else -1.0
            new = sign * normals.above(u, -(b + sign * precision * mu) / root) / root
        total += log_density(b, h, mu, precision, new, a == D - 1)
        move(H, g, y, a, new, keep)
        row[a] = new
    return total, state


@compiled
def walk_back(
    H: Floats, g: Floats, prior_means: Floats, prior_precisions: Floats, y: Floats, seen: Floats, keep: float
) -> float:
    """Log density of the steps of a walk in reverse, without the prior; y and g are those at its end, and change."""
    D = y.size
    total = 0.0
    for a in range(D):
        g[a] /= 1.0 + keep
    for t in range(seen.size - 1, -1, -1):
        a = step_of(t, D)
        h = H[a, a] / (1.0 - keep * keep)
        total += log_density(g[a] + h * y[a], h, prior_means[a], prior_precisions[a], seen[t], a == D - 1)
        move(H, g, y, a, seen[t], keep)
    return total


@compiled
def log_mass(b: float, h: float, mu: float, precision: float, offset: bool) -> float:
    """Log of the integral of e^(b u - h u^2 / 2) by the law N(mu, 1 / precision) of u, of an offset or above zero."""
    whole = h + precision
    mean = (b + precision * mu) / whole
    mass = 0.5 * (math.log(precision / whole) + mean * mean * whole - precision * mu * mu)
    return mass if offset else mass + normals.log_tail(-mean * math.sqrt(whole))


@compiled
def log_density(b: float, h: float, mu: float, precision: float, new: float, offset: bool) -> float:
    """Log density of a step to a new number, without the prior."""
    y = new if offset else abs(new)
    mass = log_mass(b, h, mu, precision, offset)
    if not offset:
        below = log_mass(b, h, -mu, precision, False)
        mass = max(mass, below) + math.log1p(math.exp(-abs(mass - below)))
    return b * y - 0.5 * h * y * y - mass


@compiled
def move(H: Floats, g: Floats, y: Floats, a: int, new: float, keep: float) -> None:
    """Set a number of y to a new one, folded but for the offset, and g to the gradient there."""
    D = y.size
    to = new if a == D - 1 else abs(new)
    far = (to - y[a]) / (1.0 - keep * keep)
    for b in range(D):
        g[b] -= far * H[a, b]
    y[a] = to
