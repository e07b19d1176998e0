"""Are seeded releases the same, bit for bit, as those of another commit?

    python benchmarks/same_bits.py --against COMMIT

checks the other commit out into a temporary folder, runs every mechanism, model and unit with a seed on both, on
observations sorted by coordinates, and prints which releases differ. Only the public interface of the package is used,
so that commits with another layout can be compared.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import tensorveil as tv

ROOT = Path(__file__).resolve().parents[1]
SHAPE = (9, 7, 5)
BOUNDS = {"levels": tv.Bounds(1, 5), "continuous": tv.Bounds(0.5, 5.25)}
MODELS = {"cp": tv.CP(rank=2), "tucker": tv.Tucker(ranks=(2, 2, 2))}
UNITS = ("value", "slice_values:0", "entry", "slice:0")
MECHANISMS = {
    "input": lambda: tv.InputPerturbation(),
    "input-laplace": lambda: tv.InputPerturbation(noise="laplace"),
    "input-als": lambda: tv.InputPerturbation(solver="als"),
    "gradient": lambda: tv.GradientPerturbation(steps=5),
    "gradient-sampled": lambda: tv.GradientPerturbation(steps=5, sampling_probability=0.5),
    "output": lambda: tv.OutputPerturbation(),
    "statistic": lambda: tv.StatisticPerturbation(),
    "sums": lambda: tv.SumPerturbation(),
    "offsets": lambda: tv.WithOffsets(tv.GradientPerturbation(steps=5)),
    "offsets-statistic": lambda: tv.WithOffsets(tv.StatisticPerturbation()),
}


def observations(kind: str, repeats: int) -> tv.Observations:
    """A table with some cells missing and, with repeats, several observations per cell; rows sorted by coordinates."""
    rng = np.random.default_rng(5)
    where = np.argwhere(rng.random(SHAPE) < 0.6)
    where = np.repeat(where, repeats, axis=0)
    factors = [rng.normal(size=(size, 2)) for size in SHAPE]
    signal = np.einsum("ir,jr,kr->ijk", *factors)[tuple(where.T)]
    values = 3 + signal + 0.3 * rng.normal(size=len(where))
    if kind == "levels":
        values = np.clip(np.rint(values), 1, 5)
    order = np.lexsort((values, *where.T[::-1]))
    return tv.Observations(where[order], values[order], SHAPE, duplicates="keep")


def digest(release: tv.Release) -> str:
    """A hash of every number of the released model."""
    model = release.model
    parts = [np.float64(model.offsets.mean), *model.offsets.modes, model.factors.parameters]
    if model.draws is not None:
        parts += list(model.draws.arrays().values())
    found = hashlib.sha256()
    for part in parts:
        found.update(b"none" if part is None else np.ascontiguousarray(part).tobytes())
    return found.hexdigest()[:16]


def releases(only: str) -> dict[str, str]:
    """The digest of every case, or the class of the error that refuses it."""
    found = {}
    for name, make in MECHANISMS.items():
        if only and not name.startswith(only):
            continue
        for kind, bounds in BOUNDS.items():
            for repeats in (1, 20):
                data = observations(kind, repeats)
                for model_name, model in MODELS.items():
                    for unit in UNITS:
                        for delta in (0.0, 1e-6):
                            case = f"{name} {kind} x{repeats} {model_name} {unit} delta {delta:g}"
                            limit = 40 if unit.startswith("slice") else None
                            try:
                                plan = make().plan(model, bounds, unit, 6.0, delta, shape=SHAPE, at_most=limit)
                            except tv.InputError as error:
                                found[case] = type(error).__name__
                                continue
                            found[case] = digest(tv.fit(data, plan, seed=7))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--only", default="", help="mechanisms whose name begins so")
    parser.add_argument("--json", action="store_true", help="print this checkout's digests as JSON and stop")
    asked = parser.parse_args()
    if asked.json or not asked.against:
        print(json.dumps(releases(asked.only), indent=1))
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "--detach", folder, asked.against], cwd=ROOT, check=True)
        try:
            command = [sys.executable, __file__, "--json", "--only", asked.only]
            environment = {**os.environ, "PYTHONPATH": str(Path(folder) / "src")}
            there = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)
    here = releases(asked.only)
    differing = [case for case in here if here[case] != there.get(case)]
    for case in differing:
        print(f"differs: {case}: {there.get(case)} there, {here[case]} here")
    print(f"{len(here) - len(differing)} of {len(here)} releases are the same, bit for bit")


if __name__ == "__main__":
    main()
