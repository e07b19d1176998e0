"""The program `tensorveil`. The client of local privacy starts without the libraries that other commands need."""

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["randomize"]:
        from tensorveil.cli.local.randomize import main as randomize

        randomize(sys.argv[2:])
    else:
        from tensorveil.cli.app import main as run

        run()


if __name__ == "__main__":
    main()
