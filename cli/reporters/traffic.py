"""The traffic that a metrics page counted, in sentences."""

from __future__ import annotations

from kvtune.analyzers.sizing.traffic import TrafficRow
from kvtune.cli.reporters.numbers import count, percent


def traffic_sentences(traffic: TrafficRow) -> list[str]:
    """Token hit rate first, then what no match unit can do, and what one could gain at most."""
    sentences = [
        f"Token hit rate {percent(traffic.token_hit_rate)} since the server started: {count(traffic.hit_tokens)} of "
        f"{count(traffic.prompt_tokens)} prompt tokens."
    ]
    if traffic.too_short is not None:
        low, high = (percent(share) for share in traffic.too_short)
        share = low if low == high else f"{low} to {high}"
        sentences.append(
            f"{share} of {count(traffic.requests or 0)} prompts are shorter than {count(traffic.least_length)} tokens: "
            "they cannot hit with the current match unit."
        )
    sentences.append(
        f"No match unit can gain more than {count(traffic.most_gain_tokens)} tokens "
        f"({percent(traffic.most_gain_fraction)} of all prompt tokens). How much of that is shared, only a trace tells."
    )
    return sentences
