"""`kvtune resolve`: every source, the contract's document, and one clear line for what cannot be used."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvtune.cli.schemas import FOLDER, file_name

DATA = Path(__file__).parents[1] / "data"
CONFIGS = DATA / "models" / "configs"
LOGS = DATA / "logs"
PAGE = (
    'vllm:cache_config_info{block_size="1600",effective_attention_block_size="1600",mamba_block_size="16",'
    'mamba_cache_mode="align",num_gpu_blocks="900",prefix_match_unit="16",engine="0"} 1.0\n'
)


@pytest.fixture
def resolved(run: Any) -> Any:
    """Runs `resolve ... --json -` and gives the document, checked against its schema."""
    schema = json.loads((FOLDER / file_name("kvtune.resolve/1")).read_text())

    def document(*arguments: str, code: int = 0) -> dict[str, Any]:
        done = run("resolve", "--json", "-", *arguments)
        assert done.code == code, done.err
        found: dict[str, Any] = json.loads(done.out)
        jsonschema.Draft202012Validator(schema).validate(found)
        return found

    return document


def test_bare_sizes_as_in_the_contract(resolved: Any) -> None:
    found = resolved("--groups", "1024,32", "--units", "32,16,8,48")
    assert (found["scheduler_block_size"], found["hash_block_size"]) == (1024, 32)
    rows = {row["unit"]: row for row in found["candidates"]}
    assert {unit: row["valid"] for unit, row in rows.items()} == {48: False, 32: True, 16: True, 8: True}
    assert "group 0 (block 1,024)" in rows[48]["reason"]


def test_the_contracts_fields_are_all_there(resolved: Any) -> None:
    found = resolved("--model-config", str(CONFIGS / "qwen3.5-4b" / "config.json"))
    wanted = """schema groups attention_block_size mamba_page_bytes attention_bytes_per_token padding_pct
        scheduler_block_size hash_block_size cache_hit_alignment partial_hits minimum_reusable_prefix
        minimum_shared_prefix candidates what_if error warnings source"""
    assert set(wanted.split()) <= set(found)
    assert set(found["groups"][0]) >= {"kind", "block_size", "count", "layers", "cacheable"}
    assert set(found["candidates"][0]) == {"unit", "valid", "effective_unit", "reason"}
    assert (found["schema"], found["attention_block_size"], found["padding_pct"]) == (
        "kvtune.resolve/1",
        528,
        0.76,
    )


def test_a_model_folder_and_flags(resolved: Any) -> None:
    folder = str(CONFIGS / "qwen3.8-27b")
    assert resolved("--model", folder)["attention_block_size"] == 784
    found = resolved(
        "--model", folder, "--kv-cache-dtype", "fp8", "--tp", "2", "--num-speculative-tokens", "7"
    )
    assert (found["attention_block_size"], found["padding_pct"]) == (1648, 0.73)
    found = resolved(
        "--model", folder, "--mamba-ssm-cache-dtype", "bfloat16", "--num-speculative-tokens", "15"
    )
    assert (found["attention_block_size"], found["padding_pct"]) == (480, 1.27)
    assert resolved("--model", folder, "--attention-backend", "XPU_FLASH_ATTN")["attention_block_size"] == 832
    assert resolved("--model", folder, "--block-size", "256")["attention_block_size"] == 1024


def test_a_whole_serve_command(resolved: Any) -> None:
    command = [
        "vllm",
        "serve",
        str(CONFIGS / "qwen3.5-27b"),
        "--kv-cache-dtype",
        "fp8",
        "-tp",
        "2",
        "--port",
        "8000",
    ]
    found = resolved("--units", "64", "--", *command)
    assert (found["attention_block_size"], found["ignored_flags"]) == (1568, ["--port"])
    assert found["source"] == "model-config"


def test_a_log_a_page_and_a_config(resolved: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.txt").write_text(PAGE)
    log = resolved("--startup-log", str(LOGS / "v0.32.0.log"))
    assert (log["source"], log["scheduler_block_size"], log["engine_version"]) == (
        "startup-log",
        1584,
        "0.32.0",
    )
    assert log["provenance"]["group_block_sizes"].endswith("v0.32.0.log:6")
    page = resolved(
        "--metrics", "metrics.txt", "--model-config", str(CONFIGS / "qwen3.8-flash-next" / "config.json")
    )
    assert (page["source"], page["num_blocks"], page["match_unit"]) == ("metrics", 900, 16)
    assert any("mamba_block_size=16 is stale" in warning for warning in page["warnings"])
    both = resolved("--startup-log", str(LOGS / "v0.24.0.log"), "--model", str(CONFIGS / "qwen3.5-4b"))
    assert any("the model config with these flags gives 4 x 1,056" in warning for warning in both["warnings"])


def test_metrics_from_a_server(resolved: Any) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = resolved("--metrics", f"http://127.0.0.1:{server.server_port}/metrics")
        server.shutdown()
    assert (found["source"], found["attention_block_size"]) == ("metrics", 1600)


def test_a_refused_unit_is_shown_and_exits_with_2(run: Any, resolved: Any) -> None:
    folder = str(CONFIGS / "qwen3.5-4b")
    found = resolved("--model", folder, "--match-unit", "64", code=2)
    assert "does not divide" in found["error"]
    done = run("resolve", "--model", folder, "--match-unit", "64")
    assert done.code == 2
    assert done.out.startswith("vLLM 0.33.0 refuses to start")
    assert done.err.count("\n") == 1 and "does not divide" in done.err


def test_the_table_for_people(run: Any) -> None:
    done = run("resolve", "--model", str(CONFIGS / "qwen3.5-4b"), "--units", "64,48")
    assert done.code == 0
    assert done.out.startswith("vLLM 0.33.0 reuses prompts in steps of 528 tokens\n")
    for text in (
        "recurrent state       3    528            8  mode align",
        "legal          528, 48",
        "refused        64: does not divide group 0 (mamba, block 528)",
        "--kv-cache-dtype fp8               1,056",
        "documented_unit_illegal",
    ):
        assert text in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_bundled_model_resolves(resolved: Any) -> None:
    found = resolved("--model", str(Path(__file__).parents[2] / "samples" / "tiny-hybrid"))
    assert 256 <= found["attention_block_size"] <= 1056
    assert (found["error"], found["warnings"]) == (None, [])
    assert len({row["attention_block_size"] for row in found["what_if"]}) > 3


def test_every_config_prints_within_the_width(run: Any) -> None:
    for path in sorted(CONFIGS.glob("*/config.json")):
        done = run("resolve", "--model-config", str(path), "--max-model-len", "8192")
        assert done.code == 0, done.err
        assert max(map(len, done.out.splitlines())) <= 80, path


def test_json_goes_to_a_file_and_is_not_overwritten(run: Any, tmp_path: Path) -> None:
    arguments = ("resolve", "--groups", "full:16", "--json", "sizes.json")
    assert run(*arguments).code == 0
    assert json.loads((tmp_path / "sizes.json").read_text())["scheduler_block_size"] == 16
    again = run(*arguments)
    assert again.code == 2 and "exists already" in again.err
    assert run(*arguments, "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        ((), "nothing gives a block size", 2),
        (("--model-config", "missing.json"), "missing.json", 2),
        (("--model-config", "broken.json"), "broken.json", 2),
        (("--model-config", "list.json"), "list.json: not a model config", 2),
        (("--model-config", "mystery.json"), "mystery.json: model_type: .*mystery", 2),
        (("--startup-log", "plain.txt"), "plain.txt: no line of a vLLM start-up log", 2),
        (("--startup-log", "zeros"), "zeros: is no text file", 2),
        (("--metrics", "zeros"), "zeros: is no text file", 2),
        (("--metrics", "plain.txt"), "plain.txt: no cache configuration of vLLM", 2),
        (("--metrics", "http://127.0.0.1:9/metrics"), "127.0.0.1:9", 4),
        (("--model", "QWEN", "--tp", "3"), "--tensor-parallel-size: .*found 3", 2),
        (("--groups", "mamba:528*3,full:528", "--units", "x"), "--units", 2),
        (("--groups", "mambo:528"), "--groups", 2),
        (("--groups", "full:16", "--", "ls", "-l"), "serve command", 2),
        (("--groups", "full:16", "--engine-version", "new"), "not a vLLM version", 2),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_clear_line(
    run: Any, tmp_path: Path, arguments: tuple[str, ...], said: str, code: int
) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "mystery.json").write_text('{"model_type": "mystery"}')
    (tmp_path / "plain.txt").write_text("hello\n")
    (tmp_path / "zeros").write_bytes(b"\0" * 1000)
    done = run("resolve", *(str(CONFIGS / "qwen3.5-4b") if word == "QWEN" else word for word in arguments))
    assert (done.code, done.out) == (code, "")
    assert done.err.count("\n") == 1
    assert re.search(said, done.err)
