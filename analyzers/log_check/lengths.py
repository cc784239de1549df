"""Why logged prompt lengths differ from those counted here: rules on the differences alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvtune.analyzers.log_check.info import LogCause
from kvtune.tokenization.trace import Bool, Int32, Int64, TokenTrace

MOSTLY = 0.9
"""Share of the differing requests that a pattern must hold for to be named."""

LEAST_SPREAD = 0.02
"""By how much another tokenizer changes lengths at least, and by how much the ratio varies at most beside that."""


def length_cause(trace: TokenTrace, compared: Bool, differs: Bool, sessions: Int32) -> LogCause:
    """The likeliest cause of differing prompt lengths; `differs` (bool[R], some set) lies within `compared`."""
    logged = trace.logged_prompt_tokens
    assert logged is not None
    counted = trace.prompt_tokens
    gaps = (logged - counted)[differs]
    rendered = compared & _rendered(trace, compared)
    return (
        _placeholder(logged[compared], counted[compared])
        or _media(trace, differs)
        or _offset(gaps, all_differ=not (rendered & ~differs).any())
        or _tools(trace, rendered, differs)
        or _history(compared, differs, sessions)
        or _tokenizer(logged[differs] / counted[differs])
        or _template(gaps)
    )


def _placeholder(logged: Int64, counted: Int64) -> LogCause | None:
    """One and the same count for prompts of every length is nobody's count."""
    if len(logged) < 3 or len(np.unique(logged)) > 1 or len(np.unique(counted)) < 3:
        return None
    return LogCause(
        name="placeholder",
        text=f"Every request logs {int(logged[0]):,} prompt tokens, whatever its length: no server counted that.",
    )


def _media(trace: TokenTrace, differs: Bool) -> LogCause | None:
    if trace.media_items is None or not (trace.media_items[differs] > 0).all():
        return None
    return LogCause(
        name="media_length",
        text="Only requests with images or other media differ: their length in tokens is another one on the server. "
        "--trust-logged-lengths uses the logged lengths.",
    )


def _offset(gaps: Int64, *, all_differ: bool) -> LogCause | None:
    values, counts = np.unique(gaps, return_counts=True)
    gap = int(values[counts.argmax()])
    if counts.max() < MOSTLY * len(gaps) or len(gaps) < 2 or not all_differ:
        return None
    more = "more" if gap > 0 else "fewer"
    tokens = f"{abs(gap):,} {more} prompt {'token' if abs(gap) == 1 else 'tokens'}"
    what = "a BOS token, or another chat template" if abs(gap) <= 2 else "another chat template"
    return LogCause(
        name="template",
        text=f"The server counted {tokens} in every request: {what} (--chat-template, --model).",
    )


def _rendered(trace: TokenTrace, compared: Bool) -> Bool:
    """bool[R], prompts that a chat template wrote; all of them where nothing tells."""
    rendered = np.zeros(len(trace), dtype=bool)
    for request in np.flatnonzero(compared).tolist():
        rendered[request] = trace.parts.part_of(request, 0) != "user"
    return rendered if rendered.any() else np.ones(len(trace), dtype=bool)


def _tools(trace: TokenTrace, rendered: Bool, differs: Bool) -> LogCause | None:
    if trace.tool_sets is None:
        return None
    tools = np.array([tools is not None for tools in trace.tool_sets])
    plain = rendered & ~tools
    if not tools[differs].all() or not plain.any():
        return None
    return LogCause(
        name="tools",
        text="Only requests with tools differ: the log changed the tool definitions, or the server's chat template "
        "renders them in another way (--chat-template).",
    )


def _history(compared: Bool, differs: Bool, sessions: Int32) -> LogCause | None:
    """First turns agree and later ones do not: what was said before is rendered in another way."""
    first = np.zeros(len(sessions), dtype=bool)
    first[np.unique(sessions, return_index=True)[1]] = True
    opens = compared & first
    if differs[opens].any() or opens.sum() < 2:
        return None
    return LogCause(
        name="history",
        text="First turns agree and later ones differ: the log lacks or changes earlier turns (reasoning, tool calls), "
        "or the server's chat template renders them in another way.",
    )


def _tokenizer(ratios: npt.NDArray[np.float64]) -> LogCause | None:
    """Lengths that differ by about one factor, well away from 1."""
    middle = float(np.median(ratios))
    low, high = np.quantile(ratios, (0.1, 0.9))
    if abs(middle - 1) < LEAST_SPREAD or (high - low) > max(abs(middle - 1), LEAST_SPREAD) or len(ratios) < 5:
        return None
    return LogCause(
        name="tokenizer",
        text=f"The server counted {middle:.2f} times the tokens counted here, about the same in every request: another "
        "tokenizer (--model, --tokenizer).",
    )


def _template(gaps: Int64) -> LogCause:
    low, high = int(gaps.min()), int(gaps.max())
    return LogCause(
        name="template",
        text=f"The server counted {_signed(low)} to {_signed(high)} prompt tokens beside the count here: another chat "
        "template (--chat-template), or content that the log changed or lost.",
    )


def _signed(tokens: int) -> str:
    return f"{tokens:+,}".replace("-", "−")
