"""Logged answers as ids, beside their prompts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.request import Request
from kvtune.tokenization.trace import TokenTrace
from tests.tokenization.encoding.models import (
    STRINGS,
    chat,
    encoder_of,
    text_ids,
)


class TestAnswers:
    def outputs(self, trace: TokenTrace) -> list[list[int]]:
        assert trace.outputs is not None and trace.output_offsets is not None
        offsets = trace.output_offsets.tolist()
        return [trace.outputs[a:b].tolist() for a, b in pairwise(offsets)]

    def test_a_chat_s_answer_runs_to_the_end_of_its_turn(self, tmp_path: Path) -> None:
        answer = {"role": "assistant", "content": "fine."}
        trace, _ = encode_trace([chat("hi", output=answer)], encoder_of(tmp_path), outputs=True)
        assert self.outputs(trace) == [text_ids("fine.<|end|>")]
        assert trace.retokenised_outputs == 1
        assert trace.output_tokens is not None and trace.output_tokens.tolist() == [6]

    def test_prompt_and_answer_are_the_next_turn_s_prefix(self, tmp_path: Path) -> None:
        requests = [
            chat("hi", output={"content": "ho"}, id="a"),
            chat("hi", "ho", "he", output=None, id="b"),
        ]
        trace, _ = encode_trace(requests, encoder_of(tmp_path), outputs=True)
        both = [*trace.prompt(0).tolist(), *self.outputs(trace)[0]]
        assert trace.prompt(1).tolist()[: len(both)] == both
        assert self.outputs(trace)[1] == []

    def test_tool_calls_are_part_of_an_answer(self, tmp_path: Path) -> None:
        answer = {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}
        trace, _ = encode_trace([chat("hi", output=answer)], encoder_of(tmp_path), outputs=True)
        assert self.outputs(trace) == [text_ids('<|call|>f {"a": 1}<|end|>')]

    def test_a_template_that_rewrites_what_came_before_gives_no_answer(self, tmp_path: Path) -> None:
        template = "{{ messages | length }}" + STRINGS
        requests = [
            chat("hi", output={"content": "ho"}, output_tokens=9),
            Request(id="c", text="a", output="b"),
        ]
        trace, _ = encode_trace(requests, encoder_of(tmp_path, template), outputs=True)
        assert self.outputs(trace) == [[], text_ids("b")]
        assert trace.retokenised_outputs == 1
        assert trace.output_tokens is not None and trace.output_tokens.tolist() == [9, 1]

    def test_ids_and_completions_texts(self, tmp_path: Path) -> None:
        requests = [Request(id="a", token_ids=[1], output=[5, 6]), Request(id="b", text="x", output="yz")]
        trace, _ = encode_trace(requests, encoder_of(tmp_path, bos=True), outputs=True)
        assert self.outputs(trace) == [[5, 6], text_ids("yz")], "no BOS before an answer"
        assert trace.retokenised_outputs == 1

    def test_not_asked_for_they_are_not_there(self, tmp_path: Path) -> None:
        trace, _ = encode_trace([chat("hi", output={"content": "ho"}, output_tokens=3)], encoder_of(tmp_path))
        assert trace.outputs is None and trace.retokenised_outputs == 0
        assert trace.output_tokens is not None and trace.output_tokens.tolist() == [3]
