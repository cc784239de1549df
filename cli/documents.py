"""JSON documents of commands that have no other home: their structs, from which the schemas are made."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class FileDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One field in which the engine and this build disagree; `request` is None for a case as a whole."""

    file: str
    case: str
    request: int | None
    field: str
    wanted: Any
    found: Any


class FailedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case that the engine failed at, and the class of its error."""

    file: str
    case: str
    request: int
    type: str


class UnknownSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a case, as a path such as `config.scheduler`."""

    file: str
    case: str
    setting: str


class Conformance(msgspec.Struct, frozen=True, kw_only=True):
    """`kvtune.conform/1`: the vector files as given, how much was compared, and every difference.

    Attributes:
        engine_failures: cases that the engine ended with an error that is none of its checks; compared up to there.
        not_modelled: settings of cases that this build does not know; compared without them.
    """

    schema: Literal["kvtune.conform/1"] = "kvtune.conform/1"
    files: tuple[str, ...]
    cases: int
    requests: int
    differences: tuple[FileDifference, ...]
    engine_failures: tuple[FailedCase, ...] = ()
    not_modelled: tuple[UnknownSetting, ...] = ()


def encode_document(document: msgspec.Struct) -> bytes:
    """Any document of kvtune, indented, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
