"""Small releases of every kind, saved once for all tests that read them, and ways to tamper with copies."""

import atexit
import dataclasses
import functools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import tensorveil as tv
from tensorveil.models.draws import PosteriorDraws
from tensorveil.release import saving
from tensorveil.release.certificate.certificate import Certificate

SHAPE = (6, 5, 4)
NAMES = ("user", "film", "day")
LABELS = (
    np.array(["ann", "bob", "cyd", "dée", "eve", "fay"], dtype=object),
    np.array([10, 20, 30, 40, 50]),
    np.array(["1998-03-07", "1998-03-08", "1998-03-09", "1998-03-10"], dtype=object),
)
CELLS = np.argwhere(np.ones(SHAPE))


def observations(seed=0, rows=None):
    """Values at every cell, or at some."""
    values = np.random.default_rng(seed).uniform(1, 5, len(CELLS))
    chosen = np.arange(len(CELLS)) if rows is None else np.asarray(rows)
    data = tv.Observations(CELLS[chosen], values[chosen], SHAPE, mode_names=NAMES, labels=LABELS)
    return data._described(bins=(None, None, "day"), value="rating")


def make(kind, **options):
    """A release: pure, gaussian, joint, joint sums, sampled, mixed, drawn, seeded or claimed."""
    if kind == "claimed":
        plan = tv.published.PublishedInput().plan(tv.CP(2), 1.0, tv.SGD(iterations=2))
        return tv.fit(observations(), plan, seed=3)
    mechanism, model, unit, delta = {
        "pure": (tv.StatisticPerturbation(sweeps=1), tv.CP(2), "value", 0.0),
        "seeded": (tv.StatisticPerturbation(sweeps=1), tv.CP(2), "value", 0.0),
        "gaussian": (tv.WithOffsets(tv.GradientPerturbation(steps=5)), tv.Tucker((2, 2, 1)), "entry", 1e-6),
        "joint": (tv.StatisticPerturbation(sweeps=1), tv.CP(2), "slice:user", 1e-6),
        "joint sums": (tv.SumPerturbation(), tv.CP(2), "slice:user", 1e-6),
        "sampled": (tv.GradientPerturbation(steps=4, sampling_probability=0.5), tv.CP(2), "entry", 1e-6),
        "mixed": (tv.WithOffsets(tv.InputPerturbation(solver="als")), tv.CP(2), "value", 1e-6),
        "drawn": (tv.InputPerturbation(solver="als"), tv.CP(2), "value", 0.0),
    }[kind]
    plan = mechanism.plan(model, tv.Bounds(1, 5), unit, 4.0, delta, shape=SHAPE, mode_names=NAMES)
    release = tv.fit(observations(), plan, seed=7 if kind == "seeded" else None, **options)
    return with_draws(release) if kind == "drawn" else release


def with_draws(release, count=3):
    """The release with draws of a posterior that nobody computed, which takes long: numbers of the right shapes."""
    rng = np.random.default_rng(9)
    family, shape = release.factors.family, release.shape
    draws = PosteriorDraws(
        family,
        shape,
        rng.normal(size=(count, release.factors.parameters.size)),
        0.1 * rng.normal(size=(count, 1 + sum(shape))),
        rng.uniform(0.2, 0.4, count),
        np.sort(rng.uniform(-1, 1, (count, 6)), axis=1),
        np.linspace(-1, 1, 5),
        np.linspace(-1, 1, 5),
        np.array([48, 4, 1.02, 120.0]),
    )
    return dataclasses.replace(release, model=dataclasses.replace(release.model, draws=draws))


@functools.cache
def made(kind):
    """One release of each kind."""
    return make(kind)


@functools.cache
def saved(kind):
    """The release and its folder; nobody writes to it."""
    folder = Path(tempfile.mkdtemp(prefix="tensorveil-test-")) / kind
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    return made(kind), made(kind).save(folder)


def copy_of(kind, folder):
    """A copy that may be tampered with."""
    return Path(shutil.copytree(saved(kind)[1], Path(folder) / kind))


def reseal(folder, change=None, files=None):
    """Write a changed certificate whose digest and hashes are right again, as a forger would."""
    for name, data in (files or {}).items():
        (folder / name).write_bytes(data)
    plain = json.loads((folder / "certificate.json").read_text())
    if change is not None:
        change(plain)
    names = (saving.MODEL, saving.LABELS, saving.REPORT)
    plain["files"] = {name: saving.sha256((folder / name).read_bytes()) for name in sorted(names)}
    plain["digest"] = "0" * 64
    certificate = Certificate.from_json(json.dumps(plain))
    sealed = certificate.with_files(plain["files"])
    (folder / "certificate.json").write_text(sealed.to_json())
    return folder
