"""The program `tensorveil`: it listens to Ctrl-C and SIGTERM before it imports anything that takes time.

The client of local privacy starts without the libraries that other commands need.
"""

import _signal as signals  # what `signal` wraps, without the libraries that it imports
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WORDS = {signals.SIGINT: "interrupted", signals.SIGTERM: "terminated"}
DEFAULTS = {signals.SIGINT: signals.default_int_handler, signals.SIGTERM: signals.SIG_DFL}


def main() -> None:
    """Run the command line; Ctrl-C and SIGTERM end it alike, with one word and the status 130 or 143."""
    taken = [
        number for number in DEFAULTS if signals.getsignal(number) == DEFAULTS[number]
    ]  # others are ignored: nohup
    try:
        listen(taken, _leave)  # imports would print a traceback, and there is nothing to clean up yet
        command = _command()
        received: list[int] = []
        listen(taken, lambda number, frame: _stop(received, number))
        _run(command, received)
    finally:
        for number in taken:
            signals.signal(number, DEFAULTS[number])


def listen(numbers: "list[int]", handler: "Callable[[int, Any], None]") -> None:
    """Let these signals be handled so."""
    for number in numbers:
        signals.signal(number, handler)


def _command() -> "Callable[[], None]":
    """What the arguments ask for, imported."""
    if sys.argv[1:2] == ["randomize"]:
        from tensorveil.cli.local.randomize import main as randomize

        return lambda: randomize(sys.argv[2:])
    from tensorveil.cli.app import main as command

    return command


def _leave(number: int, frame: "Any") -> None:
    """End at once: nothing has been read, spent or written."""
    import os

    os.write(2, f"{WORDS[number]}\n".encode())
    os._exit(128 + number)


def _stop(received: "list[int]", number: int) -> None:
    received.append(number)
    raise KeyboardInterrupt


def _run(command: "Callable[[], None]", received: "list[int]") -> None:
    """Run a command; after a signal, say so and end with its status, whatever libraries make of the interrupt."""
    before = sys.unraisablehook

    def again(found: "Any") -> None:
        """Where Python cannot raise, as inside of an import, the interrupt is repeated instead of shown."""
        if received and found.exc_type is KeyboardInterrupt:
            import _thread

            _thread.interrupt_main(received[-1])  # type: ignore[arg-type]  # a number will do
        else:
            before(found)

    sys.unraisablehook = again
    try:
        command()
    except (Exception, SystemExit, KeyboardInterrupt):  # an import in C turns Ctrl-C into an error of its own
        if not received:
            raise
    finally:
        sys.unraisablehook = before
    if received:
        print(WORDS[received[0]], file=sys.stderr, flush=True)
        raise SystemExit(128 + received[0])


if __name__ == "__main__":
    main()
