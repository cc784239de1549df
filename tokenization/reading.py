"""A whole trace: files to requests in replay order, and an account of all that was and was not used.

Files are read one after another and line by line; what cannot be used is rejected by name and the rest goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import BinaryIO

import msgspec

from kvtune.tokenization.clock import Moment, moment
from kvtune.tokenization.containers import Item, records_of
from kvtune.tokenization.continuations import PER_CALL_IDS, name_conversations
from kvtune.tokenization.doubts import Doubt, prompts_cut, tools_lost
from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.formats import FORMATS, format_named, recognise
from kvtune.tokenization.formats.cut_prompts import find_cut
from kvtune.tokenization.formats.fields import any_time, field_value, unused_time
from kvtune.tokenization.formats.format import Draft, FileState, Format, Place, Record
from kvtune.tokenization.formats.openai_batch import write_line
from kvtune.tokenization.formats.outcome import CANCELLED, LOGGED_TWICE, outcome
from kvtune.tokenization.formats.refused import refusal
from kvtune.tokenization.formats.spans import single_spans
from kvtune.tokenization.ordering import (
    count_reordered,
    in_replay_order,
    number_duplicates,
    oldest_first,
    settle_times,
)
from kvtune.tokenization.paths import files_of
from kvtune.tokenization.rejects import REASONS, OnReject, RecordError, Rejection
from kvtune.tokenization.request import Request
from kvtune.tokenization.selection import NOT_SELECTED, Selection, of_one_model
from kvtune.tokenization.sources import Progress, Source, combined_digest
from kvtune.tokenization.stream_pairs import StreamPairs, logged_twice
from kvtune.tokenization.strict_json import StrictDecoder
from kvtune.tokenization.unwrapping import PASSED_OVER, Unwrapper, body_path

MAX_LINE_BYTES = 256 << 20
_LONGEST_NAME = 32
_A_DATE = 1e8  # seconds: more than three years is no time since a trace's start
_ENOUGH_LENGTHS = 1000  # records of lengths at a file's beginning; then no prompt will come

_REPEATED = "Requests that were sent twice, streaming and not, as a logging proxy can cause: counted once"
_UNIT_NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass
class TraceStats:
    """What is known of a trace beside its requests.

    Attributes:
        files: names as given.
        sha256: over the raw bytes: the file's own for one file, else over the files' digests in order.
        formats: name of each format that gave requests -> how many.
        rejected_by: reason (see `rejects.REASONS`) -> rejected records.
        reordered: requests that stood in their file after one that arrived later.
        duplicate_ids: requests whose id was taken; they got a number.
        duplicate_keys: JSON keys that lost to a later one of the same name.
        timestamp_units: file -> unit of its numbers ("s", "ms", "us", "ns"), "ISO 8601", or None without times.
        notes: caveats, each one sentence.
        doubts: what the log is known to have lost.
        bytes_read: raw bytes of all files.
    """

    files: list[str] = field(default_factory=list)
    sha256: str = ""
    formats: dict[str, int] = field(default_factory=dict)
    rejected_by: dict[str, int] = field(default_factory=dict)
    reordered: int = 0
    duplicate_ids: int = 0
    duplicate_keys: int = 0
    timestamp_units: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def rejected(self) -> int:
        """How many records were rejected."""
        return sum(self.rejected_by.values())

    @property
    def format(self) -> str:
        """The formats' names, most requests first, joined by "+"."""
        return "+".join(sorted(self.formats, key=lambda name: (-self.formats[name], name)))


@dataclass(frozen=True)
class ReadResult:
    """Requests in replay order, and the account."""

    requests: list[Request]
    stats: TraceStats


