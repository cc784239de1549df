"""The server's flags that decide sizes, as one value: what `vllm serve` was, or would be, started with."""

from __future__ import annotations

from dataclasses import dataclass

from kvtune.analyzers.layout import MambaMode


@dataclass(frozen=True)
class ServeFlags:
    """None: not given, so the engine's default holds. Token counts unless the name says otherwise.

    Attributes:
        version: the engine's release; None is the newest known.
        speculative_method: `mtp`, `eagle3`, `dflash`, `ngram` and the like.
        state_export: alignment of in-chunk state exports, where the backend is known to export.
        unlimited_pool: the pool was said to be without end, for a replay.
        expert_parallel: whole experts are spread over the GPUs.
        gdn_prefill_backend: kernel of gated delta net prefills; `flashinfer` exports states.
    """

    version: str | None = None
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_cache_mode: MambaMode | None = None
    mamba_block_size: int | None = None
    block_size: int | None = None
    tensor_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    num_speculative_tokens: int = 0
    speculative_method: str | None = None
    disable_lookahead_block_hashes: bool = False
    disable_eagle_block_drop: bool = False
    parallel_drafting: bool = False
    attention_backend: str | None = None
    gdn_prefill_backend: str | None = None
    state_export: int | None = None
    enable_prefix_caching: bool | None = None
    prefix_match_unit: int | None = None
    retention_interval: int | None = None
    retention_given: bool = False
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int | None = None
    num_gpu_blocks: int | None = None
    kv_connector: str | None = None
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    mamba_align_single_block_prefill: bool = False
    hash_algo: str | None = None
    disable_hybrid_kv_cache_manager: bool = False
    mamba_shared_prefix_checkpoint: bool = False
    watermark: float | None = None
    expert_parallel: bool = False
    unlimited_pool: bool = False

    @property
    def draft_method(self) -> str | None:
        """The method by the engine's own name: every model's own head is `mtp`, DFlash is `dflash`."""
        method = self.speculative_method
        if method is None:
            return None
        return "mtp" if method.endswith("_mtp") and method != "multi_module_mtp" else method.removesuffix("2")
