"""The program `tensorveil`: its commands, and what an error looks like."""

from typing import Annotated

import typer

from tensorveil import __version__
from tensorveil.cli.audit import audit
from tensorveil.cli.compare import compare
from tensorveil.cli.complete import complete
from tensorveil.cli.demo import demo
from tensorveil.cli.evaluate import evaluate
from tensorveil.cli.inspect_release import inspect_release
from tensorveil.cli.ledger import ledger_app
from tensorveil.cli.predict import predict
from tensorveil.cli.verify import verify
from tensorveil.errors import BudgetError, TensorveilError

app = typer.Typer(
    help="Complete partly observed tensors under differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: half the start-up time, and readable in any terminal
)

WRONG_INPUT, LEDGER_REFUSED = 2, 3


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tensorveil {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Complete partly observed tensors under differential privacy."""


app.command()(complete)
app.command()(predict)
app.command()(evaluate)
app.command()(verify)
app.command("inspect")(inspect_release)
app.command()(compare)
app.command()(audit)
app.command()(demo)
app.add_typer(ledger_app, name="ledger")


def main() -> None:
    """Run the command line; an error of ours is one line and an exit status, not a traceback."""
    try:
        app()
    except TensorveilError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(LEDGER_REFUSED if isinstance(error, BudgetError) else WRONG_INPUT) from None
    except OSError as error:  # a file that cannot be read or written
        typer.echo(f"error: {error.strerror or error}" + (f": {error.filename}" if error.filename else ""), err=True)
        raise SystemExit(WRONG_INPUT) from None
