"""Descent on noisy gradients: what it makes of released moments and counts, and where exact gradients lead it."""

import numpy as np
import pytest

from oracles import all_coordinates, dense
from tensorveil.inference.descent import SMALLEST_SPREAD, Moments, NoisyDescent, believed_counts
from tensorveil.models.cp import CP
from tensorveil.models.tucker import Tucker

SHAPE = (5, 4, 3)


def test_exact_moments_are_those_of_the_values():
    values = np.random.default_rng(0).uniform(-1, 0.5, 1000)
    found = Moments.of(1000, values.sum(), (values**2).sum(), 0.0, [])
    assert found.mean == pytest.approx(values.mean())
    assert found.spread == pytest.approx(values.std())


def test_moments_that_are_all_noise_stay_in_range():
    found = Moments.of(-3.0, 1e6, -1e6, 1e8, [])
    assert abs(found.mean) <= 1
    assert SMALLEST_SPREAD <= found.spread <= 1


def test_exact_counts_are_believed_and_noise_is_averaged_out():
    counts = np.array([10.0, 20.0, 60.0])
    np.testing.assert_allclose(believed_counts(counts, 0.0, 90.0), counts)
    noisy = 30 + np.random.default_rng(0).normal(0, 100, 2000)
    np.testing.assert_allclose(believed_counts(noisy, noisy.var() * 1.1, 60_000), 30.0)


def moments():
    return Moments(0.0, 0.8, [np.full(size, 60.0 / size) for size in SHAPE])


@pytest.mark.parametrize("family", [CP(2), Tucker((2, 2, 2))], ids=str)
def test_the_start_is_the_same_in_every_run(family):
    first, second = (NoisyDescent.start(family, SHAPE, moments()).model() for _ in range(2))
    assert first == second
    assert np.abs(first.parameters).min() > 0


@pytest.mark.parametrize("family", [CP(2), Tucker((2, 2, 2))], ids=str)
def test_balancing_leaves_a_strong_tensor_as_it_is(family):
    state = NoisyDescent.start(family, SHAPE, moments())
    again = state.balanced(1e-9)
    np.testing.assert_allclose(dense(again.model()), dense(state.model()), atol=1e-12)


@pytest.mark.parametrize("family", [CP(2), Tucker((2, 2, 2))], ids=str)
def test_exact_gradients_lead_to_a_tensor_of_low_rank(family):
    """Sums of e phi by the model's own gradients, over all cells of a tensor that the model can explain."""
    generator = np.random.default_rng(1)
    truth = np.einsum("i,j,k->ijk", *(generator.choice([-0.9, 0.9], size) for size in SHAPE))
    state = NoisyDescent.start(family, SHAPE, moments())
    counts = [*moments().counts, np.array([60.0])]
    for step in range(60):
        state = state.balanced(0.15) if step else state
        model = state.model()
        sums = np.zeros(model.parameters.size)
        for at in all_coordinates(SHAPE):
            for block, part in enumerate(model.gradient(at, truth[tuple(at)])):
                begin = int(model.block_starts[block] + (at[block] if block < 3 else 0) * model.block_widths[block])
                sums[begin : begin + part.size] -= part.ravel() / 2
        state = state.moved(model, sums, [0.0] * len(counts), counts, 0.0, state.move(step, 60, 0.2))
    assert np.sqrt(((dense(state.model()) - truth) ** 2).mean()) < 0.1 * truth.std()


def test_steps_get_shorter_and_a_core_makes_them_shorter_still():
    plain, core = (NoisyDescent.start(family, SHAPE, moments()) for family in (CP(2), Tucker((2, 2, 2))))
    moves = [plain.move(step, 10, 0.2) for step in range(10)]
    assert moves == sorted(moves, reverse=True)
    assert moves[-1] == pytest.approx(0.2)
    assert all(core.move(step, 10, 0.2) < move for step, move in enumerate(moves))


def test_slices_whose_residuals_agree_leave_less_curvature():
    state = NoisyDescent.start(CP(2), SHAPE, moments())
    norm, left = state.joint_clipping(0.8, 20.0, None)
    assert left == 1.0
    assert state.joint_clipping(0.8, 20.0, 0)[0] == norm
    shares = [state.joint_clipping(0.8, size, 0)[1] for size in (1.0, 20.0, 400.0)]
    assert 1 > shares[0] > shares[1] > shares[2] > 0
    # a joint gradient of one observation is as long as those of all its rows together
    assert state.joint_clipping(0.8, 1.0, None)[0] == pytest.approx(np.linalg.norm(state.clip_norms(0.8)))
