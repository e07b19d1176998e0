"""A mechanism that buys the marginal and nothing else, for tests that run it as `fit` runs a mechanism."""

from dataclasses import dataclass
from typing import ClassVar

from tensorveil.mechanisms.base import Design, Mechanism, no_progress, split_budget
from tensorveil.mechanisms.parts.marginal import ask_marginal, marginal_coordinates, marginal_stages
from tensorveil.models.completion import Completion
from tensorveil.models.offsets import Offsets
from tensorveil.solvers.start import public_start


@dataclass(frozen=True)
class MarginalAlone(Mechanism):
    """The whole budget for the marginal, whose mean, spread and quantiles the release shows."""

    name: ClassVar[str] = "offsets"

    def design(self, request):
        numbers = marginal_coordinates(request)
        events = split_budget(request, [1.0, 1.0, 1.0], numbers)
        return Design(marginal_stages(request, events), None, numbers)

    def run(self, vault, plan, progress=no_progress):
        marginal = ask_marginal(vault, plan.stages, plan.request.bounds)
        request = plan.request
        shown = float(marginal.mean() + marginal.std() / 8 + marginal.quantile(0.5) / 16)
        model = public_start(request.family, vault.shape, std=0.1)
        return Completion(Offsets(shown, [None] * len(vault.shape)), model, request.bounds.low, request.bounds.high)
