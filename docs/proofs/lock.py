"""Keeps proofs and code together: a hash of every function that states a proven sensitivity, in proofs.lock.

`make reprove NAME=theorem` refreshes the hash of one theorem, after its proof was read again beside the changed code.
The hash is of the function's syntax tree without its docstring, so that formatting and words do not count.
"""

import ast
import hashlib
import importlib
import inspect
import json
import sys
import textwrap
from pathlib import Path

from tensorveil.privacy.theorems import PROVEN_FUNCTIONS, THEOREMS

FOLDER = Path(__file__).parent
LOCK = FOLDER / "proofs.lock"
MODULES = (
    "tensorveil.privacy.accounting.divergences",
    "tensorveil.privacy.accounting.filters",
    "tensorveil.mechanisms.level",
    "tensorveil.mechanisms.private_offsets",
    "tensorveil.privacy.queries.choices",
    "tensorveil.privacy.queries.dense",
    "tensorveil.privacy.queries.symbols",
    "tensorveil.privacy.queries.values",
    "tensorveil.mechanisms.gradient",
    "tensorveil.mechanisms.output",
    "tensorveil.mechanisms.statistic",
    "tensorveil.mechanisms.sums",
)


def proven_functions() -> dict[str, list[str]]:
    """Theorem -> full names of the functions marked with it."""
    for module in MODULES:
        importlib.import_module(module)
    return PROVEN_FUNCTIONS


def find_function(name: str) -> object:
    """The function of a full name such as tensorveil.mechanisms.level.level_sensitivity."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise LookupError(name)


def hash_of(name: str) -> str:
    """Hash of a function's syntax tree, docstring left out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(find_function(name)))))
    function = tree.body[0]
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def hashes(theorem: str) -> dict[str, str]:
    """Function -> hash, for one theorem."""
    return {name: hash_of(name) for name in sorted(proven_functions().get(theorem, []))}


def main() -> None:
    wanted = sys.argv[1:]
    unknown = [name for name in wanted if name not in THEOREMS and name != "all"]
    if not wanted or unknown:
        raise SystemExit(f"NAME must be one of {', '.join(THEOREMS)} or all, got {unknown or 'nothing'}")
    locked = json.loads(LOCK.read_text()) if LOCK.exists() else {}
    for theorem in THEOREMS if "all" in wanted else wanted:
        locked[theorem] = hashes(theorem)
        print(f"{theorem}: {len(locked[theorem])} function(s) locked")
    aside = LOCK.with_suffix(".part")
    aside.write_text(json.dumps(locked, indent=1, sort_keys=True) + "\n")
    aside.replace(LOCK)


if __name__ == "__main__":
    main()
