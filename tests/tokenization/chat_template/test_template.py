"""Rendering: the engine's Jinja settings and helpers, refusals, and text that continues a message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvtune.tokenization.chat_rules import chat_rules
from kvtune.tokenization.chat_template.template import ChatTemplate, TemplateRefusedError
from kvtune.tokenization.errors import UnusableInputError

USER = {"role": "user", "content": "hi"}


def render(source: str, messages: Any = (USER,), **options: Any) -> str:
    return ChatTemplate(source, chat_rules()).render(list(messages), **options)


def refusal(source: str, messages: Any = (USER,), **options: Any) -> str:
    with pytest.raises(TemplateRefusedError) as caught:
        render(source, messages, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestSettings:
    def test_blocks_take_their_line_with_them(self) -> None:
        assert render("  {% if true %}\na\n  {% endif %}\nb") == "a\nb"

    def test_loop_controls(self) -> None:
        skip, stop = "{% if i == 1 %}{% continue %}{% endif %}", "{% if i == 4 %}{% break %}{% endif %}"
        source = "{% for i in range(9) %}" + skip + stop + "{{ i }}{% endfor %}"
        assert render(source) == "023"

    def test_the_generation_tag_leaves_its_body(self) -> None:
        assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"

    def test_tojson_escapes_no_html_and_keeps_order_and_letters(self) -> None:
        value = {"b": "<é & 'x'>", "a": [1, None]}
        assert render("{{ x | tojson }}", variables={"x": value}) == '{"b": "<é & \'x\'>", "a": [1, null]}'

    @pytest.mark.parametrize(
        ("call", "options"),
        [
            ("tojson(indent=2)", {"indent": 2, "ensure_ascii": False}),
            ("tojson(separators=(',', ':'))", {"separators": (",", ":"), "ensure_ascii": False}),
            ("tojson(sort_keys=true)", {"sort_keys": True, "ensure_ascii": False}),
            ("tojson(ensure_ascii=true)", {"ensure_ascii": True}),
            ("tojson(false, 1)", {"indent": 1, "ensure_ascii": False}),
        ],
    )
    def test_tojson_takes_the_options_of_the_engine(self, call: str, options: dict[str, Any]) -> None:
        value = {"b": "é", "a": [{"c": 1}]}
        assert render("{{ x | " + call + " }}", variables={"x": value}) == json.dumps(value, **options)

    def test_a_key_goes_before_nothing_but_a_method_goes_before_a_key(self) -> None:
        message = {"role": "user", "content": "hi", "items": "mine"}
        assert render("{{ messages[0].role }}{{ messages[0].nope }}", [message]) == "user"
        assert render("{{ messages[0].items is string }}{{ messages[0]['items'] }}", [message]) == "Falsemine"

    def test_additions_keep_their_order_and_kinds(self) -> None:
        assert render("{{ 'a' + 'b' + ('c' + 'd') + 'e' }}") == "abcde"
        assert render("{{ 1 + 2 + 3.5 }}") == "6.5"
        assert render("{{ ([1] + [2, 3] + messages[:0]) | length }}") == "3"
        assert render("{{ 'a' ~ 1 ~ none ~ [2] }}") == "a1None[2]"

    def test_a_macro_sees_its_arguments_defaults_and_caller(self) -> None:
        source = (
            "{% macro m(a, b='B') %}{{ a }}{{ b }}{{ kwargs.c }}{{ varargs | length }}{% endmacro %}"
            "{% macro wrap() %}[{{ caller() }}]{% endmacro %}"
            "{% for i in [1] %}{{ m(i, 'x', 7, c='C') }}{{ m(i, c='') }}{% call wrap() %}w{% endcall %}{% endfor %}"
        )
        assert render(source) == "1xC11B0[w]"

    def test_variables_of_the_engine(self) -> None:
        source = "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"
        source += "{{ bos_token }}{{ enable_thinking }}"
        variables = {"bos_token": "<s>", "enable_thinking": False}
        assert render(source, variables=variables) == "TrueTrueTrue<s>False"

    def test_variables_do_not_replace_the_conversation(self) -> None:
        assert render("{{ messages[0].content }}", variables={"messages": "other"}) == "hi"

    def test_the_date_is_the_request_s(self) -> None:
        noon_utc = 1_700_000_000  # 2023-11-14 22:13:20 UTC
        source = "{{ strftime_now('%d %b %Y %H:%M') }}"
        assert render(source, now=noon_utc) == "14 Nov 2023 22:13"
        assert render(source) == "01 Jan 1970 00:00"

    def test_nothing_random_is_there(self) -> None:
        refusal("{{ lipsum() }}")
        with pytest.raises(UnusableInputError):
            render("{{ [1, 2] | random }}")


class TestSandbox:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ messages.append(1) }}",
            "{{ messages[0].update({'a': 1}) }}",
            "{{ messages.__class__.__subclasses__() }}",
            "{{ cycler.__init__.__globals__ }}",
            "{% include 'x' %}",
            "{% set ns = namespace(_x=1) %}",
            "{% set ns = namespace() %}{% set ns._x = 1 %}",
        ],
    )
    def test_ways_out_are_closed(self, source: str) -> None:
        refusal(source)


class TestRefusals:
    def test_a_template_s_own_words_are_shown(self) -> None:
        assert "roles must alternate" in refusal("{{ raise_exception('roles must alternate') }}")

    def test_the_request_s_words_are_not(self) -> None:
        message = refusal(
            "{{ raise_exception('bad role: ' ~ messages[0].content) }}", [{**USER, "content": "SECRET"}]
        )
        assert "bad role: …" in message
        assert "SECRET" not in message

    def test_a_failure_names_its_line(self) -> None:
        message = refusal(
            "{% set a = 1 %}\n\n{{ messages[0].nothing.at.all }}", [{**USER, "content": "SECRET"}]
        )
        assert "chat template:3: the chat template failed on the request with UndefinedError" in message

    @pytest.mark.parametrize(
        "source", ["{% if %}", "{{ (", "{% for %}", "{% endif %}", "{{ x | no_such_filter }}"]
    )
    def test_a_text_that_is_no_template_is_named_with_its_line(self, source: str) -> None:
        with pytest.raises(UnusableInputError, match=r"mine:1: not a chat template"):
            ChatTemplate(source, chat_rules(), name="mine")

    def test_a_template_of_megabytes_is_refused(self) -> None:
        with pytest.raises(UnusableInputError, match="too long"):
            ChatTemplate("x" * (1 << 21), chat_rules())


class TestContinuing:
    CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</end>{% endfor %}"
    TRIMMED = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</end>{% endfor %}"

    @staticmethod
    def messages(content: Any) -> list[dict[str, Any]]:
        return [USER, {"role": "assistant", "content": content}]

    def options(self) -> dict[str, bool]:
        return {"add_generation_prompt": False, "continue_final_message": True}

    def test_the_text_ends_with_the_message(self) -> None:
        assert render(self.CHAT, self.messages("I th"), **self.options()) == "<user>hi</end><assistant>I th"

    def test_space_at_the_end_stays_unless_the_template_trims(self) -> None:
        assert render(self.CHAT, self.messages("I "), **self.options()).endswith("<assistant>I ")
        assert render(self.TRIMMED, self.messages("I "), **self.options()).endswith("<assistant>I")

    def test_the_last_text_part_is_continued(self) -> None:
        source = "{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}"
        messages = [{"role": "assistant", "content": [{"type": "text", "text": t} for t in "ab"]}]
        assert render(source, messages, **self.options()) == "a|b"

    def test_a_message_without_text_or_a_template_that_drops_it_is_refused(self) -> None:
        assert "no text to continue" in refusal(self.CHAT, self.messages([]), **self.options())
        assert "drops the end" in refusal("{{ messages[0].content }}", self.messages("x"), **self.options())

    def test_both_wishes_at_once_are_refused_as_by_the_engine(self) -> None:
        assert "cannot both be set" in refusal(
            self.CHAT, self.messages("x"), add_generation_prompt=True, continue_final_message=True
        )
