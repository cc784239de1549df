"""Names of models: folders, hub ids, and what is neither. No test reaches the network."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.hub import find_model, is_hub_id


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "name", ["gpt-4o", "", "../etc/passwd", "a/b/c", "a/..", "/abs/path", "a b/c", "a/" + "b" * 200]
)
def test_what_is_no_hub_id_never_reaches_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    assert not is_hub_id(name)
    with pytest.raises(UnusableInputError, match="--model"):
        find_model(name or "no-such-folder")


def test_the_local_cache_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def snapshot(name: str, **options: object) -> str:
        asked.append((name, options.get("local_files_only", False)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert find_model("Qwen/Qwen3-Next") == tmp_path
    assert asked == [("Qwen/Qwen3-Next", True)]


def test_weights_are_never_fetched_and_a_hub_out_of_reach_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def snapshot(name: str, **options: object) -> str:
        asked.append(options)
        raise (
            FileNotFoundError(name) if options.get("local_files_only") else RuntimeError("connection refused")
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(UnusableInputError, match="--model DIR"):
        find_model("Qwen/Qwen3-Next")
    assert len(asked) == 2
    assert not any(
        "safetensors" in pattern or pattern == "*" for one in asked for pattern in one["allow_patterns"]
    )
