"""Scalings of observed values and their exact inverses.

They are computed from the data without noise, so a private mechanism must not use them.
"""

from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorveil import checks
from tensorveil.arrays import Floats, Integers
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError


@final
@dataclass(frozen=True)
class MinMaxScaling:
    """The linear map from [low, high] to [0, 1].

    Examples
    --------
    >>> scaling = MinMaxScaling.of([1.0, 3.0, 5.0])
    >>> scaling.scaled([1.0, 3.0, 5.0])
    array([0. , 0.5, 1. ])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = checks.finite_number("low", self.low), checks.finite_number("high", self.high)
        if low >= high:
            raise InputError(f"low must be below high, got {low} and {high}; a constant cannot be scaled to [0, 1]")

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """The scaling from the smallest and the largest of the values."""
        array = np.asarray(values, dtype=np.float64)
        if array.size == 0:
            raise InputError("values must hold at least one number, got none; check the source")
        return cls(float(array.min()), float(array.max()))

    def scaled(self, values: ArrayLike) -> Floats:
        """Values on the scale from 0 to 1."""
        return (np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low)

    def unscaled(self, values: ArrayLike) -> Floats:
        """Values back on their own scale."""
        return self.low + np.asarray(values, dtype=np.float64) * (self.high - self.low)


@final
@dataclass(frozen=True, eq=False)
class BiScaling:
    """Rows and columns of every slice of a 3-way tensor brought to mean zero and variance one.

    For the slice k (a day) and its entry (i, j), x = alpha_ik + beta_jk + tau_ik gamma_jk z, with z standardised over
    each row and each column of the slice (Mazumder, Hastie, Tibshirani 2010; the alternation of Hastie, Mazumder, Lee,
    Zadeh 2015, section 7). A row or column that has one entry, or whose variance is zero, keeps its variance (its scale
    is 1); its mean is still removed.

    If a row has no training entry in a slice, its centre is the mean of the slice's row centres and its scale is 1; the
    same holds for columns. If a slice has no training entry at all, the mean of all training values is predicted.
    """

    slice_mode: int
    shape: tuple[int, ...]
    row_keys: Integers
    column_keys: Integers
    alpha: Floats
    beta: Floats
    tau: Floats
    gamma: Floats
    slice_alpha: Floats
    slice_beta: Floats

    @classmethod
    def of(cls, observations: Observations, slice_mode: int = -1, iterations: int = 20) -> Self:
        """Centres and scales of the observations' own rows and columns, slice by slice."""
        if observations.order != 3:
            raise InputError(
                f"bi-scaling needs a tensor of 3 modes, got {observations.order}; one mode numbers the slices"
            )
        mode = checks.mode(slice_mode, 3)
        rounds = checks.positive_integer("iterations", iterations)
        row_of, column_of, slice_of = _keys(observations.coordinates, observations.shape, mode)
        row_keys, row = np.unique(row_of, return_inverse=True)
        column_keys, column = np.unique(column_of, return_inverse=True)
        x = observations.values
        alpha, tau = np.zeros(len(row_keys)), np.ones(len(row_keys))
        beta, gamma = np.zeros(len(column_keys)), np.ones(len(column_keys))
        for _ in range(rounds):
            alpha = _weighted_mean(row, x - beta[column], 1 / gamma[column])
            beta = _weighted_mean(column, x - alpha[row], 1 / tau[row])
            residual = x - alpha[row] - beta[column]
            tau = _scale(row, residual / gamma[column], 1e-8 * float(x.var()))  # tau has the unit of x
            gamma = _scale(column, residual / tau[row], 1e-8)
        number_of_slices = observations.shape[mode]
        slice_alpha = np.full(number_of_slices, x.mean())
        slice_beta = np.zeros(number_of_slices)
        seen = np.unique(slice_of)
        slice_of_row = row_keys % number_of_slices
        slice_of_column = column_keys % number_of_slices
        slice_alpha[seen] = _weighted_mean(slice_of_row, alpha, np.ones(len(alpha)))[seen]
        slice_beta[seen] = _weighted_mean(slice_of_column, beta, np.ones(len(beta)))[seen]
        return cls(mode, observations.shape, row_keys, column_keys, alpha, beta, tau, gamma, slice_alpha, slice_beta)

    def scaled(self, observations: Observations) -> Observations:
        """The observations with standardised values."""
        if observations.shape != self.shape:
            raise InputError(
                f"observations must have the shape {self.shape} of the training data, got {observations.shape}; "
                "give both the same shape"
            )
        centre, scale, _ = self._terms(observations.coordinates)
        return observations.with_values((observations.values - centre) / scale)

    def unscaled(self, coordinates: ArrayLike, values: ArrayLike) -> Floats:
        """Values at these coordinates back on their own scale."""
        centre, scale, _ = self._terms(checks.coordinates(coordinates, self.shape))
        return np.asarray(centre + scale * np.asarray(values, dtype=np.float64))

    def covers(self, coordinates: ArrayLike) -> NDArray[np.bool_]:
        """Whether both the row and the column of each entry have training data in its slice; see the class."""
        return self._terms(checks.coordinates(coordinates, self.shape))[2]

    def _terms(self, coordinates: NDArray[Any]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Centre, scale and coverage of each entry."""
        row_of, column_of, slice_of = _keys(coordinates, self.shape, self.slice_mode)
        row, row_known = _find(self.row_keys, row_of)
        column, column_known = _find(self.column_keys, column_of)
        centre = np.where(row_known, self.alpha[row], self.slice_alpha[slice_of])
        centre = centre + np.where(column_known, self.beta[column], self.slice_beta[slice_of])
        scale = np.where(row_known, self.tau[row], 1.0) * np.where(column_known, self.gamma[column], 1.0)
        return centre, scale, row_known & column_known


def _keys(coordinates: NDArray[Any], shape: tuple[int, ...], mode: int) -> tuple[Integers, Integers, Integers]:
    """One number for each entry's row within its slice, its column within its slice, and its slice."""
    first, second = (number for number in range(3) if number != mode)
    indices = coordinates.astype(np.int64)
    slice_of = indices[:, mode]
    return indices[:, first] * shape[mode] + slice_of, indices[:, second] * shape[mode] + slice_of, slice_of


def _find(keys: Integers, wanted: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    positions = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return positions, keys[positions] == wanted


def _weighted_mean(groups: Integers, values: Floats, weights: Floats) -> Floats:
    totals = np.bincount(groups, weights)
    return np.bincount(groups, weights * values) / np.where(totals == 0, 1.0, totals)


def _scale(groups: Integers, deviations: Floats, vanishing: float) -> Floats:
    counts = np.bincount(groups)
    variance = np.bincount(groups, deviations**2) / counts
    return np.sqrt(np.where((counts == 1) | (variance <= vanishing), 1.0, variance))
