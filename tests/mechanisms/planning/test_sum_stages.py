"""Which sums are asked for: shares add up, and reaches follow noise and scale."""

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.mechanisms.planning.sum_stages import INDEX, REACHES, Noise, best_reach, sum_stages
from tensorveil.privacy.plan import Request


def request(unit="entry", epsilon=1.0, shape=(40, 60), count=5_000):
    return Request.checked(tv.CP(4), tv.Bounds(0, 1), unit, epsilon, 1e-6, shape, None, count, None)


def stages_of(asked, noise, features):
    return sum_stages(asked, 0.05, noise, noise, features)[1]


@pytest.mark.parametrize("unit", ["value", "entry", "slice:0"])
@pytest.mark.parametrize("noise", [1e-3, 4.0, 1e6, 1e15])
def test_shares_add_up_and_the_total_comes_first(unit, noise):
    stages = stages_of(request(unit), Noise(noise, True, 1.0), {})
    assert sum(stage.share for stage in stages) == pytest.approx(1.0)
    assert stages[0].mode is None
    assert all(stage.share > 0 for stage in stages)
    assert unit != "slice:0" or all(stage.mode != 0 for stage in stages)


def test_where_noise_drowns_all_offsets_the_total_has_nearly_all():
    assert stages_of(request(), Noise(1e7, True, 1.0), {})[0].share > 0.8
    assert {stage.mode for stage in stages_of(request(), Noise(4.0, True, 1.0), {})} == {None, 0, 1, INDEX}


def test_all_modes_are_summed_together_at_last_and_only_if_there_are_any():
    stages = stages_of(request(), Noise(4.0, True, 1.0), {})
    assert [stage.mode for stage in stages].index(INDEX) == len(stages) - 1
    assert INDEX not in [stage.mode for stage in stages_of(request(), Noise(1e15, True, 1.0), {})]
    assert INDEX not in [stage.mode for stage in stages_of(request("slice:0"), Noise(4.0, True, 1.0), {})]


def test_the_mean_is_paid_for_where_slices_are_few_although_their_values_are_many():
    """A slice adds one to the total however many values it has, but its length in sums of modes grows with them."""
    asked = request("slice:0", shape=(60, 40), count=60_000)
    few = sum_stages(asked, 0.05, Noise(14.0, False, 1e-3), Noise(14.0, False, 0.05), {})[1]
    many = sum_stages(asked, 0.05, Noise(14.0, False, 1.0), Noise(14.0, False, 0.05), {})[1]
    assert few[0].share > 0.5 > 0.1 > many[0].share


def test_with_little_noise_sums_are_split_by_groups_of_a_mode_that_is_known_before():
    stages = stages_of(request(count=100_000), Noise(1.0, True, 1.0), {})
    (split,) = [stage for stage in stages if stage.groups > 1]
    order = [stage.mode for stage in stages]
    assert order.index(split.partner) < order.index(split.mode)


def test_scores_are_read_widely_where_noise_is_small_or_large_values_matter():
    def flat(at):
        return np.ones_like(at)

    def steep(at):
        return np.exp(2 * at)

    reaches = [best_reach(noise, 50.0, 1.0, flat) for noise in (0.01, 10.0, 1e3)]
    assert reaches == sorted(reaches, reverse=True)
    assert (reaches[0], reaches[-1]) == (REACHES[-1], REACHES[0])
    assert best_reach(100.0, 50.0, 1.0, steep) > best_reach(100.0, 50.0, 1.0, flat)


def test_features_make_a_mode_worth_while_whose_indices_are_too_rare_alone():
    asked = [
        {stage.mode for stage in stages_of(request(count=3_000), Noise(200.0, True, 1.0), given)}
        for given in ({}, {1: 1})
    ]
    assert 1 not in asked[0]
    assert 1 in asked[1]