def read_trace(
    paths: Sequence[str],
    *,
    format: str = "auto",
    max_line_bytes: int = MAX_LINE_BYTES,
    by_field: str | None = None,
    selection: Selection | None = None,
    on_reject: OnReject | None = None,
    on_request: Callable[[Request], None] | None = None,
    progress: Progress | None = None,
    stdin: BinaryIO | None = None,
) -> ReadResult:
    """Reads trace files ("-" is stdin) of any known format.

    Args:
        paths: in argument order, which decides where times do not.
        format: a name of `kvtune.tokenization.formats`, or "auto": each record by its own look.
        max_line_bytes: longer lines are rejected unread.
        by_field: dotted path of the field that names a request's server.
        selection: what the user says of the log; None: nothing.
        on_reject: called for each rejected record, in file order.
        on_request: called for each request as it is read: before its time is settled, and before a format's last
            word on it.
        progress: called with raw bytes read and the size of the file that is being read.
        stdin: read in place of the process's own.

    Raises:
        UnusableInputError: a file that cannot be opened or is no text, or a format or field that is not there.
        NoUsableRequestError: nothing in the files says anything about prefixes.
    """
    reader = _TraceReader(
        format_named(format), max_line_bytes, by_field, selection or Selection(), on_reject, on_request
    )
    for name in paths:
        reader.read_file(name, [Source(one, stdin=stdin, progress=progress) for one in files_of(name)])
    return reader.result()


