"""Model folders: which template counts, special tokens, media tokens, bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtune.tokenization.encoding.model_folder import read_json_object, read_model_folder
from kvtune.tokenization.errors import UnusableInputError


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_jinja", ".jinja").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def chosen(folder: Path, given: str | None = None, *, tools: bool = False) -> str | None:
    choice = read_model_folder(folder).templates.choose(given, has_tools=tools)
    return choice[1] if choice else None


def test_a_template_in_the_configuration(tmp_path: Path) -> None:
    assert chosen(write(tmp_path, tokenizer_config_json={"chat_template": "A"})) == "A"


def test_a_file_goes_before_the_configuration(tmp_path: Path) -> None:
    assert (
        chosen(write(tmp_path, tokenizer_config_json={"chat_template": "A"}, chat_template_jinja="B")) == "B"
    )


def test_named_templates_are_chosen_by_tools_and_by_name(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "A"},
        {"name": "tool_use", "template": "T"},
        {"name": "rag", "template": "R"},
    ]
    folder = write(tmp_path, tokenizer_config_json={"chat_template": named})
    assert chosen(folder) == "A"
    assert chosen(folder, tools=True) == "T"
    assert chosen(folder, "rag", tools=True) == "R"
    assert chosen(folder, "{{ 'a template of its own' }}") == "{{ 'a template of its own' }}"


def test_additional_template_files_are_named_by_their_file(tmp_path: Path) -> None:
    folder = write(tmp_path, chat_template_jinja="A", additional_chat_templates__tool_use_jinja="T")
    assert (chosen(folder), chosen(folder, tools=True)) == ("A", "T")


def test_a_processor_s_template_goes_first_without_tools(tmp_path: Path) -> None:
    folder = write(
        tmp_path, tokenizer_config_json={"chat_template": "A"}, chat_template_json={"chat_template": "P"}
    )
    assert (chosen(folder), chosen(folder, tools=True)) == ("P", "A")


def test_no_template_at_all(tmp_path: Path) -> None:
    assert chosen(tmp_path) is None


def test_special_tokens_from_either_file_as_text_or_object(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        tokenizer_config_json={"eos_token": {"content": "</s>"}, "pad_token": None, "add_bos_token": True},
        special_tokens_map_json={
            "bos_token": "<s>",
            "eos_token": "<old>",
            "additional_special_tokens": ["<a>"],
        },
    )
    model = read_model_folder(folder)
    assert model.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "additional_special_tokens": ["<a>"],
    }
    assert (model.add_bos_token, model.add_eos_token) == (True, None)


def test_media_tokens_of_the_model_s_configuration(tmp_path: Path) -> None:
    folder = write(tmp_path, config_json={"image_token_id": 7, "audio_token_index": 8, "video_token_id": "x"})
    assert read_model_folder(folder).media_token_ids == {"image": 7, "audio": 8}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInputError, match=r"--model: no such model folder"):
        read_model_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("content", ["[1]", "{", "\x00", "[" * 100_000])
def test_a_file_that_is_no_object_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UnusableInputError, match=r"tokenizer_config.json: not (a )?JSON"):
        read_model_folder(tmp_path)


def test_a_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 31)  # sparse
    with pytest.raises(UnusableInputError, match=r"too large for a JSON object .*64 MiB"):
        read_json_object(path)


def test_a_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(UnusableInputError, match=r"chat_template.jinja: not UTF-8 text"):
        read_model_folder(tmp_path)
