"""`compare` and `--window` on real analyses: what they say is what the replay gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

SHARED = list(range(1_000, 1_300))
GROUPS = ("--groups", "mamba:64,full:64", "--step-cost-tokens", "0", "--quiet")


def prompt(request: int, shared: int) -> list[int]:
    """`shared` tokens that all have, and 90 of its own."""
    return [*SHARED[:shared], *range(10_000 * (request + 1), 10_000 * (request + 1) + 90)]


@pytest.fixture
def trace(tmp_path: Path) -> list[str]:
    """Forty requests, one a minute: the first half shares 200 tokens, the second 300; its lines."""
    lines = [
        json.dumps({"token_ids": prompt(request, 200 if request < 20 else 300), "timestamp": 60.0 * request})
        for request in range(40)
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    (tmp_path / "first.jsonl").write_text("\n".join(lines[:20]))
    (tmp_path / "second.jsonl").write_text("\n".join(lines[20:]))
    return lines


def report(run: Any, trace: str, name: str, *options: str) -> dict[str, Any]:
    done = run("analyze", trace, *GROUPS, "--json", name, *options)
    assert done.code == 0, done.err
    document: dict[str, Any] = json.loads(Path(name).read_text())
    return document


def test_two_halves(run, trace: list[str]) -> None:
    # Blocks of 64: of 20 prompts the first two leave the state where they part, 18 reuse 192 of 290 in the first
    # half and 256 of 390 in the second.
    assert trace
    first, second = report(run, "first.jsonl", "a.json"), report(run, "second.jsonl", "b.json")
    assert first["losses"]["current"]["hit_tokens"] == 18 * 192
    assert second["losses"]["current"]["hit_tokens"] == 18 * 256
    found = json.loads(run("compare", "a.json", "b.json", "--json", "-").out)
    assert found["base"]["token_hit_rate"] == pytest.approx(18 * 192 / (20 * 290))
    assert found["new"]["token_hit_rate"] == pytest.approx(18 * 256 / (20 * 390))
    assert found["worse_fraction"] == pytest.approx(1 - (256 / 390) / (192 / 290))
    assert not found["same_trace"]


def test_one_trace_under_two_settings(run, trace: list[str]) -> None:
    # With unit 8 a prompt's tail lies in its own text, and hits fall on the same states: what differs is what the
    # replay of each says, and nothing else.
    assert trace
    base = report(run, "all.jsonl", "a.json")
    new = report(run, "all.jsonl", "b.json", "--num-blocks", "24", "--match-unit", "8")
    found = json.loads(run("compare", "a.json", "b.json", "--json", "-").out)
    assert found["same_trace"]
    total = 20 * 290 + 20 * 390
    for side, document in (("base", base), ("new", new)):
        assert found[side]["hit_tokens"] == document["losses"]["current"]["hit_tokens"]
        assert found[side]["token_hit_rate"] == pytest.approx(
            document["losses"]["current"]["hit_tokens"] / total
        )
    lost = {loss["limit"]: loss["new_rate"] for loss in found["losses"]}
    assert lost["evicted"] == pytest.approx(new["losses"]["current"]["evicted"] / total)
    assert sum(lost.values()) == pytest.approx((new["shared"]["tokens"] - found["new"]["hit_tokens"]) / total)
    assert run("compare", "a.json", "a.json", "--fail-if-worse", "0").code == 0


def test_which_lever_changed_its_worth(run, trace: list[str]) -> None:
    # The head that is to be primed has another length in each half, and is the same lever.
    assert trace
    first, second = (
        report(run, name, out, "--levers")
        for name, out in (("first.jsonl", "a.json"), ("second.jsonl", "b.json"))
    )
    found = json.loads(run("compare", "a.json", "b.json", "--json", "-").out)
    change = next(lever for lever in found["levers"] if lever["kind"] == "pad")
    gains = [
        next(lever["gain_tokens"] for lever in side["levers"] if lever["kind"] == "pad")
        for side in (first, second)
    ]
    assert [change["base_gain_tokens"], change["new_gain_tokens"]] == gains


def test_slices_of_time_say_whether_the_unit_holds(run, trace: list[str]) -> None:
    assert trace
    document = report(run, "all.jsonl", "a.json", "--window", "20m")
    unit = document["recommendation"]["unit"]
    windows = document["windows"]
    assert [(window["start_s"], window["end_s"]) for window in windows] == [(0, 1200), (1200, 2400)]
    row = next(row for row in document["candidates"] if row["unit"] == unit)
    assert sum(window["recommended_net_gain_tokens"] for window in windows) == row["net_gain_tokens"]
    assert all(window["recommended_net_gain_tokens"] <= window["net_gain_tokens"] for window in windows)
    shown = run("report", "a.json").out
    assert "The recommendation is" in shown
    assert f"in {sum(window['unit'] == unit for window in windows)} of 2 slices" in " ".join(shown.split())
