"""Pages of the reference that are made from the code: the command line, the theorems and the names of the package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import tensorveil as tv
from tensorveil.cli.app import app
from tensorveil.privacy.local.client import parser as client_parser
from tensorveil.privacy.theorems import THEOREMS

PROOFS = Path(__file__).parent / "proofs"
MADE = "<!-- made by `make docs` from the code: change docs/reference_pages.py or the code, not this page -->\n"
COMMAND_LINE = f"""# Command line

{MADE}
`tensorveil COMMAND --help` prints what is on this page. Errors are one line: what is wrong, what was given, what to do.

"""
THEOREMS_PAGE = f"""# Theorems and proofs

{MADE}
Every guarantee names the theorems that it rests on. Each theorem has a section with its promise, its assumptions, its
proof, what the numerics do not cover, and the tests that would fail if it were false. A test fails when a proven
function has changed since its proof was last read.

| theorem | for | units | statement | idea from |
|---|---|---|---|---|
"""
API = f"""# Python

{MADE}
`import tensorveil as tv` gives the names below. Each has a page of its own, made from its docstring.

"""
# beginning of the module that holds a name -> heading, in the order of the page; the first that fits counts
GROUPS = {
    "tensorveil.release": "Plan, fit, release",
    "tensorveil.data.datasets": "Data to try things on",
    "tensorveil.data": "Data",
    "tensorveil.privacy": "What is promised",
    "tensorveil.mechanisms": "Mechanisms",
    "tensorveil.models": "Models",
    "tensorveil.inference": "Inference",
    "tensorveil.solvers": "Completion without privacy",
    "tensorveil.engines": "Clusters",
    "tensorveil.published": "The paper's algorithms, for comparison",
    "tensorveil.audit": "Audits",
    "tensorveil.errors": "Errors",
    "": "Others",
}


def _example(paragraph: str) -> tuple[str, str]:
    """The words of a paragraph before a command, and the command on one line; the command is empty if there is none."""
    line = " ".join(paragraph.split())
    for start in ("Example: tensorveil ", "tensorveil "):
        if line.startswith(start):
            return "", line[line.index("tensorveil ") :]
    return paragraph, ""


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _section(name: str, command: Any) -> str:
    """One command: what it does, its examples, and a table of its arguments and options."""
    context = command.make_context(name, [], resilient_parsing=True)
    context.info_name = f"tensorveil {name}"
    parts = [f"## tensorveil {name}", f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```"]
    for paragraph in (command.help or "").split("\n\n"):
        words, example = _example(paragraph)
        if example:
            parts.append(f"```\n{example}\n```")
        elif words.strip() not in ("Examples:", "Example:"):
            parts.append(words.strip())
    rows = [record for param in command.params if (record := param.get_help_record(context)) is not None]
    if rows:
        parts.append(_table(rows))
    return "\n\n".join(parts)


def _table(rows: list[tuple[str, str]]) -> str:
    """Options and what they mean, with bars inside of a cell escaped."""
    lines = [f"| `{option}` | {' '.join(told.split()).replace('|', chr(92) + '|')} |" for option, told in rows]
    return "\n".join(["| argument or option | meaning |", "|---|---|", *lines])


def _client_section() -> str:
    """`tensorveil randomize` has a parser of its own, to start fast."""
    found = client_parser()
    found.prog = "tensorveil randomize"
    rows = []
    for action in found._actions:
        name = ", ".join(action.option_strings) or action.dest
        takes_a_value = action.option_strings and action.nargs != 0
        rows.append((f"{name} {action.dest.upper()}" if takes_a_value else name, action.help or ""))
    epilog, _, rest = (found.epilog or "").partition(". Exit status")
    parts = ["## tensorveil randomize", found.description or "", f"```\n{_example(epilog)[1]}\n```"]
    return "\n\n".join([*parts, f"Exit status{rest}" if rest else "", _table(rows)])


def command_line_page() -> str:
    """The page docs/command_line.md: every command as its own help tells it."""
    sections = [
        _client_section() if name == "randomize" else _section(name, command)
        for name, command in _commands(typer.main.get_command(app))
    ]
    return COMMAND_LINE + "\n\n".join(sections) + "\n"


def theorems_page() -> str:
    """The page docs/theorems.md: one line per theorem, with its proof."""
    lines = [
        f"| [{one.name}](proofs/{one.page}) | {one.mechanism} | {', '.join(f'`{unit}`' for unit in one.units)} "
        f"| {one.statement} | {one.source} |\n"
        for one in THEOREMS.values()
    ]
    pages = "\n".join(f"proofs/{path.stem}" for path in sorted(PROOFS.glob("*.md")))
    return f"{THEOREMS_PAGE}{''.join(lines)}\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def api_page() -> str:
    """The page docs/api.md: the public names, grouped by the room that holds them."""
    groups: dict[str, list[str]] = {heading: [] for heading in GROUPS.values()}
    for name in tv.__all__:
        if not name.startswith("_"):
            home = tv._HOMES[name]
            groups[next(heading for start, heading in GROUPS.items() if home.startswith(start))].append(name)
    parts = []
    for heading, names in groups.items():
        if names:
            listed = "\n".join(f"   tensorveil.{name}" for name in names)
            table = f".. autosummary::\n   :toctree: api\n   :nosignatures:\n\n{listed}"
            parts.append(f"## {heading}\n\n```{{eval-rst}}\n{table}\n```\n")
    return API + "\n".join(parts)
