"""A cluster gives the bits of one process: every mechanism, other splits, other numbers of workers, killed workers."""

import os
import pickle
import signal
from dataclasses import replace
from functools import cache, partial
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tensorveil as tv
from tensorveil.audit.neighbours import neighbours
from tensorveil.audit.replays import replay
from tensorveil.data.shards import WHOLE
from tensorveil.engines.dask import ClusterError, Dask
from tensorveil.engines.local import LocalEngine
from tensorveil.privacy.noise.source import NoiseSource
from tensorveil.release.certificate.verification import verify

distributed = pytest.importorskip("distributed")
# its nannies live in this process: a warning of theirs, raised as an error, would keep a worker from being restarted
pytestmark = pytest.mark.filterwarnings("default")

BOUNDS = tv.Bounds(1, 5)
SHAPE = (12, 6, 4)
NAMES = ("user", "film", "week")
MODELS = (tv.CP(rank=2), tv.Tucker(ranks=(2, 2, 2)))
UNITS = ("value", "slice_values:user", "entry", "slice:user")
SPLITS = (170, 70)  # rows per part
STEPS = 2

MECHANISMS = {
    "input": {unit: [0.0] for unit in UNITS},
    "gradient": {unit: [1e-6] for unit in UNITS} | {"value": [0.0, 1e-6], "entry": [0.0, 1e-6]},
    "sampled": {unit: [1e-6] for unit in UNITS},
    "output": {"value": [0.0]},
    "statistic": {unit: [1e-6] for unit in UNITS},
    "sums": {unit: [0.0] for unit in UNITS},
    "with_offsets": {unit: [1e-6] for unit in UNITS},
}
GRID = [
    (name, model, unit, delta)
    for name, units in MECHANISMS.items()
    for unit, deltas in units.items()
    for delta in deltas
    for model in MODELS
]
IDS = [f"{name}-{model.name}-{unit}-{delta:g}" for name, model, unit, delta in GRID]


def mechanism(name, unit):
    public = unit.startswith(("value", "slice_values"))
    steps = {"gradient": {}, "sampled": {"sampling_probability": 0.5}, "with_offsets": {}}
    if name in steps:
        made = tv.GradientPerturbation(steps=STEPS, **steps[name])
        return tv.WithOffsets(made) if name == "with_offsets" else made
    if name == "input":
        return tv.InputPerturbation(solver=tv.Posterior(sweeps=4) if public else None)
    return {"output": tv.OutputPerturbation, "statistic": tv.StatisticPerturbation, "sums": tv.SumPerturbation}[name]()


@cache
def planned(name, model, unit, delta):
    at_most = 40 if "slice" in unit else None
    request = {"shape": SHAPE, "mode_names": NAMES, "at_most": at_most}
    return mechanism(name, unit).plan(model, BOUNDS, unit, 8.0, delta, **request)


def in_shards(observations, folder, size):
    """Observations written as a table and sharded by user."""
    columns = zip(NAMES, observations.coordinates.T, strict=True)
    table = pa.table({**{name: np.ascontiguousarray(column) for name, column in columns}, "stars": observations.values})
    file = folder.with_suffix(".parquet")
    parquet.write_table(table, file)
    return tv.write_shards(
        file, "user", folder, NAMES, "stars", shape=observations.shape, duplicates="keep", rows_per_part=size
    )


@pytest.fixture(scope="module")
def rows():
    """Rows in no order, some cells several times, a user without any and one with more than `at_most`."""
    rng = np.random.default_rng(5)
    where = np.argwhere(np.ones(SHAPE))
    where = np.concatenate([where, where[rng.integers(0, len(where), 300)], np.tile(where[:6], (5, 1))])
    where = where[where[:, 0] != 7]
    where = where[rng.permutation(len(where))]
    return where, np.clip(3 + rng.normal(0, 1.5, len(where)), 0.5, 5.5).round(1)


@pytest.fixture(scope="module")
def folders(whole, tmp_path_factory):
    """The same rows in two splits."""
    folder = tmp_path_factory.mktemp("rows")
    written = [in_shards(whole, folder / str(size), size) for size in SPLITS]
    assert len(written[0].files) < len(written[1].files)
    return written


@pytest.fixture(scope="module")
def whole(rows):
    return tv.Observations(*rows, SHAPE, mode_names=NAMES, duplicates="keep")


