"""What an update gains: `python benchmarks/updates.py [EPSILON ...]` (default 1 and 5).

NYC taxi trips by pickup zone, drop-off zone and hour, a tenth of the cells seen, unit value, seed 0. May is released,
then June: as an update of May's release, alone, and both months in one release. Each month has the budget epsilon, and
so has the joint release: it protects the same values. Errors are those of June. TENSORVEIL_DATA names the folder of
nyc-taxi.
"""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory

import numpy as np
from accuracies.halves import taxi

import tensorveil as tv
from tensorveil.release.updates.update import update

MAY = 31 * 24  # hours


def month(where: np.ndarray, values: np.ndarray, late: bool, hours: int) -> tv.Observations:
    """The trips of one month, whose hours have their numbers as labels."""
    inside = (where[:, 2] >= MAY) == late
    first, size = (MAY, hours - MAY) if late else (0, MAY)
    cells = where[inside].astype(np.int64) - [0, 0, first]
    zones = np.array([f"zone {number}" for number in range(30)])
    labels = [zones, zones, np.arange(first, first + size)]
    shape, names = (30, 30, size), ("pickup", "dropoff", "hour")
    return tv.Observations(cells, values[inside], shape, mode_names=names, labels=labels)


def main() -> None:
    """Print one line per epsilon."""
    data = taxi()
    where, hours = data.train.coordinates, data.train.shape[2]
    may, june = (month(where, data.train.values, late, hours) for late in (False, True))
    test = data.where[:, 2] >= MAY
    cells, values = data.where[test].astype(np.uint32), data.measured[test]
    of_june = cells - np.array([0, 0, MAY], dtype=np.uint32)
    for epsilon in map(float, sys.argv[1:] or ("1", "5")):
        first = tv.complete(may, "cp", data.bounds, "value", epsilon, seed=0)
        with TemporaryDirectory() as folder:
            first.save(f"{folder}/may")
            updated = update(tv.Release.load(f"{folder}/may"), june, epsilon, time="hour", seed=0)
        alone = tv.complete(june, "cp", data.bounds, "value", epsilon, seed=0)
        joint = tv.complete(data.train, "cp", data.bounds, "value", epsilon, seed=0)
        found = [updated.predict(of_june), alone.predict(of_june), joint.predict(cells)]
        errors = [float(np.sqrt(np.mean((part - values) ** 2))) for part in found]
        print(
            f"epsilon {epsilon:g}: RMSE of June {errors[0]:.2f} updated, {errors[1]:.2f} alone, {errors[2]:.2f} joint"
        )


if __name__ == "__main__":
    main()
