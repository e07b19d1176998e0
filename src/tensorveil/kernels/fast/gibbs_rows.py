"""Gibbs draws of the rows of large CP models: the law of posterior.py by the vectorised steps of ridge.py.

Entries are sorted by the mode that is drawn. A list holds, for every entry, its coordinates in the other modes and its
number w, under which its latent value y_w and the root of its precision o_w are stored. Since both phi_w and t_w are
multiplied by that root, H is a plain sum of phi_w phi_w^T. Rows of the parameters hold the offset as their last number.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numpy.typing import NDArray

from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.fast.ridge import BATCH, add_gram, entry_rows
from tensorveil.kernels.fast.systems import SYSTEMS_BYTES, factorize_systems, multiply, subtract_products
from tensorveil.kernels.vectors import (
    AHEAD,
    INT32,
    INT64,
    Code,
    Constants,
    alloca,
    data_of,
    for_range,
    intrinsic,
    padded,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Coordinates = NDArray[np.uint32]

SYSTEMS = SYSTEMS_BYTES // 8


@intrinsic
def gather_latent(
    typingctx: Any,
    parameters: Any,
    starts: Any,
    entries: Any,
    latent: Any,
    mean: Any,
    begin: Any,
    count: Any,
    P: Any,
    g: Any,
    constants: Any,
) -> Any:
    """P[w] = sqrt(o) phi of the next `count` entries, g += sum of o t phi; latent[w] are y_w and sqrt(o_w)."""
    N, R, _ = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R + 1, np.float64)
        arrays = [data_of(context, b, signature.args[k], args[k]) for k in (0, 2, 3, 7, 8)]
        base, list_of, pairs, batch, right = arrays
        pieces = c.pieces(length)
        sums = [alloca(b, ir.VectorType(c.number, lanes)) for _, lanes in pieces]
        for place, (first, lanes) in zip(sums, pieces, strict=True):
            b.store(c.load(right, first, lanes), place)
        mine = b.gep(list_of, [b.mul(args[5], INT64(N))], source_etype=INT32)
        with for_range(b, args[6]) as loop:
            entry = b.gep(mine, [b.mul(loop.index, INT64(N))], source_etype=INT32)
            rows = entry_rows(c, base, args[1], entry, N - 1, N, length)
            c.prefetch(_pair(c, pairs, entry, N - 1 + AHEAD * N), 1, write=False)
            pair = _pair(c, pairs, entry, N - 1)
            t, root = b.fsub(c.load_one(pair, 0), args[4]), c.load_one(pair, 1)
            for one in rows:
                t = b.fsub(t, c.load_one(one, R))
            t = b.fmul(t, root)
            out = c.pointer(batch, b.mul(loop.index, INT64(length)))
            for place, (first, lanes) in zip(sums, pieces, strict=True):
                phi = c.product([c.load(one, first, lanes) for one in rows])
                if first <= R < first + lanes:
                    phi = b.insert_element(phi, ir.Constant(c.number, 1.0), INT32(R - first))
                phi = b.fmul(phi, c.fill(root, lanes))
                c.store(phi, out, first)
                b.store(c.fma(c.fill(t, lanes), phi, b.load(place)), place)
        for place, (first, _) in zip(sums, pieces, strict=True):
            c.store(b.load(place), right, first)
        return context.get_dummy_value()

    ints = types.int64
    return types.void(parameters, starts, entries, latent, types.float64, ints, ints, P, g, constants), code


@intrinsic
def entry_mean(typingctx: Any, parameters: Any, starts: Any, entries: Any, place: Any, own: Any, constants: Any) -> Any:
    """Offsets and xhat of the entry at a place of the list, whose own row begins at `own`."""
    N, R, _ = constants.numbers

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        c = Code(context, b, types.float64)
        length = padded(R + 1, np.float64)
        base, list_of = (data_of(context, b, signature.args[k], args[k]) for k in (0, 2))
        entry = b.gep(list_of, [b.mul(args[3], INT64(N))], source_etype=INT32)
        rows = [*entry_rows(c, base, args[1], entry, N - 1, N, length), c.pointer(base, args[4])]
        total = c.load_one(rows[0], R)
        for one in rows[1:]:
            total = b.fadd(total, c.load_one(one, R))
        products = []
        for first, lanes in c.pieces(length):
            value = c.product([c.load(one, first, lanes) for one in rows])
            if first <= R < first + lanes:
                value = b.insert_element(value, ir.Constant(c.number, 0.0), INT32(R - first))
            products.append(value)
        return b.fadd(total, c.sum(products))

    ints = types.int64
    return types.float64(parameters, starts, entries, ints, ints, constants), code


def _pair(c: Code, pairs: Any, entry: Any, place: int) -> Any:
    """Where the latent value and precision of an entry are."""
    b = c.builder
    index = b.zext(b.load(b.gep(entry, [INT64(place)], source_etype=INT32), align=4, typ=INT32), INT64)
    return c.pointer(pairs, b.mul(index, INT64(2)))


@compiled
def sort_entries(coordinates: Coordinates, n: int, begins: Integers, entries: Coordinates) -> None:
    """Entries in the order of mode n: coordinates in the other modes, and their numbers; row i begins at begins[i]."""
    N = coordinates.shape[1]
    filled = begins[:-1].copy()
    for w in range(coordinates.shape[0]):
        i = np.int64(coordinates[w, n])
        place = filled[i]
        filled[i] += 1
        column = 0
        for m in range(N):
            if m != n:
                entries[place, column] = coordinates[w, m]
                column += 1
        entries[place, N - 1] = w
    entries[coordinates.shape[0] :] = 0  # the spare entries name rows that exist


@compiled
def pair_up(values: Floats, precisions: Floats, latent: Floats, begin: int, end: int) -> None:
    """latent[w] = y_w and the root of o_w."""
    for w in range(begin, end):
        latent[w, 0] = values[w]
        latent[w, 1] = np.sqrt(precisions[w])


@compiled
def cp_means(
    parameters: Floats,
    starts: Any,
    own_start: int,
    entries: Coordinates,
    begins: Integers,
    constants: Constants,
    length: int,
    mean: float,
    means: Floats,
    first: int,
    last: int,
) -> None:
    """`posterior.predict_means` for the entries of rows first to last of the sorted mode."""
    number = entries.shape[1] - 1
    for i in range(first, last):
        own = own_start + i * length
        for place in range(begins[i], begins[i + 1]):
            means[entries[place, number]] = mean + entry_mean(parameters, starts, entries, place, own, constants)


@compiled
def cp_draw_rows(
    parameters: Floats,
    starts: Any,
    own_start: int,
    entries: Coordinates,
    begins: Integers,
    constants: Constants,
    length: int,
    mean: float,
    latent: Floats,
    D: int,
    prior_means: Floats,
    prior_precisions: Floats,
    reflection: float,
    centres: Floats,
    key: np.uint64,
    first: int,
    last: int,
) -> None:
    """`posterior.draw_rows` of rows first to last: SYSTEMS rows at once, one per lane.

    The new row is c + a (old row - c) + sqrt(1 - a^2) L^-T z, c = H^-1 g its centre, H = L L^T, a the reflection.
    """
    S = SYSTEMS
    P = np.empty(BATCH * length)
    H = np.empty(D * length)
    g = np.empty(length)
    many = np.zeros(D * D * S)
    right = np.zeros(D * S)
    z = np.zeros(D * S)
    good = np.ones(S)
    fresh = math.sqrt(1.0 - reflection * reflection)
    for i in range(first, last):
        system = (i - first) % S
        H[:] = 0.0
        g[:] = 0.0
        for begin in range(begins[i], begins[i + 1], BATCH):
            count = min(BATCH, begins[i + 1] - begin)
            gather_latent(parameters, starts, entries, latent, mean, begin, count, P, g, constants)
            add_gram(P, count, H, constants)
        state = normals.stream(key, i)
        for a in range(D):
            for b in range(a + 1):
                many[(a * D + b) * S + system] = H[a * length + b]
            many[(a * D + a) * S + system] += prior_precisions[a]
            right[a * S + system] = g[a] + prior_precisions[a] * prior_means[i, a]
            state += normals.STEP
            z[a * S + system] = normals.quantile(normals.uniform(state))
        if system < S - 1 and i < last - 1:
            continue  # lanes beyond the last row hold old numbers, which are not read
        good[:] = 1.0
        factorize_systems(D, many, good)
        for a in range(D):
            subtract_products(right, a, many, a * D, 1, right, 0, 1, a)
            multiply(right, a, many, a * D + a)
        for a in range(D - 1, -1, -1):
            subtract_products(right, a, many, (a + 1) * D + a, D, right, a + 1, 1, D - 1 - a)
            multiply(right, a, many, a * D + a)
            subtract_products(z, a, many, (a + 1) * D + a, D, z, a + 1, 1, D - 1 - a)
            multiply(z, a, many, a * D + a)
        for done in range(system + 1):
            if good[done] > 0.0:
                k = i - system + done
                row = own_start + k * length
                for a in range(D):
                    centre = right[a * S + done]
                    centres[k, a] = centre
                    old = parameters[row + a]
                    parameters[row + a] = centre + reflection * (old - centre) + fresh * z[a * S + done]
