"""Whole serve commands: known flags in every spelling, ignored ones by name."""

from __future__ import annotations

import shlex

import pytest

from kvtune.analyzers.sizing.serve_command import ServeCommand, parse_serve_command
from kvtune.analyzers.sizing.serve_flags import ServeFlags
from kvtune.tokenization.errors import UnusableInputError


def parse(command: str) -> ServeCommand:
    return parse_serve_command(shlex.split(command))


def test_a_whole_command() -> None:
    found = parse(
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve Qwen/Qwen3.6-27B --kv-cache-dtype fp8 --tensor-parallel-size 2 "
        "--max-model-len 128k --trust-remote-code --port 8000 --served-model-name a b --prefix-match-unit=48 "
        """--speculative-config '{"method": "qwen3_next_mtp", "num_speculative_tokens": 3}' """
        "--no-enable-prefix-caching"
    )
    assert found.model == "Qwen/Qwen3.6-27B"
    assert found.flags == ServeFlags(
        kv_cache_dtype="fp8",
        tensor_parallel_size=2,
        max_model_len=128_000,
        prefix_match_unit=48,
        speculative_method="qwen3_next_mtp",
        num_speculative_tokens=3,
        enable_prefix_caching=False,
    )
    assert found.flags.draft_method == "mtp"
    assert found.ignored == ("--trust-remote-code", "--port", "--served-model-name")


def test_what_is_shown_holds_nothing_but_what_decides_sizes() -> None:
    found = parse(
        "HF_TOKEN=hf_x VLLM_PREFIX_CACHE_RETENTION_INTERVAL=528 vllm serve m --api-key sk-1 sk-2 -tp 2 "
        """--kv-transfer-config '{"kv_connector": "X", "secret": "s"}' --speculative-config.method mtp """
        "--enable-prefix-caching=false --hf-token=hf_y"
    )
    assert shlex.join(found.words) == (
        "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=528 vllm serve m --tensor-parallel-size 2 "
        """--kv-transfer-config '{"kv_connector": "X"}' --speculative-config '{"method": "mtp"}' """
        "--no-enable-prefix-caching"
    )
    assert found.ignored == ("--api-key", "--hf-token")
    again = parse_serve_command(found.words)
    assert (again.model, again.flags) == (found.model, found.flags)


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("-tp 4", "tensor_parallel_size", 4),
        ("--tensor_parallel_size=4", "tensor_parallel_size", 4),
        ("--max-model-len 1K", "max_model_len", 1024),
        ("--max-model-len 1.5k", "max_model_len", 1500),
        ("--max-model-len auto", "max_model_len", None),
        ("--max-model-len -1", "max_model_len", None),
        ("--speculative-config.method mtp --speculative-config.num_speculative_tokens 2", "num_speculative_tokens", 2),
        ("""--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'""", "kv_connector",
         "LMCacheConnectorV1"),
        ("--attention-config.backend TRITON_ATTN", "attention_backend", "TRITON_ATTN"),
        ("--enable-prefix-caching", "enable_prefix_caching", True),
        ("--prefix-cache-retention-interval None", "retention_interval", None),
        ("--prefix-cache-retention-interval 528", "retention_interval", 528),
        ("--num-gpu-blocks-override 100", "num_gpu_blocks", 100),
        ("--watermark 0.05", "watermark", 0.05),
        ("--mamba-cache-mode align", "mamba_cache_mode", "align"),
    ],
)  # fmt: skip
def test_spellings(flags: str, field: str, value: object) -> None:
    assert getattr(parse(f"vllm serve m {flags}").flags, field) == value


def test_other_programs_and_variables() -> None:
    found = parse(
        "VLLM_PREFIX_CACHE_RETENTION_INTERVAL=0 python3 -m vllm.entrypoints.openai.api_server --model m -tp 2"
    )
    assert (found.model, found.flags.tensor_parallel_size) == ("m", 2)
    assert (found.flags.retention_interval, found.flags.retention_given) == (0, True)
    assert parse("docker run vllm/vllm-openai serve m --block-size 64").flags.block_size == 64
    assert parse("--block-size 64").flags.block_size == 64


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("HF_TOKEN=hf_x ls -l", "serve command.*found ls,"),
        ("vllm serve m --block-size", "--block-size.*nothing behind it"),
        ("vllm serve m --block-size x", "--block-size.*'x'"),
        ("vllm serve m --block-size 1.5", "--block-size.*'1.5'"),
        ("vllm serve m --speculative-config oops", "--speculative-config.*a JSON object"),
        (
            """vllm serve m --speculative-config '{"num_speculative_tokens": "3"}'""",
            "num_speculative_tokens as int",
        ),
        ("vllm serve m --mamba-cache-mode some", "align, all or none"),
        ("vllm serve m --watermark nan", "--watermark.*'nan'.*from 0 on and below 1"),
        ("vllm serve m --watermark -5", "--watermark.*'-5'"),
    ],
)
def test_unusable_commands_are_one_clear_line(command: str, said: str) -> None:
    with pytest.raises(UnusableInputError, match=said) as caught:
        parse(command)
    assert "\n" not in str(caught.value)


def test_deep_json_is_text_and_refused() -> None:
    with pytest.raises(UnusableInputError, match="a JSON object"):
        parse_serve_command(["vllm", "serve", "m", "--speculative-config", "[" * 9_000])
    with pytest.raises(UnusableInputError, match="at most"):
        parse_serve_command(["vllm", "serve"] + ["-x"] * 5_000)


def test_what_the_server_adds_to_chat_templates() -> None:
    command = parse(
        "vllm serve m --default-chat-template-kwargs '{\"enable_thinking\": false}' "
        "--default-chat-template-kwargs.style brief --exclude-tools-when-tool-choice-none -tp 2"
    )
    assert command.template_kwargs == {"enable_thinking": False, "style": "brief"}
    assert command.excludes_tools
    assert command.flags.tensor_parallel_size == 2
    assert command.ignored == ()
    assert parse(" ".join(map(shlex.quote, command.words))).template_kwargs == command.template_kwargs
