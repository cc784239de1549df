"""Why shared tokens are not reused: one list of names and words for replays, tables, families and charts."""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.report import Verdict


@dataclass(frozen=True)
class LossKind:
    """One reason.

    Attributes:
        name: field of the report's `losses`. words: what every table, chart and list calls it.
        verdict: of a family that loses most by it. advice: what helps such a family; empty where nothing does.
    """

    name: str
    words: str
    verdict: Verdict
    advice: str


LOSS_KINDS = (
    LossKind(
        "granularity",
        "below the hit alignment",
        "below_alignment",
        "most of what it loses lies past the last multiple of {alignment:,} tokens: only a finer hit alignment, or a "
        "shared prefix that ends just past a multiple, reuses it",
    ),
    LossKind(
        "window",
        "outside the window",
        "outside_window",
        "most of what it shares lies where sliding-window blocks are not kept",
    ),
    LossKind(
        "no_recurrent_state",
        "no state kept",
        "not_kept",
        "most of what it shares ends where no state was kept: send the shared prefix once on its own",
    ),
    LossKind(
        "evicted",
        "evicted",
        "evicted",
        "its states are evicted before they are needed again: a larger pool would reuse more",
    ),
    LossKind(
        "in_flight",
        "in flight",
        "in_flight",
        "its requests arrive while the first with their prefix is still being computed: send that one ahead",
    ),
    LossKind(
        "speculative_drop",
        "dropped for the drafter",
        "dropped",
        "the drafter costs each hit one match unit",
    ),
)
"""In the report's order, which is the order of the cascade."""

LOSS_WORDS = {kind.name: kind.words for kind in LOSS_KINDS}
LOSSES = tuple(LOSS_WORDS)

VERDICT_WORDS: dict[Verdict, str] = {
    "no_sharing": "shares nothing",
    "below_floor": "shares too little",
    "reused": "reused",
    **{kind.verdict: kind.words for kind in LOSS_KINDS},
}
"""What a family's verdict is called."""
