"""Fields that many logs share under several names: id, time, session, server, adapter, salt, answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from kvtune.tokenization.clock import Moment, moment
from kvtune.tokenization.containers.item import SHIPPED_AT, WRAPPER
from kvtune.tokenization.formats.format import Place, Record
from kvtune.tokenization.formats.nested import as_json
from kvtune.tokenization.rejects import RecordError, describe
from kvtune.tokenization.request import Identity

TIMES = (
    "timestamp",
    "arrival_time",
    "arrival",
    "start_time",
    "startTime",
    "created_at",
    "created",
    "time",
    "ts",
)
MORE_TIMES = (
    "request_time",
    "requestTime",
    "requestTimestamp",
    "request_timestamp",
    "request_created_at",
    "requestCreatedAt",
    "createdAt",
    "createTime",
    "@timestamp",
    "_time",
    "TimeGenerated",
    "eventTime",
    "EventTime",
    "event_time",
    "inferenceTime",
    "logging_time",
    "loggingTime",
    "time_iso8601",
    "time_local",
    "startedAt",
    "started_at",
    "startedDateTime",
    "start",
    "date",
    "datetime",
    "Timestamp",
    "Time",
    "msec",
    "timestamp_ms",
    "logged_at",
    "received_at",
    "ingested_at",
    "_timestamp",
    "asctime",
    SHIPPED_AT,
)
"""Further names of the time of arrival, tried where none of a format's own is there; what is no time is passed over."""
IDS = ("custom_id", "request_id", "id")
SESSIONS = ("conversation", "conversation_id", "session_id", "session", "chat_id", "thread_id")
SERVERS = ("api_base", "server", "worker_id", "replica", "backend", "instance_id")
_MOST_TOKENS = 1 << 32
_LORAS = ("lora_request", "lora", "lora_name", "lora_adapter")
_LORA_NAMES = ("lora_name", "name", "lora_int_id")
_LORA_PATHS = ("lora_path", "lora_local_path", "path")
_IDENTITY_FIELDS = frozenset({"lora_path", "cache_salt", *_LORAS})
_INNER = ("body", "request", "metadata", "attributes", "response", WRAPPER)
OUTPUT_LENGTHS = ("output_tokens", "output_length", "completion_tokens")


def first(record: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Any]:
    """The first of these fields that is there and not null, with its name; ("", None) if none is."""
    for name in names:
        value = record.get(name)
        if value is not None:
            return name, value
    return "", None


def dig(record: Any, path: str) -> Any:
    """The value at a dotted path through objects and lists, None where there is none."""
    value = record
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


def text_of(value: Any) -> str | None:
    """A name as text: strings and whole numbers; anything else is no name."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def name_in(record: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """The first of these fields that holds a name."""
    for name in names:
        value = record.get(name)
        if value is not None:
            text = text_of(value)
            if text is not None:
                return text
    return None


def time_of(record: Record, names: Iterable[str] = TIMES, unit: str | None = None) -> Moment | None:
    """When the request arrived, by the first field of these that is not null."""
    name, value = first(record, names)
    return moment(value, name, unit) if name else None


def any_time(record: Record) -> Moment | None:
    """When the request arrived, by the first field of any usual name that holds a time."""
    for roots in (record, *(record.get(name) for name in _INNER)):
        if not isinstance(roots, dict):
            continue
        for name in (*TIMES, *MORE_TIMES):
            value = roots.get(name)
            if value is not None and _looks_like_time(value):
                return moment(value, name)
    return None


def usual_time(record: Record) -> Any:
    """The value of the first field of any usual name that holds a time, None where there is none."""
    names = (*TIMES, *MORE_TIMES)
    return next((record[name] for name in names if name in record and _looks_like_time(record[name])), None)


def unused_time(record: Record) -> str | None:
    """The name of a field that looks like a time and has no usual name, None where there is none."""
    for prefix, held in (("", record), *((f"{name}.", record.get(name)) for name in _INNER)):
        if isinstance(held, dict):
            for name, value in held.items():
                if _TIME_NAME.search(name) and name.isidentifier() and _looks_like_time(value):
                    return prefix + name
    return None


_TIME_NAME = re.compile(r"time|date|stamp|created|start|arriv|_at$|At$|when|\bts", re.IGNORECASE)
_EPOCHS = ((1e9, 4e9), (1e12, 4e12), (1e15, 4e15), (1e18, 4e18))  # 2001 to 2096 in s, ms, us and ns


def _looks_like_time(value: Any) -> bool:
    if isinstance(value, str) and not value.strip().replace(".", "").isdecimal():
        try:
            return moment(value, "") is not None
        except RecordError:
            return False
    if isinstance(value, datetime):
        return True
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        return False
    return any(least <= number < most for least, most in _EPOCHS)


def field_value(record: Record, path: str) -> Any:
    """The value of a field that the user named by its dotted path: of the record, or of what usually stands in one."""
    found = dig(record, path)
    if found is None:
        found = record.get(path)  # a name with dots in it
    for name in _INNER:
        if found is not None:
            break
        held = as_json(record.get(name))
        if isinstance(held, dict):
            found = dig(held, path)
            found = held.get(path) if found is None else found
    return found


def server_of(record: Record, place: Place, names: Iterable[str] = SERVERS) -> str | None:
    """The replica that served the request: the user's `--by-field`, else a field known to name one."""
    if place.file.by_field is None:
        return name_in(record, names)
    return text_of(field_value(record, place.file.by_field))


def identity_of(body: Record, record: Record, place: Place) -> Identity:
    """Model, adapter and salt, from the request's body and from the record around it.

    Teams, users and tenants share a cache: what keeps them apart is their salt, or the user's `--isolate-by`.
    """
    tenant: str | None = None
    if place.file.isolate_by is not None:
        tenant = text_of(field_value(record, place.file.isolate_by))
        if tenant is None:
            tenant = text_of(field_value(body, place.file.isolate_by))
    lora: str | None = None
    lora_path: str | None = None
    salt: str | None = None
    for root in (body, record):
        if _IDENTITY_FIELDS.isdisjoint(root):
            continue
        for field in _LORAS:  # a name, or an object that holds it
            adapter = root.get(field)
            if isinstance(adapter, dict):
                lora = lora or name_in(adapter, _LORA_NAMES)
                lora_path = lora_path or name_in(adapter, _LORA_PATHS)
            else:
                lora = lora or text_of(adapter)
        lora_path = lora_path or name_in(root, ("lora_path",))
        salt = salt or name_in(root, ("cache_salt",))
    model = text_of(body.get("model") or record.get("model")) or ""
    return place.file.shared(Identity(model, lora, lora_path, salt, tenant))


def whole_number(record: Mapping[str, Any], names: Iterable[str], *, least: int = 0) -> int | None:
    """A count of tokens or the like; None where absent; raises `RecordError` where it is no whole number."""
    name, value = first(record, names)
    if not name:
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise RecordError("not_a_number", name, found=describe(value), wanted="a whole number") from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        reason = "not_a_number" if isinstance(value, float) else "wrong_type"
        raise RecordError(reason, name, found=describe(value), wanted="a whole number")
    if not least <= value <= _MOST_TOKENS:
        wanted = f"a whole number from {least} to {_MOST_TOKENS}"
        raise RecordError("not_a_number", name, found=describe(value), wanted=wanted)
    return value
