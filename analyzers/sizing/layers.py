"""The layers of a model as the KV cache sees them, in the engine's layer order.

Knows what a layer keeps per token or per request and its bytes; not how layers are grouped or how large a block is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvtune.analyzers.sizing.dtypes import kv_bytes_per_head, state_bytes
from kvtune.analyzers.sizing.states import State
from kvtune.tokenization.errors import UnusableInputError

AttentionKind = Literal["full", "sliding_window", "chunked_local"]


@dataclass(frozen=True)
class AttentionLayer:
    """Keeps K and V (or one latent row) for every token.

    Attributes:
        num_kv_heads: over all ranks.
        head_size_v: 0 for a latent (MLA) row, which every rank holds whole.
        window: sliding window, or chunk of chunked local attention, in tokens.
        tokens_per_state: tokens that share one stored row (a compressing indexer).
        row_bytes: of a side cache of sparse attention (an indexer), whose format is its own; None elsewhere.
    """

    kind: AttentionKind
    num_kv_heads: int
    head_size: int
    head_size_v: int
    window: int | None = None
    tokens_per_state: int = 1
    row_bytes: int | None = None

    @property
    def is_latent(self) -> bool:
        return self.head_size_v == 0

    def bytes_per_row(self, kv_cache_dtype: str, model_dtype: str, tensor_parallel_size: int) -> int:
        """Bytes of one stored row (`tokens_per_state` tokens) on one rank."""
        if self.row_bytes is not None:
            return self.row_bytes
        per_head = kv_bytes_per_head(kv_cache_dtype, self.head_size, self.head_size_v, model_dtype)
        return per_head * self._heads_of_a_rank(tensor_parallel_size)

    def _heads_of_a_rank(self, tensor_parallel_size: int) -> int:
        heads, tp = self.num_kv_heads, tensor_parallel_size
        if self.is_latent:
            return 1
        if heads % tp and tp % heads:
            raise UnusableInputError(
                "the ranks cannot share the KV heads evenly",
                field="--tensor-parallel-size",
                found=str(tp),
                wanted=f"a divisor or a multiple of {heads} (num_key_value_heads)",
            )
        return max(1, heads // tp)


@dataclass(frozen=True)
class StateLayer:
    """Keeps one recurrent state for every request and checkpoint."""

    state: State

    def page_bytes(self, dtypes: StateDtypes, tensor_parallel_size: int, num_speculative_tokens: int) -> int:
        elements = self.state.elements(tensor_parallel_size, num_speculative_tokens)
        return elements.conv * dtypes.conv_bytes + elements.matrix * dtypes.matrix_bytes


@dataclass(frozen=True)
class RingLayer:
    """A circular buffer: one block per request, overwritten in place, never prefix-cached.

    Attributes:
        ratio: rows that are compressed into one; the ring holds as many as the drafts may need, in whole ratios.
        power_of_two: the number of ratios is rounded up to a power of two.
        row_bytes: of one token.
    """

    ratio: int
    power_of_two: bool
    row_bytes: int

    def capacity(self, num_speculative_tokens: int) -> int:
        """Tokens in the ring's one block."""
        ratios = -(-(self.ratio + num_speculative_tokens) // self.ratio)
        if self.power_of_two:
            ratios = 1 << (ratios - 1).bit_length()
        return self.ratio * ratios


Layer = AttentionLayer | StateLayer | RingLayer


@dataclass(frozen=True)
class StateDtypes:
    """Bytes of one element of a convolution window and of a matrix state."""

    conv_bytes: int
    matrix_bytes: int

    @classmethod
    def of(
        cls, cache_dtype: str, ssm_dtype: str, model_dtype: str, model_ssm_dtype: str | None
    ) -> StateDtypes:
        """From `--mamba-cache-dtype`, `--mamba-ssm-cache-dtype` and what the model itself asks for.

        The matrix state's `auto` is the model's own wish, else the convolution's dtype.
        """
        conv = state_bytes(cache_dtype, model_dtype, "--mamba-cache-dtype")
        wish = model_ssm_dtype if ssm_dtype == "auto" else ssm_dtype
        if wish is None:
            return cls(conv, conv)
        return cls(conv, state_bytes(wish, model_dtype, "--mamba-ssm-cache-dtype"))


@dataclass(frozen=True)
class StateExport:
    """Backends that write states at positions inside a chunk.

    Attributes:
        backend: its name; empty where every backend of this state kind does.
        alignment: offsets must be multiples of this.
        since: first release, `(major, minor)`.
        rounds_block: blocks become multiples of `alignment`, where the release does that.
    """

    backend: str
    alignment: int
    since: tuple[int, int]
    rounds_block: bool = False


@dataclass(frozen=True)
class ModelLayers:
    """What a family's file makes of a config.

    Attributes:
        family: the family's name for people.
        layers: in the engine's order.
        dtype: of the weights.
        num_attention_heads: over all ranks, which tensor parallelism must divide.
        ssm_dtype: what the model wants for its matrix state; None follows the convolution's dtype.
        mode_all: the model declares support for Mamba mode `all`.
        chunk_size: rounding unit of blocks in mode `all`, in tokens.
        draft_layers: layers of the model's own multi-token prediction head.
        state_export: a note where a backend of this family can export states from inside a chunk.
        kernel_blocks: smallest kernel blocks of side caches, which every block must also be a multiple of.
        packed: the engine packs layers of different page sizes into one block (block-outermost layout).
        max_model_len: the longest sequence, where the config says it.
        kv_cache_dtype: the KV dtype that the checkpoint asks for.
    """

    family: str
    layers: tuple[Layer, ...]
    dtype: str
    num_attention_heads: int
    ssm_dtype: str | None = None
    mode_all: bool = False
    chunk_size: int = 2048
    draft_layers: tuple[AttentionLayer, ...] = ()
    state_export: StateExport | None = None
    kernel_blocks: tuple[int, ...] = ()
    packed: bool = False
    max_model_len: int | None = None
    kv_cache_dtype: str | None = None

    @property
    def state_layers(self) -> tuple[StateLayer, ...]:
        return tuple(layer for layer in self.layers if isinstance(layer, StateLayer))

    @property
    def main_attention(self) -> AttentionLayer | None:
        """The attention layer whose page the state page is matched with: the first that is no side cache."""
        return next(
            (layer for layer in self.layers if isinstance(layer, AttentionLayer) and layer.row_bytes is None),
            None,
        )

    @property
    def export_rounds_block(self) -> bool:
        return self.state_export is not None and self.state_export.rounds_block

    @property
    def is_latent(self) -> bool:
        main = self.main_attention
        return main is not None and main.is_latent
