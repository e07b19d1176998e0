"""`plan` decides and prices, `fit` is the one door: observations and a plan in, a release out; `complete` is both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensorveil import checks
from tensorveil.data.features import features_for
from tensorveil.data.observations import Observations
from tensorveil.errors import InputError
from tensorveil.mechanisms.auto import Choice, choose, family_of, foreign_mechanisms
from tensorveil.mechanisms.base import Mechanism, Progress, no_progress, price
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.bounds import Bounds, check_public, clip
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.privacy.noise.exact import ExactNoise
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Plan, Request, default_names
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Pattern, Vault
from tensorveil.published import PublishedPlan
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.ledger.paying import paying, refuse_published
from tensorveil.release.release import CHACHA, EXACT, Release
from tensorveil.release.without_privacy import NO_PRIVACY, completed_without_privacy


def plan(
    observations: Observations,
    model: ModelFamily | str,
    bounds: Bounds,
    unit: str | Unit,
    epsilon: float,
    delta: float = 0.0,
    *,
    mechanism: Mechanism | str = "auto",
    expected_count: int | None = None,
    at_most: int | None = None,
    features: Mapping[str, Any] | None = None,
) -> Plan:
    """Choose a mechanism, fix its noise and price it; of the observations only what is public is read.

    That is their shape, the names of their modes and, under `value` and `slice_values`, how many there are. Print the
    plan to see the price before `fit` spends it; `Plan.reason` says why this mechanism.

    Parameters
    ----------
    observations : what `fit` will complete
    model : CP(rank) or Tucker(ranks), or "cp" or "tucker" for a rank by rule
    bounds : the public range of values
    unit : whose privacy is promised: "value", "entry", "slice:user", "slice_values:0"
    epsilon, delta : the budget; delta 0 for pure privacy
    mechanism : one, or a name: "auto" takes what was measured to be best for the unit
    expected_count : a public guess of the number of observations; a wrong one costs accuracy only
    at_most : with a slice unit, how many observations of one slice are kept
    features : public facts about the indices of modes, see `complete`

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> data = tv.Observations(np.argwhere(np.ones((6, 5, 4))), np.linspace(1, 5, 120), (6, 5, 4))
    >>> priced = tv.plan(data, tv.CP(rank=2), tv.Bounds(1, 5), "value", 5.0)
    >>> priced.mechanism.title, priced.epsilon
    ('input perturbation', 5.0)
    """
    if not isinstance(observations, Observations):
        raise InputError(f"observations must be Observations, got {type(observations).__name__}; build them first")
    protected = Unit.of(unit, at_most).resolved(observations.mode_names)
    check_public(observations, protected)  # a plan tells the shape, and errors of features name labels
    family = family_of(model, observations.shape, protected, mechanism)
    if isinstance(mechanism, str):
        asked = _request(observations, family, bounds, protected, epsilon, delta, expected_count)
        choice = choose(mechanism, asked)
    elif isinstance(mechanism, Mechanism):
        choice = Choice(mechanism, "asked for")
    else:
        raise InputError(f"mechanism must be one, e.g. InputPerturbation(), got {mechanism!r}; add the parentheses")
    chosen = choice.mechanism.with_features(features_for(observations, features)) if features else choice.mechanism
    return chosen.plan(
        family,
        bounds,
        protected,
        epsilon,
        delta,
        shape=observations.shape,
        mode_names=observations.mode_names,
        expected_count=expected_count,
    ).explained(choice.reason)


def _request(
    observations: Observations,
    family: ModelFamily,
    bounds: Bounds,
    unit: Unit,
    epsilon: float,
    delta: float,
    expected_count: int | None,
) -> Request:
    """What is public about a request for these observations; under public coordinates their number is."""
    shape, names = observations.shape, observations.mode_names
    asked = Request.checked(family, bounds, unit, epsilon, delta, shape, names, expected_count, None)
    if asked.unit.coordinates_public and expected_count is None:
        return replace(asked, expected_count=len(observations))
    return asked


def fit(
    observations: Observations,
    plan: Plan | PublishedPlan,
    *,
    seed: int | None = None,
    progress: Progress = no_progress,
    noise: NoiseSource | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
) -> Release:
    """Complete a tensor by a plan; two calls are two releases, and their budgets add up.

    Parameters
    ----------
    observations : of the plan's shape
    plan : from a mechanism's `plan`; from a published algorithm's, the release says *claimed*
    seed : for experiments; the release is then not publishable
    progress : called with what is being done, how far, of how many
    noise : another source of noise: ExactNoise, or one for audits; of any class but NoiseSource and ExactNoise, the
        release is not publishable
    ledger, dataset : the budget to pay from; reserved before anything is drawn, and spent if the run then fails

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> data = tv.Observations(np.argwhere(np.ones((6, 5, 4))), np.linspace(1, 5, 120), (6, 5, 4))
    >>> plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), tv.Bounds(1, 5), "value", 1.0, shape=(6, 5, 4))
    >>> tv.fit(data, plan).guarantee.status
    'proven'
    """
    if isinstance(plan, PublishedPlan):
        refuse_published(ledger, dataset)
        if noise is not None:
            raise InputError("noise must be left out for a published algorithm, got one; it draws its own, not secret")
        passes = plan.sgd.iterations
        run = plan.mechanism.run(
            observations,
            plan.family,
            plan.epsilon,
            plan.sgd,
            seed=seed,
            progress=lambda done, _: progress("iterations", done, passes),
        )
        return Release(Completion.unclipped(run.model), run.guarantee, **_names(observations))
    if not isinstance(plan, Plan):
        raise InputError(f"plan must be made by a mechanism's plan(), got {type(plan).__name__}; make one first")
    if not plan.unaltered:
        raise InputError("a plan must be as a mechanism's plan() made it, got one that was changed; plan anew")
    if not isinstance(observations, Observations):
        raise InputError(f"observations must be Observations, got {type(observations).__name__}; build them first")
    if observations.shape != plan.request.shape:
        raise InputError(
            f"observations must have the plan's shape {plan.request.shape}, got {observations.shape}; plan again"
        )
    names = plan.request.mode_names
    if observations.mode_names != names and names != default_names(len(names)):
        raise InputError(
            f"observations must have the plan's mode_names {list(names)}, got {list(observations.mode_names)}; "
            "the unit names one of them"
        )
    if observations.mode_names != names and plan.public_inputs:
        raise InputError(
            f"a plan with features must name the modes {list(observations.mode_names)}, got none of the names; "
            "plan with mode_names"
        )
    if plan.request.unit.kind == "value" and plan.delta >= 1 / len(observations):  # how many there are is public
        raise InputError(
            f"delta must be below 1/{len(observations):,}, one over the number of values, "
            f"got {plan.delta:g}; plan again"
        )
    if plan.epsilon < price(plan.events, plan.request, plan.gaussian_coordinates):
        raise InputError("a plan must state what its stages cost, got less; make it by a mechanism's plan()")
    if observations.mode_names != names:  # a plan without names takes those of the observations
        plan = plan.with_names(observations.mode_names)
    source = NoiseSource(checks.seed(seed)) if noise is None else noise
    data = clip(observations, plan.request.bounds, plan.request.unit, source.key())
    trusted = type(source) in (NoiseSource, ExactNoise) and not source.seeded  # no subclass: it may record or replay
    if data.unit.coordinates_public:
        plan.mechanism.check_pattern(Pattern(data.coordinates, data.shape, data.unit), plan)
    with paying(ledger, dataset, plan, observations, trusted) as reservation:
        vault = Vault([data], plan.stages, plan.gaussian_coordinates, source)
        completion = plan.mechanism.run(vault, plan, progress)
        guarantee = Guarantee.of_run(
            plan,
            vault.receipts,
            seeded=not trusted,
            joint=completion.withheld_mode is not None,
            foreign=foreign_mechanisms(plan.mechanism),
            stated_modes=observations.stated_modes,
        )
        return Release(
            completion,
            guarantee,
            plan,
            **_names(observations),
            ledger=None if reservation is None else reservation.record,
            paid_by=ledger,
            generator=EXACT if isinstance(source, ExactNoise) else CHACHA,
        )


def _names(observations: Observations) -> dict[str, Any]:
    """What a release says of modes and values: all of it public."""
    return {
        "mode_names": observations.mode_names,
        "labels": observations.labels,
        "bins": observations.bins,
        "value_name": observations.value_name,
    }


def complete(
    observations: Observations,
    model: ModelFamily | str,
    bounds: Bounds,
    unit: str | Unit,
    epsilon: float,
    delta: float = 0.0,
    *,
    mechanism: Mechanism | str = "auto",
    expected_count: int | None = None,
    at_most: int | None = None,
    features: Mapping[str, Any] | None = None,
    seed: int | None = None,
    progress: Progress = no_progress,
    ledger: Ledger | None = None,
    dataset: str | None = None,
) -> Release:
    """`plan` and `fit` in one call; the shape and the names of the modes are those that the observations declare.

    Under `entry` and `slice` the declared shape must be public: give it, do not read it off the data. With an infinite
    epsilon nothing is private (status "none"): the same models on the values as they are, to see what privacy costs.

    `features` are public facts about the indices of modes, e.g. {"film": "films.csv"}: a matrix with one row per index,
    or a table or file that is matched by labels (`features_for`). They must not be derived from the values; the
    certificate names them. A mechanism that cannot use them refuses.
    """
    if epsilon == math.inf and isinstance(observations, Observations):
        if ledger is not None or dataset is not None:
            raise InputError(
                "a release on a ledger must have a finite epsilon, got inf, which no budget covers; leave it out"
            )
        family = family_of(model, observations.shape, Unit.value(), mechanism)
        known = features_for(observations, features) if features else None
        completion = completed_without_privacy(observations, family, bounds, progress, known)
        return Release(completion, NO_PRIVACY, **_names(observations))
    planned = plan(
        observations,
        model,
        bounds,
        unit,
        epsilon,
        delta,
        mechanism=mechanism,
        expected_count=expected_count,
        at_most=at_most,
        features=features,
    )
    return fit(observations, planned, seed=seed, progress=progress, ledger=ledger, dataset=dataset)
