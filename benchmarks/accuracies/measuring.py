"""One run of the accuracy benchmark: a method on data under a unit and a budget, and what is measured of it."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import tensorveil as tv
from accuracies import baselines, generated, halves
from accuracies.halves import Floats, Halves
from tensorveil.release.predictions import everybody

Row = dict[str, Any]

CUBE = "100^3"
NO_UNIT = "none"  # of what is not private
OURS, OURS_WITH_FEATURES = "ours", "ours, side information"
MEAN, PRIVATE_MEAN = "mean", "private mean"
OFFSETS, PRIVATE_OFFSETS = "offsets", "private offsets"
DP_SGD, PAPER, SVDPP = "DP-SGD, delta 1e-6", "the paper's baseline", "SVD++"
PUBLISHED = {f"published {name} (claimed)": name for name in baselines.PUBLISHED}
OF_THE_LIBRARY = (OURS, OURS_WITH_FEATURES, DP_SGD, PAPER, *PUBLISHED)

DEFAULT, WIDE, FOUR, ABOVE_FOUR = "default", "bounds ten times too wide", "bounds 0 to 4", "bounds 0 to 4.01"
RANK_30, PERMUTED = "rank 30", "permuted rows"
TOO_WIDE = 10
INTERVAL = 0.9
WATCHED = 500  # test cells whose draws are compared by R-hat
RHAT_PARTS = 4  # of the draws, in their order


@dataclass(frozen=True)
class Run:
    """What is run: method, data, unit, budget, variant of the defaults, and the seed of the noise (or of drawn data).

    An epsilon of None is infinite: without privacy.
    """

    data: str
    unit: str
    epsilon: float | None
    method: str
    seed: int = 0
    delta: float = 0.0
    variant: str = DEFAULT
    development: bool = False

    def __str__(self) -> str:
        epsilon = "inf" if self.epsilon is None else f"{self.epsilon:g}"
        delta = f" delta {self.delta:g}" if self.delta else ""
        variant = "" if self.variant == DEFAULT else f", {self.variant}"
        development = ", development" if self.development else ""
        return f"{self.data} {self.unit} {epsilon}{delta} {self.method}{variant}{development}, seed {self.seed}"

    @property
    def facts(self) -> Row:
        """The run as columns of a row."""
        return {
            "data": self.data,
            "unit": self.unit,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "method": self.method,
            "variant": self.variant,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Predicted:
    """Predictions of the test half, with the ends of their intervals and facts about the chain where there is one."""

    values: Floats
    ends: tuple[Floats, Floats] | None = None
    chain: Row | None = None


@lru_cache(maxsize=4)
def data_of(name: str, seed: int, development: bool) -> Halves:
    """The halves of a data set; those of synthetic data are drawn by the seed of the run."""
    if name in halves.REAL:
        data = halves.REAL[name][0]()
        return data.for_development() if development else data
    drawn = generated.report_seed(seed, development)
    return generated.cube(drawn) if name == CUBE else generated.KINDS[name].draw(drawn)


def varied(data: Halves, variant: str) -> Halves:
    """The data as a variant of a run gives them to the method."""
    low, high = data.bounds.low, data.bounds.high
    if variant == WIDE:
        return data.with_bounds(low, low + TOO_WIDE * (high - low))
    if variant in (FOUR, ABOVE_FOUR):
        return data.with_bounds(0, 4 if variant == FOUR else 4.01)
    return data.permuted() if variant == PERMUTED else data


def measured(run: Run) -> Row:
    """Errors, coverage of the intervals, facts about the chain and seconds of one run; a failure is told in the row."""
    seed = run.seed if run.data not in halves.REAL else 0
    try:
        data = data_of(run.data, seed, run.development)
        asked = varied(data, run.variant)
        started = time.perf_counter()
        predicted = predict(asked, run)
        seconds = time.perf_counter() - started
    except Exception as error:
        return run.facts | {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    row = run.facts | data.errors(predicted.values) | {"seconds": round(seconds, 2)}
    if predicted.ends is not None:
        row["tenths"] = asked.coverage(predicted.values, *predicted.ends)
        row["coverage"] = float(np.mean(row["tenths"]))
    return row | (predicted.chain or {})


def predict(data: Halves, run: Run) -> Predicted:
    """Predictions of the run's method; floors and baselines have no intervals."""
    if run.method in (OURS, OURS_WITH_FEATURES):
        return ours(data, run)
    if run.method == MEAN:
        return Predicted(baselines.exact_mean(data))
    if run.method == OFFSETS:
        return Predicted(baselines.exact_offsets(data))
    if run.method == SVDPP:
        return Predicted(baselines.svdpp(data, run.seed))
    preset = "cp-synthetic" if run.data == CUBE else "cp-ml-100k"
    if run.method == PAPER:
        return Predicted(baselines.paper(data, preset, run.seed))
    if run.epsilon is None:
        raise ValueError(f"{run.method} must have a finite epsilon, got none; give one")
    if run.method == PRIVATE_MEAN:
        return Predicted(baselines.private_mean(data, run.unit, run.epsilon, run.seed))
    if run.method == PRIVATE_OFFSETS:
        return Predicted(baselines.private_offsets(data, run.unit, run.epsilon, run.seed))
    if run.method == DP_SGD:
        return Predicted(baselines.dp_sgd(data, run.epsilon, run.seed))
    return Predicted(baselines.published(data, PUBLISHED[run.method], preset, run.epsilon, run.seed))