class _TraceReader:
    def __init__(
        self,
        wanted: Format | None,
        max_line_bytes: int,
        by_field: str | None,
        selection: Selection,
        on_reject: OnReject | None,
        on_request: Callable[[Request], None] | None,
    ) -> None:
        self._wanted = wanted
        self._limit = max_line_bytes
        self._by_field = by_field
        self._selection = selection
        self._has_time_field = False
        self._on_reject = on_reject
        self._on_request = on_request
        self._decoder = StrictDecoder()
        self._digests: list[bytes] = []
        self._files: list[list[Request]] = []
        self._notes: dict[str, int] = {}
        self._hints: Counter[tuple[str, str | None]] = Counter()
        self._sentences: list[str] = []
        self._stats = TraceStats()

    def read_file(self, name: str, sources: Sequence[Source]) -> None:
        """Reads one file, or the files of one folder as one, to the end or to where it breaks."""
        state = FileState(name, self._by_field, self._selection.isolate_by)
        pairs = StreamPairs()
        requests: list[Request] = []
        times: list[Moment | None] = []
        formats: list[str] = []
        unused: Counter[str] = Counter()
        unwrapper = Unwrapper(self._limit, self._selection.body_field)
        found = chain.from_iterable(records_of(one, self._decoder, self._limit) for one in sources)
        items = _apart(unwrapper.items(found))
        for where, value, pieces in self._past_lengths(name, items):
            try:
                if isinstance(value, RecordError):
                    raise value
                said = outcome(value)
                if said is not None:
                    state.note(said)
                    if said != CANCELLED:
                        continue
                if not self._selection.selects(value):
                    state.note(NOT_SELECTED)
                    continue
                known, drafts = self._read_record(value, Place(where, state))
                drafts = self._timed(value, drafts, unused)
                for draft in drafts:
                    if pairs.is_repeat(draft):
                        state.note(_REPEATED)
                    else:
                        requests.append(draft.request)
                        times.append(draft.time)
                        formats.append(known.name)
                        if self._on_request is not None:
                            self._on_request(draft.request)
            except RecordError as error:
                self._hints[error.found, error.hint] += 1
                self._reject(error.at(where, pieces))
        if unwrapper.passed_over:
            state.note(PASSED_OVER, unwrapper.passed_over)
        self._stats.files.append(name)
        self._stats.timestamp_units[name] = settle_times(requests, times)
        requests = self._finish(state, requests, formats)
        requests, said_of_order = oldest_first(name, requests, self._selection.order, unused)
        self._sentences += said_of_order
        self._stats.reordered += count_reordered(requests)
        self._files.append(requests)
        self._digests += [one.whole_digest() for one in sources]
        self._stats.bytes_read += sum(one.bytes_read for one in sources)
        for sentence, records in state.notes.items():
            self._notes[sentence] = self._notes.get(sentence, 0) + records

    def _timed(self, record: Record, drafts: list[Draft], unused: Counter[str]) -> list[Draft]:
        """The drafts with the time that the user's field gives, or any usual one where the format knew none."""
        if self._selection.time_field is not None:
            value = field_value(record, self._selection.time_field)
            time = moment(value, self._selection.time_field)
            self._has_time_field = self._has_time_field or time is not None
            return [draft._replace(time=time) for draft in drafts]
        if not drafts or all(draft.time is not None for draft in drafts):
            return drafts
        time = any_time(record)
        if time is None:
            name = unused_time(record)
            unused[name or ""] += 1
        return [draft if draft.time is not None else draft._replace(time=time) for draft in drafts]

    def _past_lengths(self, name: str, items: Iterator[Item]) -> Iterator[Item]:
        """The same items; raises `NoUsableRequestError` where a file begins with nothing but lengths.

        Such a file is refused in one line and not a record at a time.
        """
        held: list[Item] = []
        for item in items:
            known = None if isinstance(item.value, RecordError) else self._wanted or recognise(item.value)
            if known is None or known.read is not None:
                yield from held
                yield item
                yield from items
                return
            held.append(item)
            if len(held) == _ENOUGH_LENGTHS:
                break
        if held:
            raise _lengths_only(name, len(held))

    def _read_record(self, record: Record, place: Place) -> tuple[Format, list[Draft]]:
        """A record's format and all of its requests, or none: one that is bad in part is rejected whole."""
        refused = None if self._wanted else refusal(record)
        if refused is not None:
            raise RecordError(
                refused.reason, refused.field, found=refused.what, wanted=refused.lacks, hint=refused.hint
            )
        known = self._wanted or recognise(record)
        if known is None:
            raise _unknown(record)
        if self._wanted and not known.recognises(record):
            raise RecordError(
                "wrong_format", None, found=_shape(record), wanted=f"{known.name}: {known.recognised_by}"
            )
        if known.read is None:
            raise RecordError(
                "lengths_only", None, found=_shape(record), wanted="prompts, token ids or block hashes"
            )
        drafts = list(known.read(record, place))
        self._stats.formats.setdefault(known.name, 0)
        return known, drafts

    def _finish(self, state: FileState, requests: list[Request], formats: list[str]) -> list[Request]:
        """Lets each format of the file have its last word; gives the requests that remain."""
        lost: set[int] = set()
        for known in FORMATS:
            if known.finish is None or known.name not in self._stats.formats:
                continue
            for where, error, request in known.finish(state, requests):
                if error is not None:
                    self._hints[error.found, error.hint] += 1
                    self._reject(error.at(where, () if request is None else (write_line(request),)))
                if request is not None:
                    lost.add(id(request))
        kept = [request for request in requests if id(request) not in lost] if lost else requests
        for request in logged_twice(kept):
            state.note(LOGGED_TWICE)
            lost.add(id(request))
        for where, error, request in find_cut(kept):
            if error is not None and request is not None and id(request) not in lost:
                self._reject(error.at(where, (write_line(request),)))
                lost.add(id(request))
        for request, name in zip(requests, formats, strict=True):
            self._stats.formats[name] += id(request) not in lost
        return [request for request in requests if id(request) not in lost] if lost else requests

    def _reject(self, rejection: Rejection) -> None:
        counts = self._stats.rejected_by
        counts[rejection.reason] = counts.get(rejection.reason, 0) + 1
        if self._on_reject:
            self._on_reject(rejection)

    def result(self) -> ReadResult:
        """Everything in replay order; raises `NoUsableRequestError` where there is nothing."""
        stats = self._stats
        self._files, said = of_one_model(self._files, self._selection)
        self._sentences += said
        requests = in_replay_order(self._files)
        if not requests:
            raise _nothing_usable(stats, self._notes, self._hints)
        _require_one_kind(requests)
        if self._selection.time_field and not self._has_time_field:
            raise UnusableInputError(
                "no record has this field",
                field="--time-field",
                found=self._selection.time_field,
                wanted="a field of the trace",
            )
        if self._by_field and not any(request.server for request in requests):
            raise UnusableInputError(
                "no request has this field",
                field="--by-field",
                found=self._by_field,
                wanted="a field of the trace",
            )
        stats.formats = {name: count for name, count in stats.formats.items() if count}
        stats.sha256 = combined_digest(self._digests)
        stats.duplicate_ids = number_duplicates(requests)
        stats.duplicate_keys = self._decoder.duplicate_keys
        dropped = name_conversations(requests)
        if dropped:
            self._notes[PER_CALL_IDS] = dropped
        stats.notes = _caveats(stats, self._files, self._notes) + self._sentences
        found = (
            tools_lost(requests, stats.format),
            prompts_cut(stats.rejected_by.get("truncated_prompt", 0), len(requests)),
        )
        stats.doubts += (doubt for doubt in found if doubt is not None)
        return ReadResult(requests, stats)


