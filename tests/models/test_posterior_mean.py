"""Draws of a posterior: averages and quantiles against plain loops, and what files need."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from oracles import all_coordinates, dense, random_blocks
from tensorveil.errors import InputError
from tensorveil.models.completion import Completion
from tensorveil.models.cp import CP
from tensorveil.models.draws import PosteriorDraws, expected_values
from tensorveil.models.offsets import Offsets
from tensorveil.models.tucker import Tucker

SHAPE = (4, 3, 5)
LEVELS = np.linspace(-1, 1, 5)
WIDE = np.array([-9.0, 0.3, 9.0])  # knots of values that are the latent numbers themselves
SMALL = CP(2)
WHERE = all_coordinates(SHAPE).astype(np.uint32)
OFFSETS = Offsets(0.1, [np.linspace(-0.2, 0.2, 4), np.zeros(3), np.linspace(0.1, -0.1, 5)])


def made(family=SMALL, levels=LEVELS, count=6):
    generator = np.random.default_rng(0)
    blocks = [
        0.5 * np.concatenate([b.ravel() for b in random_blocks(family.block_shapes(SHAPE), s)]) for s in range(count)
    ]
    cuts = np.sort(np.array([-0.7, -0.3, 0.2, 0.7]) + 0.02 * generator.standard_normal((count, 4)), axis=1)
    return PosteriorDraws(
        family,
        SHAPE,
        np.array(blocks),
        0.1 * generator.standard_normal((count, 1 + sum(SHAPE))),
        generator.uniform(0.3, 0.5, count),
        np.column_stack([np.full(count, -1.0), cuts, np.full(count, 1.0)])
        if len(levels)
        else WIDE[None].repeat(count, 0),
        levels if len(levels) else WIDE[:-1],
        levels if len(levels) else WIDE[1:],
        np.array([48, 4, 1.01, 100.0]),
    )


def latent_means(draws):
    """One dense tensor a draw, written out."""
    tensors = []
    for numbers, deviations in zip(draws.parameters, draws.offsets, strict=True):
        shapes = draws.family.block_shapes(SHAPE)
        parts = np.split(numbers.astype(float), np.cumsum([np.prod(shape) for shape in shapes])[:-1])
        model = draws.family.model([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])
        ends = np.split(deviations[1:].astype(float), np.cumsum(SHAPE)[:-1])
        tensor = dense(model) + deviations[0] + OFFSETS.mean
        for mode, part in enumerate(ends):
            index = [None] * 3
            index[mode] = slice(None)
            tensor = tensor + (part + OFFSETS.modes[mode])[tuple(index)]
        tensors.append(tensor.ravel())
    return np.array(tensors)


@pytest.mark.parametrize("family", [CP(2), Tucker((2, 1, 3))], ids=str)
def test_predictions_are_averages_over_draws(family):
    continuous = made(family, np.empty(0))
    means = latent_means(continuous)
    np.testing.assert_allclose(continuous.predict(WHERE, OFFSETS), means.mean(axis=0), atol=1e-4)
    draws = made(family)
    expected = np.zeros(len(WHERE))
    for mean, sigma, knots in zip(latent_means(draws), draws.sigmas, draws.knots, strict=True):
        ends = np.concatenate([[-np.inf], knots[1:-1], [np.inf]])
        chances = np.diff(stats.norm.cdf((ends - mean[:, None]) / sigma), axis=1)
        expected += chances @ LEVELS / len(draws)
    np.testing.assert_allclose(draws.predict(WHERE, OFFSETS), expected, atol=1e-3)  # a table


def test_intervals_hold_their_share_of_what_the_draws_predict():
    generator = np.random.default_rng(1)
    for levels in (np.empty(0), LEVELS):
        draws = made(levels=levels, count=20)
        pick = generator.integers(0, 20, 4000)
        spread = draws.sigmas[pick]
        latent = latent_means(draws)[pick] + spread[:, None] * generator.standard_normal((4000, len(WHERE)))
        values = latent
        if len(levels):
            values = levels[(latent[..., None] > draws.knots[pick][:, None, 1:-1]).sum(axis=-1)]
        low, high = draws.interval(WHERE, OFFSETS, 0.8)
        inside = ((low <= values) & (values <= high)).mean(axis=0)
        if len(levels):
            assert inside.min() > 0.77
        else:
            np.testing.assert_allclose(inside, 0.8, atol=0.04)
        narrow = draws.interval(WHERE, OFFSETS, 0.8, "mean")
        assert (narrow[1] - narrow[0] <= high - low + 1e-9).all()


def test_intervals_of_levels_are_the_shortest_that_hold_their_share():
    draws = made(count=20)
    low, high = draws.interval(WHERE, OFFSETS, 0.8)
    spreads = draws.sigmas
    for place, mean in enumerate(latent_means(draws).T):
        ends = np.column_stack([np.full(20, -np.inf), draws.knots[:, 1:-1], np.full(20, np.inf)])
        chances = np.diff(stats.norm.cdf((ends - mean[:, None]) / spreads[:, None]), axis=1).mean(axis=0)
        first, last = np.searchsorted(LEVELS, [low[place], high[place]])
        assert chances[first : last + 1].sum() > 0.8 - 1e-5
        width = last - first + 1
        shorter = [chances[begin : begin + width - 1].sum() for begin in range(len(LEVELS) - width + 2)]
        assert max(shorter) < 0.8 + 1e-5
        same = [chances[begin : begin + width].sum() for begin in range(len(LEVELS) - width + 1)]
        assert chances[first : last + 1].sum() > max(same) - 1e-5
    assert ([LEVELS[0], LEVELS[-1]] == np.array(draws.interval(WHERE, OFFSETS, 1 - 1e-13)).T).all()


def test_offsets_of_the_completion_move_the_predictions():
    model = Completion(OFFSETS, CP(2).model(random_blocks(CP(2).block_shapes(SHAPE), 0)), 1.0, 5.0, draws=made())
    moved = replace(model, offsets=OFFSETS + Offsets(0.2, [None] * 3))
    assert (moved.predict(WHERE) > model.predict(WHERE)).all()
    assert model.predict(WHERE).min() >= 1
    low, high = model.interval(WHERE, 0.9)
    assert set(np.unique(np.concatenate([low, high]))) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert (low <= high).all()
    assert replace(model) == model
    assert moved != model
    with pytest.raises(InputError, match="interval"):
        model.interval(WHERE, 1.5)
    with pytest.raises(InputError, match="of must be one of"):
        model.interval(WHERE, 0.9, of="median")
    with pytest.raises(InputError, match="without posterior draws"):
        replace(model, draws=None).interval(WHERE)


def test_arrays_make_the_same_draws_again():
    for levels in (LEVELS, np.empty(0)):
        draws = made(levels=levels)
        again = PosteriorDraws.from_arrays(CP(2), SHAPE, draws.arrays())
        assert again == draws
        assert not again.parameters.flags.writeable
        changed = {**draws.arrays(), "sigmas": draws.sigmas + 1e-9}
        assert PosteriorDraws.from_arrays(CP(2), SHAPE, changed) != draws
    with pytest.raises(InputError, match="'knots'"):
        PosteriorDraws.from_arrays(CP(2), SHAPE, {k: v for k, v in draws.arrays().items() if k != "knots"})
    with pytest.raises(InputError, match="parameters of the draws"):
        PosteriorDraws.from_arrays(CP(2), SHAPE, {**draws.arrays(), "parameters": np.zeros((6, 3))})
    with pytest.raises(InputError, match="finite"):
        PosteriorDraws.from_arrays(CP(2), SHAPE, {**draws.arrays(), "sigmas": np.full(6, np.nan)})


def test_expected_values_are_integrals_of_the_map_from_latent_numbers_to_values():
    knots, low, high = np.array([-1.5, -0.5, 0.4, 2.0]), np.array([-0.9, -0.2, 0.1]), np.array([-0.4, -0.2, 0.8])
    z = np.linspace(-12, 12, 400_001)
    level = np.clip(np.searchsorted(knots, z) - 1, 0, 2)
    share = np.clip((z - knots[level]) / np.diff(knots)[level], 0, 1)
    values = low[level] + share * (high - low)[level]
    for mean, sigma in [(-2.0, 0.3), (0.1, 0.7), (3.0, 1.5)]:
        expected = np.trapezoid(values * stats.norm.pdf(z, mean, sigma), z)
        found = expected_values(np.array([mean]), sigma, knots, low, high)
        assert found[0] == pytest.approx(expected, abs=1e-5)  # the sum errs by half a step of the grid at each jump


def test_an_atom_among_continuous_values_takes_its_share_of_an_interval():
    draws = PosteriorDraws(
        CP(1), (2, 2), np.zeros((3, 4)), np.zeros((3, 5)), np.ones(3), np.tile([-0.5, 0.0, 3.0], (3, 1)),
        np.array([-1.0, -1.0]), np.array([-1.0, 1.0]), np.array([0, 1, 1, 3.0]),
    )  # fmt: skip
    where = np.array([[0, 0]], dtype=np.uint32)
    low, high = draws.interval(where, Offsets.none(2), 0.9)
    assert low[0] == pytest.approx(-1.0, abs=1e-6)  # half of the mass is the atom
    assert high[0] == pytest.approx(-1 + 2 * stats.norm.ppf(0.95) / 3, abs=1e-6)
    low, high = draws.interval(where, Offsets.none(2), 0.9, "mean")
    assert low[0] == high[0]


def test_bends_are_read_off_their_tables_and_survive_files():
    plain = made()
    places = np.linspace(-1.0, 1.0, 5)
    bends = np.array([[places, np.sin(places) + 0.1 * draw] for draw in range(len(plain))])
    bent = replace(plain, bends=bends)
    sums = plain.latent_means(WHERE, OFFSETS)
    expected = [np.interp(row, places, bend[1]) for row, bend in zip(sums, bends, strict=True)]
    np.testing.assert_allclose(bent.latent_means(WHERE, OFFSETS), expected)
    again = PosteriorDraws.from_arrays(SMALL, SHAPE, bent.arrays())
    assert again == bent != plain
    np.testing.assert_array_equal(again.predict(WHERE, OFFSETS), bent.predict(WHERE, OFFSETS))


def test_bends_with_places_that_do_not_increase_are_refused():
    plain = made()
    with pytest.raises(InputError, match="increasing places"):
        replace(plain, bends=np.zeros((len(plain), 2, 4)))