def ours(data: Halves, run: Run) -> Predicted:
    """The completion with the defaults of `tensorveil complete`; under slices every owner predicts for itself."""
    sweeps = 0

    def count(task: str, done: int, total: int) -> None:
        nonlocal sweeps
        sweeps += task == "sweeps"

    features = None
    if run.method == OURS_WITH_FEATURES:
        withheld = run.unit.partition(":")[2]  # rows of owners stay with them
        known = halves.movielens_features()
        features = {mode: known[mode] for mode in known if mode != withheld}
    release = tv.complete(
        data.train,
        tv.CP(30) if run.variant == RANK_30 else "cp",
        data.bounds,
        "value" if run.epsilon is None else run.unit,
        math.inf if run.epsilon is None else run.epsilon,
        run.delta,
        features=features,
        seed=run.seed,
        progress=count,
    )
    model = release.model if release.withheld_mode is None else everybody(release, data.train)
    predicted = model.predict(data.where)
    try:
        ends = model.interval(data.where, INTERVAL)
    except tv.InputError:  # a model without a posterior has no intervals
        ends = None
    chain: Row = {"mechanism": "none" if release.plan is None else release.plan.mechanism.name}
    if sweeps:
        chain["sweeps"] = sweeps
    if model.draws is not None:
        chain["draws"] = len(model.draws)
        if len(model.draws) >= 2 * RHAT_PARTS:
            chain["rhat"] = rhat(model.draws.latent_means(data.where[:WATCHED], model.offsets))
    return Predicted(predicted, ends, chain)


def rhat(draws: Floats) -> float:
    """The 95th percentile over cells of R-hat (Gelman et al., BDA3, 11.4), parts of the released draws as chains.

    If a release holds the draws of several chains one after the other, the parts are the chains or halves of them. Few
    draws give a large number even if they are independent: 1.14 for 30, 1.06 for 60, 1.03 for 100 and 1.02 for 160.
    """
    length = len(draws) // RHAT_PARTS
    parts = draws[: RHAT_PARTS * length].reshape(RHAT_PARTS, length, -1)
    within = parts.var(axis=1, ddof=1).mean(axis=0)
    between = parts.mean(axis=1).var(axis=0, ddof=1)
    moving = within > 0
    if not moving.any():
        return 1.0
    return float(np.quantile(np.sqrt((length - 1) / length + between[moving] / within[moving]), 0.95))
