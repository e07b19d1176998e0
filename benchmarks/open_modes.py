"""What it costs to leave the mode of times open: `python benchmarks/open_modes.py [day] [week] [month]`.

MovieLens 100K, split ua, unit value, epsilon 5, seed 0. A model by user, film and time predicts the ratings of ua.test
by user and film alone: averaged over all bins with equal weights, or over the bins of the user in ua.base. Beside it
are the same model with the bin of the row, and the model by user and film. TENSORVEIL_DATA names the folder of ml-100k.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tensorveil as tv

COLUMNS = ["user", "film", "rating", "time"]
FORMS = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}


def split(name: str) -> pd.DataFrame:
    """The rows of a file of MovieLens, with the labels of all bins of their times."""
    folder = Path(os.environ["TENSORVEIL_DATA"]) / "ml-100k"
    rows = pd.read_csv(folder / name, sep="\t", names=COLUMNS)
    times = pd.to_datetime(rows["time"], unit="s")
    return rows.assign(**{bin: times.dt.strftime(form) for bin, form in FORMS.items()})


def fitted(base: pd.DataFrame, bin: str | None = None) -> tv.Release:
    """A seeded release of the ratings by user and film, and by bins of their times."""
    modes = {"user": "user", "film": "film"} | ({} if bin is None else {bin: "time"})
    data = tv.Observations.from_table(base[COLUMNS], modes, "rating", bins=None if bin is None else {bin: bin})
    return tv.complete(data, "cp", (1, 5), "value", 5.0, seed=0)


def error(release: tv.Release, rows: pd.DataFrame, **how: Any) -> tuple[float, np.ndarray]:
    """RMSE on the rows, and the predictions."""
    table = {name: rows[name].to_numpy() for name in release.mode_names if name in rows}
    found = np.asarray(release.predict_table(table, unknown="offsets", **how)["prediction"], dtype=float)
    return float(np.sqrt(np.mean((found - rows["rating"]) ** 2))), found


def main() -> None:
    """Print one line per bin."""
    base, test = split("ua.base"), split("ua.test")
    two = error(fitted(base), test)[0]
    print(f"user x film: RMSE {two:.4f}", flush=True)
    for bin in sys.argv[1:] or FORMS:
        release = fitted(base, bin)
        equal = error(release, test[["user", "film", "rating"]], averaged={})[0]
        seen = base.groupby(["user", bin]).size().rename("weight").reset_index()
        cells = test[["user", "film", "rating"]].reset_index(names="row").merge(seen, on="user")
        cells["product"] = cells["weight"] * error(release, cells)[1]
        sums = cells.groupby("row")[["product", "weight"]].sum()
        own = float(np.sqrt(np.mean((sums["product"] / sums["weight"] - test["rating"]) ** 2)))
        exact = error(release, test)[0]
        print(
            f"user x film x {bin}: RMSE {equal:.4f} averaged over all bins, {own:.4f} over the user's own, {exact:.4f} "
            "with the bin of the row",
            flush=True,
        )


if __name__ == "__main__":
    main()
