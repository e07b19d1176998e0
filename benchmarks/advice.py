"""The advisor against measured errors: `python benchmarks/advice.py`.

For data sets of `accuracy.py`, `tv.advise` gets the public shape and count, and its errors are compared with those in
results/accuracy.jsonl, as shares of the spread of the test values. Rows, page: results/advice.md. Real data come from
the folder that TENSORVEIL_DATA names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from accuracies import halves

import tensorveil as tv
from tensorveil.release.advice.made_up import SIGNALS

RESULTS = Path(__file__).parent / "results"
DATA = ("ml-100k ua", "filmtrust", "birmingham", "mimic", "nyc-taxi")
UNITS = ("value", "entry")
CLOSE = 0.25  # of the measured error


def measured(data: str, unit: str) -> dict[float, float]:
    """Epsilon -> RMSE of our method with its defaults, of the first seed."""
    rows = [json.loads(line) for line in (RESULTS / "accuracy.jsonl").read_text().splitlines()]
    wanted = {"data": data, "unit": unit, "method": "ours", "variant": "default", "seed": 0}
    return {row["epsilon"]: row["rmse"] for row in rows if "rmse" in row and wanted.items() <= row.items()}


def compared(data: str, unit: str) -> list[str]:
    """One line of the page per epsilon."""
    known = measured(data, unit)
    found = halves.REAL[data][0]()
    shape, count, spread = found.train.shape, len(found.train), found.measured.std()
    epsilons = sorted(epsilon for epsilon in known if epsilon is not None)
    advice = tv.advise(shape, unit=unit, epsilons=epsilons, expected_count=count)
    lines = []
    for row in advice.rows:
        error = known[row.epsilon] / spread
        near = [name for name in SIGNALS if abs(row.errors[name] - error) <= CLOSE * error]
        nothing = "nothing" if not row.learned else ""
        told = " | ".join(f"{row.errors[name]:.3f}" for name in SIGNALS)
        closest = ", ".join(near) or "**none**"
        lines.append(f"| {data} | {unit} | {row.epsilon:g} | {error:.3f} | {told} | {closest} | {nothing} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Compare, and write the page."""
    lines = [
        line
        for data in DATA
        if halves.folder_of(halves.REAL[data][1])
        for unit in UNITS
        for line in compared(data, unit)
    ]
    if not lines:
        sys.exit("the folder of TENSORVEIL_DATA must hold data sets, got none; set it")
    head = [
        "# The advisor against measured errors\n",
        "Made by `python benchmarks/advice.py` from `accuracy.jsonl`; do not edit. Errors are shares of the spread of",
        "the test values. The advisor knows shape and count only. *Close*: signals whose error is within 25 % of the",
        "measured one. *Verdict*: the advisor says that nothing beyond the mean can be learned.\n",
        "| data | unit | epsilon | measured | weak | middling | strong | close | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    (RESULTS / "advice.md").write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
