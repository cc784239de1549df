"""`kvtune conform`: exit codes, the document, and files that are no vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtune.analyzers.conform import ConformResult


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vector file whose one case differs in one field, by a comparison that stands in for the real one."""

    def compare(document: dict[str, object], **_: object) -> ConformResult:
        result = ConformResult(cases=2, requests=5)
        result.compare("case a", 3, "hit_tokens", document["wanted"], 96)
        return result

    monkeypatch.setattr("kvtune.analyzers.conform.conform_document", compare)
    path = tmp_path / "v.json"
    path.write_text(json.dumps({"wanted": 112}))
    return path


def test_a_difference_is_named_and_exits_1(run, vectors: Path) -> None:
    done = run("conform", str(vectors))
    assert done.code == 1
    assert done.out.splitlines() == [
        "2 cases, 5 requests in 1 file: 1 difference",
        f"  {vectors}: case a, request 3: hit_tokens: wanted 112, found 96",
    ]


def test_agreement_exits_0(run, vectors: Path) -> None:
    vectors.write_text(json.dumps({"wanted": 96}))
    done = run("conform", str(vectors), str(vectors), "--json", "-")
    assert done.code == 0
    assert json.loads(done.out) == {
        "schema": "kvtune.conform/1",
        "files": [str(vectors), str(vectors)],
        "cases": 4,
        "requests": 10,
        "differences": [],
        "engine_failures": [],
        "not_modelled": [],
    }


def test_engine_failures_and_unknown_settings_are_counted_and_named(run, tmp_path: Path) -> None:
    """The engine fails at the second request; `watermark` is a setting that cases did not have so far."""
    case = {
        "name": "a",
        "mode": "sequential",
        "config": {
            "groups": [{"type": "full", "block_size": 16}],
            "prefix_match_unit": None,
            "num_blocks": 100,
            "watermark": 0.1,
        },
        "requests": [{"prompt": [["seg", 1, 40]]}, {"prompt": [["seg", 1, 40]]}],
        "error": {"stage": "run", "at_request": 1, "type": "AssertionError", "message": ""},
        "expect": [{"prompt": 40, "hit": 0, "recomputed": 40, "chunks": [40]}],
    }
    document = {"format": "prefix-hits/1", "vllm_version": "0.33.0", "cases": [case]}
    (tmp_path / "failed.json").write_text(json.dumps(document))
    done = run("conform", "failed.json")
    assert done.code == 0
    assert done.out.splitlines() == [
        "1 case, 2 requests in 1 file: 0 differences",
        "  in 1 case the engine failed with an error of its own; compared up to there:",
        "    failed.json: a, request 1: AssertionError",
        "  not modelled in 1 case: config.watermark",
    ]


@pytest.mark.parametrize(
    ("text", "words"), [("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[]", "not a vector document")]
)
def test_other_files_exit_2(run, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "v.json").write_text(text)
    done = run("conform", "v.json")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
