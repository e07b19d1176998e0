"""`advise`: how accurate a release will be, before anything is spent, from public facts alone.

The plan that a release would take is run on made-up tensors of the same shape and count. Nothing private is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorveil import checks
from tensorveil.data.observations import Observations
from tensorveil.data.shards import Sharded
from tensorveil.errors import InputError
from tensorveil.mechanisms.auto import choose, family_of
from tensorveil.mechanisms.base import Mechanism, Progress, no_progress
from tensorveil.mechanisms.input import InputPerturbation
from tensorveil.models.cp import CP
from tensorveil.models.factor_model import ModelFamily
from tensorveil.models.tucker import Tucker
from tensorveil.privacy.bounds import Bounds, check_public
from tensorveil.privacy.plan import Plan, Request, default_names
from tensorveil.privacy.units import Unit
from tensorveil.release.advice import cache
from tensorveil.release.advice.estimate import expected_error, mean_error
from tensorveil.release.advice.made_up import (
    MOST_OBSERVATIONS,
    MOST_SAMPLED,
    SIGNALS,
    SPREAD,
    made_up,
    scaled_down,
)
from tensorveil.release.advice.results import NOTHING, Advice, Row
from tensorveil.release.fitting import fit, plan
from tensorveil.release.predictions import everybody

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
MODELS = ("cp", "tucker")


def advise(
    observations: Observations | Sharded | Sequence[int],
    bounds: Bounds | None = None,
    unit: str | Unit = "value",
    epsilons: Sequence[float] = EPSILONS,
    delta: float = 0.0,
    *,
    models: Sequence[str] = ("cp",),
    ranks: Sequence[int] | None = None,
    mechanism: Mechanism | str = "auto",
    expected_count: int | None = None,
    at_most: int | None = None,
    mode_names: Sequence[str] | None = None,
    spread: float | None = None,
    wanted: float | None = None,
    progress: Progress = no_progress,
) -> Advice:
    """Say how accurate a release will be, before anything is spent.

    The plan of `tv.plan` is run on made-up tensors of the same public shape and count, with a weak, a middling and a
    strong signal: offsets and factors explain 36 %, 75 % and 91 % of the variance. No private value is read. Results
    are kept in the cache folder of the user.

    Parameters
    ----------
    observations : observations, of which only public facts are read, or the public sizes of the modes
    bounds : the public range of the values; needed only to read `spread`
    unit, delta, mechanism, at_most : as for `plan`
    epsilons : the budgets to try
    models : "cp", "tucker" or both
    ranks : the ranks to try; None: the rank that `plan` chooses
    expected_count : the number of observations. Under `value` and `slice_values` that of the observations is public;
        elsewhere it must be a public guess, and without one it is guessed from the shape as in a plan
    mode_names : names that the unit may refer to, if only sizes are given
    spread : a public guess of the standard deviation of the values; None: a sixth of the width of the bounds
    wanted : an error, as a share of the spread; the advice then names the smallest epsilon that reaches it

    Examples
    --------
    >>> import tensorveil as tv
    >>> advice = tv.advise((20, 15), unit="entry", epsilons=[0.1], expected_count=150)
    >>> advice.sentences()[0]
    'CP(rank=12): at epsilon 0.1, nothing beyond the mean can be learned, even from a strong signal.'
    """
    shape, names, count, protected = _public_facts(observations, unit, at_most, mode_names, expected_count)
    limits = Bounds(0.0, 1.0) if bounds is None else bounds
    if not isinstance(limits, Bounds):
        raise InputError(f"bounds must be Bounds(low, high), got {bounds!r}; state the range of values")
    part = SPREAD if spread is None else checks.positive_number("spread", spread) / (limits.high - limits.low)
    if spread is not None and (bounds is None or part > 0.5):
        raise InputError(f"spread must be given with bounds and be at most half their width, got {spread}; correct it")
    if wanted is not None:
        checks.positive_number("wanted", wanted)
    budgets = [checks.positive_number("epsilons", epsilon) for epsilon in epsilons]
    if not budgets:
        raise InputError("epsilons must be at least one number, got none; leave them out")
    families = _families(models, ranks, shape, protected, mechanism)
    for family in families:  # an error now rather than after the first runs
        for epsilon in budgets:
            _real_plan(family, limits, protected, epsilon, delta, shape, names, count, mechanism)
    rows, done, total = [], 0, len(families) * len(budgets) * len(SIGNALS)
    for family in families:
        for epsilon in sorted(set(budgets)):
            real = _real_plan(family, limits, protected, epsilon, delta, shape, names, count, mechanism)
            errors = {}
            for name in SIGNALS:
                progress("made-up tensors", done, total)
                errors[name] = _error(real, name, part)
                done += 1
            rows.append(
                Row(str(family), epsilon, real.mechanism.title, errors, mean_error(real.request, part), _tried(real))
            )
    progress("made-up tensors", total, total)
    guessed = round(real.request.count_or_guess)
    return Advice(tuple(rows), shape, guessed, real.request.unit_text, wanted)


def outlook(planned: Plan) -> str:
    """One line on what to expect of a plan: from earlier advice, or else an estimate in closed form."""
    request = planned.request
    errors, source = {}, "measured earlier on made-up tensors"
    for name, explained in SIGNALS.items():
        known = cache.known(_facts(planned, name, SPREAD))
        if known is None:
            known, source = expected_error(planned, explained), "a rough estimate; tensorveil advise measures it"
        errors[name] = known
    mean = mean_error(request)
    row = Row(str(request.family), request.epsilon, planned.mechanism.title, errors, mean, _tried(planned))
    text = ", ".join(f"{errors[name]:.2f} ({name} signal)" for name in reversed(SIGNALS))
    line = f"expected error, as a share of the values' spread: {text}; the mean alone {mean:.2f} ({source})"
    return line if row.learned else f"{line}\nat this budget {NOTHING}"


def _public_facts(
    given: Observations | Sharded | Sequence[int],
    unit: str | Unit,
    at_most: int | None,
    mode_names: Sequence[str] | None,
    expected_count: int | None,
) -> tuple[tuple[int, ...], tuple[str, ...], int | None, Unit]:
    """Shape, names, count and unit; of observations, only what is public under the unit is read."""
    if isinstance(given, Observations | Sharded):
        if mode_names is not None:
            raise InputError("mode_names must be given with sizes only, got them with observations; leave them out")
        protected = Unit.of(unit, at_most).resolved(given.mode_names)
        check_public(given, protected)
        count = len(given) if protected.coordinates_public and expected_count is None else expected_count
        return given.shape, given.mode_names, count, protected
    shape = checks.shape(tuple(given))
    names = default_names(len(shape)) if mode_names is None else tuple(mode_names)
    protected = Unit.of(unit, at_most).resolved(names)
    if protected.coordinates_public and expected_count is None:
        raise InputError(
            f"expected_count must be given with sizes under {protected.kind!r}, got none; the number of observations "
            "is public there"
        )
    return shape, names, expected_count, protected


def _families(
    models: Sequence[str],
    ranks: Sequence[int] | None,
    shape: tuple[int, ...],
    unit: Unit,
    mechanism: Mechanism | str,
) -> list[ModelFamily]:
    """The models to try: of each kind the plan's own rank, or the given ones, at most the sizes that they may have."""
    names = [models] if isinstance(models, str) else list(models)
    for name in names:
        checks.choice("models", name, MODELS)
    if ranks is None:
        found = [family_of(name, shape, unit, mechanism) for name in names]
    else:
        numbers = [checks.positive_integer("ranks", rank) for rank in ranks]
        found = [
            CP(rank) if name == "cp" else Tucker(tuple(min(rank, size) for size in shape))
            for name in names
            for rank in numbers
        ]
    if not found:
        raise InputError("models and ranks must name at least one model, got none; leave them out")
    return found


