"""Smooth modes, on and off: `python benchmarks/smooth.py [--quick] [--peers] [--only REGEX]`.

NYC taxi trips (pickup, drop-off, day, hour of the day), Birmingham's car parks (park, day, half hour) and a made-up
traffic tensor whose truth is known, 50 % and 90 % of the cells hidden, the unit `value`, epsilon 1 and 5 and without
privacy. With --peers also HaLRTC, BGCP and TRMF, which are not private, on the same cells. Real data come from the
folder that TENSORVEIL_DATA names.

One JSON row per run goes to results/smooth.jsonl; a run whose row is there is not repeated, unless --again is given.
The table at the end has the mean error over the seeds that were run.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accuracies import halves
from accuracies.halves import Floats, Halves
from accuracies.measuring import WATCHED, rhat

import tensorveil as tv

RESULTS = Path(__file__).parent / "results" / "smooth.jsonl"
HIDDEN = (0.5, 0.9)
EPSILONS = (1.0, 5.0, math.inf)
SEEDS, QUICK_SEEDS = 3, 1
TEST_CELLS = 20_000
DEVELOPMENT = 1_000  # added to seeds of masks and made-up tensors: choices are not made on what is reported
STREETS, DAYS, HOURS, TRUE_RANK = 60, 28, 24, 4
Row = dict[str, Any]


@dataclass(frozen=True)
class Tensor:
    """All known cells of a tensor, its smooth modes, and the truth without noise where it is known."""

    cells: tv.Observations
    smooth: dict[str, str]
    bounds: tv.Bounds
    truth: Floats | None = None

    def hidden(self, share: float, seed: int) -> Halves:
        """The halves of a random mask."""
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.cells))
        seen, rest = np.split(order, [round((1 - share) * len(order))])
        test = np.sort(rest[:TEST_CELLS])
        truth = None if self.truth is None else self.truth[test]
        where, measured = self.cells.coordinates[test], self.cells.values[test]
        return Halves(self.cells.take(np.sort(seen)), where, measured, self.bounds, truth)


def taxi(_: int) -> Tensor:
    """Trips by pickup zone, drop-off zone, day and hour of the day."""
    found = tv.read(halves.required("nyc-taxi") / "NYC-data-set_tensor.mat", modes=("pickup", "dropoff", "hour"))
    where = found.coordinates.astype(np.int64)
    split = np.column_stack([where[:, :2], where[:, 2] // HOURS, where[:, 2] % HOURS])
    shape = (*found.shape[:2], found.shape[2] // HOURS, HOURS)
    cells = tv.Observations(split, found.values, shape, mode_names=("pickup", "dropoff", "day", "hour"))
    return Tensor(cells, {"day": "ordered", "hour": "periodic"}, tv.Bounds(0, 500))


def birmingham(_: int) -> Tensor:
    """Cars by car park, day and half hour of the day, from 8:00 to 16:30."""
    known = halves.birmingham()
    where = np.concatenate([known.train.coordinates, known.where])
    values = np.concatenate([known.train.values, known.measured])
    cells = tv.Observations(where, values, known.train.shape, mode_names=known.train.mode_names)
    return Tensor(cells, {"day": "ordered", "time": "ordered"}, known.bounds)


def made_up(seed: int) -> Tensor:
    """Traffic with a known truth: days drift slowly, hours have two rush hours, streets follow some of the patterns."""
    rng = np.random.default_rng(seed)
    days = np.cumsum(rng.normal(0, 0.3, (DAYS, TRUE_RANK)), axis=0) + 1.0
    phases, hours = rng.uniform(0, 2 * np.pi, (2, TRUE_RANK)), 2 * np.pi * np.arange(HOURS)[:, None] / HOURS
    hours = 1.0 + np.cos(hours - phases[0]) + 0.5 * np.cos(2 * hours - phases[1])
    streets = rng.gamma(1.0, 1.0, (STREETS, TRUE_RANK))
    truth = 20 + 5 * np.einsum("sr,dr,hr->sdh", streets, days, hours)
    measured = truth + rng.normal(0, 0.3 * truth.std(), truth.shape)
    names = ("street", "day", "hour")
    cells = tv.Observations(np.argwhere(np.ones(truth.shape)), measured.ravel(), truth.shape, mode_names=names)
    bounds = tv.Bounds(-100, 400)
    return Tensor(cells, {"day": "ordered", "hour": "periodic"}, bounds, np.clip(truth.ravel(), -100, 400))


DATA: dict[str, tuple[Callable[[int], Tensor], str | None]] = {
    "made-up traffic": (made_up, None),
    "birmingham": (birmingham, "birmingham-parking"),
    "nyc-taxi": (taxi, "nyc-taxi"),
}


def ours(data: Halves, smooth: dict[str, str] | list[str], epsilon: float, seed: int) -> tuple[Floats, Row]:
    """The completion with the defaults of `tensorveil complete`, and R-hat of its draws."""
    found = tv.complete(data.train, "cp", data.bounds, "value", epsilon, smooth=smooth, seed=seed)
    facts: Row = {"mechanism": "none" if found.plan is None else found.plan.mechanism.name}
    if found.model.draws is not None:
        facts["rhat"] = round(rhat(found.model.draws.latent_means(data.where[:WATCHED], found.model.offsets)), 3)
    return found.model.predict(data.where), facts


def peers() -> dict[str, Callable[[Halves, list[int], int], Floats]]:
    """Methods of others, without privacy; empty, with a note, where they are not beside this file."""
    try:
        from peers import bgcp, halrtc, trmf
    except ImportError:
        print("left out: the methods of others are not in benchmarks/peers", file=sys.stderr)
        return {}

    def asked(method: Any, data: Halves, seed: int, **settings: Any) -> Floats:
        known = data.train
        found = method.complete(known.coordinates, known.values, known.shape, data.where, seed, **settings)
        return np.asarray(found, dtype=np.float64)

    return {
        "HaLRTC": lambda data, times, seed: asked(halrtc, data, seed),
        "BGCP": lambda data, times, seed: asked(bgcp, data, seed),
        "TRMF": lambda data, times, seed: asked(trmf, data, seed, time=times),
    }


def runs(seeds: int, with_peers: bool, development: bool) -> Iterator[tuple[Row, Callable[[], tuple[Row, Row]]]]:
    """What is run: its name as columns of a row, and the run."""
    others = peers() if with_peers else {}
    for name, (read, folder) in DATA.items():
        if folder is not None and halves.folder_of(folder) is None:
            print(f"left out: {name} is not in the folder of TENSORVEIL_DATA", file=sys.stderr)
            continue
        for hidden in HIDDEN:
            for seed in range(seeds):
                drawn = seed + DEVELOPMENT * development

                def half(
                    read: Callable[[int], Tensor] = read, hidden: float = hidden, drawn: int = drawn
                ) -> tuple[Tensor, Halves]:
                    tensor = read(drawn)
                    return tensor, tensor.hidden(hidden, drawn)

                def one(epsilon: float, on: bool, seed: int = seed, half: Any = half) -> tuple[Row, Row]:
                    tensor, data = half()
                    predicted, facts = ours(data, tensor.smooth if on else [], epsilon, seed)
                    return data.errors(predicted), facts

                def other(method: Any, seed: int = seed, half: Any = half) -> tuple[Row, Row]:
                    tensor, data = half()
                    times = [mode for mode, name in enumerate(data.train.mode_names) if name in tensor.smooth]
                    return data.errors(method(data, times, seed)), {}

                facts = {"data": name, "hidden": hidden, "seed": seed}
                for epsilon in EPSILONS:
                    for on in (False, True):
                        method = "smooth" if on else "not smooth"
                        named = {"epsilon": None if math.isinf(epsilon) else epsilon, "method": method}
                        yield facts | named, lambda epsilon=epsilon, on=on, one=one: one(epsilon, on)
                for method, run in others.items():
                    yield facts | {"epsilon": None, "method": method}, lambda run=run, other=other: other(run)


def table(rows: list[Row]) -> str:
    """Mean RMSE per data set, share hidden, epsilon and method, and what smooth modes change."""
    means: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        means.setdefault((row["data"], row["hidden"], row["epsilon"], row["method"]), []).append(row["rmse"])
    lines = ["| data | hidden | epsilon | not smooth | smooth | change | others |", "|---|---|---|---|---|---|---|"]
    for data, hidden, epsilon in dict.fromkeys(key[:3] for key in means):
        found = {key[3]: np.mean(part) for key, part in means.items() if key[:3] == (data, hidden, epsilon)}
        off, on = found.pop("not smooth", math.nan), found.pop("smooth", math.nan)
        told = ", ".join(f"{method} {error:.4g}" for method, error in found.items())
        name = "inf" if epsilon is None else f"{epsilon:g}"
        lines.append(f"| {data} | {hidden:.0%} | {name} | {off:.4g} | {on:.4g} | {on / off - 1:+.1%} | {told} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description="Errors with and without smooth modes.")
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--seeds", type=int, help=f"masks per row (default {SEEDS}; quick {QUICK_SEEDS})")
    parser.add_argument("--peers", action="store_true", help="also methods of others, without privacy")
    parser.add_argument("--only", metavar="REGEX", help="only runs whose name matches, e.g. 'birmingham 0.9 5.0'")
    parser.add_argument("--again", action="store_true", help="also runs whose row is there")
    parser.add_argument("--development", action="store_true", help="other masks and tensors: to make choices")
    parser.add_argument("--rows", type=Path, default=RESULTS, help="file of the rows")
    options = parser.parse_args()
    kept = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.exists() else []
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    for facts, run in runs(seeds, options.peers, options.development):
        facts |= {"development": options.development}
        name = f"{facts['data']} {facts['hidden']} {facts['epsilon']} {facts['method']} {facts['seed']}"
        known = [row for row in kept if facts.items() <= row.items()]
        if (known and not options.again) or (options.only and not re.search(options.only, name)):
            continue
        started = time.process_time()
        errors, more = run()
        row = facts | errors | more | {"processor_seconds": round(time.process_time() - started, 1)}
        kept = [one for one in kept if one not in known] + [row]
        options.rows.parent.mkdir(exist_ok=True)
        written = options.rows.with_suffix(".part")
        written.write_text("".join(json.dumps(one) + "\n" for one in kept))
        written.replace(options.rows)
        print(f"{name}: RMSE {row['rmse']:.4f}, MAE {row['mae']:.4f}, {row['processor_seconds']} s", flush=True)
    print(table([row for row in kept if row["development"] == options.development]))


if __name__ == "__main__":
    main()
