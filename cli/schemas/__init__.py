"""The JSON Schemas of kvtune's documents: generated from the structs that are encoded, shipped beside this file.

`python -m kvtune.cli.schemas` writes them anew; a test fails where a shipped file and its structs differ.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent

DOCUMENTS = {
    "kvtune.report/1": ("kvtune.analyzers.report", "Report"),
    "kvtune.compare/1": ("kvtune.analyzers.compare", "Comparison"),
    "kvtune.explain/1": ("kvtune.analyzers.explanation", "Explanation"),
    "kvtune.conform/1": ("kvtune.cli.documents", "Conformance"),
    "kvtune.resolve/1": ("kvtune.analyzers.resolution", "Resolution"),
}
"""Schema name of a document -> module and struct."""


def file_name(schema: str) -> str:
    """`kvtune.report/1` -> `report-1.json`."""
    return schema.removeprefix("kvtune.").replace("/", "-") + ".json"


def generate(schema: str) -> str:
    """The JSON Schema of a document, as text.

    What kvtune writes is described, so every field is required but those that are left out unless asked for.
    """
    module, name = DOCUMENTS[schema]
    struct = getattr(import_module(module), name)
    (root,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    for info in _structs(msgspec.inspect.type_info(struct)):
        definition = definitions[info.cls.__name__]
        definition["required"] = [field.encode_name for field in info.fields if _is_written(field)]
        for field in info.fields:
            described = definition["properties"][field.encode_name]
            described.pop("default", None)
            if isinstance(field.type, msgspec.inspect.DictType) and isinstance(
                field.type.key_type, msgspec.inspect.IntType
            ):
                described["propertyNames"] = {"pattern": "^[0-9]+$"}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": schema,
        **root,
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _is_written(field: msgspec.inspect.Field) -> bool:
    """Whether a field is always there: one that may be unset shows neither as required nor with a default."""
    return field.required or (field.default, field.default_factory) != (msgspec.NODEFAULT, msgspec.NODEFAULT)


def _structs(info: msgspec.inspect.Type) -> list[msgspec.inspect.StructType]:
    """Every struct inside a type, each once."""
    found: dict[type, msgspec.inspect.StructType] = {}
    waiting: list[Any] = [info]
    while waiting:
        item = waiting.pop()
        if isinstance(item, msgspec.inspect.StructType):
            if item.cls in found:
                continue
            found[item.cls] = item
            waiting += [field.type for field in item.fields]
        for name in ("item_type", "value_type"):
            waiting += [inner] if (inner := getattr(item, name, None)) is not None else []
        for name in ("types", "item_types"):
            waiting += getattr(item, name, ())
    return list(found.values())


def main() -> None:
    """Write every shipped schema anew."""
    for schema in DOCUMENTS:
        (FOLDER / file_name(schema)).write_text(generate(schema), encoding="utf-8")