def _apart(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, a batch of spans as a record each."""
    for item in items:
        singles = [] if isinstance(item.value, RecordError) else single_spans(item.value)
        if len(singles) < 2:
            yield item
            continue
        for number, single in enumerate(singles):
            where = f"{item.where}/{number}" if number else item.where
            yield Item(where, single, _encoded(single))


def _encoded(record: Record) -> Iterator[bytes]:
    """A record as a line, written only if somebody asks."""
    yield msgspec.json.encode(record)


def _require_one_kind(requests: Sequence[Request]) -> None:
    """Raises `UnusableInputError` where prompts cannot be compared: hashes beside text, or of different blocks."""
    sizes = Counter(request.hash_block_size for request in requests)
    if len(sizes) > 1:
        found = ", ".join(
            f"{count} of text or ids" if size is None else f"{count} of {size}-token blocks"
            for size, count in sizes.most_common()
        )
        raise UnusableInputError(
            "the trace mixes kinds of prompts that cannot be compared",
            where=requests[0].source,
            found=found,
            wanted="text and ids, or block hashes of one size",
            way_out="analyze the kinds one by one",
        )


def _shape(record: Record) -> str:
    """A record by its field names, which are not content."""
    names = [name for name in record if name.isidentifier() and len(name) <= _LONGEST_NAME][:6]
    return f"fields {', '.join(names)}" if names else "an object without known fields"


def _lengths_only(name: str, records: int) -> NoUsableRequestError:
    return NoUsableRequestError(
        "the trace has lengths only, which say nothing about prefixes",
        where=name,
        found=f"{records} records of lengths and nothing else",
        wanted="prompts, token ids or block hashes",
        way_out="log the requests themselves (docs/getting-a-trace.md)",
    )


def _unknown(record: Record) -> RecordError:
    path = body_path(record)
    wanted = "a format that kvtune formats lists"
    if path is None:
        return RecordError("unknown_format", None, found=_shape(record), wanted=wanted)
    hint = f"looks like a request body at {path}: --body-field {path}"
    return RecordError("unknown_format", None, found=_shape(record), wanted=f"{wanted}; {hint}", hint=hint)


def _nothing_usable(
    stats: TraceStats, notes: Mapping[str, int], hints: Counter[tuple[str, str | None]]
) -> NoUsableRequestError:
    """Says what the file is where its records tell, else what was wrong with them."""
    (what, hint), count = max(hints.items(), key=lambda one: one[1], default=(("", None), 0))
    reasons = [f"{REASONS[reason]}: {count}" for reason, count in sorted(stats.rejected_by.items())]
    if hint is not None and count >= stats.rejected / 2:
        reasons.insert(0, f"{what}: {count} of {stats.rejected} records")
    counts = ", ".join([*reasons, *(f"{sentence}: {count}" for sentence, count in notes.items())])
    return NoUsableRequestError(
        "no usable request in the trace",
        where=", ".join(stats.files),
        found=counts
        or (
            "an empty file"
            if stats.bytes_read == 0
            else "an empty file but for blanks, or a log without requests"
        ),
        wanted="records of a known format",
        way_out=hint or "kvtune formats lists them; docs/getting-a-trace.md shows how to get one",
    )


def _caveats(stats: TraceStats, files: Sequence[Sequence[Request]], notes: dict[str, int]) -> list[str]:
    sentences = [f"{sentence} ({count} records)." for sentence, count in notes.items()]
    for name, unit in stats.timestamp_units.items():
        if unit not in (None, "ISO 8601"):
            sentences.append(f"Times in {name} are read as {_UNIT_NAMES[str(unit)]}.")
    timed = [any(request.arrival is not None for request in file) for file in files if file]
    if any(timed) and not all(timed):
        sentences.append("Some files have no times: the files follow one another in argument order.")
    starts = [next((one.arrival for one in file if one.arrival is not None), None) for file in files]
    if len({start < _A_DATE for start in starts if start is not None}) > 1:
        sentences.append(
            "Some files have dates and some count from their start: their order is not to be trusted."
        )
    return sentences
