"""`auto` content format: told from the syntax tree, as the engine does."""

from __future__ import annotations

import pytest

from kvtune.tokenization.chat_rules import chat_rules
from kvtune.tokenization.chat_template.template import ChatTemplate

LOOP = "{% for message in messages %}"
END = "{% endfor %}"
PARTS = "{% for part in message.content %}{{ part.text }}{% endfor %}"


def detected(source: str, version: str = "0.33") -> str:
    return ChatTemplate(source, chat_rules(version)).content_format


@pytest.mark.parametrize(
    "source",
    [
        LOOP + PARTS + END,
        LOOP + PARTS.replace("message.content", "message['content']") + END,
        LOOP + PARTS.replace("message.content", "message.content | list") + END,
        LOOP + PARTS.replace("message.content", "message.content[1:]") + END,
        LOOP
        + "{% if message.content is string %}{{ message.content }}{% else %}"
        + PARTS
        + "{% endif %}"
        + END,
        "{% set rest = messages[1:] %}{% for message in rest %}" + PARTS + END,
        "{% set a = messages %}{% set b = a | list %}{% for message in b %}" + PARTS + END,
    ],
)
def test_a_loop_over_a_message_s_content_means_parts(source: str) -> None:
    assert detected(source) == "openai"
    assert detected(source, "0.28") == "openai"


@pytest.mark.parametrize(
    "source",
    [
        LOOP + "{{ message.content }}" + END,
        LOOP + "{% for call in message.tool_calls %}{{ call.id }}{% endfor %}" + END,
        "{% for part in tools.content %}{{ part }}{% endfor %}",
        "{% macro show(x) %}{% for part in x %}{{ part }}{% endfor %}{% endmacro %}"
        + LOOP
        + "{{ show(message.role) }}"
        + END,
    ],
)
def test_anything_else_means_strings(source: str) -> None:
    assert detected(source) == "string"


@pytest.mark.parametrize(
    "source",
    [
        "{% macro show(x) %}{% for part in x %}{{ part.text }}{% endfor %}{% endmacro %}"
        + LOOP
        + "{{ show(message.content) }}"
        + END,
        "{% macro show(a, x=1) %}{% for part in x %}{{ part.text }}{% endfor %}{% endmacro %}"
        + LOOP
        + "{{ show(1, x=message['content']) }}"
        + END,
        LOOP + "{% set content = message.content %}{% for part in content %}{{ part }}{% endfor %}" + END,
    ],
)
def test_contents_are_followed_into_macros_and_a_variable_from_030_on(source: str) -> None:
    assert detected(source) == "openai"
    assert detected(source, "0.29") == "string"


def test_a_namespace_s_attribute_can_be_an_alias() -> None:
    source = "{% set ns = namespace(rest=messages) %}{% for message in ns.rest %}" + PARTS + END
    assert detected(source) == "openai"
    source = (
        "{% set ns = namespace() %}{% set ns.rest = messages %}{% for message in ns.rest %}" + PARTS + END
    )
    assert detected(source) == "openai"
