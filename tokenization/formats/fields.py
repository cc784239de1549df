"""Fields that many logs share under several names: id, time, session, server, adapter, salt, answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvtune.tokenization.clock import Moment, moment
from kvtune.tokenization.formats.format import Place, Record
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
IDS = ("custom_id", "request_id", "id")
SESSIONS = ("conversation", "conversation_id", "session_id", "session", "chat_id", "thread_id")
SERVERS = ("api_base", "server", "worker_id", "replica", "backend", "instance_id")
TENANTS = ("tenant", "tenant_id")
_MOST_TOKENS = 1 << 32
_LORAS = ("lora_request", "lora", "lora_name", "lora_adapter")
_LORA_NAMES = ("lora_name", "name", "lora_int_id")
_LORA_PATHS = ("lora_path", "lora_local_path", "path")
_IDENTITY_FIELDS = frozenset({"lora_path", "cache_salt", *_LORAS, *TENANTS})
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


def server_of(record: Record, place: Place, names: Iterable[str] = SERVERS) -> str | None:
    """The replica that served the request: the user's `--by-field`, else a field known to name one."""
    if place.file.by_field is None:
        return name_in(record, names)
    for root in (record, record.get("body"), record.get("metadata")):
        name = text_of(dig(root, place.file.by_field))
        if name is not None:
            return name
    return None


def identity_of(body: Record, record: Record, place: Place, *, tenant: str | None = None) -> Identity:
    """Model, adapter, salt and tenant, from the request's body and from the record around it."""
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
        tenant = tenant or name_in(root, TENANTS)
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
