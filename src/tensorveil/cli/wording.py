"""Errors of the library in the words of the command line: options instead of parameters."""

import re
from typing import Any

import typer
from typer.core import TyperCommand

from tensorveil.cli.console import say
from tensorveil.errors import InputError, TensorveilError

OTHER_NAMES = {"bins": "bin", "ranks": "rank"}  # parameter -> option, where the two have different names
ALSO_A_WORD = {"labels"}  # at the start of a message it may mean the labels in the data, not the option


NUMBERS = {"float_parsing": "a number", "int_parsing": "a whole number"}


class OptionCommand(TyperCommand):
    """A command whose errors name options as they are typed, and which prints the notes of an interrupt."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; a text where a number belongs is an error that shows the text."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            found: list[Any] = getattr(
                error.__cause__, "errors", list
            )()  # of pydantic, whose message does not show the text
            if not found or error.param is None or found[0]["type"] not in NUMBERS:
                raise
            many = error.param.nargs
            rule = NUMBERS[found[0]["type"]] if many == 1 else f"{many} numbers"
            raise InputError(f"{error.param.opts[0]} must be {rule}, got {found[0]['input']!r}; correct it") from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; in a tensorveil error, parameter names are replaced by option names."""
        try:
            return super().invoke(ctx)
        except TensorveilError as error:
            options = {part.name: part.opts[0] for part in self.params if part.name and part.opts[0].startswith("--")}
            error.args = (in_options(str(error), options), *error.args[1:])
            raise
        except KeyboardInterrupt as stop:
            for note in getattr(stop, "__notes__", ()):  # e.g. that a budget counts as spent
                say(note, aside=True)
            raise


def in_options(message: str, options: dict[str, str]) -> str:
    """A message with parameters as they are typed on the command line.

    Parameters
    ----------
    message : of an error; it begins with the parameters that break a rule, or names some as ``name=value``
    options : parameter -> option, e.g. {"at_most": "--at-most"}

    Examples
    --------
    >>> in_options('unknown must be known, got 3; pass unknown="offsets"', {"unknown": "--unknown"})
    '--unknown must be known, got 3; pass --unknown offsets'
    """
    known = {name: options[option] for name, option in OTHER_NAMES.items() if option in options} | options
    if not known:
        return message
    names = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
    alone = rf"(?<![\w-])({names})(?![\w-])"
    text = re.sub(rf"{alone}=([\"']?)([\w.+-]+)\2", lambda found: f"{known[found[1]]} {found[3]}", message)
    text = re.sub(alone, lambda found: known[found[1]] if "_" in found[1] else found[1], text)
    start = re.match(rf"(?:{names})(?:(?:, | and | or )(?:{names}))*(?= must )", text)
    if start is None or start[0] in ALSO_A_WORD:
        return text
    return re.sub(alone, lambda found: known[found[1]], start[0]) + text[start.end() :]
