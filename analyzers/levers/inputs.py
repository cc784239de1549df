"""What levers want to know beside the trace and the server, all of it optional."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtune.analyzers.levers.server import OtherServing
from kvtune.analyzers.levers.wording import Wording
from kvtune.tokenization.trace import UInt32

Prompts = Sequence[tuple[int, UInt32]]
"""Prompts to send beforehand: the request that each is cut from, and its ids."""


def _keep_none(prompts: Prompts) -> None:
    """For callers that write no primes."""


@dataclass(frozen=True)
class LeverInputs:
    """`wording` names varying text; `others`: the same server under other dtypes; `keep_primes` is given the
    prompts of all priming levers, best first, once."""

    wording: Wording = field(default_factory=Wording)
    others: tuple[OtherServing, ...] = ()
    keep_primes: Callable[[Prompts], None] = _keep_none
