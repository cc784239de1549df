"""What a log is known to have lost, as a value that the recommendation can weigh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvtune.tokenization.request import Request


@dataclass(frozen=True)
class Doubt:
    """Attributes:
    kind: "tools": requests call tools, and their definitions are not in the log; "cut": the log shortened prompts;
        "media": prompts hold images or other media of unknown length.
    sentence: for the caveats.
    requests: how many it is about.
    decides: the prompts are certainly not those that were served: no match unit may be advised.
    """

    kind: str
    sentence: str
    requests: int
    decides: bool


def tools_lost(requests: Iterable[Request], format: str) -> Doubt | None:
    """Requests that call tools, or hold their results, without any tool definitions.

    A log that has definitions for none of them lost them: they stand at the front of every prompt, so that all shared
    prefixes are too short. Where others have them, those without may have been sent so.
    """
    without = with_tools = 0
    for request in requests:
        if request.tools:
            with_tools += 1
        elif any(one.get("role") == "tool" or one.get("tool_calls") for one in request.messages or ()):
            without += 1
    if not without:
        return None
    what = f"{without:,} requests call tools without tool definitions"
    if with_tools:
        return Doubt("tools", f"{what}; {with_tools:,} others have them.", without, decides=False)
    lost = f"the {format} log does not hold them, so prompts and shared prefixes are too short"
    return Doubt("tools", f"{what}: {lost}. Log the bodies (docs/getting-a-trace.md).", without, decides=True)


def media_unsized(requests: int) -> Doubt | None:
    """Prompts whose images or other media count as one token each, for want of anything better."""
    if not requests:
        return None
    some = "1 request holds" if requests == 1 else f"{requests:,} requests hold"
    return Doubt(
        "media",
        f"{some} images or other media of unknown length: each counts as 1 token. A log with usage.prompt_tokens, or "
        "--model with the model's image processor and images inline, gives their lengths.",
        requests,
        decides=False,
    )


MOST_CUT = 0.05
"""Of all prompts of a log: where it cut more, those that are whole (the short ones) do not stand for them."""


def prompts_cut(cut: int, whole: int) -> Doubt | None:
    """Prompts that were rejected because the log cut them."""
    if not cut:
        return None
    decides = cut > MOST_CUT * (cut + whole)
    sentence = f"The log cut {cut:,} of {cut + whole:,} prompts"
    sentence += ": the rest does not stand for the traffic." if decides else "; they are left out."
    return Doubt("cut", sentence, cut, decides)
