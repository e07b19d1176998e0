"""The methods of the accuracy benchmark: ours, floors, the paper's, and peers that are installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

import numpy as np
from datasets import Case, Drawn

import tensorveil as tv
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.release.predictions import everybody

PUBLISHED = ("input", "gradient", "output")
Predicted = tuple[np.ndarray, float | None]  # predictions, and the share of test values inside 90 % intervals


@dataclass(frozen=True)
class Method:
    """A way to predict: a function of the data, epsilon (None without privacy) and a seed."""

    name: str
    status: str
    predict: Callable[[Drawn, float | None, int], Predicted]
    private: bool = True
    random: bool = True


def methods(case: Case, quick: bool) -> list[Method]:
    """What is measured on a case."""
    found = [
        Method("global mean", "none", _mean, private=False, random=False),
        Method("ours", "proven", partial(_ours, case)),
    ]
    if case.features:
        bare = replace(case, features=None)
        found.append(Method("ours, without side information", "proven", partial(_ours, bare)))
    if case.unit != "value":
        return found
    sgd = tv.SGD.preset(f"cp-{case.reference}")
    found.insert(1, Method("private mean", "proven", _private_mean))
    found.append(Method("ours, no privacy", "none", partial(_without_privacy, case), private=False, random=False))
    found.append(Method("the paper's baseline", "none", partial(_baseline, sgd), private=False))
    found.append(Method("plain DP-SGD, delta 1e-6", "proven", _dp_sgd))
    if not quick:
        found += [Method(f"published {name}", "claimed", partial(_published, name, sgd)) for name in PUBLISHED]
    if find_spec("surprise") and case.data == "ml-100k":
        found.append(Method("Surprise SVD++", "none", _svdpp, private=False))
    return found


def left_out() -> list[str]:
    """Peers that are not installed, named."""
    return [] if find_spec("surprise") else ["left out: Surprise (SVD++) is not installed: pip install scikit-surprise"]


def _mean(drawn: Drawn, epsilon: None, seed: int) -> Predicted:
    return _constant(drawn, drawn.train.values.mean()), None


def _baseline(sgd: tv.SGD, drawn: Drawn, epsilon: None, seed: int) -> Predicted:
    return _scaled(drawn, lambda data: sgd.solve(data, tv.CP(3), seed=seed).model), None


def _without_privacy(case: Case, drawn: Drawn, epsilon: None, seed: int) -> Predicted:
    return _ours(case, drawn, math.inf, seed)


def _constant(drawn: Drawn, number: float) -> np.ndarray:
    return np.full(len(drawn.truth), number)


def _private_mean(drawn: Drawn, epsilon: float, seed: int) -> Predicted:
    """The mean with Laplace noise (unit value: width / (n epsilon))."""
    data = clip(drawn.train, drawn.bounds, tv.Unit.value(), bytes(32))
    steps = 2 * 2**20  # a replaced value moves the sum by the width, two in centred values
    total = NoiseSource(seed).laplace(data.steps.sum(keepdims=True), grid=2.0**-20, sensitivity=steps, epsilon=epsilon)
    return _constant(drawn, float(drawn.bounds.uncentred(total / len(data))[0])), None


def _ours(case: Case, drawn: Drawn, epsilon: float, seed: int) -> Predicted:
    options = case.options if case.features is None else case.options | {"features": case.features}
    release = tv.complete(drawn.train, case.family, drawn.bounds, case.unit, epsilon, case.delta, seed=seed, **options)
    if getattr(release.model, "withheld_mode", None) is not None:
        return _joint(release, drawn), None
    predicted = release.predict(drawn.where)
    try:
        _, low, high = release.predict(drawn.where, interval=0.9)
    except (TypeError, tv.InputError):  # a mechanism without a posterior
        return predicted, None
    return predicted, drawn.coverage(low, high)


def _joint(release: tv.Release, drawn: Drawn) -> np.ndarray:
    """Every owner predicts for itself, from the release and its own observations."""
    return everybody(release, drawn.train).predict(drawn.where)


def _scaled(drawn: Drawn, solve: Callable) -> np.ndarray:
    """Solved on values scaled to [0, 1], as the paper does, and predicted on their own scale."""
    width = drawn.bounds.high - drawn.bounds.low
    model = solve(drawn.train.with_values((drawn.train.values - drawn.bounds.low) / width))
    return drawn.bounds.low + width * model.predict(drawn.where)


def _published(name: str, sgd: tv.SGD, drawn: Drawn, epsilon: float, seed: int) -> Predicted:
    mechanism = getattr(tv.published, f"{name.capitalize()}Perturbation")()
    try:
        return _scaled(drawn, lambda data: mechanism.run(data, tv.CP(3), epsilon, sgd, seed=seed).model), None
    except tv.DivergenceError:
        return _constant(drawn, drawn.bounds.high), None  # as bad as a constant can be


def _dp_sgd(drawn: Drawn, epsilon: float, seed: int) -> Predicted:
    """Clipped gradients with Gaussian noise: no offsets, no posterior."""
    mechanism = tv.GradientPerturbation()
    release = tv.complete(drawn.train, tv.CP(3), drawn.bounds, "value", epsilon, 1e-6, mechanism=mechanism, seed=seed)
    return release.predict(drawn.where), None


def _svdpp(drawn: Drawn, epsilon: None, seed: int) -> Predicted:
    import pandas as pd
    import surprise

    users, items = drawn.train.coordinates.T
    frame = pd.DataFrame({"user": users, "item": items, "rating": drawn.train.values})
    scale = surprise.Reader(rating_scale=(drawn.bounds.low, drawn.bounds.high))
    train = surprise.Dataset.load_from_df(frame, scale).build_full_trainset()
    solver = surprise.SVDpp(random_state=seed).fit(train)
    return np.array([solver.predict(int(user), int(item)).est for user, item in drawn.where]), None
