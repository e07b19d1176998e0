"""The compiled passes against the slow oracle, one call at a time."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import oracles
from tensorveil.kernels.reference import descent
from tensorveil.models.cp import CPModel
from tensorveil.models.tucker import TuckerModel

SHAPE = (5, 4, 6)
RANKS = {"cp": (3, 3, 3), "tucker": (2, 3, 1)}
PENALTIES = {"cp": [0.01, 0.02, 0.03], "tucker": [0.01, 0.02, 0.03, 0.04]}
FAMILIES = ["cp", "tucker"]


def start_blocks(family: str, seed: int = 0) -> list[np.ndarray]:
    shapes = [*zip(SHAPE, RANKS[family], strict=True)] + ([RANKS[family]] if family == "tucker" else [])
    return [0.7 * block for block in oracles.random_blocks(shapes, seed)]


def as_model(parts: list[np.ndarray]):
    return CPModel(parts) if len(parts) == 3 else TuckerModel(parts[-1], parts[:-1])


def entries(number: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    cells = generator.choice(oracles.all_coordinates(SHAPE), number, replace=False)
    return cells.astype(np.uint32), generator.standard_normal(number)


def fast_pass(parts, coordinates, values, visits, *, penalties, clip_norms=None, noise=None, watched=(), eta=0.02):
    """One call of the kernel; gives what the oracle gives."""
    model = as_model(parts)
    number = len(parts)
    parameters = model.parameters.copy()
    coordinates, values = coordinates.copy(), values.copy()
    coordinates.setflags(write=False)  # as those of observations are: another signature would be compiled anew
    values.setflags(write=False)
    watch = np.zeros(number, dtype=np.bool_)
    watch[list(watched)] = True
    gradient, feature = np.zeros(number), np.zeros(number)
    noise_block, rows = (-1, np.empty((0, 0))) if noise is None else noise
    norms = np.full(number, np.inf) if clip_norms is None else np.array(clip_norms)
    loss = descent.sgd_pass(
        model.numbers._replace(parameters=parameters),
        coordinates,
        values,
        np.asarray(visits),
        eta,
        np.array(penalties),
        descent.Clipping(norms, watch, gradient, feature),
        noise_block,
        rows,
    )
    return parameters, loss, gradient, feature


def flat(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([part.ravel() for part in parts])


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(
    "family, noise_block",
    [("cp", None), ("cp", 0), ("cp", 1), ("cp", 2), ("tucker", None), ("tucker", 0), ("tucker", 2), ("tucker", 3)],
)
def test_a_pass_is_the_slow_pass(family, clipped, noise_block):
    parts, (coordinates, values) = start_blocks(family), entries(60)
    visits = np.random.default_rng(2).permutation(60)
    clip_norms = [0.3, np.inf, 0.5, 0.2][: len(parts)] if clipped else None
    noise = None
    if noise_block is not None:
        width = RANKS[family][noise_block] if noise_block < 3 else int(np.prod(RANKS[family]))
        noise = np.random.default_rng(3).standard_normal((60, width))
    slow = oracles.slow_sgd(
        parts,
        coordinates,
        values,
        [visits],
        eta=0.02,
        penalties=PENALTIES[family],
        clip_norms=clip_norms,
        noise_block=noise_block,
        noise=() if noise is None else noise,
    )
    parameters, loss, gradient, feature = fast_pass(
        parts,
        coordinates,
        values,
        visits,
        penalties=PENALTIES[family],
        clip_norms=clip_norms,
        noise=None if noise is None else (noise_block, noise),
        watched=range(len(parts)),
    )
    assert np.abs(parameters - flat(slow.blocks)).max() < 1e-10
    assert np.abs(parameters - flat(parts)).max() > 1e-3
    assert loss / 60 == pytest.approx(slow.loss[0], abs=1e-10)
    assert gradient == pytest.approx(slow.largest_gradient, abs=1e-10)
    assert feature == pytest.approx(slow.largest_feature, abs=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_watching_changes_nothing_and_only_watched_or_clipped_blocks_are_recorded(family):
    parts, (coordinates, values) = start_blocks(family), entries(40)
    plain = fast_pass(parts, coordinates, values, range(40), penalties=PENALTIES[family])
    watched = fast_pass(parts, coordinates, values, range(40), penalties=PENALTIES[family], watched=[1])
    loose = [np.inf] * len(parts)
    loose[2] = 1e6
    clipped = fast_pass(parts, coordinates, values, range(40), penalties=PENALTIES[family], clip_norms=loose)
    assert np.array_equal(plain[0], watched[0])
    assert np.array_equal(plain[0], clipped[0])
    assert not plain[2].any()
    assert np.flatnonzero(watched[2]).tolist() == np.flatnonzero(watched[3]).tolist() == [1]
    assert np.flatnonzero(clipped[2]).tolist() == [2]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clipped_step_has_exactly_the_clip_norm(family):
    parts, (coordinates, values) = start_blocks(family), entries(1)
    clip_norms = [1e-3, 2e-3, 3e-3, 4e-3][: len(parts)]
    before = as_model(parts)
    parameters, *_ = fast_pass(
        parts, coordinates, values, [0], penalties=PENALTIES[family], clip_norms=clip_norms, eta=0.5
    )
    after = before.replace_parameters(parameters)
    pairs = zip([*before.factors, before.core], [*after.factors, after.core], clip_norms, strict=False)
    for old, new, norm in pairs:
        assert np.linalg.norm(old - new) == pytest.approx(0.5 * norm, rel=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_no_entry_touches_stay_bit_for_bit(family):
    parts, (coordinates, values) = start_blocks(family), entries(1)
    before = as_model(parts)
    parameters, *_ = fast_pass(parts, coordinates, values, [0], penalties=PENALTIES[family])
    after = before.replace_parameters(parameters)
    for mode in range(3):
        untouched = np.arange(SHAPE[mode]) != coordinates[0, mode]
        assert np.array_equal(before.factors[mode][untouched], after.factors[mode][untouched])
        assert not np.array_equal(before.factors[mode], after.factors[mode])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_in_two_parts_is_the_pass_in_one(family):
    parts, (coordinates, values) = start_blocks(family), entries(30)
    visits = np.random.default_rng(5).permutation(30)
    whole, loss, *_ = fast_pass(parts, coordinates, values, visits, penalties=PENALTIES[family])
    half, first, *_ = fast_pass(parts, coordinates, values, visits[:13], penalties=PENALTIES[family])
    model = as_model(parts).replace_parameters(half)
    middle = [*model.factors] if model.core is None else [*model.factors, model.core]
    rest, second, *_ = fast_pass(middle, coordinates, values, visits[13:], penalties=PENALTIES[family])
    assert np.array_equal(whole, rest)
    assert loss == pytest.approx(first + second)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_pass_stops_at_the_first_residual_that_is_not_finite(bad):
    parts, (coordinates, values) = start_blocks("cp"), entries(10)
    values[4] = bad
    stopped, loss, *_ = fast_pass(parts, coordinates, values, range(10), penalties=PENALTIES["cp"])
    short, *_ = fast_pass(parts, coordinates, values, range(4), penalties=PENALTIES["cp"])
    assert not np.isfinite(loss)
    assert np.array_equal(stopped, short)


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_entry_features_give_the_prediction_and_touch_nothing(order):
    shape, ranks = oracles.SHAPES[order], oracles.RANKS[order]
    *factors, core = oracles.random_blocks([*zip(shape, ranks, strict=True), ranks], order)
    for model in (TuckerModel(core, factors), CPModel(oracles.random_blocks([(size, 2) for size in shape], order))):
        dense = oracles.dense(model)
        for where in oracles.all_coordinates(shape)[::7]:
            phi = np.full(int(model.block_widths.sum()), np.nan)
            at = where[None, :].astype(np.uint32)
            found = descent.features_at(model.numbers, at, phi)
            assert found == pytest.approx(dense[tuple(where)], abs=1e-10)
            assert np.isfinite(phi).all()


CODE = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import oracles
from tensorveil.data.observations import Observations
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker
from tensorveil.solvers.sgd import SGD
for order in oracles.ORDERS:
    shape = oracles.SHAPES[order]
    values = np.random.default_rng(order).uniform(size=shape)
    for family in (CP(2), Tucker(oracles.RANKS[order])):
        run = SGD(iterations=2).solve(Observations.from_dense(values), family, seed=order, watched=(0,))
        print([float(number).hex() for number in run.model.parameters])
"""


def test_interpreted_kernels_give_the_same_bits_and_stay_inside_their_arrays():
    # without the compiler NumPy checks every index; with it, nobody does
    code = CODE.format(tests=str(Path(oracles.__file__).parent))
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "NUMBA_DISABLE_JIT": disabled},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for disabled in ("0", "1")
    ]
    assert outputs[0].count("\n") == 10
    assert outputs[0] == outputs[1]
