"""`tensorveil ledger`: create, show, raise and export budgets."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tensorveil.cli.console import print_json, say
from tensorveil.cli.wording import OptionCommand

COUNTED = {"saved": "saved", "drawn": "drawn without a known folder", "unfinished": "unfinished", "void": "void"}
BROKEN = 1  # exit status of an export whose chain is broken

ledger_app = typer.Typer(
    help="Manage privacy budgets in a file that many processes can share.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
LedgerFile = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger's file, e.g. L.sqlite.")]
DatasetName = Annotated[str, typer.Option(help="The data set's name.")]


@ledger_app.command(cls=OptionCommand)
def create(
    path: LedgerFile,
    dataset: DatasetName,
    unit: Annotated[str, typer.Option(help="What is protected: value, entry, slice:MODE or slice_values:MODE.")],
    epsilon: Annotated[float, typer.Option(help="The total epsilon of all releases.")],
    delta: Annotated[
        float, typer.Option(help="The total delta of all releases. With 0, only pure releases are allowed.")
    ] = 0.0,
    at_most: Annotated[
        int | None, typer.Option(help="With a slice unit: the largest number of observations per slice in the data.")
    ] = None,
) -> None:
    """Add a data set with a budget to a ledger. The file is created if it does not exist.

    Example: tensorveil ledger create L.sqlite --dataset clinic --unit slice:patient --epsilon 2 --delta 1e-6
    """
    from tensorveil.release.ledger.ledger import Ledger

    Ledger.create(path, dataset, unit, epsilon, delta, at_most=at_most)
    say(f"data set {dataset!r}: unit {unit}, budget epsilon {epsilon:g}, delta {delta:g}, in {path}")


@ledger_app.command(cls=OptionCommand)
def show(
    path: LedgerFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show every data set: unit, budget, amounts spent and remaining, and reservations without a folder.

    Example: tensorveil ledger show L.sqlite
    """
    from tensorveil.release.ledger.ledger import Ledger

    found = Ledger(path).export()  # opening refuses a ledger that was tampered with
    if as_json:
        print_json({name: found[name] for name in ("format", "verified", "head", "datasets")})
        return
    for name, told in found["datasets"].items():
        say(_described(name, told))
    say(f"{len(found['entries'])} entries, chain verified, last hash {found['head']}")


@ledger_app.command("raise", cls=OptionCommand)
def raise_budget(
    path: LedgerFile,
    dataset: DatasetName,
    epsilon: Annotated[float, typer.Option(help="The new total epsilon (not the increase).")],
    why: Annotated[str, typer.Option(help="The reason. It is stored in the ledger permanently.")],
    delta: Annotated[float | None, typer.Option(help="The new total delta. Default: unchanged.")] = None,
) -> None:
    """Set a larger total budget for a data set.

    Example: tensorveil ledger raise L.sqlite --dataset clinic --epsilon 3 --why "second study, approved by the board"
    """
    from tensorveil.release.ledger.ledger import Ledger

    account = Ledger(path)
    _, before, chance = account.budget(dataset)
    account.raise_budget(dataset, epsilon, delta, why=why)
    after = chance if delta is None else delta
    say(
        f"data set {dataset!r}: the budget was epsilon {before:g}, delta {chance:g}; "
        f"it is now epsilon {epsilon:g}, delta {after:g} in all"
    )


@ledger_app.command(cls=OptionCommand)
def record(
    path: LedgerFile,
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a release that this ledger paid for.")
    ],
) -> None:
    """Record the folder of a release that the ledger paid for, if this failed when the folder was saved.

    The folder is verified first. The amount spent does not change.

    Example: tensorveil ledger record L.sqlite DIR
    """
    from tensorveil.release.certificate.verification import record_folder

    paid = record_folder(path, directory).ledger
    if paid is not None:
        say(f"data set {paid.dataset!r}: reservation {paid.reservation} is saved, in {directory}")


@ledger_app.command(cls=OptionCommand)
def export(path: LedgerFile) -> None:
    """Print the whole ledger as JSON and check its hashes. The exit status is 1 if a hash is wrong.

    Example: tensorveil ledger export L.sqlite > ledger.json
    """
    from tensorveil.release.ledger.ledger import export_ledger

    found = export_ledger(path)
    print_json(found)
    if not found["verified"]:
        say(f"error: the ledger's chain is broken at {found['fault']}", aside=True)
        raise typer.Exit(BROKEN)


def _described(name: str, told: dict[str, Any]) -> str:
    spent, left = told["spent"], told["remaining"]
    bound = "" if told["at_most"] is None else f" of at most {told['at_most']} observations"
    lines = [
        f"{name}",
        f"  unit       {told['unit']}{bound}",
        f"  budget     epsilon {told['epsilon']:g}, delta {told['delta']:g}",
        f"  used       {100 * spent['share']:.1f} % ({_counted(spent)})",
    ]
    if spent["mode"] is not None:
        kept = (
            "by the classes described in docs/ledger.md"
            if spent["mode"] == "classes"
            else "by adding up the stated costs"
        )
        lines.append(f"  kept       {kept}; the stated costs add up to {spent['epsilon']:.6g}, {spent['delta']:.3g}")
    offers = [f"pure epsilon {left['pure_epsilon']:.4g}"]
    if told["delta"] > 0:
        offers.append(f"Gaussian epsilon {left['epsilon']:.4g} at delta {left['delta']:g}")
    lines.append(f"  left       one more release of {' or '.join(offers)}")
    for one in told["without_folder"]:
        price = f"epsilon {one['epsilon']:g}" + (f", delta {one['delta']:g}" if one["delta"] else "")
        lines.append(f"  no folder  reservation {one['reservation']} of {one['time'][:16]}: {one['state']}, {price}")
    return "\n".join([*lines, ""])


def _counted(spent: dict[str, Any]) -> str:
    counts = [f"{spent[state]} {words}" for state, words in COUNTED.items()]
    return f"reservations: {', '.join(counts)}; all but void count as spent"
