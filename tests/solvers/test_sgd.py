"""SGD: the slow oracle's numbers, the seed's sole rule, and honest divergence."""

import multiprocessing
import pickle

import numpy as np
import pytest

import oracles
from tensorveil.data.datasets import synthetic
from tensorveil.data.observations import Observations
from tensorveil.errors import DivergenceError, InputError
from tensorveil.kernels.reference import descent
from tensorveil.models.cp import CP, CPModel
from tensorveil.models.tucker import Tucker
from tensorveil.solvers import sgd as sgd_module
from tensorveil.solvers.sgd import PRESETS, SGD
from tensorveil.solvers.start import NormalStart, UniformStart

FAMILIES = [CP(2), Tucker((2, 3, 1))]


def observations(shape=(5, 4, 6), share=0.5, seed=0) -> Observations:
    tensor = np.random.default_rng(seed).uniform(size=shape)
    tensor[np.random.default_rng(seed + 1).uniform(size=shape) > share] = np.nan
    return Observations.from_dense(tensor)


@pytest.fixture
def visited(monkeypatch):
    """The orders in which the kernel is sent through the entries."""
    orders: list[list[int]] = []
    real = descent.sgd_pass

    def recording(*arguments):
        orders.append(arguments[3].tolist())
        return real(*arguments)

    monkeypatch.setattr(sgd_module.descent, "sgd_pass", recording)
    return orders


class GivenNoise:
    """Noise from a list, one row a step."""

    def __init__(self, block: int, rows: np.ndarray) -> None:
        self.block, self.rows, self.used = block, rows, 0

    def draw(self, steps: int, width: int) -> np.ndarray:
        taken = self.rows[self.used : self.used + steps]
        assert taken.shape == (steps, width)
        self.used += steps
        return taken


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize(
    "family, noise_block",
    [*((FAMILIES[0], block) for block in (None, 0, 2)), *((FAMILIES[1], block) for block in (None, 0, 2, 3))],
    ids=str,
)
def test_a_run_is_the_slow_run(family, clipped, noise_block, visited, monkeypatch):
    data = observations()
    start = UniformStart().model(family, data.shape, np.random.default_rng(9))
    number = len(start.block_starts)
    monkeypatch.setattr(sgd_module, "STEPS_PER_BLOCK", 17)  # so that noise comes in several hands
    solver = SGD(learning_rate=0.03, iterations=4, regularization=0.02, core_regularization=0.05)
    clip_norms = [0.2, np.inf, 0.3, 0.1][:number] if clipped else None
    noise = None
    if noise_block is not None:
        width = int(start.block_widths[noise_block])
        noise = GivenNoise(noise_block, np.random.default_rng(4).standard_normal((4 * len(data), width)))
    run = solver.solve(data, family, seed=1, start=start, clip_norms=clip_norms, noise=noise, watched=range(number))
    orders = np.concatenate(visited).reshape(4, len(data))
    slow = oracles.slow_sgd(
        oracles.model_blocks(start),
        data.coordinates,
        data.values,
        orders,
        eta=0.03,
        penalties=[0.02, 0.02, 0.02, 0.05],
        clip_norms=clip_norms,
        noise_block=noise_block,
        noise=() if noise is None else noise.rows,
    )
    for found, expected in zip(oracles.model_blocks(run.model), slow.blocks, strict=True):
        assert np.abs(found - expected).max() < 1e-10
    assert np.abs(run.loss - slow.loss).max() < 1e-10
    assert np.abs(run.largest_gradient - slow.largest_gradient).max() < 1e-10
    assert np.abs(run.largest_feature - slow.largest_feature).max() < 1e-10
    assert noise is None or noise.used == 4 * len(data)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_every_iteration_visits_every_entry_once_in_a_fresh_order(family, visited):
    data = observations()
    SGD(iterations=6).solve(data, family, seed=0)
    assert len(visited) == 6
    for order in visited:
        assert sorted(order) == list(range(len(data)))
    assert len({tuple(order) for order in visited}) == 6


def test_noise_does_not_change_the_order_of_the_entries(visited):
    data = observations()
    SGD(iterations=2).solve(data, CP(2), seed=5)
    plain = np.concatenate(visited).tolist()
    visited.clear()
    SGD(iterations=2).solve(data, CP(2), seed=5, noise=GivenNoise(1, np.ones((2 * len(data), 2))))
    assert np.concatenate(visited).tolist() == plain


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_seed_alone_decides_the_result(family):
    data = observations()
    first, second, third = (SGD(iterations=5).solve(data, family, seed=seed) for seed in (3, 3, 4))
    assert first.model.parameters.tobytes() == second.model.parameters.tobytes()
    assert first.loss.tobytes() == second.loss.tobytes()
    assert first.model != third.model
    assert SGD(iterations=1).solve(data, family).model != SGD(iterations=1).solve(data, family).model


