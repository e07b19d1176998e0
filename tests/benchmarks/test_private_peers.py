"""Plain private baselines of benchmarks/peers: what their noise costs by other accountants, and what an owner moves."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from peers import dpals, noisy_values
from scipy.stats import norm

from tensorveil.privacy.accounting.calibration import calibrate


def gaussian_delta(multiplier, epsilon):
    """Delta of Gaussian noise at epsilon, in closed form (Balle and Wang 2018)."""
    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    return norm.cdf(half - shift) - np.exp(epsilon) * norm.cdf(-half - shift)


def renyi_epsilon(multiplier, count, delta):
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), count)
    return RdpAccountant().compose(event).get_epsilon(delta)


@pytest.mark.parametrize("epsilon, delta", [(1.0, 1e-6), (5.0, 1e-5)])
def test_noise_on_values_costs_what_two_other_accountants_say(epsilon, delta):
    multiplier = noisy_values.noise_scale(3.0, epsilon, delta) / 3.0
    assert gaussian_delta(multiplier, epsilon) <= delta
    assert gaussian_delta(0.99 * multiplier, epsilon) > delta
    assert epsilon <= renyi_epsilon(multiplier, 1, delta) < 1.2 * epsilon  # an upper bound that is not tight
    assert noisy_values.noise_scale(3.0, epsilon, 0.0) == 3.0 / epsilon  # Laplace: the width over epsilon


@pytest.mark.parametrize("epsilon, modes, sweeps", [(1.0, 2, 5), (5.0, 3, 2)])
def test_private_als_costs_what_two_other_accountants_say(epsilon, modes, sweeps):
    """Every release is one Gaussian, and so many of them are one with less noise."""
    multiplier = calibrate(lambda noise: dpals.events(noise, modes, sweeps), epsilon, 1e-5)
    count = 1 + 2 * sweeps * (modes - 1)
    assert gaussian_delta(multiplier / np.sqrt(count), epsilon) <= 1e-5
    assert gaussian_delta(0.99 * multiplier / np.sqrt(count), epsilon) > 1e-5
    assert epsilon <= renyi_epsilon(multiplier, count, 1e-5) < 1.2 * epsilon


def test_private_als_asks_as_often_as_it_pays(monkeypatch):
    """Noise is drawn for the mean once, and for A and b of every released mode in every sweep."""
    asked = []
    for name in ("noisy", "_centre"):
        plain = getattr(dpals, name)
        monkeypatch.setattr(dpals, name, lambda *given, plain=plain, name=name: asked.append(name) or plain(*given))
    cells = np.argwhere(np.ones((6, 5, 4)))
    dpals.complete(cells, np.ones(len(cells)), (6, 5, 4), cells, bounds=(0, 2), epsilon=1.0, delta=1e-5, sweeps=3)
    paid = dpals.events(1.0, 3, 3)[0].count
    assert asked.count("_centre") + 2 * asked.count("noisy") == paid


@pytest.mark.parametrize("shape", [(5, 30), (5, 4, 6), (5, 2, 3, 4)])
@pytest.mark.parametrize("most", [3, 10])
def test_one_owner_moves_the_statistics_no_further_than_stated(shape, most):
    """Random rows, long ones too, and the worst: all cells at one index with the same feature."""
    random = np.random.default_rng(0)
    every = np.argwhere(np.ones((1, *shape[1:])))
    for mode in range(1, len(shape)):
        limit, largest = dpals.moved(shape, 0, mode, most), 0.0
        for trial in range(60):
            aligned = trial % 2
            factors = [
                np.ones((size, 2)) if aligned else random.normal(size=(size, 2)) * random.choice([0.1, 1, 30])
                for size in shape
            ]
            drawn = every[np.argsort(every[:, mode], kind="stable")] if aligned else random.permutation(every)
            mine = drawn[: min(most, len(drawn))]
            mine = mine[np.argsort(mine[:, mode], kind="stable")]
            values = np.ones(len(mine)) if aligned else random.uniform(-1, 1, len(mine))
            for statistic in dpals.contributions(factors, mine, values, shape, mode):
                largest = max(largest, float(np.linalg.norm(statistic)))
        assert largest <= limit * (1 + 1e-12)
        in_one_index = np.prod([size for other, size in enumerate(shape) if other not in (0, mode)])
        if most % min(most, in_one_index) == 0:  # groups are full: the bound is reached
            assert largest == pytest.approx(limit)


def test_noise_of_private_als_has_the_stated_deviation_in_the_frobenius_norm():
    matrices, sides = dpals.noisy(np.zeros((4000, 3, 3)), np.zeros((4000, 3)), 2.0, np.random.default_rng(0))
    assert np.array_equal(matrices, np.swapaxes(matrices, 1, 2))
    # a direction of length one in the space of symmetric matrices gets the deviation, whatever the direction
    for direction in (np.eye(3) / np.sqrt(3), np.ones((3, 3)) / 3, np.diag([0, 1, 0])):
        assert (matrices * direction).sum(axis=(1, 2)).std() == pytest.approx(2.0, rel=0.05)
    assert sides.std() == pytest.approx(2.0, rel=0.05)


def test_owners_take_part_with_a_limited_number_of_cells_and_small_owners_with_all():
    owners = np.repeat([0, 1, 2], [40, 3, 10])
    taking = dpals._drawn(owners, 10, np.random.default_rng(0))
    assert np.bincount(owners[taking]).tolist() == [10, 3, 10]
    other = dpals._drawn(owners, 10, np.random.default_rng(1))
    assert not np.array_equal(taking, other)


def planted(random, shape):
    truth = np.einsum("ir,jr->ij", *(random.uniform(0.2, 1.2, (size, 2)) for size in shape))
    seen = random.random(shape) < 0.5
    return truth, seen


def test_more_budget_gives_smaller_errors_and_much_is_far_better_than_the_mean():
    truth, seen = planted(np.random.default_rng(1), (400, 25))
    given = (np.argwhere(seen), truth[seen], truth.shape, np.argwhere(~seen))

    def error(method, epsilon, **settings):
        predicted = [method.complete(*given, seed, bounds=(0, 3), epsilon=epsilon, **settings) for seed in range(3)]
        return np.mean([np.sqrt(np.mean((one - truth[~seen]) ** 2)) for one in predicted])

    for method, settings, budgets in ((noisy_values, {}, (1e4, 5.0, 0.5)), (dpals, {"delta": 1e-5}, (1e4, 20.0, 1.0))):
        errors = [error(method, epsilon, **settings) for epsilon in budgets]
        assert errors == sorted(errors)
        assert errors[0] < 0.3 * truth[~seen].std()


def test_budgets_that_make_no_sense_are_refused():
    cells = np.array([[0, 0], [1, 1]])
    for epsilon, delta in ((0.0, 0.0), (np.inf, 1e-6), (1.0, 1.0)):
        with pytest.raises(ValueError, match="epsilon"):
            noisy_values.complete(cells, [1.0, 2.0], (2, 2), cells, bounds=(0, 3), epsilon=epsilon, delta=delta)
