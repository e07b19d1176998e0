"""The program `tensorveil`: its commands, and what an error looks like."""

from typing import Annotated

import typer

from tensorveil import __version__
from tensorveil.cli.demo import demo
from tensorveil.errors import TensorveilError

app = typer.Typer(
    help="Complete partly observed tensors under differential privacy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: half the start-up time, and readable in any terminal
)


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


app.command()(demo)


def main() -> None:
    """Run the command line; an error of ours is one line, not a traceback."""
    try:
        app()
    except TensorveilError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
