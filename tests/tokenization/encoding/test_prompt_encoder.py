"""From requests to prompt text: variables, templates that requests bring, and who is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.encoding.prompt_encoder import CannotEncodeError
from kvtune.tokenization.errors import UnusableInputError
from tests.tokenization.encoding.models import STRINGS, TOOL, chat, encoder_of, write_model

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


def test_a_chat_with_tools(tmp_path: Path) -> None:
    prompt = encoder_of(tmp_path).render(chat("hi", "ho", "so?", tools=[TOOL]))
    assert prompt.text == (
        '<s>{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}\n'
        "<|turn|>user\nhi<|end|>\n<|turn|>assistant\nho<|end|>\n<|turn|>user\nso?<|end|>\n<|turn|>assistant\n"
    )


@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_are_none(tmp_path: Path, tools: Any) -> None:
    encoder = encoder_of(tmp_path, "{{ tools is none }}")
    assert encoder.render(chat("hi", tools=tools)).text == "True"


def test_the_request_s_wishes_reach_the_template(tmp_path: Path) -> None:
    source = "{{ add_generation_prompt }} {{ documents }} {{ enable_thinking }} {{ eos_token }}"
    encoder = encoder_of(tmp_path, source)
    request = chat(
        "hi",
        add_generation_prompt=False,
        documents=[{"a": 1}],
        chat_template_kwargs={"enable_thinking": False},
    )
    assert encoder.render(request).text == "False [{'a': 1}] False <|end|>"
    assert encoder.render(chat("hi")).text == "True None  <|end|>"


def test_documents_may_come_with_the_kwargs(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path, "{{ documents }}")
    assert encoder.render(chat("hi", chat_template_kwargs={"documents": [1]})).text == "[1]"


def test_kwargs_cannot_smuggle_a_template(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match="chat_template_kwargs"):
        encoder_of(tmp_path).render(chat("hi", chat_template_kwargs={"chat_template": "x"}))


def test_the_content_format_can_be_forced(tmp_path: Path) -> None:
    source = "{{ messages[0].content is string }}"
    assert encoder_of(tmp_path / "a", source).render(chat("hi")).text == "True"
    assert encoder_of(tmp_path / "b", source, content_format="openai").render(chat("hi")).text == "False"


def test_a_developer_message_for_a_template_that_does_not_know_it(tmp_path: Path) -> None:
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    request = chat(messages=messages)
    assert "<|turn|>system\nbe brief" in encoder_of(tmp_path / "a", STRINGS).render(request).text
    knowing = STRINGS + "{# 'developer' #}"
    assert "<|turn|>developer\nbe brief" in encoder_of(tmp_path / "b", knowing).render(request).text


def test_the_date_is_the_request_s(tmp_path: Path) -> None:
    encoder = encoder_of(tmp_path, "{{ strftime_now('%Y-%m-%d') }}")
    assert encoder.render(chat("hi", arrival=1_700_000_000.0)).text == "2023-11-14"
    assert encoder.untimed_dates == 0
    assert encoder.render(chat("hi")).text == "1970-01-01"
    assert encoder.untimed_dates == 1


class TestTemplatesOfRequests:
    def test_they_are_refused_unless_trusted(self, tmp_path: Path) -> None:
        request = chat("hi", chat_template="{{ messages[0].content }}!")
        with pytest.raises(
            UnusableInputError, match=r"chat_template: .*engine refuses.*--trust-request-chat-template"
        ):
            encoder_of(tmp_path / "a").render(request)
        assert encoder_of(tmp_path / "b", trusts_requests=True).render(request).text == "hi!"

    def test_a_broken_one_fails_its_request_only(self, tmp_path: Path) -> None:
        encoder = encoder_of(tmp_path, trusts_requests=True)
        with pytest.raises(UnusableInputError) as caught:
            encoder.render(chat("hi", chat_template="{% if %}"))
        assert not isinstance(caught.value, CannotEncodeError)
        assert encoder.render(chat("hi")).text.startswith("<s>")

    def test_many_hostile_ones_are_not_rendered_for_ever(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kvtune.tokenization.chat_template.budget.MAX_STEPS", 1000)
        encoder = encoder_of(tmp_path, trusts_requests=True)
        for number in range(16):
            with pytest.raises(UnusableInputError, match="more than a prompt needs"):
                encoder.render(chat("hi", chat_template=f"{number}{ENDLESS}"))
        with pytest.raises(UnusableInputError, match="not rendered: 16 requests before"):
            encoder.render(chat("hi", chat_template=f"last{ENDLESS}"))
        assert encoder.render(chat("hi")).text.startswith("<s>"), (
            "the model's own template is another account"
        )


class TestNothingToEncodeWith:
    def test_no_template(self, tmp_path: Path) -> None:
        with pytest.raises(CannotEncodeError, match=r"no chat template.*--chat-template FILE"):
            encoder_of(tmp_path, None).render(chat("hi"))

    def test_a_template_of_one_s_own_instead(self, tmp_path: Path) -> None:
        (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}?")
        folder = write_model(tmp_path / "model", None)
        encoder = open_prompt_encoder(model=folder, chat_template=(tmp_path / "mine.jinja").read_text())
        assert encoder.render(chat("hi")).text == "hi?"

    def test_the_model_s_template_is_broken(self, tmp_path: Path) -> None:
        with pytest.raises(CannotEncodeError, match=r"not a chat template.*--chat-template FILE"):
            encoder_of(tmp_path, "{% if %}").render(chat("hi"))

    def test_neither_model_nor_tokenizer(self) -> None:
        with pytest.raises(UnusableInputError, match=r"--model DIR or --tokenizer PATH"):
            open_prompt_encoder()

    def test_a_model_without_a_vocabulary(self, tmp_path: Path) -> None:
        with pytest.raises(UnusableInputError, match=r"no vocabulary in the model folder .*tokenizer.json"):
            open_prompt_encoder(model=tmp_path)

    def test_a_tokenizer_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UnusableInputError, match=r"--tokenizer: no such file or folder"):
            open_prompt_encoder(tokenizer=str(tmp_path / "nowhere.json"))


def test_a_tokenizer_may_be_a_folder_a_file_or_replace_the_model_s(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    assert open_prompt_encoder(tokenizer=str(folder)).render(chat("hi")).text.startswith("<s>")
    file = open_prompt_encoder(tokenizer=str(folder / "tokenizer.json"))
    assert file.vocabulary.encode(["<|end|>"])[0].tolist() == [259]
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "chat_template.jinja").write_text("x")
    both = open_prompt_encoder(model=bare, tokenizer=str(folder))
    assert both.render(chat("hi")).text == "x"
    assert both.source == str(folder / "tokenizer.json")


def test_the_vocabulary_is_not_loaded_before_it_is_needed(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "tokenizer.json").write_text("broken")
    encoder = open_prompt_encoder(model=folder)
    with pytest.raises(UnusableInputError, match="cannot be loaded"):
        _ = encoder.vocabulary


def test_the_servers_variables_give_way_to_the_requests(tmp_path: Path) -> None:
    template = "{{ enable_thinking }}{{ tools | length if tools else 0 }}"
    encoder = encoder_of(
        tmp_path, template, template_kwargs={"enable_thinking": "server"}, excludes_tools=True
    )
    assert encoder.render(chat("a", tools=[TOOL])).text == "server1"
    own = chat("a", tools=[TOOL], tool_choice="none", chat_template_kwargs={"enable_thinking": "own"})
    assert encoder.render(own).text == "own0"
    assert encoder_of(tmp_path, template).render(own).text == "own1"
