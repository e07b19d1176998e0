"""The vault: what the plan has not priced is refused before anything is drawn, and shards do not show."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorveil as tv
from tensorveil.inference.values.public_scales import public_scale
from tensorveil.mechanisms.planning.channel_design import design_channel
from tensorveil.models.offsets import Offsets
from tensorveil.privacy.accounting.composition import epsilon_of
from tensorveil.privacy.accounting.events import GaussianEvent, PureEvent
from tensorveil.privacy.bounds import clip
from tensorveil.privacy.noise.channels import Channel
from tensorveil.privacy.noise.laws import Law
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.sums.row_sums import Rows, RowSums
from tensorveil.privacy.queries.sums.scores import ScoreReading
from tensorveil.privacy.queries.values.cell_symbols import CellSymbols
from tensorveil.privacy.stages import Norm, Sensitivity, Stage
from tensorveil.privacy.units import Unit
from tensorveil.privacy.vault import Vault, VaultError, _Meter

SHAPE = (6, 5, 4)
UNITS = (Unit.value(), Unit.slice_values(0), Unit.entry(), Unit.slice(0))
PLAIN = ScoreReading.linear(0.0, 1.0, Offsets.none(3))
TOTAL, NORMAL_TOTAL = (RowSums(Rows(1), PLAIN, pure) for pure in (True, False))
OF_MODE = RowSums(Rows.of_mode(1, 5), PLAIN, pure=True)


class Silent(NoiseSource):
    """A source that must not be asked for anything."""

    def _draw(self, *_, **__):
        raise AssertionError("noise was drawn")


class Free(NoiseSource):
    """A source without noise, which is fast."""

    def laplace(self, statistic, **_):
        return statistic.astype(np.float64)


class Listening(NoiseSource):
    """A source that hears for which epsilon it is asked."""

    heard: ClassVar[list[float]] = []

    def laplace(self, statistic, *, epsilon, **others):
        self.heard.append(epsilon)
        return super().laplace(statistic, epsilon=epsilon, **others)


def shard(unit=UNITS[0], seed=0):
    rng = np.random.default_rng(seed)
    where = np.repeat(np.argwhere(np.ones(SHAPE)), 2, axis=0)
    data = tv.Observations(where, rng.uniform(0, 6, len(where)), SHAPE, duplicates="keep")
    return clip(data, tv.Bounds(1, 5), unit, b"\0" * 32)


def stage(name="total", theorem="sums-rows", event=None, bound=None, law=Law.LAPLACE):
    return Stage(name, theorem, event or PureEvent(1.0), Sensitivity(bound, Norm.L1, "test"), law, "totals")


def vault(stages, noise=None, unit=UNITS[0], coordinates=0, shards=None):
    return Vault(shards or [shard(unit)], stages, coordinates, noise or NoiseSource(1))


@pytest.mark.parametrize(
    "stages, asked, message",
    [
        ([stage()], "another", "does not have"),
        ([stage(theorem="histogram")], "total", "priced by histogram"),
        ([stage(law=Law.GAUSSIAN)], "total", "priced for discrete Gaussian"),
        ([stage(bound=1.9)], "total", "sensitivity of 1.9"),
    ],
)
def test_what_is_not_priced_is_refused_before_anything_is_drawn(stages, asked, message):
    locked = vault(stages, Silent(1))
    with pytest.raises(VaultError, match=message):
        locked.answer(asked, TOTAL)
    assert locked.receipts == ()


def test_a_stage_pays_for_as_many_answers_as_it_counts():
    locked = vault([stage(event=PureEvent(1.0, count=2))])
    for _ in range(2):
        locked.answer("total", TOTAL)
    with pytest.raises(VaultError, match="used up"):
        locked.answer("total", TOTAL)
    assert len(locked.receipts) == 2


def test_a_pure_stage_is_paid_in_parts_up_to_its_epsilon_and_not_a_bit_more():
    locked = vault([stage(event=PureEvent(1.0))])
    locked.answer("total", TOTAL, epsilon=0.25)
    locked.answer("total", TOTAL, epsilon=0.75)
    with pytest.raises(VaultError, match="used up"):
        locked.answer("total", TOTAL, epsilon=5e-324)


@pytest.mark.parametrize("wrong", [0.0, -0.0, -0.5, np.nan, np.inf, -np.inf, "0.5"])
def test_a_part_is_a_positive_number(wrong):
    locked = vault([stage()], Silent(1))
    with pytest.raises(tv.InputError, match="epsilon must be"):
        locked.answer("total", TOTAL, epsilon=wrong)
    assert locked.receipts == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-5, 0.2), min_size=1, max_size=60), st.booleans())
def test_no_parts_add_up_to_more_than_their_stage(parts, failing):
    """Compared in whole numbers of 2^-1074, whichever view of the vault is asked, and if noise fails to be drawn."""
    locked = vault([stage("inner, total", event=PureEvent(0.1))], Silent(1) if failing else Free(1))
    views = (locked.inner("inner"), locked.residuals(Offsets(0.5, [None] * 3)).inner("inner"))
    tiny, paid = 2**1074, 0
    whole = int(Fraction(0.1) * tiny)
    for place, part in enumerate(parts):
        price = int(Fraction(part) * tiny)
        fits = paid + price <= whole
        with nullcontext() if fits and not failing else pytest.raises((VaultError, AssertionError)):
            views[place % 2].answer("total", TOTAL, epsilon=part)
        paid += price * fits
        assert sum(int(Fraction(receipt.paid.epsilon) * tiny) for receipt in locked.receipts) == paid
    assert paid <= whole


def test_threads_cannot_pay_with_the_same_budget(monkeypatch):
    sound = _Meter._spent_with

    def slow(*arguments):
        spent = sound(*arguments)
        time.sleep(0.05)  # so that all threads would see what was spent before any of them pays
        return spent

    monkeypatch.setattr(_Meter, "_spent_with", slow)
    locked = vault([stage()], Free(1))
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(locked.answer, "total", TOTAL, epsilon=0.4) for _ in range(4)]
    assert sum(one.exception() is None for one in asked) == len(locked.receipts) == 2


def test_the_noise_of_a_part_is_that_of_its_own_epsilon():
    locked = vault([stage()], Listening(1))
    for part in (0.5, 0.125, 0.25):
        assert locked.answer("total", TOTAL, epsilon=part).law.scale == 2 / part
        assert locked.receipts[-1].paid == PureEvent(part)
    assert Listening.heard == [0.5, 0.125, 0.25]


def test_a_failing_answer_has_been_paid():
    locked = vault([stage()], Silent(1))
    with pytest.raises(AssertionError, match="noise was drawn"):
        locked.answer("total", TOTAL)
    with pytest.raises(VaultError, match="used up"):
        locked.answer("total", TOTAL)


def test_a_stage_of_several_answers_cannot_be_paid_in_parts():
    """Beside Gaussian noise many small answers are priced below their sum: one answer for the sum would tell more."""
    several = [PureEvent(0.1, 100), GaussianEvent(20.0)]
    at_once = [PureEvent(10.0), GaussianEvent(20.0)]
    assert epsilon_of(several, 1e-6) < 0.5 * epsilon_of(at_once, 1e-6)
    locked = vault([stage(event=several[0])], Silent(1))
    for part in (10.0, 0.1, 0.05):
        with pytest.raises(VaultError, match="one pure answer"):
            locked.answer("total", TOTAL, epsilon=part)
    assert locked.receipts == ()


def test_a_gaussian_stage_cannot_be_paid_in_parts():
    locked = vault([stage(event=GaussianEvent(2.0), law=Law.GAUSSIAN)], Silent(1), coordinates=9)
    with pytest.raises(VaultError, match="paid in parts"):
        locked.answer("total", NORMAL_TOTAL, epsilon=0.1)


def test_no_more_numbers_get_gaussian_noise_than_the_price_covers():
    locked = vault([stage(event=GaussianEvent(2.0), law=Law.GAUSSIAN)], coordinates=0)
    with pytest.raises(VaultError, match="precision"):
        locked.answer("total", NORMAL_TOTAL)


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_coordinates_leave_the_vault_only_where_they_are_public(unit):
    locked = vault([stage()], unit=unit)
    if unit.coordinates_public:
        assert len(locked.pattern) == len(shard(unit))
        np.testing.assert_array_equal(locked.pattern.counts(1), np.full(5, len(locked.pattern) // 5))
    else:
        with pytest.raises(tv.UnprovenError, match="hides them"):
            locked.pattern  # noqa: B018


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_inner_and_residual_vaults_share_the_meter(unit):
    theorem = "sums-rows" if unit.coordinates_public else "sums-pairs"
    stages = [stage(f"inner, offsets of {mode}", theorem) for mode in range(3)]
    locked = vault(stages, unit=unit)
    inside = locked.residuals(Offsets(0.5, [None] * 3)).inner("inner")
    inside.answer("offsets of 1", OF_MODE)
    with pytest.raises(VaultError, match="used up"):
        locked.answer("inner, offsets of 1", OF_MODE)
    assert [receipt.stage.name for receipt in locked.receipts] == ["inner, offsets of 1"]


def test_residuals_are_clipped_to_the_same_bounds():
    locked = vault([stage()]).residuals(Offsets(-0.75, [None] * 3))
    (found,) = locked._shards
    before = shard()
    np.testing.assert_allclose(found.centred, np.clip(before.centred + 0.75, -1, 1), atol=2.0**-20)
    assert np.abs(found.steps).max() <= 2**20


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_the_split_into_shards_does_not_show(unit):
    whole = shard(unit)
    theorem = "sums-rows" if unit.coordinates_public else "sums-pairs"
    answers = []
    for cuts in ([], [40], [80, 120, 200]):  # multiples of a slice of mode 0: 40 rows each
        parts = np.split(np.arange(len(whole)), cuts)
        shards = [whole.kept(np.isin(np.arange(len(whole)), part)) for part in parts]
        locked = vault([stage("sums", theorem)], unit=unit, shards=shards)
        answers.append(locked.answer("sums", OF_MODE).values)
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


def test_stages_must_have_different_names():
    with pytest.raises(tv.InputError, match="different names"):
        vault([stage(), replace(stage(), event=PureEvent(2.0))])


def test_the_meter_cannot_be_overdrawn_between_asking_and_paying():
    locked = vault([stage(event=PureEvent(1.0))])
    locked._meter.pay("total", PureEvent(1.0), TOTAL)
    with pytest.raises(VaultError, match="used up"):
        locked._meter.pay("total", PureEvent(1.0), TOTAL)


def test_a_table_cannot_be_rewritten_after_its_check():
    channel = design_channel(public_scale((-1.0, 1.0), 2**20), 1.0, 1.0)
    with pytest.raises(ValueError, match="WRITEABLE"):
        channel.counts.flags.writeable = True


@pytest.mark.parametrize("name", ["_chacha", "_seed", "_keys", "_owner"])
def test_a_source_of_noise_keeps_its_key_and_its_seed(name):
    source = NoiseSource(5)
    with pytest.raises(AttributeError):
        setattr(source, name, None)
    with pytest.raises(AttributeError):
        delattr(source, name)
    assert source.seeded


def test_a_stage_may_buy_symbols_instead_and_nothing_beside_them():
    unit = Unit.entry()
    query, table = CellSymbols(SHAPE, (0,)), Channel(1.0, np.array([[2**61, 2**61]] * 3))

    def locked(instead="input-cells"):
        priced = replace(stage(theorem="sums-pairs"), instead=instead)
        return vault([priced], unit=unit)

    free = locked()
    free.cells("total", query, table)
    with pytest.raises(VaultError, match="used up"):
        free.answer("total", TOTAL, epsilon=1e-3)
    started = locked()
    started.answer("total", TOTAL, epsilon=1e-3)
    with pytest.raises(VaultError, match="used up"):
        started.cells("total", query, table)
    with pytest.raises(VaultError, match="priced by"):
        locked(None).cells("total", query, table)
    symbols_only = vault([replace(stage(theorem="histogram"), instead="input-cells")], unit=unit)
    with pytest.raises(VaultError, match="priced by"):
        symbols_only.answer("total", TOTAL)
