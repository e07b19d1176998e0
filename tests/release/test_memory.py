"""Memory is planned: a run that does not fit is refused before it costs anything, and a lack of memory is an error."""

import json
import resource
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorveil as tv
from tensorveil.release import fitting, memory
from tensorveil.release.ledger.ledger import Ledger

SHAPE = (6, 5, 4)
DATA = tv.Observations(np.argwhere(np.ones(SHAPE)), np.random.default_rng(0).uniform(1, 5, 120), SHAPE)

MEASURE = """
import json, os, sys, tempfile
import numpy as np, tensorveil as tv
from tensorveil.release.memory import needed_memory
count, shape, mechanism = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
where = np.column_stack([rng.integers(0, size, count) for size in shape]).astype(np.uint32)
data = tv.Observations(where, rng.integers(1, 6, count).astype(float), shape, duplicates="keep")
made = {"input": tv.InputPerturbation(solver=tv.Posterior(sweeps=6)), "statistic": tv.StatisticPerturbation(),
        "sums": tv.SumPerturbation(), "gradient": tv.GradientPerturbation()}[mechanism]
plan = tv.plan(data, tv.CP(8), tv.Bounds(1, 5), "value", 5.0, mechanism=made)
del where
before = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
tv.fit(data, plan).save(tempfile.mkdtemp() + "/out")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))  # getrusage begins with the parent's peak
peak = int(status["VmHWM"].split()[0]) * 1024 - before
print(json.dumps([needed_memory(plan), peak]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of a process from /proc")
@pytest.mark.parametrize(
    ("count", "shape", "mechanism"),
    [
        (1_000_000, (1_000, 500, 20), "input"),
        (100_000, (50_000, 2_000, 20), "input"),
        (1_000_000, (1_000, 500, 20), "statistic"),
        (100_000, (50_000, 2_000, 20), "statistic"),
        (1_000_000, (1_000, 500, 20), "gradient"),
        (100_000, (50_000, 2_000, 20), "gradient"),
        (1_000_000, (1_000, 500, 20), "sums"),
        (100_000, (15_000, 2_000, 20), "sums"),
    ],
)
def test_the_estimate_is_not_below_the_peak_nor_far_above_it(count, shape, mechanism):
    asked = json.dumps([count, shape, mechanism])
    ended = subprocess.run([sys.executable, "-c", MEASURE, asked], capture_output=True, text=True, check=True)
    estimate, peak = json.loads(ended.stdout.splitlines()[-1])
    assert peak <= estimate <= 3 * peak, (estimate, peak)


def plan_of(mechanism, shape, count, rank=12, unit="value", delta=0.0):
    return mechanism.plan(tv.CP(rank), tv.Bounds(1, 5), unit, 5.0, delta, shape=shape, expected_count=count)


def test_nothing_grows_with_the_square_of_a_mode():
    for mechanism in (tv.InputPerturbation(), tv.StatisticPerturbation(), tv.SumPerturbation()):
        small = memory.needed_memory(plan_of(mechanism, (50_000, 20_000, 100), 10**7))
        large = memory.needed_memory(plan_of(mechanism, (500_000, 200_000, 1_000), 10**8))
        assert small < 4e9
        assert large < 11 * small


def test_a_private_count_is_not_read():
    plan = plan_of(tv.StatisticPerturbation(), SHAPE, 10**6, rank=2, unit="entry", delta=1e-9)
    undeclared = replace(plan, request=replace(plan.request, expected_count=None))
    assert memory.needed_memory(plan) - memory.needed_memory(undeclared) > 10**7  # whatever the data hold


def test_a_run_that_does_not_fit_is_refused_before_anything_is_reserved_or_drawn(monkeypatch, tmp_path):
    plan = plan_of(tv.StatisticPerturbation(), SHAPE, 120, rank=2)
    ledger = Ledger.create(tmp_path / "L.sqlite", "films", "value", 9.0)
    monkeypatch.setattr(fitting, "NoiseSource", None)
    monkeypatch.setattr(memory, "free_memory", lambda: memory.needed_memory(plan) - 1)
    with pytest.raises(tv.InputError, match=r"must fit in memory, got \d+ MB free for about \d+ MB.* nothing was"):
        tv.fit(DATA, plan, ledger=ledger, dataset="films")
    assert ledger.spent("films").epsilon == 0


@pytest.mark.parametrize("paid", [False, True])
@pytest.mark.parametrize("told", ["", "Unable to allocate 9 GiB for an array with shape (123456,)"])
def test_memory_that_runs_out_later_is_an_error_that_says_what_was_spent(told, paid, monkeypatch, tmp_path):
    """But not what numpy says, which may be how many observations there are."""

    def greedy(*_):
        raise MemoryError(told)

    monkeypatch.setattr(tv.StatisticPerturbation, "run", greedy)
    ledger = Ledger.create(tmp_path / "L.sqlite", "films", "value", 9.0) if paid else None
    plan = plan_of(tv.StatisticPerturbation(), SHAPE, 120, rank=2)
    with pytest.raises(tv.SpentError, match=r"counts as spent: memory ran out$") as caught:
        tv.fit(DATA, plan, ledger=ledger, dataset="films" if paid else None)
    assert "123456" not in "".join(traceback.format_exception(caught.value))
    if ledger is not None:
        assert ledger.spent("films").epsilon == plan.epsilon


def test_free_memory_is_that_of_the_tightest_limit(monkeypatch, tmp_path):
    unlimited = memory.free_memory()
    assert unlimited is not None
    pages = Path("/proc/self/statm").read_text().split()
    used = int(pages[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + 10**8, used + 10**8))
    assert memory.free_memory() == pytest.approx(10**8, rel=0.2)


def test_control_groups_of_both_versions_are_read(monkeypatch, tmp_path):
    files = {
        "proc": "4:memory:/a/b\n0::/job\n1:cpu:/x\n",
        "memory/a/memory.limit_in_bytes": "9000",
        "memory/a/memory.usage_in_bytes": "4000",
        "memory/a/memory.stat": "active_file 7\ninactive_file 500\n",
        "job/memory.max": "max\n",
        "job/memory.current": "100\n",
        "memory.max": "3000",
        "memory.current": "1000",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert sorted(memory.group_memory(tmp_path / "proc", tmp_path)) == [2000, 5500]