def _real_plan(
    family: ModelFamily,
    bounds: Bounds,
    unit: Unit,
    epsilon: float,
    delta: float,
    shape: tuple[int, ...],
    names: tuple[str, ...],
    count: int | None,
    mechanism: Mechanism | str,
) -> Plan:
    """The plan for the real shape and count."""
    chosen = mechanism
    if isinstance(mechanism, str):
        request = Request.checked(family, bounds, unit, epsilon, delta, shape, names, count, None)
        chosen = choose(mechanism, request).mechanism
    if not isinstance(chosen, Mechanism):
        raise InputError(f"mechanism must be an instance or a name, got {mechanism!r}; use e.g. 'auto'")
    return chosen.plan(family, bounds, unit, epsilon, delta, shape=shape, mode_names=names, expected_count=count)


def _tried(planned: Plan) -> tuple[tuple[int, ...], int]:
    """The shape and count of the made-up tensors for a plan."""
    request = planned.request
    sampled = isinstance(planned.mechanism, InputPerturbation) and request.unit.coordinates_public
    most = MOST_SAMPLED if sampled else MOST_OBSERVATIONS
    return scaled_down(request.shape, round(request.count_or_guess), most)


def _facts(planned: Plan, signal: str, spread: float) -> dict[str, Any]:
    """The public facts that a result depends on."""
    request, (shape, count) = planned.request, _tried(planned)
    return {
        "model": str(request.family),
        "mechanism": repr(planned.mechanism),
        "unit": f"{request.unit.kind}:{request.unit.mode}",
        "at_most": request.unit.at_most,
        "epsilon": request.epsilon,
        "delta": request.delta,
        "shape": list(request.shape),
        "count": round(request.count_or_guess),
        "explained": SIGNALS[signal],
        "spread": round(spread, 6),
        "tried": [list(shape), count],
    }


def _error(planned: Plan, signal: str, spread: float) -> float:
    """The error of the mechanism of a plan on a made-up tensor, or what an earlier run found."""
    facts = _facts(planned, signal, spread)
    found = cache.known(facts)
    if found is not None:
        return found
    request, (shape, count) = planned.request, _tried(planned)
    data = made_up(shape, count, SIGNALS[signal], request.bounds, spread)
    family = request.family
    if isinstance(family, Tucker):
        family = Tucker(
            tuple(min(rank, size) for rank, size in zip(family.ranks_for(request.shape), shape, strict=True))
        )
    small = plan(
        data.train,
        family,
        request.bounds,
        request.unit,
        request.epsilon,
        min(request.delta, 0.5 / max(count, *shape)),
        mechanism=planned.mechanism,
        expected_count=count,
    )
    release = fit(data.train, small, seed=1)
    model = release.model if release.withheld_mode is None else everybody(release, data.train)
    error = data.error(model.predict(data.where))
    cache.keep(facts, error)
    return error
