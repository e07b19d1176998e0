"""The rooms of the package, from the ground up: what the layer test enforces and docs/data_flow.md is made from.

A module may import from its own room and from rooms before it. Imports of type checkers do not count.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import tensorveil

ROOT = Path(tensorveil.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

ROOMS = {
    "arrays": "names of kinds of arrays",
    "errors": "kinds of errors",
    "checks": "checks of arguments",
    "metrics": "how good predictions are",
    "notebook": "how objects show themselves in a notebook",
    "data": "observations, tables, side information; `readers/` for files, `datasets/` to try things on",
    "kernels": "compiled loops: `reference/` to be read, `fast/` the same at full speed",
    "models": "CP, Tucker, offsets, and what a release predicts with",
    "engines": "where shards live and where work on them runs",
    "solvers": "completion without privacy: ALS and SGD; `layouts/` of entries in memory",
    "privacy": "units, bounds, plans, guarantees, theorems, the vault; `queries/`, `noise/`, `accounting/`, `local/`",
    "inference": "from released numbers to a model; `posterior/` for the Bayesian completion",
    "mechanisms": "which questions are asked, in which order, at which price; shared `parts/`, `planning/`, `local/`",
    "published": "the paper's Algorithms 1 to 3 as printed",
    "release": "`plan`, `fit`, `complete`, predictions, saving; `advice/`, `certificate/`, `ledger/`, `report/`",
    "sklearn": "an estimator of scikit-learn, each of whose fits is a release",
    "audit": "replays against neighbours, and lower bounds on epsilon by attack",
    "demo": "the demonstration",
    "app": "the browser app, which runs the command line and shows releases",
    "cli": "the command line; `local/` for local privacy, `releases/` for commands that read a finished release",
    "__main__": "`python -m tensorveil`",
}
DOOR = ""  # tensorveil/__init__.py: below everything, since anyone may import it; it imports nothing itself


def room_of(module: str) -> str:
    """The room of a module's dotted name."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else DOOR


def name_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = ["tensorveil", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def height(room: str) -> int:
    """The place of a room in the order; an error for a room without one."""
    if room == DOOR:
        return -1
    if room not in ROOMS:
        raise LookupError(f"{room} has no place yet: put it into ROOMS, in the order of the way that data take")
    return list(ROOMS).index(room)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def run_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those below `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(tree):
        if _is_for_type_checkers(child):
            for other in child.orelse:
                yield other
                yield from run_nodes(other)
            continue
        yield child
        yield from run_nodes(child)


def imports(text: str) -> set[str]:
    """Dotted names of what a source imports from the package, inside functions too."""
    found = set()
    for node in run_nodes(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "tensorveil"}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError("relative imports hide the room")
            if node.module == "tensorveil":
                found |= {f"tensorveil.{alias.name}" for alias in node.names if alias.name != "__version__"}
            elif node.module and node.module.startswith("tensorveil."):
                modules = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
                found |= modules or {node.module}
    return found


def closure(modules: set[str], leave_out: tuple[str, ...] = ()) -> set[str]:
    """These modules and all that they import, directly or not; names that begin with one of `leave_out` excepted."""
    found: set[str] = set()
    waiting = set(modules)
    while waiting:
        module = waiting.pop()
        if module in found or module not in MODULES or module.startswith(leave_out):
            continue
        found.add(module)
        waiting |= imports(MODULES[module].read_text())
    return found


def line_count(module: str) -> int:
    """Lines of a module's source."""
    return len(MODULES[module].read_text().splitlines())


def reading_order() -> str:
    """The table of rooms and modules for docs/data_flow.md."""
    lines = ["| room | what | modules |\n|---|---|---|\n"]
    for room, what in ROOMS.items():
        members = [module for module in MODULES if room_of(module) == room]
        names = [
            module.removeprefix(f"tensorveil.{room}.").replace(".", "/")
            for module in members
            if module != f"tensorveil.{room}" and MODULES[module].name != "__init__.py"
        ]
        lines.append(f"| `{room}` | {what} | {', '.join(f'`{name}`' for name in names)} |\n")
    return "".join(lines)
