"""A mechanism that buys a histogram of the values and nothing else, for tests that run queries inside a mechanism."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tensorveil.mechanisms.base import Design, Mechanism, no_progress, split_budget
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import PureEvent
from tensorveil.privacy.bounds import VALUE_STEPS
from tensorveil.privacy.queries.values.histogram import Histogram
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.solvers.start import public_start

EDGES = np.linspace(-VALUE_STEPS, VALUE_STEPS, 17).astype(np.int64) + np.arange(17) // 16  # the highest step is inside


@dataclass(frozen=True)
class MarginalAlone(Mechanism):
    """One stage; its noisy counts give the mean of a constant model."""

    name: ClassVar[str] = "offsets"

    def design(self, request):
        (event,) = split_budget(request, [1.0], 16)
        query = Histogram(EDGES[:-1], EDGES[1:], isinstance(event, PureEvent))
        (change,) = query.sensitivity(request.unit)
        told = Sensitivity(change.bound, change.norm, "counts")
        return Design((Stage("marginal", "histogram", event, told, LAW_OF_NORM[change.norm], "counts"),), query, 16)

    def run(self, vault, plan, progress=no_progress):
        counts = vault.answer("marginal", plan.settings).values
        mean = float(np.tanh(counts @ np.linspace(-1, 1, 16)))
        request = plan.request
        model = public_start(request.family, vault.shape, std=0.1)
        return Completion(Offsets(mean, [None] * len(vault.shape)), model, request.bounds.low, request.bounds.high)
