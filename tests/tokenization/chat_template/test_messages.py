"""What reaches a template: hand-written expectations for each rule of the engine's chat front end."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvtune.tokenization.chat_rules import chat_rules
from kvtune.tokenization.chat_template.messages import (
    MessageReader,
    dump_tool,
    merge_developer_into_system,
)
from kvtune.tokenization.errors import UnusableInputError

USER = {"role": "user", "content": "hi"}


def read(messages: list[dict[str, Any]], content_format: str = "string", version: str = "0.33") -> list[Any]:
    before = copy.deepcopy(messages)
    reader = MessageReader(chat_rules(version), {"image": "<|image|>"})
    result = reader.read(messages, content_format).messages  # type: ignore[arg-type]
    assert messages == before, "the request's own messages are never changed"
    return result


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def arguments_of(arguments: Any, version: str = "0.33") -> Any:
    message = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
    return read([message], version=version)[0]["tool_calls"][0]["function"]["arguments"]


def test_a_message_that_conversations_share_is_read_once_and_its_media_every_time() -> None:
    reader = MessageReader(chat_rules("0.33"), {"image": "<|image|>"})
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    one, other = (reader.read([USER, picture], "string") for _ in range(2))
    assert one.messages[0] is other.messages[0]
    assert [item.message for item in other.media] == [item.message for item in one.media] == [1]
    assert reader.read([USER], "openai").messages == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    ]


class TestContent:
    def test_a_string_stays_a_string_or_becomes_one_part(self) -> None:
        assert read([USER]) == [USER]
        assert read([USER], "openai") == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]

    def test_text_parts_are_joined_by_a_newline(self) -> None:
        parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
        assert read([{"role": "user", "content": parts}])[0]["content"] == "a\nb\nc"
        assert read([{"role": "user", "content": parts}], "openai")[0]["content"] == [
            {"type": "text", "text": text} for text in "abc"
        ]

    def test_refusals_and_thoughts_are_text(self) -> None:
        parts = [{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}]
        assert read([{"role": "assistant", "content": parts}])[0]["content"] == "no\nhm"

    def test_fields_that_the_api_does_not_know_travel_on_in_parts(self) -> None:
        part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
        assert read([{"role": "user", "content": [part]}], "openai")[0]["content"] == [part]

    def test_null_becomes_empty(self) -> None:
        message = {"role": "assistant", "content": None}
        assert read([message])[0]["content"] == ""
        assert read([message], "openai")[0]["content"] == []

    def test_a_text_part_without_text_is_left_out(self) -> None:
        assert read([{"role": "user", "content": [{"type": "text", "text": None}, "b"]}])[0]["content"] == "b"

    def test_fields_of_a_message_that_templates_never_see_are_dropped(self) -> None:
        message = {"role": "user", "content": "hi", "name": "bob", "id": 7, "tool_calls": [call("{}")]}
        assert read([message]) == [{"role": "user", "content": "hi", "name": "bob"}]

    def test_an_image_is_a_part_or_a_placeholder_in_front(self) -> None:
        content = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}]
        assert read([{"role": "user", "content": content}], "openai")[0]["content"] == [
            {"type": "text", "text": "look"},
            {"type": "image"},
        ]
        assert read([{"role": "user", "content": content}])[0]["content"] == "<|image|>\nlook"

    def test_media_are_listed_with_their_message(self) -> None:
        content = [{"image_url": "x"}, {"type": "input_audio", "input_audio": {"data": "y"}}]
        reader = MessageReader(chat_rules(), {"image": "<|image|>"})
        media = reader.read([USER, {"role": "user", "content": content}], "string").media
        assert [(item.modality, item.message, item.in_text) for item in media] == [
            ("image", 1, True),
            ("audio", 1, False),
        ]

    @pytest.mark.parametrize(
        ("content", "what"),
        [
            (7, "content of an unknown kind"),
            ([{"type": "hologram"}], "an unknown content part"),
            ([7], "part"),
        ],
    )
    def test_what_the_engine_refuses_is_refused_by_place(self, content: Any, what: str) -> None:
        with pytest.raises(UnusableInputError, match=rf"messages\[1\].content.*{what}"):
            read([USER, {"role": "user", "content": content}])

    def test_errors_never_quote_the_content(self) -> None:
        with pytest.raises(UnusableInputError) as caught:
            read([{"role": "user", "content": [{"type": "secret words", "text": "secret words"}]}])
        assert "secret" not in str(caught.value)


class TestToolCalls:
    @pytest.mark.parametrize("nothing", ["", None])
    def test_no_arguments_are_an_empty_object(self, nothing: Any) -> None:
        assert arguments_of(nothing) == {}

    def test_missing_arguments_are_an_empty_object(self) -> None:
        message = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
        assert read([message])[0]["tool_calls"] == [{"function": {"name": "f", "arguments": {}}}]

    def test_an_object_is_itself_parsed_or_not(self) -> None:
        assert arguments_of('{"b": 1, "a": [2]}') == {"b": 1, "a": [2]}
        assert list(arguments_of('{"b": 1, "a": [2]}')) == ["b", "a"]
        assert arguments_of({"b": 1}) == {"b": 1}

    @pytest.mark.parametrize("other", ["[1]", "42", "true", '"text"', "null"])
    def test_json_that_is_no_object_is_an_empty_object(self, other: str) -> None:
        assert arguments_of(other) == {}
        assert arguments_of(other, "0.28") == {}

    def test_text_that_is_no_json_fails_the_request_up_to_028_only(self) -> None:
        assert arguments_of("{oops") == {}
        assert arguments_of("{oops", "0.29") == {}
        with pytest.raises(UnusableInputError, match=r"messages\[0\].tool_calls\[0\].function.arguments"):
            arguments_of("{oops", "0.28")

    def test_an_empty_list_of_calls_is_dropped(self) -> None:
        assert "tool_calls" not in read([{"role": "assistant", "content": "x", "tool_calls": []}])[0]

    def test_only_function_calls_are_taken(self) -> None:
        with pytest.raises(UnusableInputError, match="no function call"):
            read([{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}])

    def test_arguments_nested_beyond_all_measure_are_empty(self) -> None:
        assert arguments_of("[" * 100_000) == {}


class TestToolResults:
    @pytest.mark.parametrize("content_format", ["string", "openai"])
    def test_parts_are_joined_in_either_format(self, content_format: str) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        message = {"role": "tool", "tool_call_id": "1", "content": parts}
        assert read([message], content_format) == [{"role": "tool", "tool_call_id": "1", "content": "a\nb"}]

    def test_parts_that_are_no_text_keep_the_list(self) -> None:
        parts = [{"type": "tool_reference", "name": "search"}]
        assert read([{"role": "tool", "content": parts}], "openai")[0]["content"] == parts

    def test_an_empty_list_is_an_empty_text(self) -> None:
        assert read([{"role": "tool", "content": []}], "openai")[0]["content"] == ""


class TestReasoning:
    @pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
    def test_reasoning_is_given_under_both_names(self, key: str) -> None:
        message = read([{"role": "assistant", "content": "x", key: "because"}])[0]
        assert message["reasoning"] == message["reasoning_content"] == "because"

    def test_reasoning_goes_before_reasoning_content(self) -> None:
        message = {"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}
        assert read([message])[0]["reasoning_content"] == "a"

    def test_only_assistants_reason(self) -> None:
        assert "reasoning" not in read([{**USER, "reasoning": "x"}])[0]


class TestBillingHeader:
    HEADER = "x-anthropic-billing-header: cc_version=1; cch=abc"

    def test_the_line_goes_from_032_on(self) -> None:
        message = {"role": "system", "content": f"{self.HEADER}\nYou help."}
        assert read([message], version="0.32")[0]["content"] == "You help."
        assert read([message], version="0.31")[0]["content"] == message["content"]

    def test_a_part_of_that_line_only_goes_altogether(self) -> None:
        message = {"role": "system", "content": [{"type": "text", "text": self.HEADER}, "You help."]}
        assert read([message])[0]["content"] == "You help."
        assert read([{"role": "system", "content": self.HEADER}])[0]["content"] == ""

    def test_elsewhere_it_stays(self) -> None:
        assert read([{"role": "user", "content": self.HEADER}])[0]["content"] == self.HEADER
        later = {"role": "system", "content": f"You help.\n{self.HEADER}"}
        assert read([later]) == [later]


class TestDeveloper:
    def test_developer_and_system_messages_merge_at_the_front(self) -> None:
        messages = [
            {"role": "system", "content": "a"},
            USER,
            {"role": "developer", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "system", "content": ""},
        ]
        assert merge_developer_into_system(messages) == [{"role": "system", "content": "a\n\nb\nc"}, USER]

    def test_one_developer_message_at_the_front_only_changes_its_role(self) -> None:
        messages = [{"role": "developer", "content": "a", "tools": []}, USER]
        assert merge_developer_into_system(messages) == [{"role": "system", "content": "a"}, USER]

    def test_without_a_developer_message_nothing_happens(self) -> None:
        messages = [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}]
        assert merge_developer_into_system(messages) is messages


class TestTools:
    def test_keys_are_ordered_and_missing_ones_null(self) -> None:
        tool = {"function": {"parameters": {"type": "object"}, "name": "f", "x": 1}, "cache_control": {}}
        dumped = dump_tool(tool)
        assert dumped == {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": {"type": "object"}},
        }
        assert list(dumped["function"]) == ["name", "description", "parameters"]

    def test_strict_and_deferred_loading_stay_where_they_are_given(self) -> None:
        tool = {"type": "function", "function": {"name": "f", "strict": False}, "defer_loading": True}
        assert dump_tool(tool) == {
            "type": "function",
            "function": {
                "name": "f",
                "description": None,
                "parameters": None,
                "strict": False,
                "defer_loading": True,
            },
            "defer_loading": True,
        }
