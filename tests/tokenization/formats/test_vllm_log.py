"""vLLM's own log: old and new lines, prompts that it cut, and all the other lines between."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kvtune.tokenization.errors import NoUsableRequestError
from kvtune.tokenization.reading import ReadResult, read_trace
from kvtune.tokenization.rejects import Rejection

DATA = Path(__file__).parents[2] / "data" / "formats"
START = "INFO 01-02 03:04:02 [api_server.py:1805] non-default args: {'max_log_len': 20, 'model': 'm'}\n"


def read(text: str) -> tuple[ReadResult, list[Rejection]]:
    found: list[Rejection] = []
    return read_trace(["-"], stdin=io.BytesIO(text.encode()), on_reject=found.append), found


def details(name: str, prompt: str, ids: str = "None", second: int = 5) -> str:
    return (
        f"DEBUG 01-02 03:04:{second:02} [logger.py:52] Request {name} details: prompt: {prompt!r}, "
        f"prompt_token_ids: {ids}, prompt_embeds shape: None.\n"
    )


def test_new_lines() -> None:
    found: list[Rejection] = []
    result = read_trace([str(DATA / "vllm-new.log")], on_reject=found.append)
    chat, ids = result.requests
    assert chat.id == "chatcmpl-a"
    assert chat.text == '<|im_start|>user\nIs it the reader\'s "own" copy?<|im_end|>\n<|im_start|>assistant\n'
    assert chat.add_special_tokens is False  # the text is rendered already
    assert ids.token_ids == [1, 15043, 29892]
    assert (ids.identity.lora, ids.identity.lora_path) == ("desk", "/adapters/desk")
    assert chat.arrival is not None and ids.arrival == chat.arrival + 2
    assert [(one.where.rpartition(":")[2], one.reason) for one in found] == [("9", "no_request")]
    assert "VLLM_LOGGING_LEVEL=DEBUG" in str(found[0])


def test_old_lines() -> None:
    first, second = read_trace([str(DATA / "vllm-old.log")]).requests
    assert first.token_ids == [9038, 2501, 263, 931]  # ids are exact, so they come before the text
    assert (second.text, second.add_special_tokens) == ("It's late", None)
    assert first.arrival is not None and second.arrival == first.arrival + 2


def test_a_log_without_prompts_says_what_is_missing() -> None:
    line = "INFO 01-02 03:04:05 [logger.py:41] Received request cmpl-1: params: SamplingParams(n=1).\n"
    with pytest.raises(NoUsableRequestError, match="no request in the record: 2"):
        read(line + line.replace("cmpl-1", "cmpl-2"))


def test_prompts_cut_by_the_limit_that_the_log_names_are_refused() -> None:
    result, found = read(
        START + details("cmpl-1", "x" * 20) + details("cmpl-2", "short") + details("cmpl-3", "y" * 20)
    )
    assert [one.id for one in result.requests] == ["cmpl-2"]
    assert [one.reason for one in found] == ["truncated_prompt"] * 2


def test_ids_cut_by_the_limit_are_refused() -> None:
    _, found = read(START + details("cmpl-1", "a", str(list(range(20)))) + details("cmpl-2", "a", "[1, 2]"))
    assert [one.reason for one in found] == ["truncated_prompt"]


def test_many_prompts_of_exactly_the_greatest_length_were_cut() -> None:
    cut = "".join(details(f"cmpl-{number}", f"{number}" + "x" * 99) for number in range(3))
    result, found = read(details("cmpl-a", "short") + cut + details("cmpl-b", "shorter"))
    assert [one.id for one in result.requests] == ["cmpl-a", "cmpl-b"]
    assert [one.reason for one in found] == ["truncated_prompt"] * 3
    assert b'"prompt":"0xxx' in b"".join(found[0].pieces)
    assert result.stats.formats == {"vllm-log": 2}


def test_equal_prompts_of_the_greatest_length_are_no_cut() -> None:
    result, found = read("".join(details(f"cmpl-{number}", "the same") for number in range(5)))
    assert (len(result.requests), found) == (5, [])


def test_what_a_prompt_says_is_never_taken_for_the_log() -> None:
    prompt = "x', prompt_token_ids: [7, 7], lora_request: None.\nReceived request cmpl-9: prompt: 'y'"
    result, _ = read(details("cmpl-1", prompt))
    assert [(one.id, one.text, one.token_ids) for one in result.requests] == [("cmpl-1", prompt, None)]


def test_a_stranger_sets_neither_limit_nor_adapter() -> None:
    prompt = "max_log_len=9, lora_name='x', lora_path='/x', prompt: 'y'"
    result, found = read(details("cmpl-1", prompt) + details("cmpl-2", "123456789"))
    assert [(one.text, one.identity.lora) for one in result.requests] == [(prompt, None), ("123456789", None)]
    assert not found


def test_a_json_line_holds_a_log_line_only_whole() -> None:
    _, found = read(details("cmpl-1", "a") + '{"message": "Request a details: prompt: 7", "time": 7}\n')
    assert [one.reason for one in found] == ["no_request"]


@pytest.mark.parametrize("prompt", ["'cut", "'a' + 'b", "'\\x'", "__import__('os')"])
def test_what_is_no_string_is_never_evaluated(prompt: str) -> None:
    line = f"DEBUG 01-02 03:04:05 [logger.py:52] Request cmpl-1 details: prompt: {prompt}\n"
    result, found = read(details("cmpl-0", "good") + line)
    assert [one.id for one in result.requests if one.text != "a"] == ["cmpl-0"]
    assert len(found) + len(result.requests) == 2


def test_json_lines_within_a_log() -> None:
    result, _ = read(details("cmpl-1", "a") + '{"messages": [{"role": "user", "content": "b"}]}\n')
    assert result.stats.formats == {"vllm-log": 1, "openai-chat": 1}


def test_times_of_a_new_year_go_on() -> None:
    old, new = details("cmpl-1", "a"), details("cmpl-2", "b")
    result, _ = read(old.replace("01-02", "12-31") + new.replace("01-02", "01-01"))
    assert [one.id for one in result.requests] == ["cmpl-1", "cmpl-2"]
    assert result.stats.reordered == 0
