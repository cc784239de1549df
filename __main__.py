"""`python -m kvtune` and the `kvtune` script."""

import sys


def run() -> None:
    """Run the command line of this process and exit with its code."""
    from kvtune.cli.app import main  # worker processes read this file again and need no commands

    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
