"""`kvtune capture`: carry requests to a server and keep a trace of them, until Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtune.cli.options import Force, GeneralOptions, option, with_options
from kvtune.cli.output import claim_files, note
from kvtune.tokenization.errors import MissingDependencyError, UnusableInputError

if TYPE_CHECKING:
    from kvtune.tokenization.capture.serve import CaptureSettings
    from kvtune.tokenization.capture.writer import CaptureCounts

CAPTURE = "Capture"
_MIB = 1 << 20

To = Annotated[str, option("--to", "URL", "The server, without /v1: http://127.0.0.1:8000.", CAPTURE)]
Target = Annotated[
    str, option("--output", "FILE", "The trace, a new file; .gz is compressed.", CAPTURE, short="-o")
]
Listen = Annotated[str, option("--listen", "HOST:PORT", "Where clients connect to.", CAPTURE)]
MaxHeld = Annotated[
    int,
    option(
        "--max-held-mib",
        "N",
        "Bound on captured data in memory; what is over is not recorded.",
        CAPTURE,
        min=1,
    ),
]


@with_options
def capture(
    to: To,
    output: Target,
    listen: Listen = "127.0.0.1:8001",
    max_held_mib: MaxHeld = 256,
    force: Force = False,
    *,
    general: GeneralOptions,
) -> None:
    """Pass requests through to an OpenAI-compatible server and keep a trace of them.

    Point clients at the printed URL; Ctrl-C ends the capture and lets open requests finish. The trace holds
    prompts and answers in clear; keys and headers are never written.
    """
    import asyncio

    host, port = _address(listen)
    try:
        from kvtune.tokenization.capture.serve import CaptureSettings
    except ModuleNotFoundError as missing:
        if missing.name != "aiohttp":
            raise
        raise MissingDependencyError(
            "capture needs an HTTP server", wanted="aiohttp", way_out="pip install 'kvtune[live]'"
        ) from None
    claim_files([], force=force, never_stdout=output)
    settings = CaptureSettings(host, port, to, Path(output), max_held_mib * _MIB, force)
    counts = asyncio.run(_run(settings, quiet=general.quiet))
    for line in summary(counts, output):
        note(line)
    if counts.lost:
        raise typer.Exit(1)


def summary(counts: CaptureCounts, output: str) -> list[str]:
    """What was and was not written, one line per count that is not zero."""
    lines = [f"{output}: {counts.written} requests written"]
    if counts.incomplete:
        lines.append(f"{counts.incomplete} of them were broken off before the answer's end")
    if counts.unread_answers:
        lines.append(
            f"{counts.unread_answers} of them without their answer, which was not in the endpoint's form"
        )
    lines += [f"{count} left out: {reason}" for reason, count in sorted(counts.not_recorded.items())]
    lines += [f"{count} LOST: {reason}" for reason, count in sorted(counts.lost.items())]
    if counts.passed_through:
        lines.append(f"{counts.passed_through} requests to other endpoints passed through")
    return lines


async def _run(settings: CaptureSettings, *, quiet: bool) -> CaptureCounts:
    import asyncio

    from kvtune.tokenization.capture.serve import is_loopback, serve

    stop, cut = asyncio.Event(), asyncio.Event()

    def end() -> None:
        if stop.is_set():
            cut.set()
        else:
            note("ending: open requests are carried to their end; once more to break them off")
            stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)

    def ready(url: str) -> None:
        note(f"{url} -> {settings.target}, recording to {settings.output}; Ctrl-C ends")
        if not is_loopback(settings.host):
            warn(f"listening on {settings.host}: whoever reaches it can use the server and is recorded")

    def warn(text: str) -> None:
        note(text, quiet=quiet)

    return await serve(settings, stop=stop, cut=cut, ready=ready, warn=warn)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UnusableInputError(
            "no address", field="--listen", found=text, wanted="HOST:PORT, such as 127.0.0.1:8001"
        )
    return host, int(port)
