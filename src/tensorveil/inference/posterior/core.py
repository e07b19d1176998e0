"""Draws of the core of a Tucker model, a step of a chain: by a scored proposal, as rows are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorveil.inference.posterior.sorted_symbols import SortedSymbols, fill_rows
from tensorveil.kernels.fast import scored_rows as fast_rows
from tensorveil.kernels.reference import scored_rows
from tensorveil.kernels.vectors import aligned_zeros, padded
from tensorveil.models.factor_model import FactorModel

if TYPE_CHECKING:
    from tensorveil.inference.posterior.chain import Chain

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Told = tuple[float, Floats, Floats]  # log likelihood, its gradient, and the sum of products of features

CORE_BLOCK = 256  # cells of a core that are drawn together


def draw_core(chain: Chain) -> None:
    """A block of the cells of the core by a scored proposal, as rows are; then the precision of the core."""
    first = chain.starts[-1]
    core = chain.parameters[first:]  # a view: what is written here is in the parameters
    chosen = np.sort(chain.generator.permutation(core.size)[:CORE_BLOCK])
    value, g, H = _equations(chain, chosen)
    root = np.linalg.cholesky(H)
    z = chain.generator.standard_normal(len(g))
    step = np.linalg.solve(root.T, np.linalg.solve(root, g) + z)
    core[chosen] += step
    new_value, g, _ = _equations(chain, chosen, informed=False)
    miss = root.T @ step + np.linalg.solve(root, g)
    if not math.log(chain.generator.random()) < new_value - value + (z @ z - miss @ miss) / 2:
        core[chosen] -= step
    squares, now = np.array([core @ core]), np.array([chain.core_precision])
    chain.core_precision = float(chain.precisions(squares, core.size, now, np.array([chain.core_scale]))[0])


def tucker_blocks(model: FactorModel, ranks: Sequence[int]) -> tuple[list[Floats], Floats]:
    """Factors and core of a Tucker model near a CP model of at least these ranks, by truncation in every mode.

    Columns of factors are orthogonal, with a mean square of one, and in the order of their weight (higher-order
    singular value decomposition).
    """
    bases, triangles = zip(*(np.linalg.qr(factor) for factor in model.factors), strict=True)
    products = [triangle.T @ triangle for triangle in triangles]
    factors, core = [], np.ones((1, model.ranks[0]))
    for mode, (basis, triangle, rank) in enumerate(zip(bases, triangles, ranks, strict=True)):
        others = np.prod([product for other, product in enumerate(products) if other != mode], axis=0)
        turn = np.linalg.eigh(triangle @ others @ triangle.T)[1][:, : -rank - 1 : -1]
        size = math.sqrt(len(basis))
        factors.append(size * (basis @ turn))
        core = (core[:, None, :] * (turn.T @ triangle / size)[None]).reshape(-1, model.ranks[0])
    return factors, core.sum(axis=1).reshape(ranks)


def _equations(chain: Chain, chosen: Integers, informed: bool = True) -> Told:
    """Log posterior of chosen cells of the core, its gradient and, if wanted, the information: that of rows."""
    core = chain.parameters[chain.starts[-1] :][chosen]
    whole = chain.lists is not None and len(chosen) == chain.parameters.size - chain.starts[-1]
    found = _whole(chain, chain.lists, informed) if whole and chain.lists else _part(chain, chosen, informed)
    value = math.fsum(part[0] for part in found) - chain.core_precision * float(core @ core) / 2
    g = sum((part[1] for part in found), -chain.core_precision * core)
    H = sum((part[2] for part in found), np.zeros((len(core), len(core)) if informed else 0))
    return value, g, chain.information * H + chain.core_precision * np.eye(len(H)) if informed else H


def _whole(chain: Chain, lists: SortedSymbols, informed: bool) -> list[Told]:
    """What the symbols of parts of the rows of the first mode tell of all cells of the core."""
    rank, *others = chain.model.ranks
    cells = math.prod(others)
    # a model of the same predictions, whose rows of the first mode are their products with the core
    given = lists.given(0, lists.pack(chain.parameters, chain.offsets), np.eye(cells).reshape(cells, *others))
    factor = np.ascontiguousarray(chain.rows(0)[:, :-1])
    own = aligned_zeros(chain.shape[0] * padded(cells + fast_rows.EXTRA, np.float32), np.float32)
    products = factor @ chain.parameters[chain.starts[-1] :].reshape(rank, cells)
    fill_rows(own.reshape(chain.shape[0], -1), products, chain.offsets[: chain.shape[0]])
    law = lists.lists[0].values, chain.table.values.astype(np.float32), np.float32(chain.table.reach)

    def one(begin: int, end: int) -> Told:
        g, H = np.zeros(rank * cells), np.zeros((rank * cells, rank * cells)) if informed else None
        arguments: tuple[Any, ...] = (*given, *law, factor, own, g, H, begin, end)
        value = fast_rows.core_scores(*arguments)
        return value, g, np.zeros(0) if H is None else np.tril(H) + np.tril(H, -1).T

    return chain.share(one, parts=chain.row_parts[0])


def _part(chain: Chain, chosen: Integers, informed: bool) -> list[Told]:
    """What the symbols of parts of the entries tell of chosen cells of the core."""
    chain.predict()
    where = chain.data.coordinates if chain.lists is None else chain.lists.coordinates
    places = np.unravel_index(chosen, chain.model.ranks)
    rows = [chain.rows(mode)[:, place] for mode, place in enumerate(places)]

    def one(begin: int, end: int) -> Told:
        slopes = np.empty_like(chain.means[begin:end])
        law = chain.symbols[begin:end], chain.table.values, chain.table.reach
        value = scored_rows.scores(*law, chain.means[begin:end], slopes, 0, end - begin)
        phi = np.ones((end - begin, len(chosen)))
        for mode, own in enumerate(rows):
            phi *= own[where[begin:end, mode]]
        return value, phi.T @ slopes, phi.T @ phi if informed else np.zeros(0)

    return chain.share(one, parts=chain.parts)