def _solve_elsewhere(data: Observations, queue) -> None:
    queue.put(SGD(iterations=5).solve(data, CP(2), seed=3).model.parameters.tobytes())


def test_another_process_gives_the_same_bits():
    context = multiprocessing.get_context("spawn")
    data, queue = observations(), context.Queue()
    process = context.Process(target=_solve_elsewhere, args=(data, queue))
    process.start()
    found = queue.get(timeout=120)
    process.join()
    assert found == SGD(iterations=5).solve(data, CP(2), seed=3).model.parameters.tobytes()


def test_a_handed_in_start_replaces_the_drawn_one_and_nothing_else():
    data, rule = observations(), NormalStart(0.5, 0.1)
    drawn = SGD(iterations=3, start=rule).solve(data, CP(2), seed=7)
    first = rule.model(CP(2), data.shape, np.random.default_rng(7))
    before = np.array(first.parameters)
    given = SGD(iterations=3, start=rule).solve(data, CP(2), seed=7, start=first)
    assert given.model == drawn.model
    assert np.array_equal(first.parameters, before)  # the start itself is left alone
    other = CPModel([factor + 1 for factor in first.factors])
    assert SGD(iterations=3, start=rule).solve(data, CP(2), seed=7, start=other).model != drawn.model


def test_a_start_of_another_family_or_shape_is_refused():
    data = observations()
    generator = np.random.default_rng(0)
    for family, shape in ((CP(3), data.shape), (Tucker(2), data.shape), (CP(2), (5, 4, 7)), (CP(2), (5, 4))):
        start = UniformStart().model(family, shape, generator)
        with pytest.raises(InputError, match="start must be a model of"):
            SGD().solve(data, CP(2), start=start)


@pytest.mark.parametrize("family", [CP(3), Tucker(3)], ids=str)
def test_the_loss_goes_down_on_the_papers_tensor(family):
    make = synthetic.cp_tensor if isinstance(family, CP) else synthetic.tucker_tensor
    data = synthetic.observe(make(seed=1), seed=1)
    run = SGD.preset(f"{family.name}-synthetic").solve(data.train, family, seed=1)
    assert run.loss.shape == (100,)
    assert run.loss[-1] < 0.9 * run.loss[0]
    assert (np.diff(run.loss[::20]) < 0).all()


@pytest.mark.parametrize("order", oracles.ORDERS)
def test_noise_free_entries_of_a_low_rank_tensor_are_learnt_in_any_order(order):
    shape = {2: (12, 12), 3: (8, 8, 8), 4: (5, 5, 5, 5), 5: (4,) * 5, 6: (3,) * 6}[order]
    generator = np.random.default_rng(order)
    truth = oracles.dense_cp([generator.uniform(0.5, 1.5, (size, 1)) for size in shape])
    missing = generator.uniform(size=shape) < 0.2
    data = Observations.from_dense(np.where(missing, np.nan, truth / truth.max()))
    solver = SGD(learning_rate=0.05, iterations=400, regularization=0, core_regularization=0)
    for family in (CP(1), Tucker(1)):
        model = solver.solve(data, family, seed=0).model
        assert np.abs(model.predict(data.coordinates) - data.values).max() < 1e-3
        assert np.abs(model.to_dense() - truth / truth.max())[missing].max() < 1e-2  # and so are the missing ones


def test_more_regularisation_gives_a_smaller_model():
    data = observations()
    norms = [
        np.linalg.norm(SGD(learning_rate=0.02, regularization=weight).solve(data, CP(2), seed=0).model.parameters)
        for weight in (0.0, 0.1, 1.0)
    ]
    assert norms[0] > norms[1] > norms[2]
    cores = [
        np.linalg.norm(SGD(core_regularization=weight).solve(data, Tucker(2), seed=0).model.core)
        for weight in (0.0, 1.0)
    ]
    assert cores[0] > cores[1]


def test_the_loss_is_the_mean_square_of_the_residuals_as_they_were_visited():
    # one entry, visited once: its residual is that of the start
    data = Observations([[1, 2, 3]], [0.25], (2, 3, 4))
    start = UniformStart().model(CP(2), data.shape, np.random.default_rng(0))
    run = SGD(iterations=1).solve(data, CP(2), start=start)
    assert run.loss.tolist() == pytest.approx([(0.25 - oracles.dense(start)[1, 2, 3]) ** 2])


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_divergence_is_an_error_that_names_its_iteration(family):
    calls = []
    with pytest.raises(DivergenceError, match="got divergence in iteration") as caught:
        SGD(learning_rate=3.0, iterations=50).solve(
            observations(), family, seed=0, progress=lambda iteration, loss: calls.append(iteration)
        )
    iteration = caught.value.iteration
    assert 1 <= iteration <= 50
    assert f"iteration {iteration} of 50" in str(caught.value)
    assert calls == list(range(1, iteration))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.iteration, str(again)) == (iteration, str(caught.value))


