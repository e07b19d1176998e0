"""Made-up tensors of a public shape and count, to try a plan on before it reads any data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil.arrays import Floats
from tensorveil.data.observations import Observations
from tensorveil.privacy.bounds import Bounds

# Share of the variance that the model could explain. The error that is left without privacy is then 0.8, 0.5 and 0.3
# of the spread: whatever lies between 0.24 and 1.07 is within 25 % of one of these
SIGNALS: dict[str, float] = {"weak": 0.36, "middling": 0.75, "strong": 0.91}
RANK = 3  # of the made-up interactions, which explain half of what can be explained; offsets explain the other half
POPULARITY = 1.0  # standard deviation of the logarithm of how often an index occurs, as plans assume it
SPREAD = 1 / 6  # standard deviation of the values, of the width of the bounds: three of them to either side
MOST_OBSERVATIONS = 100_000  # of a made-up tensor; a larger one is scaled down
MOST_SAMPLED = 8_000  # the same where a posterior is sampled, which takes a hundred times as long
KEPT_SIZE = 32  # a mode of at most this size is not scaled down
FULLEST = 0.9  # share of cells that may be observed
TEST_CELLS = 5_000
ATTEMPTS = 50  # to draw enough different cells


@final
@dataclass(frozen=True)
class MadeUp:
    """Observations to complete, and other cells with their values, to judge the predictions by."""

    train: Observations
    where: NDArray[np.int64]
    values: Floats

    def error(self, predicted: Floats) -> float:
        """The RMSE of predictions, as a share of the spread of the values."""
        return float(np.sqrt(np.mean((predicted - self.values) ** 2)) / self.values.std())


def scaled_down(shape: tuple[int, ...], count: int, most: int) -> tuple[tuple[int, ...], int]:
    """A smaller shape and count with as many observations per index of the scaled modes, and the ratios of these modes.

    Examples
    --------
    >>> scaled_down((943, 1682), 90_570, most=8_000), scaled_down((30, 77, 18), 4_158, most=8_000)
    (((83, 149), 8000), ((30, 77, 18), 4158))
    """
    count = max(2, min(count, math.floor(FULLEST * math.prod(shape))))
    if count <= most:
        return shape, count
    share = most / count
    sizes = tuple(size if size <= KEPT_SIZE else max(KEPT_SIZE, round(share * size)) for size in shape)
    return sizes, min(most, math.floor(FULLEST * math.prod(sizes)))


def made_up(
    shape: tuple[int, ...], count: int, explained: float, bounds: Bounds, spread: float, seed: int = 0
) -> MadeUp:
    """A tensor whose values are offsets, a product of factors and noise, with this share of variance explained.

    Parameters
    ----------
    shape, count : sizes of the modes, and how many cells are observed
    explained : share of the variance that offsets and factors explain, half each
    bounds : of the values, which have their mean in the middle
    spread : standard deviation of the values, as a share of the width of the bounds
    seed : of the made-up numbers; nothing here is private
    """
    draw = np.random.default_rng(seed)
    cells = _cells(draw, shape, count)
    others = np.column_stack([draw.permutation(draw.choice(column, TEST_CELLS)) for column in cells.T])
    both = np.concatenate([cells, others])
    offsets = sum(draw.standard_normal(size)[column] for size, column in zip(shape, both.T, strict=True))
    parts = [draw.standard_normal((size, RANK))[column] for size, column in zip(shape, both.T, strict=True)]
    product = np.prod(parts, axis=0).sum(axis=1)
    signal = sum(_standard(np.asarray(part), len(cells)) for part in (offsets, product)) * math.sqrt(explained / 2)
    latent = signal + math.sqrt(1 - explained) * draw.standard_normal(len(both))
    width = bounds.high - bounds.low
    values = np.clip((bounds.low + bounds.high) / 2 + spread * width * latent, bounds.low, bounds.high)
    return MadeUp(Observations(cells, values[: len(cells)], shape), others, values[len(cells) :])


def _cells(draw: np.random.Generator, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
    """Different cells; some indices occur more often than others, as far as there is room."""
    weights = [np.exp(POPULARITY * draw.standard_normal(size)) for size in shape]
    found = np.empty(0, dtype=np.int64)
    for _ in range(ATTEMPTS):
        picked = [draw.choice(size, 2 * count, p=part / part.sum()) for size, part in zip(shape, weights, strict=True)]
        found = np.concatenate([found, np.ravel_multi_index(tuple(picked), shape)])
        found = found[np.sort(np.unique(found, return_index=True)[1])][:count]
        if len(found) == count:
            break
    else:  # nearly all cells are observed
        rest = np.setdiff1d(np.arange(math.prod(shape)), found)
        found = np.concatenate([found, draw.choice(rest, count - len(found), replace=False)])
    return np.column_stack(np.unravel_index(found, shape))


def _standard(part: Floats, fitted: int) -> Floats:
    """Numbers with mean 0 and standard deviation 1 over the first `fitted` of them."""
    known = part[:fitted]
    return np.asarray((part - known.mean()) / (known.std() or 1.0))
