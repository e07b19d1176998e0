"""Keeps proofs and code together: a hash of all code that a proven sensitivity rests on, in proofs.lock.

`make reprove NAME=theorem` refreshes the hashes of one theorem, after its proof was read again beside the changed code.
A function that is marked with `@proves` is hashed together with its whole class, if it has one, and with every
function, class and constant that these name, directly or not, in their own module and in other modules of queries. So
the lock covers what a query reads (`of`), what it does to sums (`finish`), how far a unit moves them (`sensitivity`),
and what queries share. Hashes are of syntax trees without docstrings, so that formatting and words do not count.
Kernels, noise and the vault are not hashed; tests of their own hold them to their pages.
"""

import ast
import hashlib
import importlib
import inspect
import json
import sys
from pathlib import Path

from tensorveil.privacy.theorems import PROVEN_FUNCTIONS, THEOREMS

FOLDER = Path(__file__).parent
LOCK = FOLDER / "proofs.lock"
QUERIES = "tensorveil.privacy.queries."
MODULES = (
    "tensorveil.privacy.accounting.divergences",
    "tensorveil.privacy.accounting.filters",
    "tensorveil.privacy.accounting.parts",
    "tensorveil.privacy.coupled",
    "tensorveil.privacy.local.randomizing",
    "tensorveil.privacy.queries.gradients",
    "tensorveil.privacy.queries.moments",
    "tensorveil.privacy.queries.rows.exact_rows",
    "tensorveil.privacy.queries.rows.normal_equations",
    "tensorveil.privacy.queries.sums.lengths",
    "tensorveil.privacy.queries.sums.row_sums",
    "tensorveil.privacy.queries.values.cell_symbols",
    "tensorveil.privacy.queries.values.dense",
    "tensorveil.privacy.queries.values.histogram",
    "tensorveil.privacy.queries.values.symbols",
    "tensorveil.privacy.queries.values.values",
)


def proven_functions() -> dict[str, list[str]]:
    """Theorem -> full names of the functions marked with it."""
    for module in MODULES:
        importlib.import_module(module)
    return PROVEN_FUNCTIONS


def module_of(name: str) -> tuple[str, str]:
    """The module of a full name, and the function or class in it that holds the name."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return ".".join(parts[:cut]), parts[cut]
    raise LookupError(name)


def source_of(module: str) -> str:
    """The text of a module."""
    return inspect.getsource(importlib.import_module(module))


def definitions(module: str) -> dict[str, ast.stmt]:
    """Name -> the function, class, constant or import of that name at the top of a module, docstrings left out."""
    found: dict[str, ast.stmt] = {}
    for statement in ast.parse(source_of(module)).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(QUERIES):
            found |= {alias.name: statement for alias in statement.names}
    for statement in found.values():
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                node.body = [part for part in node.body if not _is_text(part)]
    return found


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def hash_of(name: str) -> str:
    """Hash of the syntax trees of a function or its class, and of what they name in modules of queries."""
    modules: dict[str, dict[str, ast.stmt]] = {}
    trees: dict[tuple[str, str], str] = {}
    waiting = [module_of(name)]
    while waiting:
        module, one = waiting.pop()
        if module not in modules:
            modules[module] = definitions(module)
        tree = modules[module].get(one)
        if tree is None or (module, one) in trees:
            continue
        if isinstance(tree, ast.ImportFrom):
            waiting.append((str(tree.module), one))
            continue
        trees[module, one] = ast.dump(tree)
        waiting += [(module, node.id) for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return hashlib.sha256(json.dumps(sorted(trees.items())).encode()).hexdigest()


def hashes(theorem: str) -> dict[str, str]:
    """Function -> hash, for one theorem."""
    return {name: hash_of(name) for name in sorted(proven_functions().get(theorem, []))}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in THEOREMS:
        raise SystemExit(f"NAME must be one of {', '.join(THEOREMS)}, got {' '.join(sys.argv[1:]) or 'nothing'}")
    theorem = sys.argv[1]
    before = json.loads(LOCK.read_text()) if LOCK.exists() else {}
    locked = {name: found for name, found in before.items() if name in THEOREMS}
    locked[theorem] = hashes(theorem)
    aside = LOCK.with_suffix(".part")
    aside.write_text(json.dumps(locked, indent=1, sort_keys=True) + "\n")
    aside.replace(LOCK)
    print(f"{theorem}: {len(locked[theorem])} function(s) locked")


if __name__ == "__main__":
    main()
