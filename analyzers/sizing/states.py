"""Recurrent states: how many elements one layer keeps for one request, on one tensor parallel rank.

Every kind has a convolution window, which draft tokens lengthen (all may be in flight before any is accepted),
and most have a matrix state. Shapes are facts of `vllm/model_executor/layers/mamba/mamba_utils.py`, the same in
0.19 to 0.33. Knows no dtype and no block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from kvtune.tokenization.errors import UnusableInputError

StateKind = Literal["mamba1", "mamba2", "gated_delta_net", "kda", "short_conv", "linear_attention"]


@dataclass(frozen=True)
class StateElements:
    """Elements of the convolution window and of the matrix state; their dtypes may differ."""

    conv: int
    matrix: int


class State(Protocol):
    """One layer's recurrent state."""

    @property
    def kind(self) -> StateKind: ...

    def elements(self, ranks: int, drafts: int, /) -> StateElements:
        """What one of `ranks` tensor parallel ranks keeps with `drafts` draft tokens.

        Raises UnusableInputError where the ranks cannot share the heads evenly.
        """
        ...


@dataclass(frozen=True)
class Mamba1State:
    inner_size: int
    state_size: int
    conv_kernel: int
    kind: StateKind = "mamba1"

    def elements(self, ranks: int, _drafts: int, /) -> StateElements:
        inner = _share(self.inner_size, ranks, "the Mamba inner size")
        return StateElements((self.conv_kernel - 1) * inner, inner * self.state_size)


@dataclass(frozen=True)
class Mamba2State:
    inner_size: int
    num_groups: int
    num_heads: int
    head_size: int
    state_size: int
    conv_kernel: int
    kind: StateKind = "mamba2"

    def elements(self, ranks: int, drafts: int, /) -> StateElements:
        # Groups that the ranks cannot share are repeated, one for each rank.
        groups = self.num_groups if self.num_groups % ranks == 0 else ranks
        channels = _share(self.inner_size + 2 * groups * self.state_size, ranks, "the convolution channels")
        heads = _share(self.num_heads, ranks, "the Mamba heads")
        return StateElements(
            (self.conv_kernel - 1 + drafts) * channels,
            heads * self.head_size * self.state_size,
        )


@dataclass(frozen=True)
class GatedDeltaNetState:
    num_key_heads: int
    num_value_heads: int
    key_head_size: int
    value_head_size: int
    conv_kernel: int
    kind: StateKind = "gated_delta_net"

    def elements(self, ranks: int, drafts: int, /) -> StateElements:
        width = 2 * self.num_key_heads * self.key_head_size + self.num_value_heads * self.value_head_size
        channels = _share(width, ranks, "the linear attention channels")
        heads = _share(self.num_value_heads, ranks, "linear_num_value_heads")
        return StateElements(
            (self.conv_kernel - 1 + drafts) * channels,
            heads * self.value_head_size * self.key_head_size,
        )


@dataclass(frozen=True)
class KimiDeltaState:
    """Kimi delta attention: queries, keys and values are convolved, each as wide as all heads."""

    num_heads: int
    head_size: int
    conv_kernel: int
    kind: StateKind = "kda"

    def elements(self, ranks: int, drafts: int, /) -> StateElements:
        heads = _share(self.num_heads, ranks, "the linear attention heads")
        return StateElements(
            (self.conv_kernel - 1 + drafts) * 3 * heads * self.head_size,
            heads * self.head_size * self.head_size,
        )


@dataclass(frozen=True)
class ShortConvState:
    """A convolution window and nothing else.

    Attributes:
        width: channels over all ranks. window: positions kept.
        replicated: every rank keeps the whole width.
        lengthened: draft tokens lengthen the window.
    """

    width: int
    window: int
    replicated: bool = False
    lengthened: bool = False
    kind: StateKind = "short_conv"

    def elements(self, ranks: int, drafts: int, /) -> StateElements:
        sharing = 1 if self.replicated else ranks
        window = self.window + (drafts if self.lengthened else 0)
        return StateElements(window * _share(self.width, sharing, "the convolution width"), 0)


@dataclass(frozen=True)
class LinearAttentionState:
    num_heads: int
    head_size: int
    kind: StateKind = "linear_attention"

    def elements(self, ranks: int, _drafts: int, /) -> StateElements:
        heads = _share(self.num_heads, ranks, "num_attention_heads")
        # The state takes the convolution's dtype: there is one dtype option for it.
        return StateElements(heads * self.head_size * self.head_size, 0)


def _share(total: int, ranks: int, what: str) -> int:
    if total % ranks:
        raise UnusableInputError(
            f"the ranks cannot share {what} evenly",
            field="--tensor-parallel-size",
            found=str(ranks),
            wanted=f"a divisor of {total}",
        )
    return total // ranks
