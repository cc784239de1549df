"""The registry of trace formats: `--format`, its help, `kvtune formats` and the sniffing all come from here."""

from __future__ import annotations

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.formats import (
    aiperf,
    anthropic_log,
    bailian,
    baseten,
    bedrock,
    dynamo,
    helicone,
    http_exchange,
    langfuse,
    langsmith,
    lengths,
    litellm,
    lmsys,
    mini_swe_agent,
    mlflow,
    mooncake,
    openai_batch,
    openai_chat,
    openai_completions,
    openhands,
    otel,
    otlp_logs,
    plain_prompts,
    request_column,
    responses_log,
    sagemaker,
    sglang_log,
    sharegpt,
    swe_agent,
    tau_bench,
    vertex,
    vllm_log,
    weave,
    weka,
)
from kvtune.tokenization.formats.format import Format, Record

AUTO = "auto"

FORMATS: tuple[Format, ...] = (
    # A record is of the first format that recognises it: the narrow ones come first.
    openai_batch.FORMAT,
    bailian.FORMAT,
    mooncake.FORMAT,
    sglang_log.FORMAT,
    vllm_log.FORMAT,
    otel.FORMAT,
    otlp_logs.FORMAT,
    mlflow.FORMAT,
    langsmith.FORMAT,
    weave.FORMAT,
    bedrock.FORMAT,
    vertex.FORMAT,
    openhands.FORMAT,
    mini_swe_agent.FORMAT,
    litellm.FORMAT,
    helicone.FORMAT,
    sagemaker.FORMAT,
    langfuse.FORMAT,
    weka.FORMAT,
    baseten.FORMAT,
    dynamo.FORMAT,
    tau_bench.FORMAT,
    swe_agent.FORMAT,
    sharegpt.FORMAT,
    lmsys.FORMAT,
    http_exchange.FORMAT,
    aiperf.FORMAT,
    anthropic_log.FORMAT,
    openai_chat.FORMAT,
    plain_prompts.TOKEN_IDS,
    openai_completions.FORMAT,
    request_column.FORMAT,
    responses_log.FORMAT,
    lengths.FORMAT,
    plain_prompts.PROMPTS,
)

_BY_NAME = {one.name: one for one in FORMATS}


def format_names() -> list[str]:
    """What `--format` takes, "auto" first."""
    return [AUTO, *_BY_NAME]


def format_named(name: str) -> Format | None:
    """The format of that name, None for "auto"; raises `UnusableInputError` for a name that is none."""
    if name == AUTO:
        return None
    if name not in _BY_NAME:
        raise UnusableInputError(
            "no such format",
            field="--format",
            found=name,
            wanted=", ".join(format_names()),
            way_out="see kvtune formats",
        )
    return _BY_NAME[name]


def recognise(record: Record) -> Format | None:
    """The format of a record, None where it is of none."""
    return next((one for one in FORMATS if one.recognises(record)), None)
