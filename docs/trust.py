"""What must be trusted for each mechanism: `make trust`.

A mechanism learns about the data through the vault alone. So what must be right for its guarantee is the vault, the
noise, units, bounds, and the queries that it asks, with everything that these import; not the mechanism itself, nor the
inference that follows. Accounting and the ledger, which all mechanisms share, are counted apart. Reading and checking
files comes before the vault: a wrong shape or label there is the data holder's to see.
"""

from layers import MODULES, closure, imports, line_count

MECHANISMS = ("input", "gradient", "output", "statistic", "sums", "with_offsets")
MOST_LINES = 2500
APART = ("tensorveil.privacy.accounting",)
BEFORE_THE_VAULT = ("tensorveil.data",)
COMMON = {
    "tensorveil.privacy.vault",
    "tensorveil.privacy.noise.source",
    "tensorveil.privacy.units",
    "tensorveil.privacy.bounds",
    "tensorveil.privacy.stages",
}


def queries_of(mechanism: str) -> set[str]:
    """Modules of the queries that a mechanism asks, by itself or through the parts it shares and contains."""
    own = closure({f"tensorveil.mechanisms.{mechanism}"})
    inside = {module for module in own if module.startswith("tensorveil.mechanisms.")} - {"tensorveil.mechanisms.base"}
    asked = set().union(*(imports(MODULES[module].read_text()) for module in inside))
    return {module for module in asked if module.startswith("tensorveil.privacy.queries.")}


def trusted(mechanism: str) -> dict[str, int]:
    """Module -> lines, of everything that must be trusted for one mechanism."""
    found = closure(COMMON | queries_of(mechanism), (*APART, *BEFORE_THE_VAULT))
    # the vault imports the abstract kinds of queries, and through them nothing that another mechanism alone asks
    return {module: line_count(module) for module in sorted(found) if line_count(module) > 1}


def main() -> None:
    for mechanism in MECHANISMS:
        lines = trusted(mechanism)
        print(f"{mechanism}: {sum(lines.values()):,} lines in {len(lines)} modules")
        for module, count in lines.items():
            print(f"    {count:5d}  {module}")
    shared = {module: line_count(module) for module in sorted(closure({"tensorveil.privacy.accounting.composition"}))}
    print(f"accounting, for all of them: {sum(shared.values()):,} lines in {len(shared)} modules")


if __name__ == "__main__":
    main()
