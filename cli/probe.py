"""The options of `kvtune validate` that say what candidates are run on, and how.

Knows names, defaults and syntax; devices, servers and clocks are for `kvtune.gpu_probe`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from kvtune.cli.options import long_name, option
from kvtune.tokenization.errors import UnusableInputError

PROBE = "Probe"

_ENGINE_ONLY = ("clock", "exact", "layers")
_SERVER_ONLY = ("as_chat", "allow_traffic")


@dataclass(frozen=True)
class ProbeChoices:
    """What candidates are run on, and how."""

    gpu: Annotated[bool, option("--gpu", "", "The bundled engine on this machine's GPU.", PROBE)] = False
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        option("--device", "cpu|cuda", "Device of the bundled engine. [cpu]", PROBE),
    ] = None
    serve: Annotated[
        str | None,
        option(
            "--serve", '"vllm serve ..."', "Start this server once per candidate and replay there.", PROBE
        ),
    ] = None
    endpoint: Annotated[
        str | None, option("--endpoint", "URL", "Replay against a vLLM server that is running.", PROBE)
    ] = None
    clock: Annotated[
        Literal["model", "virtual", "wall"] | None,
        option(
            "--clock",
            "model|virtual|wall",
            "Step times by a model (repeatable), or measured, gaps skipped or waited for. [model on cpu, else virtual]",
            PROBE,
        ),
    ] = None
    exact: Annotated[
        bool, option("--exact", "", "Equal bits with and without cache, and the proof of it.", PROBE)
    ] = False
    layers: Annotated[
        int | None,
        option("--layers", "N", "Layers of each kind, at the model's full width.", PROBE, min=1),
    ] = None
    requests: Annotated[
        int | None,
        option("--requests", "N", "Run the first N requests. [as many as a few minutes allow]", PROBE, min=1),
    ] = None
    runs: Annotated[
        int | None,
        option(
            "--runs",
            "N",
            "Runs per candidate. [1 under the model clock, 2 on a server, else 4]",
            PROBE,
            min=1,
        ),
    ] = None
    measure_steps: Annotated[
        bool,
        option(
            "--measure-steps",
            "",
            "Measure step times instead of replaying, for --step-times: at most 250 prompts of random tokens.",
            PROBE,
        ),
    ] = False
    slo: Annotated[
        str | None,
        option(
            "--slo",
            "ttft=S,tpot=S",
            "Objectives in seconds (ttft, tpot, e2e): requests that meet all of them, and the largest load at which "
            "95% do.",
            PROBE,
        ),
    ] = None
    as_chat: Annotated[
        bool, option("--as-chat", "", "Send chats to the server, and compare its token ids.", PROBE)
    ] = False
    ready_timeout: Annotated[
        float, option("--ready-timeout", "S", "How long a server may take to load, in seconds.", PROBE, min=1)
    ] = 900
    log_dir: Annotated[
        str | None,
        option("--log-dir", "DIR", "Keep the started servers' logs there. [a temporary folder]", PROBE),
    ] = None
    allow_traffic: Annotated[
        bool, option("--allow-traffic", "", "Go on although others are using the server.", PROBE)
    ] = False


def device_of(probe: ProbeChoices) -> Literal["cpu", "cuda"] | None:
    """The bundled engine's device; None where a server was named.

    Raises:
        UnusableInputError: more than one was named, or an option that only the other kind knows.
    """
    ways = [
        name
        for name, asked in (
            ("--gpu", probe.gpu),
            ("--device", probe.device is not None),
            ("--serve", probe.serve is not None),
            ("--endpoint", probe.endpoint is not None),
        )
        if asked
    ]
    if len(ways) > 1 and not (probe.gpu and ways == ["--gpu", "--device"] and probe.device == "cuda"):
        raise UnusableInputError("only one of these can be run on", field=", ".join(ways))
    on_server = probe.serve is not None or probe.endpoint is not None
    idle = _ENGINE_ONLY if on_server else _SERVER_ONLY
    for name in idle:
        if getattr(probe, name):
            raise UnusableInputError(
                "says nothing " + ("to a server" if on_server else "to the bundled engine"),
                field=long_name(name),
                wanted="--device cpu or --gpu beside it" if on_server else "--serve or --endpoint beside it",
            )
    if on_server:
        return None
    return "cuda" if probe.gpu or probe.device == "cuda" else "cpu"


def slo_of(text: str | None) -> dict[str, float]:
    """The value of --slo, in seconds by figure.

    Raises:
        UnusableInputError: an entry that is none.
    """
    objectives: dict[str, float] = {}
    for entry in text.split(",") if text else ():
        name, _, value = entry.partition("=")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if name.strip() not in ("ttft", "tpot", "e2e") or not 0 < seconds < 1e9:
            raise UnusableInputError(
                "is no objective",
                field="--slo",
                found=repr(entry[:40]),
                wanted="for instance ttft=0.5,tpot=0.05",
            )
        objectives[name.strip()] = seconds
    return objectives


def retold(probe: ProbeChoices) -> ProbeChoices:
    """The choices as a report may tell them: no secret of a serve command is among them.

    Raises:
        UnusableInputError: the serve command cannot be read.
    """
    from kvtune.gpu_probe.live.command import parse_serve_line

    return probe if probe.serve is None else replace(probe, serve=parse_serve_line(probe.serve).retold())
