"""The engine for Spark in docs/cluster.md, run as it is printed on a stand-in that does to it what Spark does."""

import pickle
import re
from pathlib import Path

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tensorveil as tv

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
SHAPE = (9, 5, 4)
NAMES = ("user", "film", "week")


class Frame:
    """Partitions of record batches; functions are pickled on their way to them, and results are rows."""

    def __init__(self, partitions):
        self.partitions = partitions

    def repartition(self, count):
        rows = pa.concat_tables([pa.Table.from_batches(part) for part in self.partitions if part])
        return Frame([rows.slice(first, 1).to_batches() for first in range(rows.num_rows)][::-1])  # in any order

    def mapInArrow(self, function, schema):  # noqa: N802  Spark's name
        assert schema == "number long, result binary"
        return Frame([list(cloudpickle.loads(cloudpickle.dumps(function))(iter(part))) for part in self.partitions])

    def collect(self):
        return [row for part in self.partitions for batch in part for row in batch.to_pylist()]


class Session:
    def createDataFrame(self, rows, schema):  # noqa: N802
        assert schema == "number long"
        return Frame([pa.table({"number": [number for (number,) in rows]}).to_batches()])


@pytest.fixture(scope="module")
def spark():
    (printed,) = [
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "class Spark" in block
    ]
    names = {}
    exec(compile(printed, str(PAGE), "exec"), names)
    return names["Spark"](Session())


@pytest.mark.parametrize(
    "mechanism, unit, delta",
    [
        (tv.GradientPerturbation(steps=2, sampling_probability=0.5), "entry", 1e-6),
        (tv.InputPerturbation(levels=(1, 2, 3, 4, 5), solver="als"), "value", 0.0),
        (tv.WithOffsets(tv.GradientPerturbation(steps=2)), "slice:user", 1e-6),
    ],
    ids=["gradient", "input", "with_offsets"],
)
def test_the_printed_engine_gives_the_same_bits(mechanism, unit, delta, spark, tmp_path):
    rng = np.random.default_rng(1)
    where = np.argwhere(np.ones(SHAPE))
    columns = dict(zip(NAMES, np.ascontiguousarray(where.T), strict=True))
    parquet.write_table(pa.table({**columns, "stars": rng.uniform(1, 5, len(where))}), tmp_path / "rated.parquet")
    request = (tmp_path / "rated.parquet", "user", tmp_path / "shards", NAMES, "stars")
    shards = tv.write_shards(*request, shape=SHAPE, rows_per_part=50)
    assert len(shards.files) > 1
    plan = mechanism.plan(tv.CP(2), tv.Bounds(1, 5), unit, 4.0, delta, shape=SHAPE, mode_names=NAMES)
    whole = tv.read(tmp_path / "rated.parquet", NAMES, "stars", shape=SHAPE)
    release = tv.fit(shards, plan, seed=2, engine=spark)
    assert release.model == tv.fit(whole, plan, seed=2).model
    (trusted,) = set(release.guarantee.assumptions_trusted) - set(tv.fit(shards, plan).guarantee.assumptions_trusted)
    assert trusted.startswith("the engine Spark, which is not part of this library")


def test_shards_travel_by_pickle(tmp_path):
    """Engines send shards and queries to other processes: what a shard keeps for itself stays behind."""
    from tensorveil.privacy.bounds import clip

    data = tv.Observations(np.argwhere(np.ones(SHAPE)), np.ones(180), SHAPE)
    shard = clip(data, tv.Bounds(1, 5), tv.Unit.entry(), bytes(32))
    shard.layouts["order"] = lambda: None  # cannot be pickled
    again = pickle.loads(pickle.dumps(shard))
    assert again.layouts == {}
    np.testing.assert_array_equal(again.steps, shard.steps)
    np.testing.assert_array_equal(again.coordinates, shard.coordinates)
