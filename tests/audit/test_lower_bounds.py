"""Lower bounds of epsilon: exact limits, events chosen on one half, runs in processes, and an auditor that is right."""

import doctest
import math
import multiprocessing
import secrets
import signal
import sys
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from scipy import integrate, stats

import tensorveil as tv
from tensorveil.audit.lower_bounds import (
    Event,
    clopper_pearson,
    epsilon_of_gdp,
    lower_bound,
    lower_bound_from_scores,
)
from tensorveil.audit.runs import run_both


def fresh():
    return np.random.default_rng(secrets.randbits(128))


@pytest.mark.parametrize("runs, confidence", [(1, 0.9), (17, 0.95), (1000, 1 - 1e-6)])
def test_clopper_pearson_is_that_of_scipy(runs, confidence):
    hits = np.unique(np.linspace(0, runs, 9).astype(int))
    low, high = clopper_pearson(hits, runs, (1 - confidence) / 2)
    for place, count in enumerate(hits):
        exact = stats.binomtest(int(count), runs).proportion_ci(confidence, method="exact")
        assert (low[place], high[place]) == pytest.approx((exact.low, exact.high), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mu", [0.05, 0.27, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_the_gaussian_form_is_that_of_integration_and_of_dp_accounting(mu, delta):
    epsilon = epsilon_of_gdp(mu, delta)
    start = epsilon / mu + mu / 2  # where the density of world 1 exceeds e^epsilon times that of world 0

    def excess(x):
        return stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x)

    shown = integrate.quad(excess, start, start + 12, epsabs=1e-16, epsrel=1e-10, limit=200)[0]
    if epsilon == 0:
        assert shown <= delta
    else:
        assert shown == pytest.approx(delta, rel=1e-4)
        assert epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-5, abs=1e-7)


def test_a_mu_of_nothing_is_an_epsilon_of_nothing():
    assert epsilon_of_gdp(-math.inf, 1e-5) == 0
    assert epsilon_of_gdp(1e-7, 1e-5) == 0
    with pytest.raises(tv.InputError, match="delta must be above 0"):
        epsilon_of_gdp(1.0, 0.0)


def laplace(epsilon, runs, rng):
    noise = rng.laplace(0, 1 / epsilon, (2, runs))
    return noise[0], 1 + noise[1]


def test_the_event_is_chosen_on_the_first_half_and_counted_on_the_second():
    rng = np.random.default_rng(0)
    scores = laplace(2.0, 4000, rng)
    found = lower_bound_from_scores(*scores)
    moved = [np.concatenate([part[:2000], rng.permutation(part[2000:]) + 100]) for part in scores]
    other = lower_bound_from_scores(*moved)
    assert other.event == found.event
    assert found.epsilon > 1
    assert other.epsilon == 0  # there the second halves look alike
    for world in (0, 1):
        np.testing.assert_array_equal(found.scores[world], scores[world][2000:])
    assert found.hits == (found.scores[found.event.world] >= found.event.threshold).sum() or not found.event.above
    assert found.hits + found.false_negatives == found.counted == 2000
    same = [np.concatenate([part[:2000], scores[0][2000:]]) for part in scores]
    assert lower_bound_from_scores(*same).epsilon == 0


def test_the_bound_is_that_of_its_counts():
    found = lower_bound_from_scores(*laplace(1.0, 3000, np.random.default_rng(1)), delta=0.01, confidence=0.9)
    low = stats.binomtest(found.hits, found.counted).proportion_ci(0.9).low
    high = stats.binomtest(found.false_positives, found.counted).proportion_ci(0.9).high
    assert found.epsilon == pytest.approx(math.log((low - 0.01) / high))
    gaussian = lower_bound_from_scores(*laplace(1.0, 3000, np.random.default_rng(1)), delta=0.01, claim="gaussian")
    low = stats.binomtest(gaussian.hits, gaussian.counted).proportion_ci(0.95).low
    high = stats.binomtest(gaussian.false_positives, gaussian.counted).proportion_ci(0.95).high
    mu = stats.norm.ppf(low) - stats.norm.ppf(high)
    assert gaussian.epsilon == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, 0.01), rel=1e-5)
    assert "Gaussian" in str(gaussian)
    assert "Gaussian" not in str(found)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("swapped", [False, True])
def test_either_direction_and_either_world_will_do(sign, swapped):
    scores = [sign * part for part in laplace(3.0, 4000, np.random.default_rng(2))]
    found = lower_bound_from_scores(*(scores[::-1] if swapped else scores))
    assert 2 < found.epsilon < 3


