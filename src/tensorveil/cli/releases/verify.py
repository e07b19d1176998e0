"""`tensorveil verify`."""

from pathlib import Path
from typing import Annotated

import typer

IN_DOUBT = 1
PASSED = (
    "Verified: every check passed. The data are not read: section 4 of the report lists what people have to confirm."
)
SHOWN = {"ok": "ok", "doubt": "DOUBT", "not run": "not run"}


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a release.")],
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also check that this ledger paid for the release.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")] = False,
) -> None:
    """Recompute the guarantee of a release from its certificate and check every file against it.

    The command computes the cost of the stages again and compares it with closed forms and with a second accountant
    where one exists. It checks hashes, schema, model, labels and theorems, and compares the report with a newly made
    one. A check that does not apply is shown as "not run", with the reason. No data are needed. With --ledger, the
    command also checks that the ledger was charged for exactly these stages.

    Example: tensorveil verify DIR --ledger clinic.sqlite

    Exit status: 0 if every check passed; 2 if there is no such folder; 1 otherwise. Releases that are seeded or only
    claimed do not pass.
    """
    from dataclasses import asdict

    from tensorveil.cli.console import print_json, print_table, say
    from tensorveil.release.certificate.questions import DOUBT
    from tensorveil.release.certificate.verification import verify as verify_release
    from tensorveil.release.saving import release_folder

    checks = verify_release(release_folder(directory), ledger)
    passed = not any(check.state == DOUBT for check in checks)
    if as_json:
        print_json({"directory": str(directory), "verified": passed, "checks": [asdict(check) for check in checks]})
    else:
        rows = [(check.name, SHOWN[check.state], check.found) for check in checks]
        print_table(rows, ("check", "result", "found"), title=f"verify {directory}")
        say(PASSED if passed else "In doubt: do not rely on this release.")
    if not passed:
        raise typer.Exit(IN_DOUBT)
