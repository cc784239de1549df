"""What a trace format is: a name, how its records are recognised, and a function from record to requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvtune.tokenization.clock import Moment
from kvtune.tokenization.rejects import RecordError
from kvtune.tokenization.request import Identity, Request

Record = dict[str, Any]


class Draft(NamedTuple):
    """A request whose arrival is still as the log wrote it; `stream`: whether the answer was to be streamed."""

    request: Request
    time: Moment | None = None
    stream: bool | None = None


@dataclass
class FileState:
    """What readers may remember while one file is read.

    Attributes:
        name: the file as given.
        by_field: the field whose value names the server, where the user asked for one.
        isolate_by: the field whose values share nothing, where the user asked for one.
        notes: sentence -> how many records it is about; they become caveats.
        memory: a format's own notes from record to record, under its name.
    """

    name: str
    by_field: str | None = None
    isolate_by: str | None = None
    notes: dict[str, int] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    _identities: dict[Identity, Identity] = field(default_factory=dict)

    def note(self, sentence: str, records: int = 1) -> None:
        """Counts records that a caveat is about."""
        self.notes[sentence] = self.notes.get(sentence, 0) + records

    def shared(self, identity: Identity) -> Identity:
        """The one object of all equal identities."""
        return self._identities.setdefault(identity, identity)


class Place(NamedTuple):
    """Where a record stands: "file:line", and what is remembered of the file."""

    where: str
    file: FileState


class Lost(NamedTuple):
    """What turns out to be unusable only when the whole file is read; `request`: one that was taken for good.

    `error` None: the request is left out, and a note of the file says why.
    """

    where: str
    error: RecordError | None
    request: Request | None = None


Finish = Callable[[FileState, list[Request]], Iterable[Lost]]
Reader = Callable[[Record, Place], Iterable[Draft]]


@dataclass(frozen=True)
class Format:
    """One way in which traces are written.

    Attributes:
        name: for `--format`.
        about: what writes it.
        recognised_by: in words, for `kvtune formats`.
        example: one short record.
        recognises: whether a record is of this format; formats are asked in the registry's order.
        read: the record's requests; raises `RecordError` and nothing else. None: the format says nothing about
            prefixes and its records are refused.
        finish: called once after a file with requests of this format or memories of it: may fill in what needs
            the whole file (sessions from parents), and names what is lost.
    """

    name: str
    about: str
    recognised_by: str
    example: str
    recognises: Callable[[Record], bool]
    read: Reader | None
    finish: Finish | None = None
