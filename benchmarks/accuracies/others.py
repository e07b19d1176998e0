"""Methods of others in the accuracy benchmark: `python benchmarks/accuracy.py --peers`.

They run on a few data sets: traffic, where most of them were published, and ratings for those that protect a user. The
row of such a run depends on the sources of `peers`, so that a change there leaves the rows of all other methods as they
are.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from peers import bgcp, dpals, halrtc, noisy_values, silrtc, tensor_train, trmf

from accuracies import halves
from accuracies.measuring import NO_UNIT, Row, Run, data_of

WITHOUT_PRIVACY: dict[str, ModuleType] = {
    "HaLRTC": halrtc,
    "SiLRTC": silrtc,
    "BGCP": bgcp,
    "TRMF": trmf,
    "tensor train": tensor_train,
}
NOISY_VALUES, PRIVATE_ALS = "noisy values, then ALS", "private ALS (as DPALS)"
PRIVATE: dict[str, ModuleType] = {NOISY_VALUES: noisy_values, PRIVATE_ALS: dpals}
METHODS = WITHOUT_PRIVACY | PRIVATE
UNSEEDED = ("HaLRTC", "SiLRTC")

# facts about the data: modes of time, the slowest first, and lags in steps of the last where a day is no mode
TIMES: dict[str, dict[str, Any]] = {
    "birmingham": {"time": (1, 2)},
    "nyc-taxi": {"time": (2,), "lags": (1, 2, 24, 7 * 24)},
}
TRAFFIC = tuple(TIMES)
RATINGS = ("ml-100k ua", "ml-100k ub", "filmtrust")
EPSILONS = (5.0, 1.0)
VALUE_DELTA, SLICE_DELTA = 1e-6, 1e-5


def runs(name: str) -> Iterator[Run]:
    """The runs of a data set, without seeds."""
    if name in TRAFFIC:
        yield from (Run(name, NO_UNIT, None, method) for method in WITHOUT_PRIVACY)
    if name in (*TRAFFIC, *RATINGS):
        for epsilon in EPSILONS:
            yield from (Run(name, "value", epsilon, NOISY_VALUES, delta=delta) for delta in (0.0, VALUE_DELTA))
            yield Run(name, f"slice:{halves.REAL[name][2]}", epsilon, PRIVATE_ALS, delta=SLICE_DELTA)


def measured(run: Run) -> Row:
    """Errors and seconds of one run; a failure is told in the row."""
    try:
        data = data_of(run.data, run.seed if run.data not in halves.REAL else 0, run.development)
        started = time.perf_counter()
        train = data.train
        predicted = METHODS[run.method].complete(
            train.coordinates, train.values, train.shape, data.where, run.seed, **_settings(run, data)
        )
        seconds = time.perf_counter() - started
    except Exception as error:
        return run.facts | {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    return run.facts | data.errors(predicted) | {"seconds": round(seconds, 2)}


def _settings(run: Run, data: halves.Halves) -> dict[str, Any]:
    if run.method == "TRMF":
        return TIMES[run.data]
    if run.method not in PRIVATE:
        return {}
    budget = {"bounds": (data.bounds.low, data.bounds.high), "epsilon": run.epsilon, "delta": run.delta}
    mode = run.unit.partition(":")[2]
    return budget | ({"owner": data.train.mode_names.index(mode)} if run.method == PRIVATE_ALS else {})