def test_divergence_in_the_very_last_step_is_seen():
    # one step, finite residual, parameters beyond the floats afterwards
    data = Observations([[0, 0]], [1e150], (1, 1))
    start = CPModel([np.array([[1e100]]), np.array([[1.0]])])
    with pytest.raises(DivergenceError) as caught:
        SGD(learning_rate=1e100, iterations=1).solve(data, CP(1), start=start)
    assert caught.value.iteration == 1


def test_divergence_through_noise_is_seen():
    data = observations()
    with pytest.raises(DivergenceError):
        SGD(iterations=2).solve(data, CP(2), seed=0, noise=GivenNoise(0, np.full((2 * len(data), 2), 1e200)))


def test_progress_is_told_of_every_iteration():
    told = []
    run = SGD(iterations=4).solve(observations(), CP(2), seed=0, progress=lambda *what: told.append(what))
    assert [iteration for iteration, _ in told] == [1, 2, 3, 4]
    assert [loss for _, loss in told] == run.loss.tolist()


def test_the_presets_are_the_papers_numbers():
    # section 5.1 and 5.2: lambda or lambda_o, lambda_g, step size
    paper = {
        "cp-synthetic": (0.01, None, 0.005),
        "tucker-synthetic": (0.001, 0.0001, 0.005),
        "cp-ml-100k": (0.01, None, 0.005),
        "tucker-ml-100k": (0.01, 0.001, 0.003),
    }
    assert set(PRESETS) == set(paper)
    for name, (regularization, core_regularization, learning_rate) in paper.items():
        preset = SGD.preset(name)
        assert preset.regularization == regularization
        assert core_regularization in (None, preset.core_regularization)
        assert preset.learning_rate == learning_rate
        assert preset.iterations == 100
    with pytest.raises(InputError, match="name must be one of 'cp-synthetic'"):
        SGD.preset("cp")


@pytest.mark.parametrize(
    "arguments",
    [
        {"learning_rate": 0},
        {"learning_rate": -1},
        {"learning_rate": np.nan},
        {"iterations": 0},
        {"iterations": 1.5},
        {"regularization": -1},
        {"regularization": np.inf},
        {"core_regularization": -1},
        {"core_regularization": "much"},
    ],
)
def test_wrong_parameters_are_refused_when_the_solver_is_made(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        SGD(**arguments)


@pytest.mark.parametrize("clip_norms", [[1.0], [1.0] * 4, [1.0, 1.0, 0.0], [1.0, -1.0, 1.0], [1.0, np.nan, 1.0]])
def test_wrong_clip_norms_are_refused(clip_norms):
    with pytest.raises(InputError, match="clip_norms must be 3 positive numbers"):
        SGD().solve(observations(), CP(2), clip_norms=clip_norms)


@pytest.mark.parametrize("block", [-1, 3, 7])
def test_noise_on_a_block_that_is_not_there_is_refused_and_never_silently_left_out(block):
    data = observations()
    with pytest.raises(InputError):
        SGD(iterations=1).solve(data, CP(2), seed=0, noise=GivenNoise(block, np.ones((len(data), 2))))


def test_too_little_noise_is_refused_before_the_kernel_reads_beyond_it():
    class Short:
        block = 1

        def draw(self, steps: int, width: int) -> np.ndarray:
            return np.zeros((1, width))

    with pytest.raises(InputError):
        SGD(iterations=1).solve(observations(), CP(2), seed=0, noise=Short())


def test_watching_a_block_that_is_not_there_is_refused():
    with pytest.raises(InputError):
        SGD(iterations=1).solve(observations(), CP(2), seed=0, watched=[3])


def test_a_family_that_does_not_fit_the_shape_is_refused():
    with pytest.raises(InputError, match=r"ranks\[1\] must be at most the mode's size 4"):
        SGD().solve(observations(), Tucker(5))


def test_observations_are_left_as_they_were():
    data = observations()
    before = data.values.tobytes(), data.coordinates.tobytes()
    SGD(iterations=2).solve(data, CP(2), seed=0)
    assert (data.values.tobytes(), data.coordinates.tobytes()) == before
