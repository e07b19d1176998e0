"""Objective perturbation: rows are minimisers of a perturbed objective, at the stated price and for no less noise."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import norm

import tensorveil as tv
from tensorveil.audit.lower_bounds import lower_bound_from_scores
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import ReplayError, replay
from tensorveil.mechanisms import output
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.privacy.queries.rows import exact_rows

BOUNDS = tv.Bounds(1, 5)
SHAPE = (5, 4, 3)
RIDGE = 0.3
RNG = np.random.default_rng(0)
WHERE = np.argwhere(RNG.random(SHAPE) < 0.5)
WHERE = WHERE[WHERE[:, 0] != 3]
OBSERVATIONS = tv.Observations(WHERE, RNG.uniform(1, 5, len(WHERE)), SHAPE)
CP = tv.CPModel([RNG.normal(0, 0.7, (size, 2)) for size in SHAPE])
TUCKER = tv.TuckerModel(RNG.normal(0, 0.7, (2, 2, 2)), [RNG.normal(0, 0.7, (size, 2)) for size in SHAPE])
CASES = [(CP, 0), (CP, 2), (TUCKER, 1), (TUCKER, "core"), (CP, "offsets:1")]


def planned(frozen, block, epsilon=1.0, delta=0.0, **options):
    made = tv.OutputPerturbation(blocks=(block,), frozen=frozen, perturbed="objective", **options)
    return made.plan(frozen.family, BOUNDS, "value", epsilon, delta, shape=SHAPE)


class Keeper(NoiseSource):
    """Keeps the noise of its only answer."""

    def rows(self, statistic, **parameters):
        released = super().rows(statistic, **parameters)
        self.noise = released - statistic * parameters["grid"]
        return released

    def gaussian(self, statistic, **parameters):
        released = super().gaussian(statistic, **parameters)
        self.noise = released - statistic * parameters["grid"]
        return released


def features_of(frozen, block):
    """What multiplies a row, or the core, in each prediction: predictions of models that are zero but for a one."""
    whole = frozen.blocks[block]
    ones = np.eye(whole.size).reshape(-1, *whole.shape) if block == 3 else np.eye(whole.shape[1])
    if block == 3:
        return np.stack([frozen.with_block(block, one).predict(WHERE) for one in ones], axis=1)
    return np.stack([frozen.with_block(block, np.tile(one, (len(whole), 1))).predict(WHERE) for one in ones], axis=1)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("frozen, block", CASES)
def test_released_rows_are_minimisers_of_the_perturbed_objective(frozen, block, delta):
    source, plan = Keeper(3), planned(frozen, block, delta=delta, ridge=RIDGE)
    model = tv.fit(OBSERVATIONS, plan, noise=source).model
    centred = (OBSERVATIONS.values - 3) / 2 - frozen.predict(WHERE)
    if block == "offsets:1":
        rows, features, before, after = WHERE[:, 1], np.ones((len(WHERE), 1)), np.zeros(4), model.offsets.modes[1]
    else:
        number = 3 if block == "core" else block
        rows = np.zeros(len(WHERE), dtype=int) if block == "core" else WHERE[:, block]
        features, before, after = features_of(frozen, number), frozen.blocks[number], model.factors.blocks[number]
    size = rows.max() + 1
    changes = (after - before).reshape(1 if block == "core" else len(after), -1)
    observed = [row for row in range(size) if (rows == row).any()]
    assert len(source.noise) == len(observed)
    for row, noise in zip(observed, source.noise, strict=True):
        phi, y = features[rows == row], centred[rows == row]
        tilt = -2 * 2 * np.linalg.norm(phi, axis=1).max() * noise  # b = -2 s n, s = width max |phi|, in centred values

        def objective(u, phi=phi, y=y, tilt=tilt):
            return np.square(y - phi @ u).sum() + RIDGE * u @ u + tilt @ u

        found = minimize(objective, np.zeros(phi.shape[1]), method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(changes[row], found.x, rtol=1e-4, atol=1e-5)


def test_the_noise_of_both_shapes_on_a_solved_row_is_as_the_proof_says():
    """In the metric of H: max |phi|^2 tr(H^-1) for the objective, d max (phi^T H^-1 phi) for the solution."""
    shape, rng = (1, 4, 3), np.random.default_rng(4)
    where = np.argwhere(np.ones(shape))
    frozen = tv.CPModel([np.ones((1, 2)), rng.normal([1.0, 0.3], 0.1, (4, 2)), rng.normal([1.0, 0.3], 0.1, (3, 2))])
    phi = frozen.factors[1][where[:, 1]] * frozen.factors[2][where[:, 2]]
    H = phi.T @ phi + RIDGE * np.eye(2)
    observations = tv.Observations(where, np.full(12, 3.0), shape)
    errors = {}
    for perturbed in ("objective", "solution"):
        made = tv.OutputPerturbation(blocks=(0,), frozen=frozen, ridge=RIDGE, perturbed=perturbed)
        plan = made.plan(tv.CP(2), BOUNDS, "value", 2.0, shape=shape)
        rows = np.array([tv.fit(observations, plan, seed=seed).model.factors.factors[0][0] for seed in range(300)])
        noise = rows - 1.0 + np.linalg.solve(H, phi.T @ frozen.predict(where))  # the exact correction taken away
        errors[perturbed] = np.einsum("si,ij,sj->s", noise, H, noise).mean()
    inverse = np.linalg.inv(H)
    leverage = np.einsum("wi,ij,wj->w", phi, inverse, phi).max()
    expected = np.square(phi).sum(axis=1).max() * np.trace(inverse) / (2 * leverage)
    assert expected > 1.5
    assert errors["objective"] / errors["solution"] == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("frozen, block", CASES)
def test_the_declared_sensitivity_is_reached_within_one_percent_and_never_passed(frozen, block, delta):
    plan = planned(frozen, block, delta=delta)
    shares = [replay(*pair, plan).largest for pair in neighbours(OBSERVATIONS, "value", BOUNDS, 12)]
    assert 0.5 < max(shares) <= 1 + 1e-9
    if block in ("core", 2):
        everyone = [replay(*pair, plan).largest for pair in neighbours(OBSERVATIONS, "value", BOUNDS)]
        assert 0.99 < max(everyone) <= 1 + 1e-9


@pytest.mark.parametrize("family", [tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2))], ids=["cp", "tucker"])
def test_no_neighbour_is_told_apart_after_a_first_stage(family):
    mechanism = tv.OutputPerturbation(perturbed="objective", first=tv.StatisticPerturbation(sweeps=1))
    plan = mechanism.plan(family, BOUNDS, "value", 4.0, shape=SHAPE)
    for pair in neighbours(OBSERVATIONS, "value", BOUNDS, 6):
        found = replay(*pair, plan)
        assert len(found.calls) > len(plan.settings.blocks)


def gradient_at(u, phi, y):
    """Of the objective without its perturbation, by central differences."""
    step = 1e-4 * max(1.0, float(np.abs(u).max()))

    def objective(at):
        return np.square(y - phi @ at).sum() + RIDGE * at @ at

    return np.array([objective(u + step * one) - objective(u - step * one) for one in np.eye(len(u))]) / (2 * step)


def log_density(u, phi, y, epsilon):
    """Of the minimiser u: that of the only tilt b which makes u one, times the Jacobian, also by differences."""
    tilt = -gradient_at(u, phi, y)
    columns = [(gradient_at(u + one, phi, y) - gradient_at(u - one, phi, y)) / 2 for one in np.eye(len(u))]
    scale = 2 * np.linalg.norm(phi, axis=1).max()  # width max |phi|
    return -epsilon * np.linalg.norm(tilt) / (2 * scale) + np.linalg.slogdet(np.array(columns))[1]


def test_the_privacy_loss_of_a_minimiser_is_epsilon_and_no_more():
    """The density of the minimiser itself, not of the sums behind it: neither a Jacobian nor a condition on lambda."""
    rng, epsilon = np.random.default_rng(1), 1.0
    phi, y = rng.normal(size=(6, 2)), rng.uniform(-1, 1, 6)
    losses = []
    for place in range(len(y)):
        low, high = (np.where(np.arange(6) == place, end, y) for end in (-1.0, 1.0))
        H = phi.T @ phi + RIDGE * np.eye(2)
        along = [np.linalg.solve(H, t * phi[place]) for t in (-300.0, -30.0, 30.0, 300.0)]
        for u in [*along, *rng.normal(0, 5, (20, 2))]:
            losses.append(abs(log_density(u, phi, high, epsilon) - log_density(u, phi, low, epsilon)))
    assert 0.99 * epsilon < max(losses) <= epsilon * (1 + 1e-4)


def test_equal_linear_terms_give_equal_rows_whatever_the_solver_adds():
    """Bounds on the row and an L1 penalty: there is no density to compare, and none is needed."""
    rng = np.random.default_rng(2)
    phi, y, tilt = rng.normal(size=(8, 3)), rng.uniform(-1, 1, 8), rng.normal(size=3)
    other = y.copy()
    other[2] = -np.sign(y[2])
    solved = []
    for values, b in ((y, tilt), (other, tilt + 2 * (other[2] - y[2]) * phi[2])):  # the same g - b / 2

        def objective(u, values=values, b=b):
            return np.square(values - phi @ u).sum() + 0.4 * u.sum() + b @ u  # L1, as rows are not negative

        solved.append(minimize(objective, np.ones(3), bounds=[(0, None)] * 3, method="L-BFGS-B", tol=1e-14).x)
    np.testing.assert_allclose(*solved, atol=1e-5)


def test_scales_that_are_too_small_are_harmless_unless_the_query_lets_long_features_through(monkeypatch):
    sound, pairs = output.largest_lengths, list(neighbours(OBSERVATIONS, "value", BOUNDS))
    monkeypatch.setattr(output, "largest_lengths", lambda *arguments: sound(*arguments) / 2)
    plan = planned(CP, 2)
    assert max(replay(*pair, plan).largest for pair in pairs) <= 1 + 1e-9
    monkeypatch.setattr(exact_rows, "LONGEST", 1.0)
    with pytest.raises(ReplayError, match="declared sensitivity"):
        [replay(*pair, plan) for pair in pairs]


def test_features_from_raw_values_are_caught_by_replay():
    """The planted bug is that of the literature: a factor is fitted without privacy and then held constant."""

    def run(observations, plan, **options):
        scaled = tv.Observations(observations.coordinates, (observations.values - 3) / 2, SHAPE)
        raw = tv.ALS(sweeps=4, regularization=0.1).solve(scaled, tv.CP(2)).model
        return tv.fit(observations, planned(raw, 0), **options)

    caught = 0
    for pair in neighbours(OBSERVATIONS, "value", BOUNDS, 6):
        with pytest.raises(ReplayError):
            replay(*pair, planned(CP, 0), run=run)
        caught += 1
    assert caught


def raw_user_rows(ratings, each):
    """User rows of at most length one by alternating least squares without privacy, each or all of them shortened."""
    users = np.random.default_rng(0).normal(size=(len(ratings), 2))
    for _ in range(30):
        items = np.linalg.solve(users.T @ users + 0.1 * np.eye(2), users.T @ ratings).T
        users = np.linalg.solve(items.T @ items + 0.1 * np.eye(2), items.T @ ratings.T).T
    lengths = np.linalg.norm(users, axis=1, keepdims=True)
    return users / np.maximum(1.0, lengths if each else lengths.max())


@pytest.mark.parametrize("each", [True, False])
def test_a_factor_fitted_without_privacy_and_held_constant_refutes_the_published_claim(each):
    """Item rows by objective perturbation given user rows that were fitted to raw ratings; one rating is replaced."""
    epsilon, width, runs = 0.1, 2.0, 4000
    low = np.random.default_rng(1).uniform(-1, 1, (6, 40))
    low[0, 0] = -1.0
    high = low.copy()
    high[0, 0] = 1.0
    worlds = []
    for ratings in (low, high):
        users = raw_user_rows(ratings, each)
        worlds.append((users.T @ users + 0.1 * np.eye(2), ratings.T @ users))  # H, and g of every item

    def log_likelihood(items, world):
        tilts = 2 * (world[1] - items @ world[0])  # of density exp(-epsilon |b| / (2 width))
        radii = np.linalg.norm(tilts, axis=-1).sum(axis=-1)
        return -epsilon * radii / (2 * width) + items.shape[-2] * np.linalg.slogdet(world[0])[1]

    def loss(items):
        return log_likelihood(items, worlds[1]) - log_likelihood(items, worlds[0])

    rng, scores = np.random.default_rng(2), []
    for H, g in worlds:
        tilts = rng.normal(size=(runs, 40, 2))
        tilts *= rng.gamma(2, 2 * width / epsilon, (runs, 40, 1)) / np.linalg.norm(tilts, axis=-1, keepdims=True)
        scores.append(loss(np.linalg.solve(H, (g - tilts / 2)[..., None])[..., 0]))
    assert lower_bound_from_scores(*scores, confidence=1 - 1e-6).epsilon > 10 * epsilon
    far = [abs(float(loss(np.full((40, 2), size)))) for size in (1e3, 1e4, 1e5)]
    assert far[1] > 5 * far[0]  # no epsilon bounds it
    assert far[2] > 5 * far[1]


def test_who_knows_the_exponential_part_of_laplace_noise_sees_normal_noise():
    """Laplace noise is sqrt(2 H) C, H exponential and C normal; what the holder of H learns is not (epsilon, 0)-DP."""
    epsilon, rng = 1.0, np.random.default_rng(3)

    def lost_given(h):
        mu = epsilon / np.sqrt(2 * h)  # sensitivity over standard deviation
        return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)

    delta = quad(lambda h: lost_given(h) * np.exp(-h), 0, 60, limit=400)[0]
    h = rng.exponential(size=400_000)
    std = np.sqrt(2 * h) / epsilon
    seen = rng.normal(1.0, std)  # in the world where the statistic is 1 instead of 0
    ratio = (np.square(seen) - np.square(seen - 1)) / (2 * std**2)
    simulated = np.mean(np.maximum(0.0, 1 - np.exp(epsilon - ratio)))
    assert delta == pytest.approx(0.187, abs=1e-3)
    assert simulated == pytest.approx(delta, abs=5e-3)


def test_what_is_perturbed_is_one_of_two():
    with pytest.raises(tv.InputError, match="perturbed must be one of 'solution', 'objective'"):
        tv.OutputPerturbation(perturbed="output")


def test_the_stage_says_what_gets_noise():
    assert "linear terms" in str(planned(CP, 0))
    assert "in units of 2 max |phi|" in str(planned(CP, 0))


@pytest.mark.parametrize("unit", ["entry", "slice:0", "slice_values:0"])
def test_other_units_have_no_theorem(unit):
    with pytest.raises(tv.UnprovenError, match="statistic"):
        tv.OutputPerturbation(perturbed="objective").plan(tv.CP(rank=2), BOUNDS, unit, 1.0, 1e-6, shape=SHAPE)
