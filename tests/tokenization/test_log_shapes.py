"""Each way in which a log is wrapped, shipped or exported: read to the requests that it holds, or refused by name.

`data/logs/shapes/SOURCE.md` says where the files come from.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kvtune.tokenization.errors import KvtuneError, NoUsableRequestError
from tests.tokenization.logged_prompts import LOGS, equal_prompts, read_log


class Shape(NamedTuple):
    """A file, the requests that it holds, and how many of them are prompts of `truth6.jsonl` (by default all)."""

    file: str
    requests: int
    equal: int | None = None


SHAPES = (
    Shape("aiperf-inputs.json", 6),
    Shape("bedrock-invocation.jsonl", 6),
    Shape("chat.csv", 6, 0),
    Shape("cloudwatch-filter-log-events.json", 6),
    Shape("cloudwatch-s3-export.log", 6),
    Shape("content-parts-prompt.jsonl", 1, 0),
    Shape("cri.log", 6),
    Shape("datadog-archive.jsonl", 6),
    Shape("docker-jsonfile.log", 6),
    Shape("docs-sample.log", 1, 0),
    Shape("dynamo.jsonl", 4, 0),
    Shape("gcp-logging.jsonl", 6),
    Shape("genai-perf-inputs.json", 6),
    Shape("har.json", 6),
    Shape("helicone-api-compact.json", 6),
    Shape("kafka-kcat.jsonl", 6),
    Shape("kong-ai-log.jsonl", 6),
    Shape("kubectl-prefix.log", 6),
    Shape("lc-messages.jsonl", 1, 0),
    Shape("lmsys.parquet", 6, 0),
    Shape("loki-logcli.jsonl", 6),
    Shape("mini-swe-agent-v2.traj.json", 2, 0),
    Shape("model-name-lora.jsonl", 4, 1),
    Shape("nginx-as-documented.jsonl", 6),
    Shape("nginx-plain.jsonl", 6),
    Shape("no-index.csv", 6, 0),
    Shape("odd-header.csv", 6, 0),
    Shape("openhands-llm-completion.json", 1, 0),
    Shape("otlp-logs-events.jsonl", 6),
    Shape("portkey-logs.jsonl", 6),
    Shape("prefill.jsonl", 1, 0),
    Shape("prompt-response.csv", 6, 0),
    Shape("python-repr-cells.csv", 6),
    Shape("reasoning-effort.jsonl", 4, 0),
    Shape("responses-chain.jsonl", 2, 0),
    Shape("responses-webtools.jsonl", 2, 0),
    Shape("sglang-log-requests.log", 6, 0),
    Shape("splunk-export.jsonl", 6),
    Shape("status-codes.jsonl", 5, 3),
    Shape("truth6.jsonl", 6),
    Shape("two-models.jsonl", 10, 6),
    Shape("usage-contradicts.jsonl", 45, 0),
    Shape("vercel-ai-sdk-otlp.jsonl", 6),
    Shape("vertex-request-response.jsonl", 6),
    Shape("vllm-0.33-json-body-info.log", 45, 6),
    Shape("vllm-compose.log", 4, 0),
    Shape("vllm-cri-partial.log", 4, 0),
    Shape("vllm-cri.log", 4, 0),
    Shape("vllm-docker.jsonl", 4, 0),
    Shape("vllm-journald.log", 4, 0),
    Shape("vllm-jsonlog.jsonl", 4, 0),
    Shape("vllm-kubectl-prefix.log", 4, 0),
    Shape("vllm-kubectl-timestamps.log", 4, 0),
    Shape("vllm-lora-debug-first.log", 4, 0),
    Shape("vllm-lora-info-first.log", 4, 0),
    Shape("vllm-plain.log", 4, 0),
    Shape("vllm-stdtime.log", 4, 0),
    Shape("wildchat.parquet", 6, 0),
)

REFUSED = {
    "claude-code-session.jsonl": "a Claude Code session",
    "codex-rollout.jsonl": "a Codex session",
    "dynamo-noreplay.jsonl": "a Dynamo trace without its replay fields",
    "embeddings-str.jsonl": "Embeddings",
    "embeddings.jsonl": "Embeddings",
    "gemini-cli-session.json": "a Gemini CLI session",
    "gemini-contents.jsonl": "a body of the Gemini API",
    "librechat-export.json": "a chat exported from LibreChat",
    "ollama.log": "Ollama's log",
    "openai-batch-output.jsonl": "a batch's output",
    "openai-finetune-conversation.jsonl": "fine-tuning data",
    "openwebui-export.json": "a chat exported from Open WebUI",
    "tgi.log": "a line of TGI's log",
    "vllm-info-only.log": "a request without its prompt",
    "vllm-own-otlp-spans.jsonl": "vLLM's own spans",
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.file)
def test_a_log_gives_the_requests_that_it_holds(shape: Shape) -> None:
    result = read_log(f"shapes/{shape.file}.zst")
    assert len(result.requests) == shape.requests
    assert result.stats.rejected_by == {}
    if shape.file == "content-parts-prompt.jsonl":  # holds a document, which no template renders
        return
    equal = equal_prompts(result, read_log("shapes/truth6.jsonl.zst"))
    assert equal == (shape.requests if shape.equal is None else shape.equal)


def test_vllms_log_of_bodies_gives_every_prompt_as_it_was_sent() -> None:
    result = read_log("shapes/vllm-0.33-json-body-info.log.zst")
    assert equal_prompts(result, read_log("truth/bodies.jsonl.zst")) == len(result.requests) == 45
    assert all(request.tools and request.arrival is not None for request in result.requests)


@pytest.mark.parametrize(("file", "what"), REFUSED.items())
def test_what_holds_no_prompts_is_refused_by_name_with_a_way_to_a_trace(file: str, what: str) -> None:
    with pytest.raises(NoUsableRequestError, match=what) as caught:
        read_log(f"shapes/{file}.zst")
    assert caught.value.way_out is not None and "docs/getting-a-trace.md" in caught.value.way_out


def test_every_shape_is_in_the_table() -> None:
    files = {path.name.removesuffix(".zst") for path in (LOGS / "shapes").glob("*.zst")}
    assert files == {shape.file for shape in SHAPES} | REFUSED.keys()
    assert issubclass(NoUsableRequestError, KvtuneError)