def test_ties_and_infinite_scores_are_scores():
    rng = np.random.default_rng(3)
    # symbols 0, 1, 2 whose ratios are 1/2, 1 and 4: only the set {2} shows log 4
    symbols = [rng.choice(3, 20_000, p=chances) for chances in ([0.5, 0.4, 0.1], [0.25, 0.35, 0.4])]
    found = lower_bound_from_scores(*symbols)
    assert (found.event, found.event.count(np.array([0.0, 1.0, 2.0, 2.0]))) == (Event(2.0, True, 1), 2)
    assert 1.2 < found.epsilon < math.log(4)
    infinite = [np.where(part == 2, np.inf, -np.inf) for part in symbols]
    assert lower_bound_from_scores(*infinite).hits == found.hits
    constant = np.zeros(100)
    assert lower_bound_from_scores(constant, constant).epsilon == 0


def test_no_counts_at_all_still_give_a_finite_bound():
    found = lower_bound_from_scores(np.zeros(200), np.ones(200))
    limit = stats.binomtest(0, 100).proportion_ci(0.95).high
    assert found.epsilon == pytest.approx(math.log((1 - limit) / limit))


def test_a_score_is_trained_on_all_numbers_of_an_output():
    def run(secret):
        rng = fresh()
        common = 50 * rng.normal()
        return [common, rng.normal(), common + secret + 0.1 * rng.normal()]

    found = lower_bound(lambda: run(0.0), lambda: run(1.0), runs=400, confidence=1 - 1e-6, workers=1)
    assert found.epsilon > 1.5  # no single number tells anything
    assert found.score in ("linear", "logistic", "quadratic")
    assert found.runs == 400
    assert len(found.scores[0]) == 200


def test_symbols_without_an_order_are_told_apart_by_their_frequencies():
    chances = ([0.45, 0.1, 0.45], [0.1, 0.8, 0.1])
    runs = [lambda p=p: fresh().choice(3, p=p) for p in chances]
    found = lower_bound(*runs, runs=1000, confidence=1 - 1e-6, workers=1)
    assert 0.5 < found.epsilon < math.log(8)


def test_a_spread_that_differs_is_seen():
    runs = [lambda scale=scale: scale * fresh().normal(size=4) for scale in (1.0, 30.0)]
    assert lower_bound(*runs, runs=300, confidence=1 - 1e-6, workers=1).epsilon > 1


def test_a_score_of_ones_own_reads_the_output_itself():
    runs = [lambda name=name: {"name": name} for name in ("a", "b")]
    found = lower_bound(*runs, runs=100, score=lambda output: ord(output["name"]), workers=1)
    assert found.score == "as given"
    assert found.epsilon > 2
    found = lower_bound(*runs, runs=100, features=lambda output: [0, ord(output["name"])], workers=1)
    assert found.epsilon > 2


def diverging(chance):
    if fresh().random() < chance:
        raise tv.DivergenceError("SGD must stay finite, but diverged", 3)
    return [0.0, 1.0]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_run_that_fails_is_an_output_and_never_left_out(swapped):
    runs = [lambda: diverging(0.02), lambda: diverging(0.9)]
    found = lower_bound(*(runs[::-1] if swapped else runs), runs=600, confidence=1 - 1e-6, workers=1)
    assert found.epsilon > 1
    assert abs(max(found.failures) - 540) < 60
    assert len(found.scores[0]) == len(found.scores[1]) == 300
    always = lower_bound(lambda: diverging(2.0), lambda: diverging(2.0), runs=50, workers=1)
    assert (always.epsilon, always.failures) == (0.0, (50, 50))
    lost = lower_bound(lambda: math.nan, lambda: 1.0, runs=50, workers=1)
    assert lost.failures == (50, 0)
    assert lost.epsilon > 1


def test_other_errors_stop_the_audit():
    def broken():
        raise KeyError("no such column")

    with pytest.raises(KeyError):
        lower_bound(broken, broken, runs=50, workers=1)
    with pytest.raises(tv.InputError, match="run_world_0 must give numbers"):
        lower_bound(lambda: "text", lambda: "text", runs=50, workers=1)
    lengths = iter([1, 1, *[2] * 100])
    with pytest.raises(tv.InputError, match="same number of numbers"):
        lower_bound(lambda: [0.0] * next(lengths), lambda: [0.0], runs=20, workers=1)


def test_two_processes_do_the_runs_and_say_how_far_they_are():
    steps = []
    found = run_both(
        lambda: fresh().normal(size=3), lambda: fresh().normal(size=3), 400, progress=lambda *step: steps.append(step)
    )
    assert [table.shape for table in found] == [(400, 3), (400, 3)]
    assert len(np.unique(np.concatenate(found))) == 2400
    assert steps[-1] == ("runs", 800, 800)
    assert multiprocessing.active_children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes that are not forked have handlers of their own")
def test_processes_end_without_the_handlers_of_the_program():
    """The program turns SIGTERM into an error, which a process would print when it is ended after its last run."""

    def ends_at_once():
        return float(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL) + fresh().uniform(0, 0.1)

    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        found = np.concatenate(run_both(ends_at_once, ends_at_once, 5, workers=2))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sorted(np.floor(found.ravel())) == [0.0] * 2 + [1.0] * 8  # the first run of each world is in the parent


