"""What must be trusted for each mechanism: `make trust`.

A mechanism learns about the data through the vault alone. So what must be right for its guarantee is the vault, the
noise, units, bounds, and the queries that it asks, with everything that these import; not the mechanism itself, nor the
inference that follows.

Counted apart, because an auditor reads them once or not at all:

- accounting and the ledger, which all mechanisms share;
- fast twins of reference kernels, which tests hold to the same integers, bit for bit;
- reading files, which comes before the vault: a wrong label there is for the data holder to see;
- kinds of errors and of arrays, the table of theorems, how kernels are compiled, and which of two twins runs.
"""

import ast

from layers import MODULES, closure, imports, line_count

MECHANISMS = ("input", "gradient", "output", "statistic", "sums", "with_offsets")
MOST_LINES = 2500
COUPLED = "tensorveil.privacy.coupled"
TWINS = ("tensorveil.kernels.fast", "tensorveil.kernels.vectors", "tensorveil.solvers", "tensorveil.kernels.normals")
APART = (
    "tensorveil.privacy.accounting",
    "tensorveil.data.",
    "tensorveil.errors",
    "tensorveil.checks",
    "tensorveil.privacy.theorems",
    "tensorveil.arrays",
    "tensorveil.kernels.compiling",
    "tensorveil.kernels.cores",
    "tensorveil.kernels.dispatch",
    "tensorveil.kernels.fused",
)
COMMON = {
    "tensorveil.privacy.vault",
    "tensorveil.privacy.noise.source",
    "tensorveil.privacy.units",
    "tensorveil.privacy.bounds",
    "tensorveil.data.cells",
}


def queries_of(mechanism: str) -> set[str]:
    """Modules of the queries that a mechanism asks, by itself or through the parts it shares and contains."""
    own = closure({f"tensorveil.mechanisms.{mechanism}"})
    inside = {module for module in own if module.startswith("tensorveil.mechanisms.")} - {"tensorveil.mechanisms.base"}
    asked = set().union(*(imports(MODULES[module].read_text()) for module in inside))
    return {module for module in asked if module.startswith("tensorveil.privacy.queries.")}


def trusted(mechanism: str, leave_out: tuple[str, ...] = (*APART, *TWINS)) -> dict[str, int]:
    """Module -> lines, of everything that must be read to trust one mechanism."""
    found = closure(COMMON | queries_of(mechanism), leave_out)
    found |= {"tensorveil.data.cells"}  # the canonical order, which `clip` rests on
    return {module: line_count(module) for module in sorted(found) if line_count(module) > 1}


def code_lines(module: str) -> int:
    """Lines without blank ones, comments and docstrings."""
    text = MODULES[module].read_text()
    told = set()
    for node in ast.walk(ast.parse(text)):
        first = node.body[0] if isinstance(getattr(node, "body", None), list) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            told |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(1 for number, line in lines if number not in told and line.strip() and line.strip()[0] != "#")


def main() -> None:
    for mechanism in MECHANISMS:
        lines = trusted(mechanism)
        code = sum(code_lines(module) for module in lines)
        twins = set(trusted(mechanism, APART)) - set(lines)
        print(f"{mechanism}: {sum(lines.values()):,} lines in {len(lines)} modules, {code:,} of them code")
        for module, count in lines.items():
            print(f"    {count:5d}  {module}")
        if twins:
            print(f"    {sum(map(line_count, twins)):5d}  in fast twins, tested to give the same integers")
        if mechanism == "input":
            print(f"    {line_count(COUPLED):5d}  more for two tables: {COUPLED}")
    shared = {module: line_count(module) for module in sorted(closure({"tensorveil.privacy.accounting.composition"}))}
    print(f"accounting, for all of them: {sum(shared.values()):,} lines in {len(shared)} modules")


if __name__ == "__main__":
    main()
