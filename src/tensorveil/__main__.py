"""`python -m tensorveil` is the command line."""

from tensorveil.cli.app import main

if __name__ == "__main__":
    main()