@pytest.fixture(scope="module")
def clusters():
    """Clients of one and of two workers, processes of their own."""
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": "127.0.0.1:0", "memory_limit": "2GB"}
    with (
        distributed.LocalCluster(n_workers=1, **options) as one,
        distributed.LocalCluster(n_workers=2, **options) as two,
        distributed.Client(one, set_as_default=False) as alone,
        distributed.Client(two, set_as_default=False) as pair,
    ):
        yield alone, pair


def compare(case, whole, shards, client, keep_shards):
    plan = planned(*case)
    local = tv.fit(whole, plan, seed=3)
    release = tv.fit(shards, plan, seed=3, engine=Dask(client, keep_shards))
    assert release.model == local.model
    checked = (*local.guarantee.assumptions_checked, WHOLE)
    assert release.guarantee == replace(local.guarantee, assumptions_checked=checked)


def test_the_certificate_says_that_the_manifest_was_complete_and_not_what_it_holds(folders, tmp_path):
    plan = planned("sums", MODELS[0], "entry", 0.0)
    folder = tv.fit(folders[0], plan).save(tmp_path / "release")
    text = (folder / "certificate.json").read_text()
    assert text.count(WHOLE) == 1
    assert "part-" not in text
    assert folders[0].files[0].sha256 not in text
    assert "doubt" not in {check.state for check in verify(folder)}


@pytest.mark.parametrize("case", GRID, ids=IDS)
def test_a_release_has_the_same_bits_on_a_cluster(case, whole, folders, clusters):
    """CP on two workers, Tucker on one, in two splits; Tucker's parts are read again in every pass."""
    number = MODELS.index(case[1])
    compare(case, whole, folders[number], clusters[1 - number], keep_shards=number == 0)


@pytest.mark.slow
@pytest.mark.parametrize("case", GRID, ids=IDS)
def test_neither_workers_nor_splits_nor_reading_again_change_a_bit(case, whole, folders, clusters):
    for shards in folders:
        for client in clusters:
            for keep_shards in (True, False):
                compare(case, whole, shards, client, keep_shards)


@pytest.mark.parametrize("case", GRID[::7], ids=IDS[::7])
def test_shards_in_this_process_give_the_same_bits(case, whole, folders):
    plan = planned(*case)
    local = tv.fit(whole, plan, seed=4)
    for shards in folders:
        assert tv.fit(shards, plan, seed=4).model == local.model


KILLED = [("sampled", MODELS[0], "entry", 1e-6), ("input", MODELS[0], "value", 0.0)]


@pytest.mark.parametrize("case", KILLED, ids=lambda case: case[0])
@pytest.mark.parametrize("moment", [0, 2])
def test_a_killed_worker_changes_no_bit(case, moment, whole, folders, clusters, monkeypatch):
    """SIGKILL right after a pass was sent: while parts are read, and in the middle of the run."""
    client = clusters[1]
    passes, sent = [], Dask._pass

    def killing(self, *rest):
        futures = sent(self, *rest)
        if len(passes) == moment:
            os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
        passes.append(len(futures))
        return futures

    plan = planned(*case)
    local = tv.fit(whole, plan, seed=6)
    client.wait_for_workers(2, timeout=60)
    monkeypatch.setattr(Dask, "_pass", killing)
    assert tv.fit(folders[0], plan, seed=6, engine=Dask(client)).model == local.model
    assert len(passes) > moment


def test_the_only_worker_may_die_with_the_state_of_a_pass(clusters, folders, whole, monkeypatch):
    """What was sent to all workers is then lost: the pass is begun again, from the files."""
    client, sent, tries = clusters[0], Dask._pass, []

    def killing(self, *rest):
        futures = sent(self, *rest)
        tries.append(1)
        if len(tries) == 3:
            os.kill(*client.run(os.getpid).values(), signal.SIGKILL)
        return futures

    plan = planned("statistic", MODELS[0], "slice:user", 1e-6)
    local = tv.fit(whole, plan, seed=6)
    monkeypatch.setattr(Dask, "_pass", killing)
    assert tv.fit(folders[1], plan, seed=6, engine=Dask(client)).model == local.model


REPLAYED = [(name, MODELS[0], unit, deltas[-1]) for name, units in MECHANISMS.items() for unit, deltas in units.items()]


