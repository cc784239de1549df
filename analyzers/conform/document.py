"""A parsed vector document: which format and release it states, and the comparison that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvtune.analyzers.conform.prefix_hits import conform_cases
from kvtune.analyzers.conform.resolve_rows import conform_rows
from kvtune.analyzers.conform.result import ConformResult
from kvtune.analyzers.conform.worked_examples import conform_worked_examples
from kvtune.analyzers.profiles import NEWEST, PROFILES, ReleaseProfile
from kvtune.tokenization.errors import UnusableInputError

WORKED_EXAMPLES = "kvtune-vllm-worked-examples/1"
"""States the release of each scenario itself; the other formats name one release per document."""

_FORMATS: dict[str, Callable[[dict[str, Any], ReleaseProfile], ConformResult]] = {
    "prefix-hits/1": conform_cases,
    "resolve/1": conform_rows,
    WORKED_EXAMPLES: lambda document, _: conform_worked_examples(document),
}


def conform_document(document: object, *, where: str | None = None) -> ConformResult:
    """Replay a vector document and compare every field that it states.

    Args:
        where: names the document in errors, for instance its file.

    Raises:
        UnusableInputError: for a format or release that is not known, and for a document of another shape.
    """
    if not isinstance(document, dict):
        raise UnusableInputError("not a vector document", where=where, wanted="a JSON object")
    kind = document.get("format")
    compare = _FORMATS.get(kind) if isinstance(kind, str) else None
    if compare is None:
        raise UnusableInputError(
            "unknown vector format",
            where=where,
            field="format",
            found=repr(kind)[:60],
            wanted=", ".join(_FORMATS),
        )
    version = NEWEST.version if kind == WORKED_EXAMPLES else document.get("vllm_version")
    profile = PROFILES.get(".".join(str(version).split(".")[:2]))
    if profile is None:
        raise UnusableInputError(
            "no rules are known for this release",
            where=where,
            field="vllm_version",
            found=repr(version)[:40],
            wanted=", ".join(PROFILES),
        )
    try:
        return compare(document, profile)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UnusableInputError(
            f"the document does not have the shape of {kind}", where=where, found=type(error).__name__
        ) from error
