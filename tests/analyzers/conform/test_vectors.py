"""Every golden vector of every release: zero differences, in every field that it states."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.analyzers.conform import conform_document
from kvtune.tokenization.errors import UnusableInputError

VECTORS = Path(__file__).parent.parent.parent / "data" / "vectors"
FILES = sorted(VECTORS.glob("*/*.json.gz"))


def load(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def named(release: str, file: str) -> dict[str, Any]:
    return load(VECTORS / release / f"{file}.json.gz")


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"
)
def test_no_difference(path: Path) -> None:
    result = conform_document(load(path))
    assert result.cases
    assert result.differences == []


def test_the_suite_holds_all_vectors() -> None:
    counts: dict[str, int] = {}
    for path in FILES:
        document = load(path)
        cases = len(
            document.get("cases", ()) or document.get("rows", ()) or document.get("scenarios_0_33_0", ())
        )
        counts[path.parent.name] = counts.get(path.parent.name, 0) + cases
    assert counts == {
        "vllm-0.26.0": 936,
        "vllm-0.28.0": 1365,
        "vllm-0.30.0": 1516,
        "vllm-0.31.0": 1499,
        "vllm-0.32.0": 1435,
        "vllm-0.33.0": 6080,
        "worked-examples": 68,
    }


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("hit", lambda row: row.update(hit=row["hit"] + 16)),
        ("chunks", lambda row: row["chunks"].append(1)),
        ("keys", lambda row: row.update(keys=row["keys"] + 1)),
        ("group_hits", lambda row: row.update(group_hits=[0, 1])),
        ("junction", lambda row: row.update(junction=7)),
        ("cow", lambda row: row.update(cow=9)),
    ],
)
def test_a_changed_field_is_a_difference(field: str, change: Any) -> None:
    document = named("vllm-0.33.0", "prefix_hits_hybrid")
    case = copy.deepcopy(document["cases"][30])
    change(case["expect"][1])
    found = conform_document({**document, "cases": [case]}).differences
    assert [(difference.case, difference.request, difference.field) for difference in found] == [
        (case["name"], 1, field)
    ]


def test_another_error_is_a_difference() -> None:
    document = named("vllm-0.33.0", "prefix_hits_modes")
    case = copy.deepcopy(next(case for case in document["cases"] if "error" in case))
    case["error"]["message"] = "something that no rule of ours says"
    [difference] = conform_document({**document, "cases": [case]}).differences
    assert difference.field == "error"
    assert difference.wanted == (case["error"]["type"], "unknown", None)


def test_a_changed_row_is_a_difference() -> None:
    document = named("vllm-0.33.0", "resolve_grid")
    row = copy.deepcopy(document["rows"][0])
    row["out"][1] += 1
    [difference] = conform_document({**document, "rows": [row]}).differences
    assert (difference.case, difference.field) == ("row 0", "out")


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "not a vector document"),
        ({"format": "prefix-hits/9"}, "unknown vector format"),
        (
            {"format": "prefix-hits/1", "vllm_version": "0.25.1", "cases": []},
            "no rules are known for this release",
        ),
        ({"format": "prefix-hits/1", "vllm_version": "0.33.0"}, "does not have the shape"),
        ({"format": "resolve/1", "vllm_version": "0.33.0", "rows": [{"groups": [["full"]]}]}, "shape"),
    ],
)
def test_a_document_of_another_kind_is_refused(document: object, problem: str) -> None:
    with pytest.raises(UnusableInputError, match=problem):
        conform_document(document, where="vectors.json")
