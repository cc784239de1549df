"""The shipped JSON Schemas are those of the structs, and documents keep them."""

from __future__ import annotations

import json

import jsonschema
import pytest

from kvtune.analyzers.compare import compare_reports
from kvtune.analyzers.document import decode_report, encode_report
from kvtune.analyzers.report import Report
from kvtune.cli.documents import encode_document
from kvtune.cli.reporters.terminal import render_terminal
from kvtune.cli.schemas import DOCUMENTS, FOLDER, file_name, generate
from kvtune.tokenization.errors import UnusableInputError


@pytest.mark.parametrize("schema", DOCUMENTS)
def test_shipped_schemas_are_up_to_date(schema: str) -> None:
    assert (FOLDER / file_name(schema)).read_text() == generate(schema), "run `make schemas`"


def test_no_stray_schema_is_shipped() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {file_name(schema) for schema in DOCUMENTS}


def validator(schema: str) -> jsonschema.Draft202012Validator:
    document = json.loads((FOLDER / file_name(schema)).read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def test_a_report_keeps_its_schema(report: Report) -> None:
    document = json.loads(encode_report(report))
    validator("kvtune.report/1").validate(document)
    del document["requests"]
    validator("kvtune.report/1").validate(document)
    del document["losses"]["current"]["evicted"]
    with pytest.raises(jsonschema.ValidationError):
        validator("kvtune.report/1").validate(document)


def test_keys_of_unit_maps_are_decimal_strings(report: Report) -> None:
    document = json.loads(encode_report(report))
    assert document["measured"]["hash_cpu_s"] == {"528": 0.01, "96": 0.05}
    document["measured"]["hash_cpu_s"] = {"coarse": 1.0}
    with pytest.raises(jsonschema.ValidationError):
        validator("kvtune.report/1").validate(document)


def test_a_comparison_keeps_its_schema(report: Report) -> None:
    validator("kvtune.compare/1").validate(json.loads(encode_document(compare_reports(report, report))))


def test_reports_survive_a_round_trip(report: Report) -> None:
    assert decode_report(encode_report(report), "r.json") == report


def test_documents_older_than_the_figures_of_the_pool_are_read(report: Report) -> None:
    document = json.loads(encode_report(report))
    del document["footprint"], document["pool_advice"]
    for point in document["capacity"]:
        del point["net_gain_tokens"], point["refused_requests"]
    old = decode_report(json.dumps(document).encode(), "r.json")
    assert (old.footprint, old.pool_advice) == (None, None)
    text = render_terminal(old)
    assert "hits at 528" in text
    assert "Blocks that a request takes" not in text


def test_added_fields_of_a_later_version_are_passed_over(report: Report) -> None:
    document = json.loads(encode_report(report))
    document["later"] = 1
    assert decode_report(json.dumps(document).encode(), "r.json") == report


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": "kvtune.report/2"}', "kvtune.report/1"),
        ('{"schema": "kvtune.report/1"}', "missing required field"),
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"schema": "kvtune.report/1", "a": ' + "[" * 100_000, "recursion"),
    ],
)
def test_other_documents_are_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(UnusableInputError, match=words) as caught:
        decode_report(text.encode(), "r.json")
    assert str(caught.value).startswith("r.json: ")
