"""What naming the GPU settles about a server: step budget, requests a step, the prefill kernel.

Typed options, the serve command, a start-up log and metrics say what really runs, and win.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvtune.analyzers.hardware.gpu import Gpu
from kvtune.analyzers.hardware.pool_estimate import PoolEstimate
from kvtune.analyzers.profiles.server_defaults import batch_defaults
from kvtune.analyzers.sizing.layers import ModelLayers
from kvtune.analyzers.sizing.releases import parse_release
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.states import GatedDeltaNetState

HOPPER = 90
_KEY_HEAD = 128
"""The key head size that the FlashInfer kernel takes on Blackwell."""


@dataclass(frozen=True)
class SettledByHardware:
    """What follows from the card and the release; None where it follows from neither.

    Attributes:
        max_num_batched_tokens: the API server's default step budget, tokens.
        max_num_seqs: its default number of requests a step.
        prefill_backend: the kernel of linear-attention prefills.
        assumed: what the kernel's choice takes for granted, as a caveat; None where nothing.
        num_blocks: of the pool, estimated from the memory; None where it cannot be.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    prefill_backend: str | None = None
    assumed: str | None = None
    num_blocks: PoolEstimate | None = None

    def fill(self, flags: ServeFlags) -> ServeFlags:
        """The flags, with what they leave open as the engine would choose it on this card."""
        return replace(
            flags,
            max_num_batched_tokens=flags.max_num_batched_tokens or self.max_num_batched_tokens,
            max_num_seqs=flags.max_num_seqs or self.max_num_seqs,
            gdn_prefill_backend=flags.gdn_prefill_backend or self.prefill_backend,
        )


def settle(gpu: Gpu, flags: ServeFlags, model: ModelLayers | None) -> SettledByHardware:
    """What the engine chooses on this card. `model`: None where only groups are known."""
    defaults = batch_defaults(parse_release(flags.version), gpu.memory_bytes, gpu.name)
    backend, assumed = _prefill_backend(gpu, flags, model)
    return SettledByHardware(defaults.max_num_batched_tokens, defaults.max_num_seqs, backend, assumed)


def _prefill_backend(gpu: Gpu, flags: ServeFlags, model: ModelLayers | None) -> tuple[str | None, str | None]:
    """FlashInfer's gated delta net prefill runs on compute capability 9.0, and on 10.x and 12.x with 128-wide key heads
    and CUDA 13; FlashKDA on 9.0, 10.x and 12.x. (`qwen_gdn_linear_attn`, `kda: is_flashkda_supported`, 0.33)"""
    export = model.state_export if model is not None else None
    if model is None or export is None or not export.backend or parse_release(flags.version) < export.since:
        return None, None
    if export.backend == "flashinfer":
        if gpu.capability == HOPPER:
            return export.backend, None
        wide = all(
            layer.state.key_head_size == _KEY_HEAD
            for layer in model.state_layers
            if isinstance(layer.state, GatedDeltaNetState)
        )
        if gpu.capability // 10 in (10, 12) and wide:
            return (
                export.backend,
                "assumes CUDA 13 or later: the FlashInfer prefill kernel needs it on this GPU",
            )
    elif gpu.capability // 10 in (9, 10, 12):
        return export.backend, None
    return "triton", None
