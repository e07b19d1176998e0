"""The program `tensorveil`: what it imports before it listens to Ctrl-C is as little as possible.

The client of local privacy starts without the libraries that other commands need.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


def main() -> None:
    """Run the command line; Ctrl-C and SIGTERM end it alike, with one word and the status 130 or 143."""
    received: list[int] = []
    with listening(received):
        try:
            run()
        except SystemExit:
            if not received:
                raise
        except KeyboardInterrupt:
            pass
        except Exception:  # an import in C turns Ctrl-C into an error of its own
            if not received:
                raise
    if received:
        number = signal.Signals(received[0])
        print(WORDS[number], file=sys.stderr, flush=True)
        raise SystemExit(128 + number)


@contextmanager
def listening(received: list[int]) -> Iterator[None]:
    """Inside the block both signals raise KeyboardInterrupt and are noted, unless the caller ignores them (nohup)."""

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    taken = [number for number, default in DEFAULTS.items() if signal.getsignal(number) == default]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, DEFAULTS[number])


def run() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] == ["randomize"]:
        from tensorveil.cli.local.randomize import main as randomize

        randomize(sys.argv[2:])
    else:
        from tensorveil.cli.app import main as command

        command()


if __name__ == "__main__":
    main()
