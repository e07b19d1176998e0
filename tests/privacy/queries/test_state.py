"""Queries check their own state: nothing that a mechanism hands to one can break its bound."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.models.block_features import largest_feature
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.base import Change
from tensorveil.privacy.queries.contributions import slice_weights
from tensorveil.privacy.queries.gradients import RowGradients
from tensorveil.privacy.queries.rows.exact_rows import ExactRows
from tensorveil.privacy.queries.rows.normal_equations import NormalEquations
from tensorveil.privacy.queries.rows.own_rows import Reading
from tensorveil.privacy.queries.sums.row_sums import Rows, RowSums
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.queries.values.dense import DenseCells
from tensorveil.privacy.queries.values.histogram import Histogram
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault, VaultError

NONE = Offsets.none(2)
READING = Reading(0.0, 1.0, NONE)
MODEL = tv.CPModel([np.ones((3, 1)), np.ones((2, 1))])
TOTAL = RowSums(Rows(1), ScoreReading.linear(0.0, 1.0, NONE), pure=False)


def equations(model=MODEL, limits=(1.0, 1.0), rows=(0, 1)):
    return NormalEquations(READING, model, 1, np.array(limits), np.array(rows), True)


def shard(unit=None):
    where = np.argwhere(np.ones((3, 2)))
    return clip(
        tv.Observations(where, np.linspace(-1, 1, 6), (3, 2)), tv.Bounds(-1, 1), unit or Unit.value(), bytes(32)
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Reading(np.nan, 1.0, NONE),
        lambda: Reading(0.0, 0.0, NONE),
        lambda: Reading(0.0, np.nan, NONE),
        lambda: Reading(np.inf, 1.0, NONE),
        lambda: ScoreReading.linear(np.nan, 1.0, NONE),
        lambda: ScoreReading.linear(0.0, np.inf, NONE),
        lambda: ScoreReading.linear(0.0, -1.0, NONE),
        lambda: Symbols(()),
        lambda: Symbols((2, 1)),
        lambda: Symbols((0.5, 1)),
        lambda: Histogram(np.array([0, 1]), np.array([2, 3]), True),
        lambda: equations(rows=(0, 1, 0)),
        lambda: equations(rows=(1, -1)),  # the last row by two names
        lambda: equations(rows=(0, 2)),
        lambda: equations(rows=(0.0, 1.0)),
        lambda: equations(limits=(1.0,), rows=(0,)),
        lambda: equations(tv.CPModel([np.full((3, 1), 1e155), np.ones((2, 1))])),
        lambda: ExactRows(None, 1, np.ones((2, 1, 1)), np.ones(2), np.array([1, -1]), 8, True),
        lambda: RowGradients(MODEL, 0.0, np.ones(2), (np.zeros(5, dtype=np.int64), np.ones(2, dtype=np.bool_))),
    ],
)
def test_state_that_would_break_a_bound_is_refused(make):
    with pytest.raises(tv.InputError):
        make()


@pytest.mark.parametrize("size", [2.0**64, 1e-300, 0.0])
@pytest.mark.parametrize("family", [tv.CP(rank=2), tv.Tucker(ranks=2)], ids=lambda family: family.name)
def test_own_rows_of_the_largest_models_are_numbers(family, size):
    """Six modes: features are products of five rows and the core."""
    shape = (3, 2, 2, 2, 2, 2)
    model = family.model([np.full(block, size) for block in family.block_shapes(shape)])
    data = tv.Observations(np.argwhere(np.ones(shape)), np.linspace(-1, 1, 96), shape)
    bounded = clip(data, tv.Bounds(-1, 1), Unit.slice(0), bytes(32))
    own = (largest_feature(model, 0), 1e-9)
    query = NormalEquations(Reading(0.0, 1.0, Offsets.none(6)), model, 1, np.ones(2), np.arange(2), False, own)
    for part, change in zip(query.of(bounded), query.sensitivity(bounded.unit), strict=True):
        assert np.linalg.norm(part.astype(np.float64)) * change.grid <= 3  # slices


@pytest.mark.parametrize("unit", [Unit.value(), Unit.slice_values(0), Unit.entry(), Unit.slice(0)], ids=str)
def test_no_warning_tells_how_large_a_value_is(unit):
    """On the smallest scales only values away from the mean overflow."""
    far = Offsets(1e308, [np.full(3, 1e308), None])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (5e-324, 1e-308, 1.0):
            for offsets in (NONE, far):
                NormalEquations(Reading(0.2, scale, offsets), MODEL, 1, np.ones(2), np.arange(2), False).of(shard(unit))
                RowSums(Rows(1), ScoreReading([-1.0, 1.0], [-8.0, 8.0], offsets, scale), False).of(shard(unit))


def test_models_and_offsets_of_another_shape_are_refused():
    """Compiled loops would read beyond them, and errors that depend on cells would tell which are observed."""
    small = tv.CPModel([np.ones((2, 1)), np.ones((2, 1))])
    with pytest.raises(tv.InputError, match="a model must have the shape"):
        equations(small).of(shard(Unit.entry()))
    with pytest.raises(tv.InputError, match="a model must have the shape"):
        RowGradients(small, 0.0, np.ones(2), (np.ones(2, dtype=np.bool_),) * 2).of(shard())
    with pytest.raises(tv.InputError, match="a model must have the shape"):
        ExactRows(small, 1, np.ones((2, 1, 1)), np.ones(2), np.arange(2), 8, True).of(shard())
    for box in ((2, 2), (6, 2), (3, 2, 1)):  # cells of the data outside, all inside, another order
        with pytest.raises(tv.InputError, match="the box must have the shape"):
            DenseCells(box, 0, True).of(shard(Unit.entry()))
    short = Offsets(0.0, [np.zeros(2), None])
    with pytest.raises(tv.InputError, match="offsets must be one per index"):
        Reading(0.0, 1.0, short).residuals(shard(Unit.entry()))
    with pytest.raises(tv.InputError, match="offsets must be one per index"):
        Vault([shard()], [], 0, NoiseSource(1)).residuals(short)


@pytest.mark.parametrize("grid", [0.75, 3.0, 2.0**-3.5, -0.5, 0.0, np.inf, np.nan])
def test_a_grid_that_is_no_power_of_two_is_refused(grid):
    """The vault would bring a sum to a finer grid by a rounded factor, and its change would be larger than stated."""
    with pytest.raises(tv.InputError, match="grid must be"):
        Change(Norm.L2, 1.0, grid)


def test_bits_that_are_not_whole_are_refused_before_anything_is_paid():
    event = GaussianEvent(0.25)
    stage = Stage("rows", "output-exact", event, Sensitivity(1.0, Norm.L2, "test"), Law.GAUSSIAN, "rows")
    locked = Vault([shard(Unit.value())], [stage], 100, NoiseSource(1))
    query = ExactRows(None, 1, np.ones((2, 1, 1)), np.full(2, 2.5), np.arange(2), 3.5, False)
    with pytest.raises(tv.InputError, match="grid must be a power of two"):
        locked.answer("rows", query)
    assert locked.receipts == ()


def event_stage(event, law):
    return Stage("total", "sums-rows", event, Sensitivity(None, Norm.L2, "test"), law, "totals")


def test_a_pure_event_buys_no_gaussian_noise():
    stage = event_stage(PureEvent(1.0), Law.GAUSSIAN)
    with pytest.raises(VaultError, match="does not buy"):
        Vault([shard()], [stage], 9, NoiseSource(1)).answer("total", TOTAL)


def test_a_gaussian_event_buys_no_pure_noise():
    stage = event_stage(GaussianEvent(1.0), Law.LAPLACE)
    with pytest.raises(VaultError, match="does not buy"):
        Vault([shard()], [stage], 9, NoiseSource(1)).answer("total", replace(TOTAL, pure=True))


@pytest.mark.parametrize("replaced", [True, False])
def test_a_sample_of_the_units_needs_its_theorem_and_its_neighbours(replaced):
    stage = event_stage(SampledGaussianEvent(1.0, 0.5, 1, replaced), Law.GAUSSIAN)
    with pytest.raises(VaultError, match=r"does not cover|another kind of neighbours"):
        Vault([shard()], [stage], 9, NoiseSource(1)).answer("total", TOTAL)


@pytest.mark.slow
def test_weights_of_a_slice_are_exact_where_floats_are_not():
    """A slice of 2^27 observations in one row and a few elsewhere: sum k^2 is above 2^53."""

    class Counted:
        """Stands for a shard whose rows repeat: `slice_weights` reads nothing else."""

        shape, unit = (1, 2), Unit.slice(0)

        def __len__(self):
            return 2**27 + 1

        def index(self, mode):
            return np.zeros(len(self), dtype=np.int64)

    rows = np.zeros(2**27 + 1, dtype=np.int64)
    rows[-1] = 1
    weight = slice_weights(Counted(), rows, pure=False)[0]
    assert weight**2 * (2**54 + 1) <= 1
