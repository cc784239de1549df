"""A watchdog run as a script: ends a process group when whoever started it is gone, however that happened.

Waits on stdin. The word `released` means that the group was stopped in order; the end of the pipe without it means
that the parent died. Standard library only, since it is started by path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

RELEASED = b"released"
GRACE_S = 10.0


def main() -> None:
    """Argument: the process group's id."""
    group = int(sys.argv[1])
    if sys.stdin.buffer.read() == RELEASED:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
