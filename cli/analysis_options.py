"""The options that decide an analysis: how requests become ids, how the server runs, what is replayed.

`AnalysisOptions` is all of them as one value, which every command on a trace takes and passes on whole.
Knows names, defaults and help; neither what values mean to the engine nor how files are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from kvtune.cli.options import option

MODEL = "Model and tokenizer"
ENGINE = "Engine"
REPLAY = "Replay"
INPUT = "Input"

Model = Annotated[
    str | None, option("--model", "DIR|HUB_ID", "Model folder in hub layout, or its name on the hub.", MODEL)
]


@dataclass(frozen=True)
class ModelOptions:
    """How requests become token ids."""

    model: Model = None
    tokenizer: Annotated[
        str | None,
        option("--tokenizer", "PATH|tiktoken:NAME", "Tokenizer, where it is not the model's.", MODEL),
    ] = None
    chat_template: Annotated[
        str | None, option("--chat-template", "FILE", "Chat template, where it is not the model's.", MODEL)
    ] = None
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        option("--chat-template-content-format", None, "How the template takes message content.", MODEL),
    ] = "auto"
    trust_request_chat_template: Annotated[
        bool,
        option(
            "--trust-request-chat-template",
            "",
            "Render chat templates that requests bring, as the engine does with the flag of this name.",
            MODEL,
        ),
    ] = False
    encoder: Annotated[
        Literal["auto", "library"],
        option(
            "--encoder",
            None,
            "Which library encodes: a faster one where proven equal, or the model's own.",
            MODEL,
        ),
    ] = "auto"
    check_tokenizer: Annotated[
        str | None,
        option(
            "--check-tokenizer",
            "N|all",
            "Encode N requests a second time, as whole texts, by the model's own library.",
            MODEL,
        ),
    ] = None


@dataclass(frozen=True)
class SizeOptions:
    """Where the sizes of the KV cache groups come from."""

    groups: Annotated[
        str | None,
        option(
            "--groups",
            "SPEC",
            "KV cache groups in the engine's order, such as mamba:528*3,full:528.",
            ENGINE,
        ),
    ] = None
    model_config: Annotated[
        str | None, option("--model-config", "FILE", "config.json to take the sizes from.", ENGINE)
    ] = None
    startup_log: Annotated[
        str | None, option("--startup-log", "FILE", "The server's start-up log, to read sizes from.", ENGINE)
    ] = None
    metrics: Annotated[
        str | None, option("--metrics", "FILE|URL", "The server's /metrics, to read sizes from.", ENGINE)
    ] = None


@dataclass(frozen=True)
class EngineOptions:
    """The settings of the server, as it runs today. Token counts unless said otherwise.

    None is "not said": a start-up log or metrics may say it, else the default in brackets holds.
    """

    engine: Annotated[Literal["vllm"], option("--engine", None, "The engine that serves.", ENGINE)] = "vllm"
    engine_version: Annotated[
        str | None,
        option("--engine-version", "X.Y", "Its release (default: the newest that is known).", ENGINE),
    ] = None
    hardware: Annotated[
        str | None,
        option(
            "--hardware",
            "NAME[xN]",
            "GPUs that serve, such as H100 or L40Sx4: settles step times, step budget, kernels and pool.",
            ENGINE,
        ),
    ] = None
    match_unit: Annotated[
        str | None, option("--match-unit", "N|unset", "The current prefix match unit. [unset]", ENGINE)
    ] = None
    num_blocks: Annotated[
        str | None,
        option(
            "--num-blocks",
            "N|unlimited",
            "The engine's num_gpu_blocks, null block included. [unlimited]",
            ENGINE,
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        option(
            "--max-num-batched-tokens", "N", "Step budget, the largest prefill chunk. [8192]", ENGINE, min=1
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None, option("--max-num-seqs", "N", "Requests in one step at most. [256]", ENGINE, min=1)
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        option(
            "--long-prefill-token-threshold", "N", "Cap on one request's chunk; 0 is none. [0]", ENGINE, min=0
        ),
    ] = None
    max_model_len: Annotated[
        int | None, option("--max-model-len", "N", "Longest sequence that is served.", ENGINE, min=1)
    ] = None
    retention_interval: Annotated[
        str | None,
        option(
            "--retention-interval", "N|none", "Keep a recurrent state every N tokens; none: all. [0]", ENGINE
        ),
    ] = None
    draft: Annotated[
        str | None, option("--draft", "METHOD:K", "Speculative decoding: method and draft tokens.", ENGINE)
    ] = None
    state_export: Annotated[
        int | None,
        option("--state-export", "ALIGN", "States can leave a chunk at multiples of ALIGN.", ENGINE, min=1),
    ] = None
    dcp: Annotated[int, option("--dcp", "N", "Decode context parallel size.", ENGINE, min=1, max=1 << 12)] = 1
    hash_algo: Annotated[
        str | None, option("--hash-algo", "NAME", "Prefix caching hash. [sha256]", ENGINE)
    ] = None
    no_prefix_caching: Annotated[
        bool, option("--no-prefix-caching", "", "The server runs without prefix caching.", ENGINE)
    ] = False
    kv_connector: Annotated[bool, option("--kv-connector", "", "A KV connector is configured.", ENGINE)] = (
        False
    )


@dataclass(frozen=True)
class ReplayOptions:
    """Which units are replayed, and under which load."""

    units: Annotated[
        str, option("--units", "auto|16,32,...", "Match units to replay.", REPLAY, show_default=True)
    ] = "auto"
    arrivals: Annotated[
        Literal["sequential", "trace"],
        option("--arrivals", None, "One request after the other, or by timestamps.", REPLAY),
    ] = "sequential"
    outputs: Annotated[
        Literal["none", "length", "recorded"],
        option("--outputs", None, "What answers put into the cache.", REPLAY),
    ] = "none"
    step_cost_tokens: Annotated[
        str | None,
        option(
            "--step-cost-tokens",
            "N|REPORT.json",
            "Step overhead in tokens: the largest net gain at N decides. Or a report with measured step times.",
            REPLAY,
        ),
    ] = None
    step_times: Annotated[
        str | None,
        option(
            "--step-times",
            "REPORT.json",
            "Step times as `validate --measure-steps` or `validate --clock virtual` measured them.",
            REPLAY,
        ),
    ] = None
    objective: Annotated[
        Literal["gpu-time", "ttft", "tokens"],
        option("--objective", None, "What to minimise where step times are known.", REPLAY),
    ] = "gpu-time"
    gpu_hour_price: Annotated[
        float | None,
        option(
            "--gpu-hour-price", "X", "Price of a GPU-hour, to state savings as money.", REPLAY, min=0, max=1e6
        ),
    ] = None
    load: Annotated[
        str | None,
        option(
            "--load",
            "0.25,1,4",
            "Also replay at these multiples of the trace's own rate, with step times: TTFT, latency, busy share.",
            REPLAY,
        ),
    ] = None
    capacity_curve: Annotated[
        bool,
        option(
            "--capacity-curve",
            "",
            "Replay all units over a ladder of pool sizes: at most a dozen times the replays.",
            REPLAY,
        ),
    ] = False
    levers: Annotated[
        bool | None,
        option(
            "--levers/--no-levers",
            None,
            "Also try other optimizations: warm-up, padding, flags. [prompt order, tool order and history only]",
            REPLAY,
        ),
    ] = None
    window: Annotated[
        str | None, option("--window", "DURATION", "Also judge slices of time, such as 1h.", REPLAY)
    ] = None
    replicas: Annotated[
        int,
        option("--replicas", "N", "Spread requests over N caches, where the log names none.", REPLAY, min=1),
    ] = 1
    route: Annotated[
        Literal["sticky", "random", "prefix"], option("--route", None, "How --replicas are chosen.", REPLAY)
    ] = "sticky"
    by_field: Annotated[
        str | None,
        option("--by-field", "NAME", "One cache per value of this field: replica, server, tenant.", REPLAY),
    ] = None
    seed: Annotated[int, option("--seed", "N", "Seed of resampling and random routing.", REPLAY, min=0)] = 0


@dataclass(frozen=True)
class InputOptions:
    """How traces are read."""

    format: Annotated[
        str, option("--format", "auto|NAME", "Trace format; `kvtune formats` lists them.", INPUT)
    ] = "auto"
    max_line_bytes: Annotated[
        int, option("--max-line-bytes", "N", "Longest line that is read.", INPUT, min=1, max=1 << 40)
    ] = 256 * 2**20
    only: Annotated[
        list[str] | None,
        option(
            "--only", "FIELD=VALUE", "Only records with this value, such as model=qwen3.5. Repeatable.", INPUT
        ),
    ] = None
    isolate_by: Annotated[
        str | None,
        option("--isolate-by", "FIELD", "Values of this field share no prefixes (a team, a user).", INPUT),
    ] = None
    time_field: Annotated[
        str | None, option("--time-field", "PATH", "Field that holds the time of arrival.", INPUT)
    ] = None
    body_field: Annotated[
        str | None,
        option("--body-field", "PATH", "Field that holds the request's body, such as detail.payload.", INPUT),
    ] = None
    order: Annotated[
        Literal["oldest", "newest"] | None,
        option(
            "--order", "oldest|newest", "What a log without times begins with (default: by content).", INPUT
        ),
    ] = None
    trust_logged_lengths: Annotated[
        bool,
        option(
            "--trust-logged-lengths",
            "",
            "Images and other media are as long as the log's prompt_tokens leave for them.",
            INPUT,
        ),
    ] = False
    strict: Annotated[bool, option("--strict", "", "Exit with 1 when a line was rejected.", INPUT)] = False
    rejects: Annotated[
        str | None, option("--rejects", "FILE", "Keep rejected lines, to be mended and read again.", INPUT)
    ] = None
    workers: Annotated[int | None, option("--workers", "N", "Cores to use (default: all).", INPUT, min=1)] = (
        None
    )


@dataclass(frozen=True)
class AnalysisOptions:
    """Everything that decides what a command on a trace analyzes."""

    model: ModelOptions = ModelOptions()
    sizes: SizeOptions = SizeOptions()
    engine: EngineOptions = EngineOptions()
    replay: ReplayOptions = ReplayOptions()
    input: InputOptions = InputOptions()
