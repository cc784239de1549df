"""`python -m kvtune` and the `kvtune` script."""

import gc
import signal
import sys


def run() -> None:
    """Run the command line of this process and exit with its code."""
    # As Ctrl-C: worker processes and servers end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from kvtune.cli.app import main  # worker processes read this file again and need no commands

        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # before or after the command itself
        code = 130
    gc.freeze()  # the process ends: the search for cycles in all that it holds takes a tenth of a second
    sys.exit(code)


if __name__ == "__main__":
    run()
