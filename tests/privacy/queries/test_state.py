"""Queries check their own state: nothing that a mechanism hands to one can break its bound."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent, SampledGaussianEvent
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.base import Reading
from tensorveil.privacy.queries.contributions import check_rows, slice_weights
from tensorveil.privacy.queries.sums.totals import Totals
from tensorveil.privacy.queries.sums.weighted_sums import ModeSums
from tensorveil.privacy.queries.sums.windows import WindowReading
from tensorveil.privacy.queries.values.histogram import Histogram
from tensorveil.privacy.queries.values.symbols import Symbols
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault, VaultError

NONE = Offsets.none(2)


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
        lambda: WindowReading(np.nan, NONE, -1.0, 1.0),
        lambda: WindowReading(np.inf, NONE, -1.0, 1.0),
        lambda: Symbols(()),
        lambda: Symbols((2, 1)),
        lambda: Symbols((0.5, 1)),
        lambda: Histogram(np.array([0, 1]), np.array([2, 3]), True),
        lambda: check_rows(np.array([0, 1, 0])),
    ],
)
def test_state_that_would_break_a_bound_is_refused(make):
    with pytest.raises(tv.InputError):
        make()


@pytest.mark.parametrize("pure", [True, False])
@pytest.mark.parametrize("scale", [2.7e-162, 5e-324, 1.0, 1e300])
def test_shares_of_any_size_are_normalised(scale, pure):
    weights = ModeSums((scale, 0.0, scale), pure).weights(shard())
    assert (sum(weights) if pure else np.sqrt(sum(part**2 for part in weights))).max() <= 1.0


def event_stage(event, law):
    return Stage("level and spread", "level", event, Sensitivity(None, Norm.L2, "test"), law, "totals")


def test_a_pure_event_buys_no_gaussian_noise():
    stage = event_stage(PureEvent(1.0), Law.GAUSSIAN)
    with pytest.raises(VaultError, match="does not buy"):
        Vault([shard()], [stage], 9, NoiseSource(1)).answer("level and spread", Totals(pure=False))


def test_a_gaussian_event_buys_no_pure_noise():
    stage = event_stage(GaussianEvent(1.0), Law.LAPLACE)
    with pytest.raises(VaultError, match="does not buy"):
        Vault([shard()], [stage], 9, NoiseSource(1)).answer("level and spread", Totals(pure=True))


@pytest.mark.parametrize("replace", [True, False])
def test_a_sample_of_the_units_needs_its_theorem_and_its_neighbours(replace):
    stage = event_stage(SampledGaussianEvent(1.0, 0.5, 1, replace), Law.GAUSSIAN)
    with pytest.raises(VaultError, match=r"does not cover|another kind of neighbours"):
        Vault([shard()], [stage], 9, NoiseSource(1)).answer("level and spread", Totals(pure=False))


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
