"""The paper's synthetic tensors (section 5.1): a low-rank truth, noise, missing cells, a train and a test part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.arrays import Floats
from tensorveil.data.observations import Observations
from tensorveil.data.scaling import MinMaxScaling
from tensorveil.errors import InputError

SNR_KINDS = ("norms", "variances")
SCALINGS = ("min-max", "max-abs", "none")


@final
@dataclass(frozen=True, eq=False)
class SyntheticTensor:
    """A benchmark of completion: noisy training and test entries, and the noise-free truth behind them.

    Attributes
    ----------
    truth : the noise-free tensor, scaled; read-only
    train, test : noisy entries, 80 % and 20 % of those observed
    noise_std : standard deviation of the added noise
    """

    truth: Floats
    train: Observations
    test: Observations
    noise_std: float

    def truth_at(self, coordinates: NDArray[np.uint32]) -> Floats:
        """Noise-free values at these coordinates: what the paper's RMSE compares predictions with."""
        return np.asarray(self.truth[tuple(coordinates.T)])


def cp_tensor(shape: tuple[int, ...] = (20, 20, 20), rank: int = 3, *, seed: int | None = None) -> Floats:
    """A dense CP tensor: standard normal factors, with columns scaled to unit length."""
    sizes = checks.shape(shape)
    columns = checks.positive_integer("rank", rank)
    generator = np.random.default_rng(checks.seed(seed))
    tensor = np.ones((1, columns))
    for size in sizes:
        factor = generator.standard_normal((size, columns))
        factor /= np.linalg.norm(factor, axis=0)
        tensor = tensor[..., None, :] * factor
    return np.asarray(tensor[0].sum(axis=-1))


def tucker_tensor(
    shape: tuple[int, ...] = (20, 20, 20), ranks: int | tuple[int, ...] = 3, *, seed: int | None = None
) -> Floats:
    """A dense Tucker tensor: factors with orthonormal columns, standard normal core."""
    sizes = checks.shape(shape)
    numbers = tuple(ranks) if isinstance(ranks, Sequence) else (ranks,) * len(sizes)
    if len(numbers) != len(sizes) or any(
        checks.positive_integer("ranks", rank) > size for rank, size in zip(numbers, sizes, strict=False)
    ):
        raise InputError(f"ranks must be one per mode, at most its size, got {ranks} for shape {sizes}; lower them")
    generator = np.random.default_rng(checks.seed(seed))
    factors = [
        np.linalg.qr(generator.standard_normal((size, rank)))[0] for size, rank in zip(sizes, numbers, strict=True)
    ]
    tensor: Floats = generator.standard_normal(numbers)
    for mode, factor in enumerate(factors):
        tensor = np.moveaxis(np.tensordot(factor, tensor, axes=(1, mode)), 0, mode)
    return tensor


def observe(
    tensor: Floats,
    *,
    missing_ratio: float = 0.5,
    snr: float = 1.0,
    snr_kind: str = "norms",
    scaling: str = "min-max",
    train_fraction: float = 0.8,
    seed: int | None = None,
) -> SyntheticTensor:
    """Scale a dense tensor, add Gaussian noise, drop a share of its cells and split the rest into train and test.

    Parameters
    ----------
    tensor : the noise-free truth before scaling
    missing_ratio : share of the cells that is dropped
    snr : signal-to-noise ratio; "norms": squared norm of the scaled truth over that of the noise (Acar et al. 2011),
        "variances": the same for variances, which a constant offset of the truth does not inflate
    scaling : "min-max" to [0, 1] as the paper prints, "max-abs" by the largest absolute value (no offset), or "none"
    """
    missing = checks.finite_number("missing_ratio", missing_ratio)
    if not 0 <= missing < 1:
        raise InputError(f"missing_ratio must be from 0 to below 1, got {missing_ratio}; leave some cells observed")
    ratio = checks.positive_number("snr", snr)
    checks.choice("snr_kind", snr_kind, SNR_KINDS)
    checks.choice("scaling", scaling, SCALINGS)
    share = checks.fraction("train_fraction", train_fraction)
    truth = np.array(tensor, dtype=np.float64)
    checks.order(truth.ndim)
    if scaling == "min-max":
        truth = MinMaxScaling.of(truth).scaled(truth)
    elif scaling == "max-abs":
        truth = truth / np.abs(truth).max()

    generator = np.random.default_rng(checks.seed(seed))
    noise = generator.standard_normal(truth.shape)
    if snr_kind == "norms":
        noise *= np.linalg.norm(truth) / np.linalg.norm(noise) / math.sqrt(ratio)
    else:
        noise *= truth.std() / noise.std() / math.sqrt(ratio)
    noisy = truth + noise
    truth.setflags(write=False)

    observed = max(2, truth.size - round(missing * truth.size))
    first = min(max(1, round(share * observed)), observed - 1)
    cells = generator.permutation(truth.size)[:observed]
    parts = []
    for chosen in (np.sort(cells[:first]), np.sort(cells[first:])):
        coordinates = np.column_stack(np.unravel_index(chosen, truth.shape))
        parts.append(Observations(coordinates, noisy.ravel()[chosen], truth.shape))
    return SyntheticTensor(truth, parts[0], parts[1], float(noise.std()))
