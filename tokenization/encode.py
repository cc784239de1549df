"""Requests to a `TokenTrace`: renders, tokenizes, names, and keeps every prompt that can be kept.

One request that cannot be encoded is reported and left out; the rest goes on. Order is the caller's.
Rendering runs on this thread, as far as it was not done ahead; unknown text is encoded in batches on another, with
all workers, meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np

from kvtune.tokenization.encoding.block_rows import BlockRows
from kvtune.tokenization.encoding.families import FamilyNames
from kvtune.tokenization.encoding.prompt_encoder import CannotEncodeError, PromptEncoder
from kvtune.tokenization.encoding.render_ahead import RenderAhead
from kvtune.tokenization.encoding.rows import RowEncoder
from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.rejects import REASONS
from kvtune.tokenization.request import Identity, Request
from kvtune.tokenization.tokenizers.pieces import SurrogateError
from kvtune.tokenization.trace import Int64, OnePart, TokenTrace

OnReject = Callable[[Request, str, UnusableInputError], None]
"""Told of each request that is left out: the request, a reason of `rejects.REASONS`, the error."""

CHECKED_REQUESTS = 4
"""Requests that are always encoded a second time as whole texts, and compared."""

_PROGRESS_EVERY = 256


@dataclass
class EncodeInfo:
    """What is known of the encoding beside the trace; what the report's `tokenizer` holds.

    Attributes:
        kind: "hf", "tiktoken", "ids" or "blocks". source: file, name, or "the trace itself".
        chat_template_sha256: of the template of the first chat; None without chats.
        checked_requests: how many were encoded whole and gave the same ids.
        why_whole: why texts were not cut into pieces, None where they were.
        double_bos: prompts that begin with two BOS tokens, as the engine would see them.
        unsized_media: prompts with media of unknown length, which count as one token each. logged_media: prompts whose
            media got what the logged length leaves for them.
        untimed_dates: chats whose template asked for the date while the request has no time.
        rejected_by: reason -> requests left out.
        identities: whose each namespace is.
    """

    kind: str = "ids"
    source: str = "the trace itself"
    chat_template_sha256: str | None = None
    checked_requests: int = 0
    why_whole: str | None = None
    double_bos: int = 0
    untimed_dates: int = 0
    unsized_media: int = 0
    logged_media: int = 0
    rejected_by: dict[str, int] = field(default_factory=dict)
    identities: list[Identity] = field(default_factory=list)


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Spare the garbage collector the requests: they stay, and rendering makes it look again and again."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@_frozen_heap()
def encode_trace(
    requests: Iterable[Request],
    encoder: PromptEncoder | None,
    *,
    check: int | None = CHECKED_REQUESTS,
    outputs: bool = False,
    show_text: bool = False,
    seed: int = 0,
    max_model_len: int | None = None,
    trusts_lengths: bool = False,
    lora_paths: bool = True,
    ahead: RenderAhead | None = None,
    progress: Callable[[int], None] = lambda _done: None,
    on_reject: OnReject = lambda _request, _reason, _error: None,
) -> tuple[TokenTrace, EncodeInfo]:
    """Encode requests that are in replay order.

    Args:
        encoder: None where the trace holds ids or block hashes only.
        check: how many requests, drawn with `seed`, are encoded whole and compared; None: all.
        outputs: also give ids to the logged answers.
        show_text: whether family names may quote the first system line.
        max_model_len: the server's longest sequence, in tokens: it refuses prompts that leave no room in it for an
            answer, so that they never meet its cache.
        trusts_lengths: logged prompt lengths decide how long media are, also where the model's processor is known.
        lora_paths: an adapter's path is part of the engine's key, beside its name.
        ahead: renders what it was offered of these requests, with the same templates.
        progress: called with the number of requests rendered, now and then.

    Raises:
        UnusableInputError: a request holds text and there is no encoder, or no template for its chats.
        NoUsableRequestError: nothing is left.
    """
    info = EncodeInfo()
    families = FamilyNames(show_text=show_text)
    rows = RowEncoder(
        encoder, outputs=outputs, check=check, seed=seed, ahead=ahead, trusts_lengths=trusts_lengths
    )
    blocks = BlockRows()
    namespaces: dict[Identity, int] = {}
    kept = _Kept()
    sources: list[Request] = []
    for number, request in enumerate(requests):
        if not number % _PROGRESS_EVERY:
            progress(number)
        refused = _add(request, rows, blocks, kept)
        if refused is not None:
            reason, error = refused
            info.rejected_by[reason] = info.rejected_by.get(reason, 0) + 1
            on_reject(request, reason, error)
            continue
        tools = encoder.tool_set(request) if encoder is not None else None
        identity = request.identity
        if not lora_paths and identity.lora is not None:
            identity = msgspec.structs.replace(identity, lora_path=None)
        namespace = namespaces.setdefault(identity, len(namespaces))
        if max_model_len is not None:
            sources.append(request)
        kept.add(request, namespace, families.of(request, tools), tools.unordered if tools else None)
    info.identities = list(namespaces)
    info.checked_requests = rows.finish()
    if not kept.ids:
        raise _nothing_left(info)
    _describe(info, rows, blocks, encoder, kept)
    trace = _trace(rows, blocks, kept)
    if max_model_len is not None and int(trace.prompt_tokens.max()) >= max_model_len:
        trace = _without_long(trace, max_model_len, sources, info, on_reject)
    return trace, info


def _without_long(
    trace: TokenTrace, max_model_len: int, sources: Sequence[Request], info: EncodeInfo, on_reject: OnReject
) -> TokenTrace:
    """The trace without the prompts that the server refuses (`v1/engine/input_processor: _validate_prompt_len`)."""
    long = trace.prompt_tokens >= max_model_len
    for index in np.flatnonzero(long).tolist():
        info.rejected_by["too_long"] = info.rejected_by.get("too_long", 0) + 1
        error = UnusableInputError(
            "the prompt leaves no room for an answer",
            field="--max-model-len",
            found=f"{int(trace.prompt_tokens[index]):,} tokens",
            wanted=f"at most {max_model_len - 1:,}",
        )
        on_reject(sources[index], "too_long", error)
    if long.all():
        raise _nothing_left(info)
    selected = trace.select(~long)
    info.identities = [info.identities[number] for number in np.unique(trace.namespace[~long]).tolist()]
    return selected


def _nothing_left(info: EncodeInfo) -> NoUsableRequestError:
    return NoUsableRequestError(
        "no request of the trace could be encoded",
        found=", ".join(f"{count} {REASONS[reason]}" for reason, count in info.rejected_by.items()),
        wanted="at least one prompt",
    )


@dataclass
class _Kept:
    """One entry per request of the trace."""

    ids: list[str] = field(default_factory=list)
    arrival: list[float] = field(default_factory=list)
    namespace: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    logged_prompt_tokens: list[int] = field(default_factory=list)
    logged_cached_tokens: list[int] = field(default_factory=list)
    sessions: list[str | None] = field(default_factory=list)
    servers: list[str | None] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    tool_sets: list[str | None] = field(default_factory=list)
    has_text: bool = False

    def add(self, request: Request, namespace: int, family: str, tool_set: str | None) -> None:
        self.ids.append(request.id)
        self.arrival.append(np.nan if request.arrival is None else request.arrival)
        self.namespace.append(namespace)
        self.output_tokens.append(-1 if request.output_tokens is None else request.output_tokens)
        self.logged_prompt_tokens.append(-1 if request.prompt_tokens is None else request.prompt_tokens)
        self.logged_cached_tokens.append(-1 if request.cached_tokens is None else request.cached_tokens)
        self.sessions.append(request.session)
        self.servers.append(request.server)
        self.families.append(family)
        self.tool_sets.append(tool_set)
        self.has_text = self.has_text or request.messages is not None or request.text is not None


def _add(
    request: Request, rows: RowEncoder, blocks: BlockRows, kept: _Kept
) -> tuple[str, UnusableInputError] | None:
    """Give the request to where it belongs; why it cannot be part of the trace, if so."""
    is_blocks = request.block_hashes is not None
    if kept.ids and is_blocks != bool(blocks.lengths):
        return "wrong_type", UnusableInputError(
            "block hashes and other prompts in one trace cannot be compared",
            found="block hashes" if is_blocks else "text or token ids",
            wanted="block hashes" if blocks.lengths else "text or token ids",
            way_out="analyze them apart",
        )
    try:
        if is_blocks:
            blocks.add(request)
        elif not rows.add(request):
            return "empty_prompt", UnusableInputError("an empty prompt", wanted="at least one token")
    except CannotEncodeError:
        raise
    except SurrogateError as error:
        return "lone_surrogate", error
    except UnusableInputError as error:
        return ("inconsistent_blocks" if is_blocks else "template_refused"), error
    return None


def _describe(
    info: EncodeInfo, rows: RowEncoder, blocks: BlockRows, encoder: PromptEncoder | None, kept: _Kept
) -> None:
    info.double_bos = rows.double_bos
    info.unsized_media, info.logged_media = rows.unsized_media, sum(rows.logged_lengths)
    if blocks.lengths:
        info.kind = "blocks"
    elif encoder is not None and kept.has_text:
        vocabulary = encoder.vocabulary
        info.kind, info.source = vocabulary.kind, vocabulary.source
        info.why_whole = vocabulary.cuts.why_whole
        info.untimed_dates = encoder.untimed_dates
        if encoder.rendered_with is not None:
            info.chat_template_sha256 = encoder.rendered_with.sha256


def _trace(rows: RowEncoder, blocks: BlockRows, kept: _Kept) -> TokenTrace:
    is_blocks = bool(blocks.lengths)
    tokens, offsets = (blocks.rows if is_blocks else rows.tokens).arrays()
    outputs, output_offsets = rows.outputs.arrays()
    answers = np.diff(output_offsets) if len(outputs) else None
    output_tokens = np.array(kept.output_tokens, dtype=np.int64)
    if answers is not None:
        output_tokens = np.where((output_tokens < 0) & (answers > 0), answers, output_tokens)
    return TokenTrace(
        tokens=tokens,
        offsets=offsets,
        prompt_tokens=np.array(blocks.lengths, dtype=np.int64) if is_blocks else np.diff(offsets),
        arrival=np.array(kept.arrival, dtype=np.float64),
        namespace=np.array(kept.namespace, dtype=np.int32),
        ids=kept.ids,
        span=blocks.span if is_blocks else 1,
        output_tokens=output_tokens if (output_tokens >= 0).any() else None,
        outputs=outputs if answers is not None else None,
        output_offsets=output_offsets if answers is not None else None,
        logged_prompt_tokens=None if is_blocks else _where_logged(kept.logged_prompt_tokens),
        logged_cached_tokens=_where_logged(kept.logged_cached_tokens),
        media_items=np.array(rows.media_items, dtype=np.int64) if any(rows.media_items) else None,
        trusted_lengths=np.array(rows.logged_lengths) if any(rows.logged_lengths) else None,
        retokenised_outputs=rows.retokenised,
        sessions=kept.sessions if any(session is not None for session in kept.sessions) else None,
        servers=kept.servers if any(server is not None for server in kept.servers) else None,
        families=kept.families,
        tool_sets=kept.tool_sets if any(tools is not None for tools in kept.tool_sets) else None,
        parts=OnePart() if is_blocks else rows.parts,
    )


def _where_logged(counts: list[int]) -> Int64 | None:
    array = np.array(counts, dtype=np.int64)
    return array if (array >= 0).any() else None
