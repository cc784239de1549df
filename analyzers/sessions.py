"""Which requests belong together, so that intervals treat a conversation as one observation."""

from __future__ import annotations

import numpy as np

from kvtune.analyzers.shared import SharedPrefixes
from kvtune.tokenization.trace import Int32, TokenTrace


def find_sessions(trace: TokenTrace, shared: SharedPrefixes) -> Int32:
    """int32[R], dense session numbers in order of first appearance.

    A request's session is the one its log names; else that of the request whose whole prompt it extends; else
    its own.
    """
    number: list[int] = []
    by_name: dict[tuple[int, str], int] = {}
    used = 0
    lengths = trace.prompt_tokens.tolist()
    common, peers = shared.shared.tolist(), shared.shared_with.tolist()
    for index in range(len(trace)):
        name = trace.sessions[index] if trace.sessions is not None else None
        if name is not None:
            # The same name under another model, tenant or salt is another session.
            key = (int(trace.namespace[index]), name)
            session = by_name.setdefault(key, used)
        elif peers[index] >= 0 and common[index] >= lengths[peers[index]]:
            session = number[peers[index]]
        else:
            session = used
        used = max(used, session + 1)
        number.append(session)
    return np.array(number, dtype=np.int32)
