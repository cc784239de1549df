"""Names of families: tools whatever their order, the first system line, tenant and adapter; text only where allowed."""

from __future__ import annotations

import pytest

from kvtune.tokenization.encoding.families import FamilyNames
from kvtune.tokenization.encoding.tool_sets import ToolSet, ToolSets
from kvtune.tokenization.request import Identity, Request

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"does {name}", "parameters": {"type": "object"}},
    }
    for name in ("search", "book")
]


def shuffled() -> list[dict[str, object]]:
    """The same tools, the other first, with their fields in another order."""
    return [
        {"function": dict(reversed(tool["function"].items())), "type": "function"} for tool in reversed(TOOLS)
    ]  # type: ignore[attr-defined]


def tool_set(tools: list[dict[str, object]]) -> ToolSet:
    found = ToolSets(lambda _tool: None).of(tools)
    assert found is not None
    return found


def request(system: str = "You are helpful.\nToday is Monday.", **identity: str) -> Request:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]
    return Request(id="r", messages=messages, identity=Identity(**identity))


def test_shuffled_tools_are_one_set_written_in_two_ways() -> None:
    one, other = tool_set(TOOLS), tool_set(shuffled())  # type: ignore[arg-type]
    assert one.digest != other.digest
    assert one.unordered == other.unordered
    assert one.unordered != tool_set(TOOLS[:1]).unordered  # type: ignore[arg-type]
    names = FamilyNames()
    assert names.of(request(), one) == names.of(request(), other)
    assert names.of(request(), one).startswith("2 tools ")


@pytest.mark.parametrize(
    ("identity", "ending"),
    [
        ({"tenant": "acme"}, ", tenant acme"),
        ({"lora": "sql"}, ", adapter sql"),
        ({"tenant": "acme", "lora": "sql"}, ", tenant acme, adapter sql"),
        ({"cache_salt": "secret"}, ""),
    ],
)
def test_whose_requests_they_are(identity: dict[str, str], ending: str) -> None:
    names = FamilyNames()
    plain = names.of(request(), None)
    assert plain.startswith("no tools, system ")
    assert names.of(request(**identity), None) == plain + ending
    ids = Request(id="r", token_ids=[1], identity=Identity(**identity))
    assert names.of(ids, None) == "token ids" + ending


def test_only_the_first_line_counts_and_it_is_quoted_only_where_allowed() -> None:
    quiet, loud = FamilyNames(), FamilyNames(show_text=True)
    tuesday = request("You are helpful.\nToday is Tuesday.")
    assert quiet.of(request(), None) == quiet.of(tuesday, None)
    assert "helpful" not in quiet.of(request(), None)
    assert loud.of(request(), None) == 'no tools, system "You are helpful."'
