"""Trace files to token ids, and the account of it: rejected lines, the tokenizer, caveats.

Knows options and where messages go; formats, templates and tokenizers are for `kvtune.tokenization`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from kvtune.analyzers.report import TokenizerInfo, TokenizerKind, TraceInfo
from kvtune.cli.analysis_options import InputOptions, ModelOptions
from kvtune.cli.output import note, writing
from kvtune.cli.progress import StageProgress
from kvtune.cli.spare_workers import local_bytes
from kvtune.tokenization.doubts import media_unsized
from kvtune.tokenization.encode import CHECKED_REQUESTS, EncodeInfo, encode_trace
from kvtune.tokenization.encoding.model_folder import read_template
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.encoding.prompt_encoder import PromptEncoder
from kvtune.tokenization.encoding.render_ahead import RenderAhead
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.formats.openai_batch import write_line
from kvtune.tokenization.hub import WAYS_OUT, find_model, is_hub_id
from kvtune.tokenization.memory import give_back
from kvtune.tokenization.reading import TraceStats, read_trace
from kvtune.tokenization.rejects import REASONS, Rejection
from kvtune.tokenization.request import Identity, Request
from kvtune.tokenization.selection import Selection, parse_only
from kvtune.tokenization.trace import TokenTrace
from kvtune.tokenization.workers import take_workers

MOST_SHOWN = 10
_GIVEN_BACK_EVERY = 4096  # requests: of a trace so large that it matters
_MEMORY_COUNTS_BYTES = 1 << 28
"""Of trace: from here on the library that checks is loaded at the end, which takes a second, and freed memory is given
back."""


@dataclass(frozen=True)
class Encoding:
    """What decides the requests beside files and model: release, whether its keys hold adapters' paths, answers, the
    field that names a server, seed, the server's longest sequence, and what the server adds to a chat template's
    variables or takes from its tools."""

    version: str | None = None
    lora_paths: bool = True
    outputs: bool = False
    show_text: bool = False
    by_field: str | None = None
    seed: int = 0
    max_model_len: int | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    excludes_tools: bool = False


@dataclass(frozen=True)
class LoadedTrace:
    """A trace as ids, and what the report says of it.

    `model` is the folder that encoded it, None where none did; `decode` gives the text of ids, None where there
    is none; `caveats` matter for the recommendation; `identities` says whose each namespace is.
    """

    trace: TokenTrace
    info: TraceInfo
    tokenizer: TokenizerInfo
    model: Path | None
    decode: Callable[[Sequence[int]], str] | None
    caveats: tuple[str, ...]
    identities: tuple[Identity, ...] = ()


def load_trace(
    files: Sequence[str],
    options: InputOptions,
    model: ModelOptions,
    encoding: Encoding,
    progress: StageProgress,
    *,
    force: bool,
    quiet: bool,
) -> LoadedTrace:
    """Read and encode; rejected lines are named on stderr (the first few) and kept where `--rejects` says.

    Raises:
        UnusableInputError: a file, or nothing to encode its texts with.
        NoUsableRequestError: nothing is left.
    """
    with ExitStack() as stack:
        kept = stack.enter_context(writing(options.rejects, force=force)) if options.rejects else None
        rejects = _Rejects(kept, quiet=quiet)
        how = _encoder_options(model, options, encoding)
        is_large = local_bytes(files) > _MEMORY_COUNTS_BYTES
        how["checked"] = _checked_requests(model) != 0 and not is_large
        early = _EarlyEncoder(model, how)
        ahead = stack.enter_context(_render_ahead(early.folder, model, how))

        def offer(request: Request) -> None:
            early.offer(request)
            ahead.offer(request)

        found = read_trace(
            files,
            format=options.format,
            max_line_bytes=options.max_line_bytes,
            by_field=encoding.by_field,
            selection=selection_of(options, model),
            on_reject=rejects.line,
            on_request=offer,
            progress=lambda done, total: progress("reading", done, total),
        )
        requests = found.requests
        has_text = any(request.messages is not None or request.text is not None for request in requests)
        folder = _model_folder(requests, model) if has_text else None
        encoder = early.encoder or open_prompt_encoder(model=folder, **how) if has_text else None
        total = len(requests)
        trace, encoded = encode_trace(
            _each_let_go(requests),
            encoder,
            check=_checked_requests(model),
            outputs=encoding.outputs,
            show_text=encoding.show_text,
            seed=encoding.seed,
            max_model_len=encoding.max_model_len,
            trusts_lengths=options.trust_logged_lengths,
            lora_paths=encoding.lora_paths,
            ahead=ahead,
            progress=lambda done: progress("encoding", done, total),
            on_reject=rejects.request,
        )
    rejects.close(options.rejects)
    decode = encoder.vocabulary.decode if encoder is not None else None
    if is_large:
        del encoder, early, ahead
        give_back()
    return LoadedTrace(
        replace(trace, doubts=(*found.stats.doubts, *filter(None, [media_unsized(encoded.unsized_media)]))),
        _trace_info(found.stats, encoded, trace),
        _tokenizer_info(encoded),
        folder,
        decode,
        _caveats(encoded),
        tuple(encoded.identities),
    )


def _each_let_go(requests: list[Request]) -> Iterator[Request]:
    """The requests in their order, none of them held after its turn: their texts take more than their ids."""
    requests.reverse()
    while requests:
        if not len(requests) % _GIVEN_BACK_EVERY:
            give_back()
        yield requests.pop()


def selection_of(options: InputOptions, model: ModelOptions) -> Selection:
    """What the command line says of the log."""
    return Selection(
        only=parse_only(options.only or ()),
        isolate_by=options.isolate_by,
        time_field=options.time_field,
        body_field=options.body_field,
        order=options.order,
        model=model.model,
    )


class _EarlyEncoder:
    """The encoder, opened with the first text that is read where no request is needed to know the model: its vocabulary
    loads while the rest is read.

    `folder` is the model's as far as it is known, `encoder` None where it is not open.
    """

    def __init__(self, model: ModelOptions, how: Mapping[str, Any]) -> None:
        self._how = how
        self.folder: Path | None = None
        self.encoder: PromptEncoder | None = None
        self._is_known = model.model is not None or model.tokenizer is not None
        if model.model is not None:
            try:
                self.folder = find_model(model.model)
            except UnusableInputError:  # said where the model turns out to be needed
                self._is_known = False

    def offer(self, request: Request) -> None:
        """A request that was read."""
        if self._is_known and (request.messages is not None or request.text is not None):
            self._is_known = False  # once is enough
            with suppress(UnusableInputError):  # said where it is opened again
                self.encoder = open_prompt_encoder(model=self.folder, **self._how)
                self.encoder.load_meanwhile()


def _render_ahead(folder: Path | None, model: ModelOptions, how: Mapping[str, Any]) -> RenderAhead:
    """Lets the workers that stand by render what is read, where no request is needed to know the model."""
    workers = take_workers() if model.model is not None or model.tokenizer is not None else []
    if folder is None and model.model is not None:
        folder = Path(model.model)
    return RenderAhead(workers, partial(open_prompt_encoder, model=folder, **how, renders_only=True))


def _encoder_options(model: ModelOptions, options: InputOptions, encoding: Encoding) -> dict[str, Any]:
    """What `open_prompt_encoder` takes beside the folder. A template is read here, once: it may be a pipe."""
    return {
        "tokenizer": model.tokenizer,
        "chat_template": read_template(Path(model.chat_template)) if model.chat_template else None,
        "content_format": model.chat_template_content_format,
        "version": encoding.version,
        "workers": options.workers,
        "encoder": model.encoder,
        "trusts_requests": model.trust_request_chat_template,
        "template_kwargs": encoding.template_kwargs,
        "excludes_tools": encoding.excludes_tools,
    }


def _checked_requests(model: ModelOptions) -> int | None:
    """How many requests are encoded a second time; None: all."""
    asked = model.check_tokenizer
    if asked is None:
        return CHECKED_REQUESTS
    if asked == "all":
        return None
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        raise UnusableInputError(
            "is no number of requests",
            field="--check-tokenizer",
            found=repr(asked[:40]),
            wanted="a number or all",
        )
    return int(asked)


def _model_folder(requests: Iterable[Request], model: ModelOptions) -> Path | None:
    """The folder of `--model`; without it and without a tokenizer, of the model that the trace names."""
    if model.model is not None:
        return find_model(model.model)
    if model.tokenizer is not None:
        return None
    names = Counter(request.identity.model for request in requests)
    name = max(names, key=lambda one: names[one], default="")
    if not is_hub_id(name):
        raise UnusableInputError(
            "the trace holds text, and nothing says which model encodes it",
            found=f"the model name {name[:60]!r} in the trace",
            way_out=WAYS_OUT,
        )
    return find_model(name)


class _Rejects:
    """Lines and requests that are left out: the first few are shown, all are kept where the user wants them."""

    def __init__(self, kept: BinaryIO | None, *, quiet: bool) -> None:
        self._kept = kept
        self._quiet = quiet
        self._number = 0

    def line(self, rejection: Rejection) -> None:
        """A record that no request could be made of; kept as it stood, so that a mended file can be read."""
        self._show(str(rejection))
        if self._kept is not None:
            for piece in rejection.pieces:
                self._kept.write(piece)
            self._kept.write(b"\n")

    def request(self, request: Request, reason: str, error: UnusableInputError) -> None:
        """A request that could not be encoded; kept as a batch line."""
        self._show(f"{request.source}: {REASONS[reason]}: {error}")
        if self._kept is not None:
            self._kept.write(write_line(request) + b"\n")

    def close(self, path: str | None) -> None:
        """Say how many more there were."""
        if self._number > MOST_SHOWN:
            where = f"all of them are in {path}" if path else "--rejects FILE keeps them"
            note(f"and {self._number - MOST_SHOWN:,} more lines left out; {where}", quiet=self._quiet)

    def _show(self, text: str) -> None:
        self._number += 1
        if self._number <= MOST_SHOWN:
            note(f"{text}; left out", quiet=self._quiet)


def _trace_info(stats: TraceStats, encoded: EncodeInfo, trace: TokenTrace) -> TraceInfo:
    """What the report says of the trace, apart from its sessions, which the analysis finds."""
    rejected = Counter(stats.rejected_by) + Counter(encoded.rejected_by)
    answers = trace.output_tokens
    timed = not bool(np.isnan(trace.arrival).any())
    return TraceInfo(
        files=tuple(stats.files),
        sha256=stats.sha256,
        format=stats.format,
        requests=len(trace),
        rejected=rejected.total(),
        rejected_by=dict(sorted(rejected.items())),
        prompt_tokens=int(trace.prompt_tokens.sum()),
        output_tokens=int(answers.sum()) if answers is not None and bool((answers >= 0).all()) else None,
        duration_s=float(trace.arrival.max() - trace.arrival.min()) if timed else None,
        namespaces=int(trace.namespace.max()) + 1,
        servers=len({server for server in trace.servers or () if server is not None}),
        retokenised_outputs=trace.retokenised_outputs,
        notes=tuple(stats.notes),
    )


def _tokenizer_info(encoded: EncodeInfo) -> TokenizerInfo:
    return TokenizerInfo(
        kind=cast("TokenizerKind", encoded.kind),
        source=encoded.source,
        chat_template_sha256=encoded.chat_template_sha256,
        checked_requests=encoded.checked_requests,
    )


def _caveats(encoded: EncodeInfo) -> tuple[str, ...]:
    """What a reader of the recommendation should know of the encoding, one sentence each."""
    notes = []
    if encoded.double_bos:
        notes.append(
            f"{encoded.double_bos:,} prompts begin with two BOS tokens, as the engine would see them"
        )
    if encoded.logged_media:
        notes.append(
            f"Requests with images or other media: {encoded.logged_media:,} take the length that the logged prompt "
            "tokens leave for them."
        )
    if encoded.untimed_dates:
        notes.append(
            f"the chat template writes the date, and {encoded.untimed_dates:,} requests have no time: "
            "their date is not the one that was served"
        )
    return tuple(notes)
