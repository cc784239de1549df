"""`python -m kvtune` and the `kvtune` script."""

import sys

from kvtune.cli.app import main


def run() -> None:
    """Run the command line of this process and exit with its code."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
