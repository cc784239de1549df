"""Other dtypes of a real model's cache and states, through the blocks that they give."""

from __future__ import annotations

import json
from pathlib import Path

from kvtune.analyzers.layout import parse_groups
from kvtune.analyzers.levers.other_dtypes import other_dtypes
from kvtune.analyzers.sizing.engine_config import engine_config
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizedServer, SizeSources, size_server

CONFIGS = Path(__file__).parents[2] / "data" / "models" / "configs"


def server(name: str, **flags: object) -> SizedServer:
    config = ModelConfig.parse(json.loads((CONFIGS / name / "config.json").read_bytes()), name)
    return size_server(SizeSources(flags=ServeFlags(**flags), model_config=config))  # type: ignore[arg-type]


def blocks(name: str, **flags: object) -> dict[str, tuple[int, int | None]]:
    sized = server(name, **flags)
    others = other_dtypes(sized, engine_config(sized))
    return {other.flag: (other.config.groups[0].block_size, other.config.num_blocks) for other in others}


def test_a_block_holds_what_its_state_and_its_tokens_leave() -> None:
    # Qwen3.5-9B serves blocks of 528: half the bytes a token, twice the block; half the state, half of it. A pool of
    # 1,000 blocks keeps its bytes: as many blocks where both change, 528/272 as many where the state alone does.
    found = blocks("qwen3.5-9b", num_gpu_blocks=1_000)
    assert found["--kv-cache-dtype fp8"] == (1_056, 1_000)
    assert found["--mamba-ssm-cache-dtype bfloat16"] == (272, 1_000 * 528 // 272)


def test_what_is_served_today_is_no_other_way() -> None:
    assert "--kv-cache-dtype fp8" not in blocks("qwen3.5-9b", kv_cache_dtype="fp8")
    assert blocks("qwen3.5-9b", kv_cache_dtype="fp8")["--kv-cache-dtype bfloat16"] == (528, None)


def test_models_without_states_and_stated_groups_have_none() -> None:
    assert blocks("qwen3-8b") == {}
    stated = size_server(SizeSources(flags=ServeFlags(), groups=parse_groups("mamba:528*3,full:528")))
    assert other_dtypes(stated, engine_config(stated)) == ()
