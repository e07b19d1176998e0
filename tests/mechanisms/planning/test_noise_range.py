"""What a source of noise would refuse is refused while nothing is spent."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.inference.values.public_scales import even_scale, public_scale
from tensorveil.mechanisms.planning.channel_design import SMALLEST_EPSILON, design_channel
from tensorveil.mechanisms.planning.noise_range import check_change
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.bounds import Bounds, clip
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.base import Norm
from tensorveil.privacy.queries.gradients import RowGradients
from tensorveil.privacy.queries.values.dense import DenseCells
from tensorveil.privacy.stages import LAW_OF_NORM, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault

SHAPE = (10, 10, 10)
DATA = tv.Observations(
    np.random.default_rng(0).integers(0, 10, size=(300, 3)), np.linspace(1, 5, 300), SHAPE, duplicates="keep"
)
MANY = tv.Observations(  # of one index
    np.column_stack([np.zeros(200_000, int), np.random.default_rng(1).integers(0, 10, size=(200_000, 2))]),
    np.linspace(1, 5, 200_000),
    SHAPE,
    duplicates="keep",
)
FROZEN = tv.CPModel([np.random.default_rng(2).normal(size=(10, 8)) for _ in range(3)])
LAPLACE = tv.InputPerturbation(noise="laplace", solver="als")
CHANNEL = tv.InputPerturbation(noise="channel", solver="als")
LEVELS = tv.InputPerturbation(noise="channel", levels=(1, 2, 3, 4, 5), solver="als")
ROWS = tv.GradientPerturbation()


def drawn(event, query, unit):
    """Whether the vault answers a query about all cells."""
    shard = clip(DATA, Bounds(1, 5), unit, bytes(32))
    (change,) = query.sensitivity(unit)
    sensitivity = Sensitivity(change.bound, change.norm, "")
    stage = Stage("stage", "input-dense", event, sensitivity, LAW_OF_NORM[change.norm], "")
    try:
        Vault([shard], [stage], 10**6, NoiseSource(0)).answer("stage", query)
    except tv.InputError:
        return False
    return True


def planned(event, change, count, width=1):
    try:
        check_change(event, change, count, width)
    except tv.InputError:
        return False
    return True


@pytest.mark.parametrize("pure", [True, False])
def test_noise_on_cells_is_planned_exactly_where_the_vault_draws_it(pure):
    query, unit, found = DenseCells(SHAPE, 0, pure), Unit.slice(0, at_most=100), set()
    for power in np.arange(-45.0, 45.0, 0.5) if pure else np.arange(-9.5, 29.5, 0.5):
        event = PureEvent(2.0**power) if pure else GaussianEvent(2.0**power)
        fits = drawn(event, query, unit)
        assert planned(event, *query.sensitivity(unit), 1000) == fits
        found.add(fits)
    assert found == {True, False}
    with pytest.raises(tv.InputError, match="use more epsilon"):
        check_change(PureEvent(2.0**-45), *DenseCells(SHAPE, 0, True).sensitivity(unit), 1000)


@pytest.mark.parametrize("norm", [1.0, 1.5, float(np.nextafter(2.0, 0.0))])
@pytest.mark.parametrize("width", [1, 8])
def test_noise_on_rows_is_planned_exactly_where_the_source_draws_it(norm, width):
    model = tv.CPModel([np.zeros((1, 1))] * 2)
    changes = RowGradients(model, 0.0, np.full(2, norm), (np.ones(1, bool),) * 2).sensitivity(Unit.entry())
    assert changes[0].norm is Norm.ROWS
    found = set()
    for power in np.arange(-45.0, 30.0, 0.5):
        event, change = PureEvent(2.0**power), changes[0]
        try:
            NoiseSource(0).rows(
                np.zeros((3, width), np.int64), grid=change.grid, sensitivity=change.bound, epsilon=event.epsilon
            )
            fits = True
        except tv.InputError:
            fits = False
        assert planned(event, change, 3, width) == fits
        found.add(fits)
    assert found == {True, False}


REFUSED = [
    (ROWS, tv.Tucker((8, 8, 8)), "entry", 1e-4, DATA),
    (ROWS, tv.CP(2), "entry", 1e-7, DATA),
    (ROWS, tv.CP(2), "value", 1e-9, DATA),
    (LAPLACE, tv.CP(2), "value", 1e-9, DATA),
    (LAPLACE, tv.CP(2), "entry", 1e-10, DATA),
    (LAPLACE, tv.CP(2), "slice_values:0", 1e-4, MANY),
    (CHANNEL, tv.CP(2), "slice_values:0", 0.01, MANY),
    (LEVELS, tv.CP(2), "slice_values:0", 0.01, MANY),
    (LEVELS, tv.CP(2), "value", 1e-7, DATA),
    (tv.OutputPerturbation(frozen=FROZEN), tv.CP(8), "value", 1e-8, DATA),
]


@pytest.mark.parametrize("mechanism, family, unit, epsilon, data", REFUSED)
def test_what_cannot_be_drawn_is_refused_before_anything_is_reserved(mechanism, family, unit, epsilon, data, tmp_path):
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "x", unit, 1.0)
    with pytest.raises(tv.InputError, match="epsilon must"):
        tv.fit(
            data,
            mechanism.plan(family, (1, 5), unit, epsilon, shape=SHAPE, expected_count=len(data)),
            ledger=ledger,
            dataset="x",
        )
    spent = ledger.spent("x")
    assert (spent.epsilon, spent.unfinished) == (0.0, 0)


@pytest.mark.parametrize(
    "mechanism, family, unit, data",
    [
        (tv.GradientPerturbation(steps=2), tv.Tucker((3, 3, 3)), "entry", DATA),
        (tv.GradientPerturbation(steps=2), tv.CP(2), "value", DATA),
        (LAPLACE, tv.CP(2), "value", DATA),
        (LAPLACE, tv.CP(2), "entry", DATA),
        (LAPLACE, tv.CP(2), "slice_values:0", DATA),
        (LEVELS, tv.CP(2), "slice_values:0", DATA),
        (tv.OutputPerturbation(frozen=FROZEN), tv.CP(8), "value", DATA),
    ],
)
def test_what_is_planned_can_be_drawn_however_small_epsilon_is(mechanism, family, unit, data, tmp_path):
    ledger = tv.Ledger.create(tmp_path / "L.sqlite", "x", unit, 1.0)
    done = set()
    for epsilon in 10.0 ** np.arange(-2.0, -11.0, -0.5):
        try:
            tv.fit(data, mechanism.plan(family, (1, 5), unit, epsilon, shape=SHAPE), ledger=ledger, dataset="x")
            done.add(True)
        except tv.SpentError:
            raise
        except tv.InputError:
            done.add(False)
    assert done == {True, False}


@pytest.mark.parametrize("scale", [public_scale([-1, -0.5, 0, 0.5, 1], 2**20), even_scale(32, 2**20)])
@pytest.mark.parametrize("epsilon", [SMALLEST_EPSILON, 3e-6, 1e-4, 0.00999])
@pytest.mark.parametrize("per_index", [1.0, 1e6])
def test_channels_of_the_smallest_epsilons_use_nearly_all_of_it(scale, epsilon, per_index):
    channel = design_channel(scale, epsilon, per_index)
    assert 0.999 * epsilon < channel.ratio() <= epsilon
    with pytest.raises(tv.InputError, match="for each symbol of a channel"):
        design_channel(scale, SMALLEST_EPSILON / 2, per_index)
