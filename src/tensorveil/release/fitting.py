"""`plan` chooses a mechanism and its cost, `fit` makes a release from observations and a plan, `complete` does both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tensorveil import checks
from tensorveil.data.features import Smooth, features_for, smooth_features
from tensorveil.data.observations import Observations
from tensorveil.data.readers.columns import Modes
from tensorveil.data.shards import WHOLE, Data, Sharded, opened
from tensorveil.engines.local import Engine
from tensorveil.errors import InputError
from tensorveil.kernels.cores import one_blas_thread
from tensorveil.mechanisms.auto import Choice, choose, compared_families, family_of, foreign_parts, with_levels
from tensorveil.mechanisms.base import Mechanism, Progress, no_progress, price
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.mechanisms.local.answers import LocalAnswers
from tensorveil.mechanisms.with_offsets import WithOffsets
from tensorveil.models.completion import Completion
from tensorveil.models.factor_model import ModelFamily
from tensorveil.privacy.bounds import Bounds, check_public
from tensorveil.privacy.coupled import Coupled, coupled_vaults
from tensorveil.privacy.guarantee import Guarantee
from tensorveil.privacy.noise.exact import ExactNoise
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.plan import Plan, Request, bounds_of, default_names
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault
from tensorveil.published import PublishedPlan
from tensorveil.release.answers import fit_answers
from tensorveil.release.certificate.curve import all_pure
from tensorveil.release.ledger.ledger import Ledger
from tensorveil.release.ledger.paying import paying, refuse_published
from tensorveil.release.memory import check_memory
from tensorveil.release.people.contributions import contributions_of
from tensorveil.release.release import CHACHA, EXACT, Release
from tensorveil.release.tables.clipping import (
    clipped,
    clipped_second,
    coupled_facts,
    engine_for,
    joint_counts,
    trusted_engine,
)
from tensorveil.release.without_privacy import NO_PRIVACY, completed_without_privacy


def plan(
    observations: Data,
    model: ModelFamily | str = "cp",
    bounds: Bounds | tuple[float, float] | None = None,
    unit: str | Unit | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    *,
    mechanism: Mechanism | str = "auto",
    levels: Sequence[float] | None = None,
    expected_count: int | None = None,
    at_most: int | None = None,
    features: Mapping[str, Any] | None = None,
    smooth: Smooth | None = None,
    coupled: Coupled | None = None,
) -> Plan:
    """Choose a mechanism, fix its noise and compute its privacy cost, from public facts about the observations.

    These facts are the shape, the mode names and, under `value` and `slice_values`, the number of observations. Print
    the plan to see the cost before `fit` spends it. `Plan.reason` says why the mechanism was chosen.

    Parameters
    ----------
    observations : what `fit` will complete
    model : CP(rank) or Tucker(ranks), or "cp", "nonnegative" (CP without negative factors) or "tucker" to let a rule
        choose the rank, or "auto" to let the released numbers choose between CP and Tucker, where that costs no privacy
    bounds : the public range of values, Bounds(low, high) or (low, high)
    unit : what is protected: "value", "entry", "slice:user", "slice_values:0"
    epsilon, delta : the budget; delta 0 for pure privacy
    mechanism : a mechanism or its name; "auto" chooses the one that is expected to be most accurate
    levels : the 2 to 32 values that can occur, if they are public, e.g. range(1, 6) for stars: input perturbation then
        rounds to them and need not pay for finding them. Under `value` and `slice_values` only
    expected_count : a public guess of the number of observations; a wrong guess only costs accuracy
    at_most : with a slice unit, the number of observations that are kept per slice
    features : public facts about the indices of modes, see `complete`
    smooth : modes whose neighbouring indices are alike, see `complete`
    coupled : a second table that shares a mode, see `complete`

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> data = tv.Observations(np.argwhere(np.ones((6, 5, 4))), np.linspace(1, 5, 120), (6, 5, 4))
    >>> priced = tv.plan(data, tv.CP(rank=2), tv.Bounds(1, 5), "value", 5.0)
    >>> priced.mechanism.title, priced.epsilon
    ('input perturbation', 5.0)
    """
    _check_data(observations)
    protected = Unit.of(unit, at_most).resolved(observations.mode_names)
    check_public(observations, protected)  # a plan tells the shape, and errors of features name labels
    if protected.coordinates_public and expected_count is None:
        expected_count = len(observations)  # public, as all coordinates are
    if levels is not None:
        mechanism = with_levels(mechanism, levels, protected)
    family = family_of(model, observations.shape, protected, mechanism)
    table = None if coupled is None else coupled_facts(coupled, observations)
    if table is not None and mechanism == "auto":
        choice = Choice(InputPerturbation(), "two coupled tables, which only input perturbation can complete")
    elif isinstance(mechanism, str):
        shape, names = observations.shape, observations.mode_names
        choice = choose(
            mechanism, Request.checked(family, bounds, protected, epsilon, delta, shape, names, expected_count, None)
        )
        if isinstance(choice.mechanism, WithOffsets):  # noise of gradients grows with the rank
            family = family_of(model, shape, protected, choice.mechanism)
    elif isinstance(mechanism, Mechanism):
        choice = Choice(
            mechanism, "asked for" if levels is None else "levels were given, which only input perturbation uses"
        )
    else:
        raise InputError(
            f"mechanism must be an instance, e.g. InputPerturbation(), got {mechanism!r}; add the parentheses"
        )
    chosen = choice.mechanism.with_features(features_for(observations, features)) if features else choice.mechanism
    if smooth is not None or chosen.can_smooth(protected):
        waves = smooth_features(observations, smooth)
        if smooth is None and protected.kind == "slice":  # its rows stay with their owners
            waves.pop(observations.mode_names[protected.mode_number], None)
        chosen = chosen.with_smooth(waves) if waves else chosen
    if isinstance(chosen, InputPerturbation):
        public = bounds_of(bounds)
        checks.levels_within("levels", chosen.levels, public.low, public.high)
    if model == "auto" and table is None:
        chosen = compared_families(chosen, observations.shape, protected)
    return chosen.plan(
        family,
        bounds,
        protected,
        epsilon,
        delta,
        shape=observations.shape,
        mode_names=observations.mode_names,
        expected_count=expected_count,
        coupled=table,
    ).explained(choice.reason)


def fit(
    observations: Data,
    plan: Plan | PublishedPlan,
    *,
    seed: int | None = None,
    progress: Progress = no_progress,
    noise: NoiseSource | None = None,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    engine: Engine | None = None,
    coupled: Coupled | None = None,
) -> Release:
    """Complete a tensor according to a plan. Two calls are two releases, and their costs add up.

    Parameters
    ----------
    observations : of the plan's shape
    plan : from `tv.plan` or the `plan` method of a mechanism; with a published algorithm, the release is *claimed*
    seed : for experiments; the release is then not publishable
    progress : called with the name of the task, the steps done and the total
    noise : another source of noise, e.g. ExactNoise() or one made for audits. With any class but NoiseSource and
        ExactNoise, the release is not publishable
    ledger, dataset : the budget that pays. It is reserved before any noise is drawn, and spent even if the run fails
    engine : where the work on a folder of shards runs, e.g. `Dask(client)`; None: in this process
    coupled : the second table, if it was planned

    Examples
    --------
    >>> import numpy as np, tensorveil as tv
    >>> data = tv.Observations(np.argwhere(np.ones((6, 5, 4))), np.linspace(1, 5, 120), (6, 5, 4))
    >>> plan = tv.StatisticPerturbation().plan(tv.CP(rank=2), tv.Bounds(1, 5), "value", 1.0, shape=(6, 5, 4))
    >>> tv.fit(data, plan).guarantee.status
    'proven'
    """
    if isinstance(plan, PublishedPlan) and isinstance(observations, Observations):
        refuse_published(ledger, dataset)
        if noise is not None or coupled is not None:
            raise InputError(
                "noise and coupled must be left out for a published algorithm, got one; it draws its own noise, which "
                "is not secret, and takes one table"
            )
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
    if (coupled is None) != (plan.request.coupled is None):
        raise InputError("coupled must be given to plan and to fit, got it for one of them only; give it to both")
    if not plan.unaltered:
        raise InputError("a plan must not be changed after it was made, got a changed one; make a new plan")
    _check_data(observations)
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
            f"a plan with features must name the modes {list(observations.mode_names)}, got a plan without them; "
            "plan with mode_names"
        )
    if plan.request.unit.kind == "value" and plan.delta >= 1 / len(observations):  # how many there are is public
        raise InputError(
            f"delta must be below 1/{len(observations):,}, one over the number of values, "
            f"got {plan.delta:g}; plan again"
        )
    if plan.delta != (0.0 if all_pure(plan.events) else plan.request.delta):
        raise InputError("a plan must state the delta that its stages are priced at, got another; plan anew")
    if plan.epsilon < price(plan.events, plan.request, plan.gaussian_coordinates):
        raise InputError("a plan must state at least the cost of its stages, got less; make it with plan()")
    if observations.mode_names != names:  # a plan without names takes those of the observations
        plan = plan.with_names(observations.mode_names)
    check_memory(plan, elsewhere=engine is not None)
    if isinstance(plan.mechanism, LocalAnswers):
        if seed is not None or noise is not None or ledger is not None or dataset is not None:
            raise InputError(
                "seed, noise, ledger and dataset must be left out for local answers, got one of them; the clients drew "
                "the noise, and each of them spent a budget of its own"
            )
        if not isinstance(observations, Observations):
            raise InputError("local answers must come from a file, got a folder of shards; give the file of answers")
        return fit_answers(observations, plan, plan.mechanism, progress)
    source = NoiseSource(checks.seed(seed)) if noise is None else noise
    engine = engine_for(observations, engine)
    shards = clipped(observations, plan, source.key(), engine)
    second = [] if coupled is None else [clipped_second(observations, coupled, plan, source.key())]
    request = plan.request
    second_bounds = [] if request.coupled is None else [request.coupled.bounds]
    foreign = foreign_parts(plan.mechanism, request.family, request.bounds, *second_bounds, request.unit)
    trusted = type(source) in (NoiseSource, ExactNoise) and not source.seeded  # no subclass: it may record or replay
    facts = plan.stages, plan.gaussian_coordinates, source, engine
    vaults = coupled_vaults(shards, second, *facts) if second else (Vault(shards, *facts),)
    vault = vaults[0]
    if vault.unit.coordinates_public:
        plan.mechanism.check_pattern(vault.pattern, plan)
    counts = partial(joint_counts, engine, shards, second, plan)
    contributions = None  # found before anything is spent, so that a failure costs nothing
    if vault.unit.coordinates_public:
        contributions = contributions_of(plan.request.mode_names, map(counts, range(len(observations.shape))))
    with paying(ledger, dataset, plan, counts, trusted) as reservation, one_blas_thread():
        kind = type(plan.mechanism)  # its methods, and no attribute of an instance
        runs: Callable[..., Completion] = kind.run_coupled if second else kind.run
        completion = runs(plan.mechanism, *vaults, plan, progress)
        guarantee = Guarantee.of_run(
            plan,
            [receipt for one in vaults for receipt in one.receipts],
            seeded=not trusted,
            joint=completion.withheld_mode is not None,
            foreign=foreign,
            stated_modes=observations.stated_modes,
        )
        if isinstance(observations, Sharded):  # `clipped` has read and checked every part
            guarantee = replace(
                guarantee,
                assumptions_checked=(*guarantee.assumptions_checked, WHOLE),
                assumptions_trusted=(*guarantee.assumptions_trusted, *trusted_engine(engine)),
            )
        return Release(
            completion,
            guarantee,
            plan,
            **_names(observations),
            ledger=None if reservation is None else reservation.record,
            paid_by=ledger,
            generator=EXACT if isinstance(source, ExactNoise) else CHACHA,
            contributions=contributions,
        )


def _check_data(observations: Any) -> None:
    if not isinstance(observations, Data):
        raise InputError(f"observations must be Observations, got {type(observations).__name__}; build them first")


def _names(observations: Data) -> dict[str, Any]:
    """What a release states about modes and values; all of it is public."""
    return {
        "mode_names": observations.mode_names,
        "labels": observations.labels,
        "bins": observations.bins,
        "value_name": observations.value_name,
    }


def complete(
    observations: Any,
    model: ModelFamily | str = "cp",
    bounds: Bounds | tuple[float, float] | None = None,
    unit: str | Unit | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    *,
    mechanism: Mechanism | str = "auto",
    levels: Sequence[float] | None = None,
    expected_count: int | None = None,
    at_most: int | None = None,
    features: Mapping[str, Any] | None = None,
    smooth: Smooth | None = None,
    coupled: Coupled | None = None,
    seed: int | None = None,
    progress: Progress = no_progress,
    ledger: Ledger | None = None,
    dataset: str | None = None,
    modes: Modes | None = None,
    value: str | None = None,
    engine: Engine | None = None,
    **reading: Any,
) -> Release:
    """Plan and fit in one call, with the shape and mode names of the observations.

    Instead of observations, give a pandas or polars data frame, an Arrow table or the path of a file, with `modes`,
    `value` and all other arguments of `Observations.from_table` or `read` (`bins`, `labels`, `shape`, ...), or the path
    of a folder of shards (`tensorveil shard`), whose work may run on a cluster: `engine=Dask(client)`.

    Under `entry` and `slice` the shape must be public: state it instead of deriving it from the data. With an infinite
    epsilon nothing is private (status "none"): the same models are fitted without noise, to show the cost of privacy.

    Parameters
    ----------
    observations : Observations, a data frame, a table, or a path
    model, bounds, unit, epsilon, delta, mechanism, levels, expected_count, at_most : see `plan`
    features : public facts about the indices of modes, e.g. {"film": "films.csv"}: a matrix with one row per index, or
        a table or file that is matched by labels (`features_for`). They must not be derived from the values; the
        certificate names them. A mechanism that cannot use them refuses.
    smooth : modes whose neighbouring indices are alike, e.g. ["day"], or {"day": "ordered", "hour": "periodic"} if the
        last hour is a neighbour of the first one. How alike they are is learned. Modes of binned times are smooth by
        default: those that come again (hour_of_day, weekday, month_of_year) are periodic. With [] none is.
    coupled : a second table, as private as the first one, that shares a mode with it: `Coupled(table, bounds, ...)`.
        The release predicts the first table; the second one tells more about the indices that both have. Under `value`
    seed, progress, ledger, dataset, engine : see `fit`
    modes, value : names of columns, where a table or a path is given
    **reading : further arguments of `Observations.from_table` or `read`

    Returns
    -------
    Release

    Examples
    --------
    >>> import tensorveil as tv
    >>> frame = {"user": ["ann", "ann", "bob", "cy"], "film": ["Alien", "Big", "Big", "Alien"], "stars": [5, 1, 4, 5]}
    >>> release = tv.complete(frame, modes=["user", "film"], value="stars", bounds=(1, 5), unit="value", epsilon=5.0)
    >>> release
    Release(3 x 2, proven, epsilon 5, delta 0, unit 'value')
    """
    data = opened(observations, modes, value, **reading)
    if epsilon == math.inf and isinstance(data, Observations):
        if ledger is not None or dataset is not None:
            raise InputError("a release on a ledger must have a finite epsilon, got inf; leave the ledger out")
        if coupled is not None:
            raise InputError("coupled must be left out with an infinite epsilon, got a table; complete the first alone")
        family = family_of(model, data.shape, Unit.value(), mechanism)
        known = features_for(data, features) if features else None
        others = () if model != "auto" else (family_of("tucker", data.shape, Unit.value(), mechanism),)
        waves = smooth_features(data, smooth)
        completion = completed_without_privacy(data, family, bounds, progress, known, others, waves)
        return Release(completion, NO_PRIVACY, **_names(data))
    planned = plan(
        data,
        model,
        bounds,
        unit,
        epsilon,
        delta,
        mechanism=mechanism,
        levels=levels,
        expected_count=expected_count,
        at_most=at_most,
        features=features,
        smooth=smooth,
        coupled=coupled,
    )
    return fit(
        data, planned, seed=seed, progress=progress, ledger=ledger, dataset=dataset, engine=engine, coupled=coupled
    )
