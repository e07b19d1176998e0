"""Worlds to audit the mechanisms with: tiny tensors, a unit that differs between two of them, and what is released.

Everything goes through `fit`, the one door, with fresh secret noise. The unit that differs is placed where it shows
most: at the bounds, alone in its row of every mode, with a model flexible enough to follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from tensorveil import checks
from tensorveil.audit.lower_bounds import LowerBound, lower_bound
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError, UnprovenError
from tensorveil.mechanisms import published
from tensorveil.mechanisms.base import Mechanism, Progress, no_progress
from tensorveil.mechanisms.gradient_perturbation import GradientPerturbation
from tensorveil.mechanisms.input_perturbation import InputPerturbation
from tensorveil.mechanisms.output_perturbation import OutputPerturbation
from tensorveil.mechanisms.published import PublishedPlan
from tensorveil.mechanisms.statistic_perturbation import StatisticPerturbation
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import FactorModel, ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import Bounds
from tensorveil.privacy.events import GaussianEvent
from tensorveil.privacy.plan import Plan
from tensorveil.privacy.units import Unit
from tensorveil.release.fitting import fit
from tensorveil.solvers.als import ALS

Floats = NDArray[np.float64]

MODE_NAMES = ("user", "item", "day")
BOUNDS = Bounds(0.0, 1.0)
DELTA = 1e-5  # where a mechanism needs one and none is asked for

# Few steps and little smoothing: each step then has little noise, and the model follows the unit that differs.
PROVEN: dict[str, Mechanism] = {
    "input": InputPerturbation(solver=ALS(sweeps=6, regularization=1e-3)),
    "gradient": GradientPerturbation(steps=2),
    "output": OutputPerturbation(),
    "statistic": StatisticPerturbation(sweeps=1),
}
PUBLISHED: dict[str, published.Published] = {
    "published-input": published.InputPerturbation(),
    "published-gradient": published.GradientPerturbation(),
    "published-output": published.OutputPerturbation(),
}
MECHANISMS = (*PROVEN, *PUBLISHED)
MODELS: dict[str, ModelFamily] = {"cp": CP(rank=2), "tucker": Tucker(ranks=(2, 2, 2))}
PUBLISHED_MODELS: dict[str, ModelFamily] = {"cp": CP(rank=3), "tucker": Tucker(ranks=(2, 2, 2))}
SHAPE, PUBLISHED_SHAPE = (4, 3, 3), (6, 6, 6)
SLICE_SIZE = 2  # observations of the slice that differs
NARROW = (0.4, 0.5, 0.7)  # where the range is read off the data: the others' range, and the value that widens it
