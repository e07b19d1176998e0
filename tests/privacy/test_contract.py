"""What every mechanism must keep, for every model, unit and delta: a theorem or an error, and a release to match."""

import re
from functools import cache

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.privacy.accounting import composition as accounting
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.theorems import THEOREMS

BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)
MECHANISMS = (
    "InputPerturbation",
    "GradientPerturbation",
    "OutputPerturbation",
    "StatisticPerturbation",
    "SumPerturbation",
    "WithOffsets",
)
MODELS = (tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2)))
UNITS = ("value", "slice_values:0", "entry", "slice:0")
REMEDY = re.compile(r"; |use |give |state ")


EPSILON = 8.0  # enough for later stages not to be drowned in the noise of earlier ones
SWEEPS = 8  # of the posterior: post-processing, whose accuracy is not the point here


def tensor(repeated=8, seed=0):
    """A rank-one tensor at its bounds and beyond, each cell seen several times; index 3 of the first mode is empty."""
    rng = np.random.default_rng(seed)
    signs = [rng.choice([-1.0, 1.0], size) for size in SHAPE]
    where = np.tile(np.argwhere(np.ones(SHAPE)), (repeated, 1))
    where = where[where[:, 0] != 3]
    values = 3 + 2 * np.einsum("i,j,k->ijk", *signs)[tuple(where.T)] + rng.choice([0.0, 0.0, -1.0, 0.5], len(where))
    return tv.Observations(where, values, SHAPE, duplicates="keep")


@cache
def outcome(name, model, unit, delta):
    """The plan, or the error that refuses it; input perturbation's dense slices need at_most."""
    at_most = 30 if "slice" in unit else None
    sampled = name == "InputPerturbation" and unit in ("value", "slice_values:0")
    options = {"solver": tv.Posterior(sweeps=SWEEPS)} if sampled else {}
    try:
        return getattr(tv, name)(**options).plan(model, BOUNDS, unit, EPSILON, delta, shape=SHAPE, at_most=at_most)
    except tv.InputError as error:
        return error


GRID = [
    (name, model, unit, delta) for name in MECHANISMS for model in MODELS for unit in UNITS for delta in (0.0, 1e-6)
]
IDS = [f"{name.removesuffix('Perturbation')}-{model.name}-{unit}-{delta:g}" for name, model, unit, delta in GRID]
every = pytest.mark.parametrize("case", GRID, ids=IDS)

# from the theorems, by hand: (mechanism, unit) pairs and whether a pure form exists
PURE = {
    ("Input", "value"),
    ("Input", "slice_values:0"),
    ("Input", "entry"),
    ("Input", "slice:0"),
    ("Gradient", "value"),
}
PURE |= {("Gradient", "entry"), ("Output", "value"), ("Statistic", "value"), ("Statistic", "slice_values:0")}
PURE |= {("Sum", unit) for unit in UNITS}
PURE |= {("WithOffsets", unit) for name, unit in PURE if name == "Gradient"}  # by default it wraps gradients
WITH_DELTA = PURE | {(name, unit) for name in ("Gradient", "Statistic", "WithOffsets") for unit in UNITS}


def planned(case):
    found = outcome(*case)
    return None if isinstance(found, tv.InputError) else found


@every
def test_a_combination_has_a_theorem_or_an_error_with_a_remedy(case):
    name, _, unit, delta = case
    plan = planned(case)
    assert (plan is not None) == ((name.removesuffix("Perturbation"), unit) in (WITH_DELTA if delta else PURE))
    if plan is None:
        assert REMEDY.search(str(outcome(*case)))
        return
    assert plan.stages
    for stage in plan.stages:
        assert plan.request.unit.kind in THEOREMS[stage.theorem].units


@every
def test_the_price_is_what_was_asked_for_and_no_budget_is_wasted(case):
    plan = planned(case)
    if plan is None:
        return
    assert 0.99 * EPSILON <= plan.epsilon <= EPSILON
    assert plan.delta == case[3] or plan.delta == 0.0
    if all(isinstance(event, accounting.PureEvent) for event in plan.events):
        assert sum(event.epsilon * event.count for event in plan.events) == pytest.approx(plan.epsilon, rel=1e-12)
        assert plan.delta == 0.0
    else:
        assert accounting.epsilon_of(plan.events, case[3]) <= plan.epsilon * (1 + 1e-6)


@every
def test_no_neighbour_is_told_apart(case):
    plan = planned(case)
    if plan is None:
        return
    used = []
    for pair in neighbours(tensor(), case[2], BOUNDS, 3):
        found = replay(*pair, plan)
        used.append(found.used)
        noisy = [call for call in found.calls if call.kind not in ("coins", "key")]
        # every stage makes its call; rows of output perturbation whose features are zero need none
        assert len(noisy) >= len(plan.stages) - (case[0] == "OutputPerturbation")
        assert any(call.statistic.size > 1 for call in noisy)
    assert np.max(used) > 0.3  # the neighbours do hurt
    assert np.count_nonzero(np.max(used, axis=0)) > 0.3 * len(noisy)  # and not only the first stage


@pytest.mark.slow
@every
def test_no_neighbour_at_all_is_told_apart(case):
    plan = planned(case)
    if plan is None:
        return
    for seed in range(2):
        for pair in neighbours(tensor(1 + 20 * seed, seed), case[2], BOUNDS, 30):
            replay(*pair, plan, seed=seed)


@every
def test_a_release_bears_its_guarantee(case):
    plan = planned(case)
    if plan is None:
        return
    state = np.random.get_state()[1].copy()  # noqa: NPY002  the global generator must be left alone
    observations = tensor()
    release = tv.fit(observations, plan, seed=11)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    told = release.guarantee
    assert (told.epsilon, told.delta, told.status) == (plan.epsilon, plan.delta, "proven")
    assert told.seeded
    assert not told.publishable
    assert "not for release" in str(told)
    for part in (told.unit, told.neighbours, told.released, told.not_protected, told.source):
        assert part
    for parts in (told.stages, told.theorems, told.assumptions_checked, told.assumptions_trusted, told.software):
        assert parts
    again = tv.fit(observations, plan, seed=11)
    assert again.model == release.model
    secret = tv.fit(observations, plan)
    assert secret.guarantee.publishable
    if not any(stage.law is Law.CHANNEL for stage in plan.stages):  # a channel at this epsilon may well change no value
        assert secret.model != release.model
        assert secret.model != tv.fit(observations, plan).model
    cells = np.argwhere(np.ones(SHAPE))
    model = release.model
    if model.withheld_mode is not None:
        model, cells = (
            release.personalize(observations.take(observations.coordinates[:, 0] == 1)),
            cells[cells[:, 0] == 1],
        )
    predictions = model.predict(cells)
    assert np.isfinite(predictions).all()
    assert predictions.min() >= 1
    assert predictions.max() <= 5
