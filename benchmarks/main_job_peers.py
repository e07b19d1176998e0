"""Jobs without privacy on the file of a main job: `python main_job_peers.py NAME FILE CELLS PREDICTED`.

The file has the columns user, film, day and rating; cells and predictions are NumPy files. Libraries of matrices get
users and films alone. Every library runs with the settings that its documentation begins with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Cells = NDArray[np.int32]

RANK = 12  # of our own default
LEVEL = 3.0  # the middle of the stars: implicit takes what lies above it for likes


def own_als(where: Cells, values: Floats, asked: Cells) -> Floats:
    """Our own ALS, three-way."""
    import tensorveil as tv

    shape = tuple(int(max(a, b)) + 1 for a, b in zip(where.max(axis=0), asked.max(axis=0), strict=True))
    data = tv.Observations(where.astype(np.uint32), values, shape, duplicates="keep")
    return np.clip(tv.ALS().solve(data, tv.CP(RANK)).predict(asked.astype(np.uint32)), 1, 5)


def surprise(where: Cells, values: Floats, asked: Cells) -> Floats:
    """Surprise's SVD: biased matrix factorisation by SGD."""
    import pandas as pd
    from surprise import SVD, Dataset, Reader

    table = pd.DataFrame({"user": where[:, 0], "film": where[:, 1], "rating": values})
    model = SVD(random_state=0)
    model.fit(Dataset.load_from_df(table, Reader(rating_scale=(1, 5))).build_full_trainset())
    return np.array([model.predict(user, film).est for user, film in asked[:, :2].tolist()])


def implicit(where: Cells, values: Floats, asked: Cells) -> Floats:
    """Implicit's ALS of likes and dislikes; its scores, scaled to the values by least squares, are no ratings."""
    from implicit.cpu.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix

    both = np.vstack([where, asked])[:, :2].astype(np.int64)
    matrix = csr_matrix(
        (values > LEVEL, (where[:, 0], where[:, 1])), shape=tuple(both.max(axis=0) + 1), dtype=np.float32
    )
    model = AlternatingLeastSquares(random_state=0)
    model.fit(matrix, show_progress=False)
    scores = np.einsum("wr,wr->w", model.user_factors[both[:, 0]], model.item_factors[both[:, 1]])
    return np.polyval(np.polyfit(scores[: len(where)], values, 1), scores[len(where) :])


def myfm(where: Cells, values: Floats, asked: Cells) -> Floats:
    """myFM's Bayesian factorisation machine on one-hot columns of all modes."""
    from myfm import MyFMRegressor
    from scipy.sparse import csr_matrix

    sizes = np.maximum(where.max(axis=0), asked.max(axis=0)) + 1

    def columns(cells: Cells) -> csr_matrix:
        places = (cells + np.concatenate([[0], np.cumsum(sizes)[:-1]])).astype(np.int64)
        rows = np.repeat(np.arange(len(cells)), cells.shape[1])
        return csr_matrix((np.ones(places.size), (rows, places.ravel())), shape=(len(cells), int(sizes.sum())))

    model = MyFMRegressor(rank=RANK, random_seed=0)
    model.fit(columns(where), values, n_iter=200, group_shapes=sizes.tolist())
    return np.asarray(model.predict(columns(asked)))


@final
@dataclass(frozen=True)
class Peer:
    """A job, the package that it needs, the model that it fits, and the most rows that it is given."""

    work: Callable[[Cells, Floats, Cells], Floats]
    package: str
    model: str
    most_rows: int


PEERS = {
    "als": Peer(own_als, "tensorveil", "cp", 10**8),
    "surprise": Peer(surprise, "surprise", "matrix", 10**6),
    "implicit": Peer(implicit, "implicit", "matrix", 10**7),
    "myfm": Peer(myfm, "myfm", "pairs", 10**6),
}


def main() -> None:
    name, file, asked, predicted = sys.argv[1:]
    table = pq.read_table(file)
    where = np.column_stack([table[mode].to_numpy() for mode in ("user", "film", "day")])
    np.save(Path(predicted), PEERS[name].work(where, table["rating"].to_numpy(), np.load(asked)))


if __name__ == "__main__":
    main()
