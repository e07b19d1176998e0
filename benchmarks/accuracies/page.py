"""The page of the accuracy benchmark, from the rows alone: what the aims say, then one table per data set and unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from accuracies import others
from accuracies.measuring import DEFAULT, MEAN, NO_UNIT, OFFSETS, OURS, OURS_WITH_FEATURES, Row
from accuracies.summary import Cell, Finding, Results, Target, epsilon_text, findings, number, targets

VERDICTS = {True: "met", False: "**missed**", None: "not run"}
COLUMNS = (
    "epsilon",
    "method",
    "RMSE",
    "MAE",
    "coverage of 90 %",
    "smallest tenth",
    "largest tenth",
    "R-hat",
    "draws",
    "sweeps",
    "mechanism",
    "seconds",
    "seeds",
)

OTHERS_HEAD = """Same train and test halves as ours (`benchmarks/peers/`, `python benchmarks/accuracy.py --peers`).
Settings are those of the papers or chosen on held-out train cells; constants of the solvers, the same for all data,
were compared on the train half of birmingham. Published figures of these methods are for 10 to 40 % of the cells
missing; here 90 % are, and zeros of taxi trips are values, which their authors leave out. TRMF alone is told which
modes are time. Private methods of others are among the rows below.
"""


def page(rows: Sequence[Row], name: str) -> str:
    """The whole page as Markdown, for a file of rows with this name."""
    results = Results(rows)
    parts = [_head(rows, name), "## Aims\n", _aims(findings(results)), "## Targets\n", _targets(targets(results))]
    parts += [_missed(one) for one in findings(results) if one.lines]
    parts += [*_others(results), "## Rows\n", *_tables(results), *_failures(rows)]
    return "\n".join(parts)


def _head(rows: Sequence[Row], name: str) -> str:
    versions = Counter(row["version"] for row in rows if row["method"] in (OURS, OURS_WITH_FEATURES))
    told = ", ".join(f"`{version}` ({count} rows)" for version, count in versions.most_common())
    lines = [
        "# Measured accuracy\n",
        f"Made by `make accuracy` from `{name}.jsonl` (`python benchmarks/accuracy.py --page-only`); do not edit.",
        "`ours` has the defaults of `tensorveil complete`; `inf` is without privacy. Errors are those of the test",
        "half, on the scale of the values (100^3: against the truth, as a fraction of its standard deviation).",
        "Means over noise seeds, or over drawn data and noise, ± standard error. Intervals are judged by the share of",
        "test values inside, overall and among the smallest and the largest tenth of the predictions.",
        "Slices are joint: every owner predicts from the release and its own data (delta 1e-5).\n",
        f"Versions of the code that made our rows: {told or 'none'}.\n",
        f"![error against epsilon]({name}.svg)\n",
        f"![coverage by tenth of the predictions]({name}_coverage.svg)\n",
    ]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _aims(found: Sequence[Finding]) -> str:
    return _table(("aim", "", "numbers"), [(one.aim, VERDICTS[one.met], one.numbers) for one in found])


def _targets(found: Sequence[Target]) -> str:
    lines = [(one.name, number(one.wanted), _with_error(one.reached, one.error), VERDICTS[one.met]) for one in found]
    return _table(("target", "wanted", "reached", ""), lines)


def _missed(finding: Finding) -> str:
    return f"### Missed: {finding.aim}\n\n{_table(finding.columns, finding.lines)}"


def _with_error(mean: float | None, error: float | None) -> str:
    return number(mean) if error is None else f"{number(mean)} ± {error:.2g}"


def _others(results: Results) -> Iterator[str]:
    """Methods of others without privacy beside ours, the smallest error first, and in words who wins."""
    cells = [cell for cell in results.cells if (cell.unit, cell.variant) == (NO_UNIT, DEFAULT)]
    names = dict.fromkeys(cell.data for cell in cells if cell.method in others.WITHOUT_PRIVACY)
    if not names:
        return
    yield "## Methods of others, without privacy\n"
    yield OTHERS_HEAD
    lines = []
    for name in names:
        ours = results.without_privacy(name)
        shown = (OURS, MEAN, OFFSETS, *others.WITHOUT_PRIVACY)
        mine = [cell for cell in cells if cell.data == name and cell.method in shown]
        mine.sort(key=lambda cell: cell.rmse)
        yield _who_wins(name, ours, mine)
        for cell in mine:
            ratio = "-" if ours is None else f"{cell.rmse / ours.rmse:.3f}"
            errors = [_with_error(cell.mean(measure), cell.error(measure)) for measure in ("rmse", "mae")]
            lines.append((name, cell.method, *errors, ratio, str(len(cell.rows))))
    yield _table(("data", "method", "RMSE", "MAE", "RMSE over ours", "seeds"), lines)


def _who_wins(name: str, ours: Cell | None, cells: Sequence[Cell]) -> str:
    if ours is None:
        return f"On {name}, ours was not run without privacy.\n"
    better = [f"{cell.method} ({number(cell.rmse)})" for cell in cells if cell.rmse < ours.rmse]
    verb = "has" if len(better) == 1 else "have"
    told = f"**{' and '.join(better)} {verb}**" if better else "none of them has"
    return f"On {name}, {told} a smaller error than ours without privacy ({number(ours.rmse)}).\n"


def _tables(results: Results) -> Iterator[str]:
    names = dict.fromkeys(cell.data for cell in results.cells)
    for data in names:
        yield f"### {data}\n"
        mine = [cell for cell in results.cells if cell.data == data]
        units = sorted(dict.fromkeys(cell.unit for cell in mine), key=_unit_order)
        for unit in units:
            cells = sorted((cell for cell in mine if cell.unit == unit), key=_cell_order)
            yield f"{'Without privacy' if unit == NO_UNIT else f'Unit `{unit}`'}\n"
            yield _table(COLUMNS, [_line(cell) for cell in cells])


def _unit_order(unit: str) -> int:
    return [NO_UNIT, "value", "entry"].index(unit) if ":" not in unit else 3


def _cell_order(cell: Cell) -> tuple[object, ...]:
    return cell.variant != DEFAULT, cell.variant, -(cell.epsilon or 0.0), cell.delta, cell.method != OURS, cell.method


def _line(cell: Cell) -> list[str]:
    parts = [cell.method, *([f"delta {cell.delta:g}"] if cell.delta else [])]
    method = ", ".join([*parts, *([cell.variant] if cell.variant != DEFAULT else [])])
    tenths = [row["tenths"] for row in cell.rows if "tenths" in row]
    ends = [number(sum(one[place] for one in tenths) / len(tenths)) if tenths else "-" for place in (0, -1)]
    mechanisms = ", ".join(sorted({row["mechanism"] for row in cell.rows if row.get("mechanism", "none") != "none"}))
    errors = [_with_error(cell.mean(measure), cell.error(measure)) for measure in ("rmse", "mae")]
    others = [number(cell.mean(measure)) for measure in ("rhat", "draws", "sweeps")]
    seconds, count = number(cell.mean("seconds")), str(len(cell.rows))
    coverage = number(cell.mean("coverage"))
    return [epsilon_text(cell.epsilon), method, *errors, coverage, *ends, *others, mechanisms or "-", seconds, count]


def _failures(rows: Sequence[Row]) -> Iterator[str]:
    failed = [row for row in rows if "error" in row]
    if failed:
        yield "## Failed runs\n"
        lines = [
            (row["data"], row["unit"], epsilon_text(row["epsilon"]), row["method"], str(row["seed"]), row["error"])
            for row in failed
        ]
        yield _table(("data", "unit", "epsilon", "method", "seed", "error"), lines)