@pytest.mark.parametrize("case", REPLAYED[:: len(UNITS) + 1], ids=lambda case: f"{case[0]}-{case[2]}")
def test_replay_on_a_cluster(case, tmp_path, clusters):
    """As in the contract of every mechanism, with each run's observations in shards on two workers."""
    rng = np.random.default_rng(2)
    where = np.tile(np.argwhere(np.ones((4, 3, 2))), (2, 1))
    data = tv.Observations(where, rng.uniform(0.5, 5.5, len(where)), (4, 3, 2), mode_names=NAMES, duplicates="keep")
    name, model, unit, delta = case
    request = {"shape": (4, 3, 2), "mode_names": NAMES, "at_most": 9 if "slice" in unit else None}
    plan = mechanism(name, unit).plan(model, BOUNDS, unit, 8.0, delta, **request)

    def on_cluster(observations, plan, noise):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return tv.fit(in_shards(observations, folder, 12), plan, noise=noise, engine=Dask(clusters[1]))

    used = [replay(*pair, plan, run=on_cluster).largest for pair in neighbours(data, unit, BOUNDS, 1)]
    assert max(used) > 0.05


def test_the_key_is_in_no_text_of_the_cluster_and_in_no_data_that_workers_store(folders, clusters):
    class Listening(NoiseSource):
        heard: ClassVar[list[bytes]] = []

        def key(self):
            self.heard.append(super().key())
            return self.heard[-1]

    seen, client = [], clusters[1]

    def look(what, done, total):
        texts = client.run_on_scheduler(
            lambda dask_scheduler: " ".join(
                f"{task.key} {task!r} {task.run_spec!r} {task.annotations}" for task in dask_scheduler.tasks.values()
            )
        )
        stored = client.run(lambda dask_worker: [pickle.dumps(one) for one in dask_worker.data.values()])
        seen.append((texts, [one for part in stored.values() for one in part]))

    plan = planned("sampled", MODELS[0], "slice:user", 1e-6)
    tv.fit(folders[0], plan, noise=Listening(1), engine=Dask(client), progress=look)
    assert len(Listening.heard) > 2
    assert any("tensorveil-shard" in texts for texts, _ in seen)
    assert any(stored for _, stored in seen)
    for key in Listening.heard:
        for texts, stored in seen:
            assert repr(key)[2:12] not in texts
            assert key.hex()[:12] not in texts
            assert not any(key in one for one in stored)


def test_engines_add_and_map_alike(clusters):
    shards = [np.arange(4) + number for number in range(20)]
    for engine in (Dask(clusters[1]), Dask(clusters[0], keep_shards=False)):
        kept = engine.keep(np.square, shards)
        assert engine.map(np.sum, kept) == LocalEngine().map(np.sum, [shard**2 for shard in shards])
        (total,) = engine.sum(partial(_both, 3), kept)
        np.testing.assert_array_equal(total, 3 * np.sum(np.square(shards), axis=0))


def _both(factor, shard):
    return (factor * shard,)


def test_an_error_in_a_task_is_the_error_of_the_caller(clusters):
    with pytest.raises(ZeroDivisionError):
        Dask(clusters[1]).map(_divided, [1, 0, 2])


def _divided(shard):
    return 1 // shard


def test_scheduler_memory_is_flat_over_passes(clusters):
    engine, sizes = Dask(clusters[1]), []
    shards = engine.keep(np.square, [np.arange(9)] * 12)
    for _ in range(5):
        engine.sum(partial(_both, 2), shards)
        sizes.append(clusters[1].run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
    assert max(sizes) <= 2 * (12 + 1) + 16  # shards and at most the last pass: nothing is left of earlier ones


def test_a_client_of_something_else_is_refused():
    with pytest.raises(tv.InputError, match=r"distributed\.Client"):
        Dask("tcp://10.0.0.1:8786")


def test_a_pass_that_is_lost_again_and_again_is_an_error():
    class Lost:
        def scatter(self, *_, **__):
            return None

        def submit(self, *_, **__):
            return None

        def gather(self, _):
            from concurrent.futures import CancelledError

            raise CancelledError

    with pytest.raises(ClusterError, match="more memory"):
        Dask(Lost()).map(len, [1])
