"""Development builds are dated by what their logs show; a typed release wins over the log's."""

from __future__ import annotations

import pytest

from kvtune.analyzers.layout import parse_groups
from kvtune.analyzers.sizing.builds import dated
from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.analyzers.sizing.sources import SizeSources, size_server
from kvtune.analyzers.sizing.startup_log import StartupLog, read_startup_log

BLOCK = "(EngineCore pid=1) INFO [interface.py:928] Setting attention block size to 1600 tokens to ensure that ..."
ONE_LINE = "GPU KV cache size: 400,026 tokens, Maximum concurrency for 131,072 tokens per request: 3.05x"
TWO_LINES = ["GPU KV cache size: 400,026 tokens", "Maximum concurrency for 131,072 tokens per request: 3.05x"]
DENSE = "Hybrid model with EAGLE: defaulting prefix_cache_retention_interval to dense checkpointing."
UNASKED = [
    "INFO non-default args: {'model': 'Qwen3.8-27B', 'max_model_len': 131072}",
    "INFO Initializing a V1 LLM engine (v0.26.1rc1.dev9+g1) with config: model='x', enable_prefix_caching=True",
]
ASKED = [UNASKED[0].replace("{", "{'enable_prefix_caching': True, "), UNASKED[1]]


def server_log(*lines: str, version: str = "0.26.1rc1.dev9+g1") -> StartupLog:
    return read_startup_log([f"INFO vLLM API server version {version}", *lines, BLOCK], "server.log")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "0.26.1rc1.dev9+g1"),
        (TWO_LINES, "0.26.1rc1.dev9+g1"),
        (ASKED, "0.26.1rc1.dev9+g1"),
        (UNASKED, "0.28.0"),
        ([ONE_LINE], "0.28.0"),
        ([DENSE], "0.29.0"),
        (["INFO kv cache group sizes [1600, 1600]", ONE_LINE], "0.30.0"),
        (["INFO non-default args: {'model': 'Qwen/Qwen3.8-Flash-Next'}"], "0.29.0"),
    ],
)
def test_a_build_is_dated_by_its_log(lines: list[str], expected: str) -> None:
    server = size_server(SizeSources(startup_log=server_log(*lines)))
    assert server.flags.version == expected
    (warning,) = [text for text in server.warnings if "development build" in text]
    assert "later ones may hold" in warning and expected[:4] in warning


def test_a_build_is_never_dated_below_its_own_number() -> None:
    build = "0.31.1rc1.dev3"
    assert size_server(SizeSources(startup_log=server_log(ONE_LINE, version=build))).flags.version == build


def test_a_release_is_what_it_says() -> None:
    assert dated("0.27.0", server_log(ONE_LINE, version="0.27.0"), None) == ("0.27.0", None)


def test_a_build_is_dated_by_its_model_config() -> None:
    config = ModelConfig.parse(
        {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next"}
    )
    assert dated("0.28.1rc1.dev120+gabc", None, config)[0] == "0.30.0"


def test_a_typed_release_beats_the_log_with_a_note() -> None:
    sources = SizeSources(
        flags=ServeFlags(version="0.33"),
        groups=parse_groups("mamba:1600,full:1600"),
        startup_log=server_log(ONE_LINE, version="0.28.1rc1.dev120"),
    )
    server = size_server(sources)
    assert server.flags.version == "0.33"
    assert any(
        text.startswith("--engine-version 0.33 is used; server.log:1 says 0.28.1rc1.dev120")
        for text in server.warnings
    )
    assert not any("development build" in text for text in server.warnings)
