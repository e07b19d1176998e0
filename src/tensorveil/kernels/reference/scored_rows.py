"""Draws of the rows of a model given noisy values whose law is tabulated: Metropolis-adjusted Fisher scoring.

A released symbol s of entry w has the log likelihood f_s(m_w), m_w = base_w + phi_w . row, where base_w is the mean and
the offsets of the other modes. With f' the score and I the expected information of an average symbol, a row is proposed
from

    N(row + (1 - a) H^-1 (sum_w f' phi_w + Lambda (mu - row)), (1 - a^2) H^-1),
    H = I sum_w phi_w phi_w^T + Lambda,

with a = `keep`, and accepted with the chance that leaves its law as it is (Metropolis, Hastings). Where many symbols
tell of a row, its law is nearly normal and most proposals are accepted; with a above 0 a proposal is nearer, and more
of them are. H does not depend on the row, so the way back needs the scores alone; with the information of each symbol
at its own mean, fewer proposals were accepted. Rows of one mode do not depend on each other, so threads share them.

`room` is the scratch space of a Tucker model, and None for CP: then what Tucker needs is not even compiled. Neither are
assignments to slices, whose errors are texts: on small data, compiling takes longer than sampling.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tensorveil.kernels import normals
from tensorveil.kernels.compiling import compiled
from tensorveil.kernels.reference import blocks
from tensorveil.kernels.reference.least_squares import factorize
from tensorveil.kernels.reference.rows import folded

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Symbols = NDArray[np.uint8]
Coordinates = NDArray[np.uint32]

BATCH = 256  # entries whose features are gathered at a time


@compiled
def predict_means(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    room: int | None,
    offsets: Floats,
    offset_starts: Integers,
    coordinates: Coordinates,
    mean: float,
    means: Floats,
    begin: int,
    end: int,
) -> None:
    """means[w] = mean + offsets + xhat_w; the offsets of mode n begin at offset_starts[n]."""
    N = coordinates.shape[1]
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(room_of(widths))
    work = None if room is None else np.empty(room)
    for w in range(begin, end):
        if work is None:
            total = cp_row(parameters, starts, widths[0], coordinates, w, N - 1, phi)
        else:
            model = blocks.Blocks(parameters, starts, widths)
            total = blocks.entry_features(model, coordinates, w, rows, phi, work)
        for n in range(N):
            total += offsets[offset_starts[n] + np.int64(coordinates[w, n])]
        means[w] = mean + total


@compiled
def room_of(widths: Integers) -> int:
    """Numbers in the features of all blocks together."""
    total = 0
    for b in range(widths.size):
        total += widths[b]
    return total


@compiled
def other_rows(
    parameters: Floats, starts: Integers, R: int, coordinates: Coordinates, w: int, n: int, phi: Floats
) -> None:
    """phi[:R] = Hadamard product of the rows of all modes but n of a CP model."""
    for r in range(R):
        phi[r] = 1.0
    for m in range(coordinates.shape[1]):
        if m != n:
            row = starts[m] + np.int64(coordinates[w, m]) * R
            for r in range(R):
                phi[r] *= parameters[row + r]


@compiled
def cp_row(
    parameters: Floats, starts: Integers, R: int, coordinates: Coordinates, w: int, n: int, phi: Floats
) -> float:
    """phi[:R] = Hadamard product of the rows of all modes but n; returns xhat_w: a CP model, one mode alone."""
    other_rows(parameters, starts, R, coordinates, w, n, phi)
    row = starts[n] + np.int64(coordinates[w, n]) * R
    xhat = 0.0
    for r in range(R):
        xhat += phi[r] * parameters[row + r]
    return xhat


@compiled
def look_up(table: Floats, reach: float, symbol: int, m: float) -> tuple[float, float]:
    """Log likelihood (cubic between the places of the table) and score (linear) at a mean."""
    places = table.shape[1] - 1
    width = 2.0 * reach / places
    x = (m + reach) * (places / (2.0 * reach))
    x = min(max(x, 0.0), places - 1e-9)
    k = int(x)
    t = x - k
    low, high = table[symbol, k, 1], table[symbol, k + 1, 1]
    value = table[symbol, k, 0] + t * t * (3.0 - 2.0 * t) * (table[symbol, k + 1, 0] - table[symbol, k, 0])
    value += width * t * (1.0 - t) * ((1.0 - t) * low - t * high)
    return value, low + t * (high - low)


@compiled
def spread_means(symbols: Symbols, means: Floats, reach: float, weights: Floats, begin: int, end: int) -> None:
    """Add the weights of entries at the two places next to their means, for values and for slopes.

    The log likelihood of all entries is then the sum of weights times values and slopes at the places: cubic between
    them.
    """
    places = weights.shape[1] - 1
    width = 2.0 * reach / places
    for w in range(begin, end):
        x = min(max((means[w] + reach) / width, 0.0), places - 1e-9)
        k = int(x)
        t = x - k
        far = t * t * (3.0 - 2.0 * t)
        weights[symbols[w], k, 0] += 1.0 - far
        weights[symbols[w], k + 1, 0] += far
        weights[symbols[w], k, 1] += width * t * (1.0 - t) * (1.0 - t)
        weights[symbols[w], k + 1, 1] -= width * t * t * (1.0 - t)


@compiled
def scores(symbols: Symbols, table: Floats, reach: float, means: Floats, slopes: Floats, begin: int, end: int) -> float:
    """Fill in the scores of entries; returns the sum of their log likelihoods."""
    total = 0.0
    for w in range(begin, end):
        value, slopes[w] = look_up(table, reach, symbols[w], means[w])
        total += value
    return total


@compiled
def gather(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    offsets: Floats,
    offset_starts: Integers,
    coordinates: Coordinates,
    mean: float,
    order: Integers,
    first: int,
    last: int,
    n: int,
    phi: Floats,
    rows: Integers,
    work: Floats | None,
    features: Floats,
    base: Floats,
) -> None:
    """Features of the row of mode n, and what else the mean of an entry is made of, of entries first to last."""
    N = coordinates.shape[1]
    R = widths[n]
    place = room_of(widths[:n])
    for k in range(last - first):
        w = order[first + k]
        own = features[k]
        if work is None:
            other_rows(parameters, starts, R, coordinates, w, n, own)
        else:
            blocks.entry_features(blocks.Blocks(parameters, starts, widths), coordinates, w, rows, phi, work)
            for r in range(R):
                own[r] = phi[place + r]
        own[R] = 1.0  # of the offset
        total = mean
        for m in range(N):
            if m != n:
                total += offsets[offset_starts[m] + np.int64(coordinates[w, m])]
        base[k] = total


@compiled
def add_outer(features: Floats, count: int, H: Floats) -> None:
    """H += sum of phi phi^T over the first `count` rows of features; the next three are overwritten with zeros.

    Four entries at a time, so that H is read and written less often; whole rows of H, so that loops are vectorised.
    """
    D, width = H.shape
    for k in range(count, count + 3):
        for b in range(width):
            features[k, b] = 0.0
    for k in range(0, count, 4):
        one, two, three, four = features[k], features[k + 1], features[k + 2], features[k + 3]
        for a in range(D):
            p, q, r, s = one[a], two[a], three[a], four[a]
            row = H[a]
            for b in range(width):
                row[b] += (p * one[b] + q * two[b]) + (r * three[b] + s * four[b])


@compiled
def add_scores(
    symbols: Symbols,
    table: Floats,
    reach: float,
    order: Integers,
    first: int,
    last: int,
    row: Floats,
    features: Floats,
    base: Floats,
    g: Floats,
) -> float:
    """g += scores of gathered entries of one row; returns their log likelihood."""
    D = row.size
    total = 0.0
    for k in range(last - first):
        own = features[k]
        m = base[k]
        for a in range(D):
            m += own[a] * row[a]
        value, slope = look_up(table, reach, symbols[order[first + k]], m)
        total += value
        for a in range(D):
            g[a] += slope * own[a]
    return total


@compiled
def draw_rows(
    parameters: Floats,
    starts: Integers,
    widths: Integers,
    room: int | None,
    offsets: Floats,
    offset_starts: Integers,
    coordinates: Coordinates,
    mean: float,
    symbols: Symbols,
    table: Floats,
    reach: float,
    information: float,
    keep: float,
    order: Integers,
    begins: Integers,
    n: int,
    prior_means: Floats,
    prior_precisions: Floats,
    key: np.uint64,
    signed: Floats | None,
    begin: int,
    end: int,
) -> int:
    """Draw rows begin to end of factor matrix n with their offsets; returns how many proposals were accepted.

    `signed` are the numbers whose absolute values are those of a non-negative model (folded.py); None for a free model.
    """
    R = widths[n]
    D = R + 1
    rows = np.empty(starts.size, np.int64)
    phi = np.empty(room_of(widths))
    work = None if room is None else np.empty(room)
    length = (D + 3) // 4 * 4
    features = np.zeros((BATCH + 3, length))  # what fills the last vector stays zero
    base = np.empty(BATCH)
    old, new, z = np.empty(D), np.empty(D), np.empty(D)
    g, H = np.empty(D), np.empty((D, length))
    seen = None if signed is None else np.empty(2 * folded.WALKS * D)
    accepted = 0
    fresh = math.sqrt(1.0 - keep * keep)
    for i in range(begin, end):
        start = starts[n] + i * R
        for a in range(R):
            old[a] = parameters[start + a] if signed is None else signed[start + a]
        old[R] = offsets[offset_starts[n] + i]
        state = normals.stream(key, i)
        log_ratio = 0.0
        good = True
        for a in range(D):
            for b in range(length):
                H[a, b] = 0.0
        for side in range(2):  # there, and back
            here = old if side == 0 else new
            value = 0.0
            if seen is not None:
                folded.fold(here, z)
                here = z
            for a in range(D):
                miss = prior_means[i, a] - here[a] if seen is None else 0.0
                g[a] = prior_precisions[a] * miss
                value -= 0.5 * prior_precisions[a] * miss * miss
            for first in range(begins[i], begins[i + 1], BATCH):
                last = min(first + BATCH, begins[i + 1])
                if side == 0 or begins[i + 1] - begins[i] > BATCH:  # else they are there
                    gather(
                        parameters,
                        starts,
                        widths,
                        offsets,
                        offset_starts,
                        coordinates,
                        mean,
                        order,
                        first,
                        last,
                        n,
                        phi,
                        rows,
                        work,
                        features,
                        base,
                    )
                value += add_scores(symbols, table, reach, order, first, last, here, features, base, g)
                if side == 0:
                    add_outer(features, last - first, H)
            if side == 0:
                for a in range(D):
                    for b in range(D):
                        H[a, b] *= information
                    new[a] = old[a]
            if seen is not None:
                prior = prior_means[i], prior_precisions
                if side == 0:
                    there, state = folded.walk(H, g, *prior, new, z, seen, keep, state)
                    log_ratio -= value + there
                else:
                    log_ratio += value + folded.walk_back(H, g, *prior, z, seen, keep)
                continue
            if side == 0:
                for a in range(D):
                    H[a, a] += prior_precisions[a]
                good = factorize(H)
                if not good:
                    break
            for a in range(D):  # g becomes L^-1 g
                total = g[a]
                for b in range(a):
                    total -= H[a, b] * g[b]
                g[a] = total / H[a, a]
            if side == 0:
                for a in range(D):
                    state += normals.STEP
                    z[a] = normals.quantile(normals.uniform(state))
                    log_ratio += 0.5 * z[a] * z[a]
                    z[a] = (1.0 - keep) * g[a] + fresh * z[a]
                for a in range(D - 1, -1, -1):  # L^T (new - old) = (1 - a) L^-1 g + z
                    total = z[a]
                    for b in range(a + 1, D):
                        total -= H[b, a] * z[b]
                    z[a] = total / H[a, a]
                    new[a] = old[a] + z[a]
                log_ratio -= value
            else:
                for a in range(D):  # L^T (old - new) - (1 - a) L^-1 g'
                    total = -(1.0 - keep) * g[a]
                    for b in range(a, D):
                        total -= H[b, a] * z[b]
                    log_ratio -= 0.5 * total * total / (fresh * fresh)
                log_ratio += value
        state += normals.STEP
        if good and math.log(normals.uniform(state)) < log_ratio:
            for a in range(R):
                parameters[start + a] = new[a] if signed is None else abs(new[a])
                if signed is not None:
                    signed[start + a] = new[a]
            offsets[offset_starts[n] + i] = new[R]
            accepted += 1
    return accepted
