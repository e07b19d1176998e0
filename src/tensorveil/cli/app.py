"""The program `tensorveil`: its commands, and what an error looks like."""

import math
import sys
from typing import Annotated

import typer

from tensorveil import __version__
from tensorveil.app.command import app as browser_app
from tensorveil.cli.audit import audit
from tensorveil.cli.complete import complete
from tensorveil.cli.data.advise import advise
from tensorveil.cli.data.shard import shard
from tensorveil.cli.demo import demo
from tensorveil.cli.ledger import ledger_app
from tensorveil.cli.local.protocol import protocol
from tensorveil.cli.local.randomize import main as answer
from tensorveil.cli.releases.compare import compare
from tensorveil.cli.releases.evaluate import evaluate
from tensorveil.cli.releases.inspect import inspect_release
from tensorveil.cli.releases.predict import predict
from tensorveil.cli.releases.update import update
from tensorveil.cli.releases.verify import verify
from tensorveil.cli.wording import OptionCommand
from tensorveil.errors import BudgetError, SpentError, TensorveilError

app = typer.Typer(
    help="Complete partly observed tensors under differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: half the start-up time, and readable in any terminal
)

WRONG_INPUT, LEDGER_REFUSED, FAILED_AFTER_SPENDING = 2, 3, 4
FEWEST_BYTES, SCARCE_BYTES = 6 * 10**8, 2 * 10**9  # of address space: to load the libraries, and to run a small job
TOO_LITTLE = "memory ran out before anything was written: ulimit -v allows {:,.0f} MB, a small job needs about 1,200"


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


app.command(cls=OptionCommand, short_help="How accurate a release will be, before anything is spent.")(advise)
app.command(cls=OptionCommand, short_help="From a file to a private release: plan, price, run, report.")(complete)
app.command(cls=OptionCommand, short_help="Split data into shards, for a cluster or for more rows than memory.")(shard)
app.command(
    cls=OptionCommand, short_help="Predict the cells listed in a file, or find the best cells for given labels."
)(predict)
app.command(cls=OptionCommand, short_help="Release later data, starting from an earlier release.")(update)
app.command(cls=OptionCommand, short_help="Compare predictions with true values (for internal use only).")(evaluate)
app.command(cls=OptionCommand, short_help="Recompute the guarantee and check every file.")(verify)
app.command("inspect", cls=OptionCommand, short_help="Show what a release contains and guarantees.")(inspect_release)
app.command(cls=OptionCommand, short_help="Compare two releases side by side.")(compare)
app.command(cls=OptionCommand, short_help="Design how clients randomize values where no server is trusted.")(protocol)
app.command(cls=OptionCommand, short_help="Attack a mechanism and try to refute its stated epsilon.")(audit)
app.command(cls=OptionCommand, short_help="Run the whole workflow on synthetic taxi trips.")(demo)
app.command("app", cls=OptionCommand, short_help="Make and explore releases in a browser.")(browser_app)
app.add_typer(ledger_app, name="ledger")


@app.command(
    cls=OptionCommand,
    short_help="Randomize values at their source, by a protocol.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def randomize(context: typer.Context) -> None:
    """Hand the arguments to the client, which has a parser of its own to start fast."""
    answer(context.args)


def exit_status(error: TensorveilError) -> int:
    """The exit status of the program after an error that tensorveil raised."""
    if isinstance(error, SpentError):
        return FAILED_AFTER_SPENDING
    return LEDGER_REFUSED if isinstance(error, BudgetError) else WRONG_INPUT


def address_space() -> float:
    """The bytes that this process may ask for at most, by `ulimit -v`."""
    try:
        import resource
    except ImportError:  # not on this system
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def main() -> None:
    """Run the command line; a tensorveil error is shown as one line and an exit status, not a traceback."""
    limit = address_space()
    if limit < FEWEST_BYTES and not {"--help", "--version"} & set(sys.argv):  # libraries would abort while they load
        typer.echo(f"error: {TOO_LITTLE.format(limit / 1e6)}", err=True)
        raise SystemExit(WRONG_INPUT)
    try:
        app()
    except TensorveilError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(exit_status(error)) from None
    except MemoryError:  # while reading: once noise is drawn it is a SpentError
        typer.echo("error: memory ran out before anything was spent; use a machine with more memory", err=True)
        raise SystemExit(WRONG_INPUT) from None
    except Exception as error:
        if isinstance(error, OSError) and (error.filename or limit > SCARCE_BYTES):
            told = error.strerror or str(error)
            typer.echo(f"error: {told}" + (f": {error.filename}" if error.filename else ""), err=True)
        elif limit > SCARCE_BYTES:
            raise
        else:  # libraries that cannot load or start threads say all kinds of things
            typer.echo(f"error: {TOO_LITTLE.format(limit / 1e6)} ({type(error).__name__})", err=True)
        raise SystemExit(WRONG_INPUT) from None