def test_a_generator_that_is_copied_into_processes_is_refused():
    rng = np.random.default_rng()
    with pytest.raises(tv.InputError, match="two processes that repeat each other"):
        lower_bound(lambda: rng.laplace(), lambda: 1 + rng.laplace(), runs=400)
    coins = np.random.default_rng()
    with pytest.raises(tv.InputError, match="two processes that repeat each other"):
        lower_bound(lambda: coins.integers(2), lambda: coins.integers(2), runs=400)
    assert lower_bound(lambda: rng.laplace(), lambda: 1 + rng.laplace(), runs=400, workers=1).epsilon < 1.5


def test_runs_without_chance_are_not_taken_for_copies():
    assert lower_bound(lambda: 1.0, lambda: 2.0, runs=200).epsilon > 2


def test_an_interrupt_leaves_no_process_behind():
    def interrupt(what, done, total):
        if done > 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lower_bound(lambda: fresh().normal(), lambda: fresh().normal(), runs=2000, progress=interrupt)
    for process in multiprocessing.active_children():
        process.join(10)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"runs": 3}, "runs must be at least 16"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1"),
        ({"delta": 1.5}, r"delta must be in \[0, 1\)"),
        ({"claim": "zcdp"}, "claim must be one of"),
        ({"claim": "gaussian"}, "delta must be above 0 for a Gaussian claim"),
        ({"score": abs, "features": abs}, "must not both be given"),
        ({"workers": 0}, "workers must be a positive whole number"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(changed, message):
    with pytest.raises(tv.InputError, match=message):
        lower_bound(lambda: 0.0, lambda: 1.0, **({"runs": 20, "workers": 1} | changed))


def test_wrong_scores_are_one_clear_error():
    with pytest.raises(tv.InputError, match="without NaN"):
        lower_bound_from_scores([math.nan] * 20, [0.0] * 20)
    with pytest.raises(tv.InputError, match="same number of runs"):
        lower_bound_from_scores([0.0] * 20, [0.0] * 30)


def test_the_page_gives_what_it_shows():
    page = Path(__file__).parents[2] / "docs" / "audit.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried >= 4) == (0, True)


@pytest.mark.slow
def test_the_audit_is_strong_on_plain_noise():
    rng = fresh()
    laplaces = [lower_bound_from_scores(*laplace(1.0, 8000, rng)).epsilon for _ in range(9)]
    assert np.median(laplaces) >= 0.8
    std = 1 / gaussian_mu(1.0, 1e-5)
    gaussians = []
    for _ in range(9):
        noise = rng.normal(0, std, (2, 80_000))
        gaussians.append(lower_bound_from_scores(noise[0], 1 + noise[1], delta=1e-5, claim="gaussian").epsilon)
    assert np.median(gaussians) >= 0.8


def gaussian_mu(epsilon, delta):
    """1 over the noise that dp-accounting asks of a Gaussian release."""
    return 1 / dp_accounting.get_sigma_gaussian(epsilon, delta)


def release(law, epsilon, runs, rng):
    """Scores of a mechanism of exactly this epsilon (at delta 1e-5 for Gaussian noise)."""
    if law == "randomised response":
        truth = rng.random((2, runs)) < math.exp(epsilon) / (1 + math.exp(epsilon))
        return np.where(truth[0], 0.0, 1.0), np.where(truth[1], 1.0, 0.0)
    if law == "laplace":
        return laplace(epsilon, runs, rng)
    noise = rng.normal(0, 1 / gaussian_mu(epsilon, 1e-5), (2, runs))
    return noise[0], 1 + noise[1]


@pytest.mark.slow
@pytest.mark.parametrize("law", ["randomised response", "laplace", "gaussian"])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_auditor_exceeds_the_truth_in_at_most_20_of_200_repetitions(law, epsilon):
    rng = fresh()
    claim = {"delta": 1e-5, "claim": "gaussian"} if law == "gaussian" else {}
    runs = 20_000 if law == "gaussian" else 2000
    found = [lower_bound_from_scores(*release(law, epsilon, runs, rng), **claim).epsilon for _ in range(200)]
    assert sum(bound > epsilon for bound in found) <= 20
    assert np.mean(found) > 0.3 * epsilon


@pytest.mark.slow
def test_the_auditor_with_trained_scores_exceeds_the_truth_in_at_most_20_of_200_repetitions():
    def runs(secret):
        rng = fresh()

        def run():
            noise = rng.laplace(size=6)
            first = noise[0] + secret  # a Laplace release of epsilon 1; the others are made from it
            return [first, *(noise[1:] + first)]

        return run

    found = [lower_bound(runs(0.0), runs(1.0), runs=300, workers=1).epsilon for _ in range(200)]
    assert sum(bound > 1 for bound in found) <= 20
