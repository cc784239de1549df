"""A server on loopback that answers as vLLM does, with hits from the bookkeeping, and misbehaves on demand.

It stands in for what a real server will not do when asked: resets that lie, renamed metrics, broken streams, errors.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.gpu_probe.live.prediction import Predictor, trace_of
from kvtune.tokenization.trace import TokenTrace

GROUPS = (KVCacheGroup("mamba", 64, count=3, mode="align"), KVCacheGroup("full", 64))
GROUPS_SPEC = "mamba:64*3,full:64"
CONFIG = EngineConfig(
    groups=GROUPS,
    version="0.32.0",
    match_unit=16,
    num_blocks=4_096,
    max_num_batched_tokens=2_048,
    max_model_len=4_096,
)


@dataclass
class Script:
    """How the server deviates. Everything off: it does what vLLM 0.32 does.

    Attributes:
        config: what it really runs with; `claimed_unit` is what its metrics page says.
        reset: `works`, `lies` (200, and nothing happens) or `absent` (404).
        honours_salt: whether `cache_salt` separates requests.
        details: whether answers carry `prompt_tokens_details`; `zero_left_out` as before 0.24.
        renamed: metric name -> other name. version: as `/version` says it.
        status_at, cut_at, error_at: completions (0-based) that get a status, a broken stream, an error event.
        wrong_at: completion -> hit tokens to claim. foreign: requests of others, per reading of the metrics page.
        api_key: required key. chat_ids: ids of a chat, by its last message; `returns_ids`: with the answer, too.
        event_delay_s: between events. drop_pages: how many readings of the metrics page find the connection cut.
    """

    config: EngineConfig = CONFIG
    claimed_unit: int | None = 16
    reset: str = "works"
    honours_salt: bool = True
    details: bool = True
    zero_left_out: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    version: str = "0.32.0"
    status_at: dict[int, int] = field(default_factory=dict)
    cut_at: int | None = None
    error_at: int | None = None
    wrong_at: dict[int, int] = field(default_factory=dict)
    foreign: int = 0
    api_key: str | None = None
    chat_ids: dict[str, list[int]] = field(default_factory=dict)
    returns_ids: bool = True
    event_delay_s: float = 0.0
    drop_pages: int = 0


class ScriptedServer:
    """The state behind the endpoints. `completions` counts requests; `sent` keeps their bodies."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.url = ""
        self.sent: list[dict[str, Any]] = []
        self.counts: dict[str, int] = {}
        self._cached: list[tuple[str, list[int]]] = []
        self._readings = 0

    def hit_of(self, salt: str, prompt: list[int]) -> int:
        """What this prompt hits now, after which it is cached."""
        self._cached.append((salt if self.script.honours_salt else "", prompt))
        prompts = [ids for _, ids in self._cached]
        trace = trace_of([np.array(ids, dtype=np.int64) for ids in prompts])
        names = {name: number for number, name in enumerate(dict.fromkeys(salt for salt, _ in self._cached))}
        namespace = np.array([names[salt] for salt, _ in self._cached], dtype=np.int32)
        trace = TokenTrace(
            trace.tokens, trace.offsets, trace.prompt_tokens, trace.arrival, namespace, trace.ids
        )
        return int(Predictor(trace).predict(self.script.config).hits[-1])

    async def complete(self, request: web.Request) -> web.StreamResponse:
        script, number = self.script, len(self.sent)
        body = await request.json()
        self.sent.append(body)
        if number in script.status_at:
            error = {
                "error": {"message": "secret words of a prompt", "type": "BadRequestError", "param": "prompt"}
            }
            return web.json_response(error, status=script.status_at[number])
        prompt = body.get("prompt") or script.chat_ids[body["messages"][-1]["content"]]
        hit = script.wrong_at.get(number, self.hit_of(body.get("cache_salt", ""), prompt))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        generated = body["max_tokens"]
        for token in range(generated):
            if script.event_delay_s:
                await asyncio.sleep(script.event_delay_s)
            choice: dict[str, Any] = {
                "index": 0,
                "text": "x",
                "finish_reason": "length" if token == generated - 1 else None,
            }
            if body.get("return_token_ids") and script.returns_ids and token == 0:
                choice["prompt_token_ids"] = prompt
            await response.write(_event({"choices": [choice]}))
            if script.cut_at == number:
                assert request.transport is not None
                request.transport.abort()
                return response
            if script.error_at == number:
                await response.write(
                    _event({"error": {"message": "secret words of a prompt", "type": "EngineDead"}})
                )
                return response
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": generated}
        if script.details and not (script.zero_left_out and not hit):
            usage["prompt_tokens_details"] = {"cached_tokens": hit}
        await response.write(_event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        self._count(len(prompt), hit, generated)
        return response

    def _count(self, prompt: int, hit: int, generated: int) -> None:
        for name, amount in {
            "vllm:request_success_total": 1,
            "vllm:prompt_tokens_total": prompt,
            'vllm:prompt_tokens_by_source_total{source="local_compute"}': prompt - hit,
            'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': hit,
            "vllm:prompt_tokens_cached_total": hit,
            "vllm:request_prefill_kv_computed_tokens_sum": prompt - hit,
            "vllm:generation_tokens_total": generated,
            "vllm:prefix_cache_queries_total": prompt,
            "vllm:prefix_cache_hits_total": hit,
        }.items():
            self.counts[name] = self.counts.get(name, 0) + amount

    async def metrics(self, request: web.Request) -> web.Response:
        script = self.script
        self._readings += 1
        if self._readings <= script.drop_pages:
            assert request.transport is not None
            request.transport.abort()
        zero = dict.fromkeys(
            (
                "vllm:request_success_total",
                "vllm:prompt_tokens_total",
                'vllm:prompt_tokens_by_source_total{source="local_compute"}',
                'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}',
                'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}',
                "vllm:prompt_tokens_cached_total",
                "vllm:request_prefill_kv_computed_tokens_sum",
                "vllm:generation_tokens_total",
                "vllm:num_preemptions_total",
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_hits_total",
                "vllm:num_requests_running",
                "vllm:num_requests_waiting",
            ),
            0,
        )
        values = zero | self.counts
        values["vllm:request_success_total"] += script.foreign * self._readings
        values["vllm:prompt_tokens_total"] += 10 * script.foreign * self._readings
        unit = "None" if script.claimed_unit is None else script.claimed_unit
        labels = {
            "block_size": 64,
            "effective_attention_block_size": 64,
            "num_gpu_blocks": script.config.num_blocks,
            "enable_prefix_caching": True,
            "prefix_match_unit": unit,
            "prefix_cache_retention_interval": 0,
            "mamba_cache_mode": "align",
        }
        listed = ",".join(f'{name}="{value}"' for name, value in labels.items())
        lines = [f"vllm:cache_config_info{{{listed}}} 1.0"]
        for name, value in values.items():
            base, brace, rest = name.partition("{")
            lines.append(f"{script.renamed.get(base, base)}{brace}{rest} {float(value)}")
        return web.Response(text="\n".join(lines) + "\n")

    async def reset(self, request: web.Request) -> web.Response:
        if self.script.reset == "absent":
            return web.Response(status=404)
        if self.script.reset == "works":
            self._cached.clear()
        return web.json_response({"success": True})

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"tokens": self.script.chat_ids[body["messages"][-1]["content"]]})

    def application(self) -> web.Application:
        script = self.script

        @web.middleware
        async def check_key(request: web.Request, handler: Any) -> web.StreamResponse:
            wanted = f"Bearer {script.api_key}"
            if (
                script.api_key
                and request.path.startswith("/v1")
                and request.headers.get("Authorization") != wanted
            ):
                return web.json_response({"error": "Unauthorized"}, status=401)
            response: web.StreamResponse = await handler(request)
            return response

        async def health(request: web.Request) -> web.Response:
            return web.Response()

        async def version(request: web.Request) -> web.Response:
            return web.json_response({"version": script.version})

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"data": [{"id": "tiny", "max_model_len": script.config.max_model_len}]})

        async def info(request: web.Request) -> web.Response:
            scheduler = {"max_num_batched_tokens": script.config.max_num_batched_tokens, "max_num_seqs": 128}
            return web.json_response({"vllm_config": {"scheduler_config": scheduler}})

        application = web.Application(middlewares=[check_key], client_max_size=1 << 26)
        application.add_routes(
            [
                web.get("/health", health),
                web.get("/version", version),
                web.get("/v1/models", models),
                web.get("/metrics", self.metrics),
                web.get("/server_info", info),
                web.post("/reset_prefix_cache", self.reset),
                web.post("/tokenize", self.tokenize),
                web.post("/v1/completions", self.complete),
                web.post("/v1/chat/completions", self.complete),
            ]
        )
        return application


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@contextmanager
def running(script: Script) -> Iterator[ScriptedServer]:
    """The server on a port of its own, in a thread with its own event loop."""
    server = ScriptedServer(script)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(server.application(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
