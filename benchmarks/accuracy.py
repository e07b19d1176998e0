"""Accuracy against epsilon: `python benchmarks/accuracy.py [--quick] [--only REGEX]`, or `make accuracy`.

Data x unit x epsilon x method, several seeds each. Ours runs with the defaults of `tensorveil complete`; beside it are
floors, plain baselines, the paper's algorithms, and with --peers the methods of others in `peers/`. Real data come from
the folder that TENSORVEIL_DATA names. Noise is seeded, so that a table can be made again; such releases are not for
publication.

Rows are appended to a file as they come (results/accuracy.jsonl), and a run whose row of the same version of the code
is there is not repeated. The page and the pictures beside it are made from that file alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from accuracies import baselines, grid, halves, page, pictures, running
from accuracies.measuring import Row

RESULTS = Path(__file__).parent / "results"
SEEDS, QUICK_SEEDS = 5, 1


def main() -> None:
    """Run what is missing, then write page and pictures."""
    parser = argparse.ArgumentParser(
        description="Accuracy against epsilon; rows, page and pictures go to benchmarks/results."
    )
    parser.add_argument("--quick", action="store_true", help="MovieLens 100K under value, one row per other data set")
    parser.add_argument("--only", metavar="REGEX", help="only runs whose name matches, e.g. '^filmtrust value 5 ours'")
    parser.add_argument("--seeds", type=int, help=f"seeds per row (default {SEEDS}; quick {QUICK_SEEDS})")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: cores)")
    parser.add_argument("--again", action="store_true", help="also runs whose row of this version is there")
    parser.add_argument("--development", action="store_true", help="train halves and other seeds: to make choices")
    parser.add_argument("--tag", help="version to write into rows and to compare with, instead of the code's digest")
    parser.add_argument("--rows", type=Path, help="file of the rows; page and pictures are written beside it")
    parser.add_argument(
        "--peers", action="store_true", help="also methods of others: HaLRTC, BGCP, private ALS and more"
    )
    parser.add_argument("--list", action="store_true", help="only print the names of the runs that are missing")
    parser.add_argument("--page-only", action="store_true", help="only write page and pictures from the rows")
    options = parser.parse_args()
    rows: Path = options.rows or RESULTS / ("development.jsonl" if options.development else "accuracy.jsonl")
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    asked = grid.selected(grid.runs(seeds, options.development, options.peers), options.only, options.quick)
    wanted = asked if options.again else running.missing(asked, running.read_rows(rows), options.tag)
    if options.list:
        print("\n".join(map(str, wanted)))
        return
    failed = 0
    if not options.page_only:
        for note in (*halves.left_out(), *baselines.left_out()):
            print(note, file=sys.stderr)
        print(f"{len(wanted)} of {len(asked)} runs are missing; {options.workers} processes", file=sys.stderr)
        started = time.monotonic()
        for done, row in enumerate(running.run_all(wanted, rows, options.workers, options.tag), 1):
            failed += "error" in row
            print(f"{done}/{len(wanted)} {time.monotonic() - started:.0f} s  {told(row)}", flush=True)
    write(rows)
    if failed:
        sys.exit(f"{failed} runs failed; they are listed at the end of {rows.with_suffix('.md')}")


def told(row: Row) -> str:
    """A row as one line for a person."""
    epsilon = "inf" if row["epsilon"] is None else f"{row['epsilon']:g}"
    name = f"{row['data']}, {row['unit']}, {epsilon}, {row['method']}, {row['variant']}, seed {row['seed']}"
    if "error" in row:
        return f"{name}: {row['error']}"
    parts = [f"RMSE {row['rmse']:.4f}", f"MAE {row['mae']:.4f}"]
    if "coverage" in row:
        tenths = row["tenths"]
        parts.append(f"coverage {row['coverage']:.3f} (tenths {tenths[0]:.2f} ... {tenths[-1]:.2f})")
    parts += [f"R-hat {row['rhat']:.3f}"] if "rhat" in row else []
    parts += [f"{row['sweeps']} sweeps"] if "sweeps" in row else []
    return f"{name}: {', '.join(parts)}, {row['seconds']:.1f} s"


def write(path: Path) -> None:
    """The file of rows without those that later ones replace, and page and pictures beside it."""
    rows = running.read_rows(path)
    if not rows:
        sys.exit(f"{path} must hold rows, got none; run without --page-only first")
    running.write_rows(path, rows)
    written, errors, coverage = (path.with_name(path.stem + end) for end in (".md", ".svg", "_coverage.svg"))
    written.write_text(page.page(rows, path.stem))
    pictures.draw_errors(rows, errors)
    pictures.draw_coverage(rows, coverage)
    print(f"wrote {path}, {written.name}, {errors.name} and {coverage.name}")


if __name__ == "__main__":
    main()
