"""Tensor train completion by alternating least squares on the observed cells.

Grasedyck, Kluge and Krämer, "Variants of alternating least squares tensor completion in the tensor train format", SIAM
Journal on Scientific Computing 37 (2015). A cell is the product of one matrix per mode,

    x_(i, j, ..., k) = G1[i] G2[j] ... Gd[k],

and with all other cores fixed, the matrices of a core solve one least-squares problem per index. The paper raises ranks
step by step and ends by the error on held-out cells. Here all ranks are equal, a ridge keeps indices with few cells
finite, and both are chosen on a held-out tenth of the observed cells. Values are centred and have a variance of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import product as pairs
from typing import Any

import numpy as np

from peers.cells import Floats, Indices, checked, chosen, normal_equations

RANKS, RIDGES = (2, 4, 8), (0.01, 0.1, 0.3, 1.0, 3.0)
PASSES = 40


def complete(coordinates: Any, values: Any, shape: Sequence[int], asked: Any, seed: int = 0) -> Floats:
    """Predictions of asked cells; see `peers`."""
    where, numbers, wanted = checked(coordinates, values, shape, asked)
    mean, scale = numbers.mean(), numbers.std() or 1.0
    standard = (numbers - mean) / scale

    def predict(seen: Indices, what: Floats, to: Indices, setting: tuple[int, float]) -> Floats:
        cores = fitted(seen, what, shape, *setting, seed)
        return products(cores, to, range(len(shape)))[:, 0, 0]

    setting = chosen(tuple(pairs(RANKS, RIDGES)), predict, where, standard, seed)
    return np.asarray(mean + scale * predict(where, standard, wanted, setting))


def fitted(where: Indices, numbers: Floats, shape: Sequence[int], rank: int, ridge: float, seed: int) -> list[Floats]:
    """Cores, each an array of index x left rank x right rank, that lower squared error plus ridge."""
    random = np.random.default_rng(seed)
    order = len(shape)
    ranks = [min(rank, math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(order + 1)]
    cores = [
        random.standard_normal((size, ranks[mode], ranks[mode + 1])) / math.sqrt(ranks[mode])
        for mode, size in enumerate(shape)
    ]
    orders = [np.argsort(where[:, mode], kind="stable") for mode in range(order)]
    for _ in range(PASSES):
        for mode in range(order):
            cells = where[orders[mode]]
            left, right = (products(cores, cells, modes) for modes in (range(mode), range(mode + 1, order)))
            features = (left[:, 0, :, None] * right[:, None, :, 0]).reshape(len(cells), -1)
            matrices, sides = normal_equations(features, numbers[orders[mode]], cells[:, mode], shape[mode])
            solved = np.linalg.solve(matrices + ridge * np.eye(features.shape[1]), sides[:, :, None])
            cores[mode] = solved.reshape(cores[mode].shape)
    return cores


def products(cores: Sequence[Floats], cells: Indices, modes: range) -> Floats:
    """Products of the matrices of modes in a row, one per cell; of none, the number one."""
    if not modes:
        return np.ones((len(cells), 1, 1))
    matrices = (cores[mode][cells[:, mode]] for mode in modes)
    return reduce(np.matmul, matrices)
