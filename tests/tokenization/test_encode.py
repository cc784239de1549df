"""Requests to a `TokenTrace`: ids, namespaces, families, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.tokenization.encode import encode_trace
from kvtune.tokenization.encoding.check import CutMismatchError
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.request import Identity, Request
from tests.tokenization.encoding.models import (
    ID,
    STRINGS,
    TEMPLATE,
    chat,
    encoder_of,
    rejected_of,
    text_ids,
    write_model,
)

ROOT = Path(__file__).resolve().parents[2]


class TestPrompts:
    def test_a_chat_has_the_ids_of_its_text(self, tmp_path: Path) -> None:
        encoder = encoder_of(tmp_path)
        trace, info = encode_trace([chat("hi", "ho", "he", arrival=2.5, session="s", server="w")], encoder)
        text = "<s><|turn|>user\nhi<|end|>\n<|turn|>assistant\nho<|end|>\n<|turn|>user\nhe<|end|>\n<|turn|>assistant\n"
        assert trace.prompt(0).tolist() == text_ids(text)
        assert trace.prompt_tokens.tolist() == [len(text_ids(text))]
        assert trace.arrival.tolist() == [2.5]
        assert (trace.sessions, trace.servers, trace.ids) == (["s"], ["w"], ["r"])
        assert (info.kind, info.source) == ("hf", str(tmp_path / "tokenizer.json"))
        assert info.checked_requests == 1 and info.why_whole is None
        assert info.chat_template_sha256 is not None and len(info.chat_template_sha256) == 64

    def test_ids_pass_as_they_are_without_any_encoder(self) -> None:
        trace, info = encode_trace([Request(id="a", token_ids=[7, 0, 2**32 - 1])], None)
        assert trace.prompt(0).tolist() == [7, 0, 2**32 - 1]
        assert (info.kind, info.checked_requests, info.chat_template_sha256) == ("ids", 0, None)
        assert trace.output_tokens is None and trace.sessions is None and np.isnan(trace.arrival[0])

    def test_text_and_ids_side_by_side_keep_their_order(self, tmp_path: Path) -> None:
        requests = [Request(id="a", token_ids=[1]), chat("hi", id="b"), Request(id="c", token_ids=[2])]
        trace, _ = encode_trace(requests, encoder_of(tmp_path))
        assert list(trace.ids) == ["a", "b", "c"]
        assert (trace.prompt(0).tolist(), trace.prompt(2).tolist()) == ([1], [2])

    def test_many_requests_over_many_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kvtune.tokenization.tokenizers.pieces.BATCH_CHARS", 50)
        monkeypatch.setattr("kvtune.tokenization.tokenizers.pieces.IDLE_BATCH_CHARS", 20)
        encoder = encoder_of(tmp_path)
        requests = [chat("hello", f"answer {n % 7}", f"question {n}", id=str(n)) for n in range(60)]
        trace, info = encode_trace(requests, encoder, check=60)
        assert info.checked_requests == 60
        assert [trace.prompt(n).tolist() for n in range(60)] == [
            text_ids(encoder.render(r).text) for r in requests
        ]

    def test_progress_is_told(self, tmp_path: Path) -> None:
        seen: list[int] = []
        encode_trace([chat("hi", id=str(n)) for n in range(600)], encoder_of(tmp_path), progress=seen.append)
        assert seen == [0, 256, 512]


class TestBos:
    """One BOS and never two: the template writes it for chats, the post-processor for completions."""

    def test_chats_and_completions_have_one(self, tmp_path: Path) -> None:
        encoder = encoder_of(tmp_path, bos=True)
        trace, info = encode_trace([chat("hi"), Request(id="c", text="hi")], encoder)
        assert trace.prompt(0).tolist()[:2] == [ID["<s>"], ID["<|turn|>"]]
        assert trace.prompt(1).tolist() == [ID["<s>"], *text_ids("hi")]
        assert info.double_bos == 0

    def test_either_can_be_asked_for_otherwise(self, tmp_path: Path) -> None:
        encoder = encoder_of(tmp_path, TEMPLATE.replace("{{ bos_token }}", ""), bos=True)
        requests = [chat("hi", add_special_tokens=True), Request(id="c", text="hi", add_special_tokens=False)]
        trace, info = encode_trace(requests, encoder)
        assert trace.prompt(0).tolist()[:2] == [ID["<s>"], ID["<|turn|>"]]
        assert trace.prompt(1).tolist() == text_ids("hi")
        assert info.double_bos == 0

    def test_the_flag_of_the_configuration(self, tmp_path: Path) -> None:
        encoder = open_prompt_encoder(model=write_model(tmp_path, bos=True, add_bos_token=False))
        trace, _ = encode_trace([Request(id="c", text="hi")], encoder)
        assert trace.prompt(0).tolist() == text_ids("hi")

    def test_a_rendered_chat_sent_as_a_completion_shares_one_token_with_the_chat(
        self, tmp_path: Path
    ) -> None:
        """The engine adds a BOS to the one that the text brings, so everything is shifted (as people report)."""
        encoder = encoder_of(tmp_path, bos=True)
        requests = [chat("hi"), Request(id="c", text=encoder.render(chat("hi")).text)]
        trace, info = encode_trace(requests, encoder)
        assert trace.prompt(1).tolist() == [ID["<s>"], *trace.prompt(0).tolist()]
        assert build_prefix_tree(trace.tokens, trace.offsets, trace.namespace).shared.tolist() == [0, 1]
        assert info.double_bos == 1

    def test_two_are_counted_where_the_request_itself_brings_one(self, tmp_path: Path) -> None:
        requests = [Request(id="c", text="<s>hi"), Request(id="d", text="hi")]
        trace, info = encode_trace(requests, encoder_of(tmp_path, bos=True))
        assert trace.prompt(0).tolist()[:2] == [ID["<s>"]] * 2
        assert info.double_bos == 1


class TestNamespaces:
    def test_equal_identities_share_one(self) -> None:
        identities = [
            Identity(model="m"),
            Identity(model="m", lora="a", lora_path="/a"),
            Identity(model="m", lora="a", lora_path="/b"),
            Identity(model="m", cache_salt="x"),
            Identity(model="m", tenant="t"),
            Identity(model="m"),
            Identity(model="m", lora="a", lora_path="/a"),
        ]
        requests = [Request(id=str(n), token_ids=[1], identity=one) for n, one in enumerate(identities)]
        trace, _ = encode_trace(requests, None)
        assert trace.namespace.tolist() == [0, 1, 2, 3, 4, 0, 1]

    def test_the_server_is_none_of_it(self) -> None:
        trace, _ = encode_trace([Request(id=s, token_ids=[1], server=s) for s in "ab"], None)
        assert trace.namespace.tolist() == [0, 0]
        assert trace.servers == ["a", "b"]


class TestFamilies:
    def names(self, folder: Path, **options: Any) -> list[str]:
        system = {"role": "system", "content": "You sell shoes.\nMore."}
        other = {"role": "system", "content": [{"type": "text", "text": "You sell hats."}]}
        user = {"role": "user", "content": "hi"}
        requests = [
            chat(messages=[system, user], tools=[{"type": "function", "function": {"name": "f"}}]),
            chat(messages=[system, user, user], tools=[{"type": "function", "function": {"name": "f"}}]),
            chat(messages=[system, user]),
            chat(messages=[other, user]),
            chat("hi"),
            Request(id="c", text="hi"),
            Request(id="d", token_ids=[1]),
        ]
        trace, _ = encode_trace(requests, encoder_of(folder, STRINGS), **options)
        assert trace.families is not None
        return list(trace.families)

    def test_the_same_tools_and_first_system_line_are_one_family(self, tmp_path: Path) -> None:
        names = self.names(tmp_path)
        assert names[0] == names[1]
        assert len(set(names)) == 6
        assert names[0].startswith("1 tools ") and names[4:] == [
            "no tools, no system message",
            "completions",
            "token ids",
        ]

    def test_names_hold_no_text_unless_that_is_allowed(self, tmp_path: Path) -> None:
        assert not any("shoes" in name for name in self.names(tmp_path / "a"))
        assert 'no tools, system "You sell hats."' in self.names(tmp_path / "b", show_text=True)


class TestRejected:
    def test_a_refusal_costs_one_request(self, tmp_path: Path) -> None:
        template = "{% if messages[0].content == 'bad' %}{{ raise_exception('no bad') }}{% endif %}" + STRINGS
        requests = [chat("hi", id="a"), chat("bad", id="b"), chat("ho", id="c")]
        trace, info, rejected = rejected_of(requests, encoder_of(tmp_path, template))
        assert list(trace.ids) == ["a", "c"]
        assert info.rejected_by == {"template_refused": 1}
        [(request, reason, error)] = rejected
        assert (request.id, reason) == ("b", "template_refused")
        assert "refused the request: no bad" in str(error)

    def test_a_hostile_template_costs_one_request(self, tmp_path: Path) -> None:
        endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
        requests = [chat("hi", id="a", chat_template=endless), chat("ho", id="b")]
        trace, _, rejected = rejected_of(requests, encoder_of(tmp_path, trusts_requests=True))
        assert list(trace.ids) == ["b"]
        assert "more than a prompt needs" in str(rejected[0][2])

    def test_prompts_that_the_server_has_no_room_for(self, tmp_path: Path) -> None:
        requests = [
            Request(id=str(number), token_ids=ids, identity=Identity(cache_salt=salt), output=[9, number])
            for number, (ids, salt) in enumerate(
                [([1, 2, 3, 4], "a"), ([5, 6, 7], "b"), ([8], "c"), ([9] * 5, "b")]
            )
        ]
        trace, info, rejected = rejected_of(requests, encoder_of(tmp_path), outputs=True, max_model_len=4)
        assert list(trace.ids) == ["1", "2"]
        assert trace.tokens.tolist() == [5, 6, 7, 8]
        assert trace.offsets.tolist() == [0, 3, 4]
        assert trace.prompt_tokens.tolist() == [3, 1]
        assert trace.namespace.tolist() == [0, 1]
        assert [identity.cache_salt for identity in info.identities] == ["b", "c"]
        assert trace.outputs is not None and trace.outputs.tolist() == [9, 1, 9, 2]
        assert info.rejected_by == {"too_long": 2}
        assert [(request.id, reason) for request, reason, _ in rejected] == [
            ("0", "too_long"),
            ("3", "too_long"),
        ]
        assert "found 4 tokens, wanted at most 3" in str(rejected[0][2])

    def test_parts_of_what_is_left(self, tmp_path: Path) -> None:
        requests = [chat("a longer text than the other", id="a"), chat("hi", id="b")]
        whole, _ = encode_trace(requests, encoder_of(tmp_path))
        trace, _ = encode_trace(requests, encoder_of(tmp_path), max_model_len=int(whole.prompt_tokens.max()))
        assert list(trace.ids) == ["b"]
        count = int(trace.prompt_tokens[0])
        assert [trace.parts.part_of(0, at) for at in range(count)] == [
            whole.parts.part_of(1, at) for at in range(count)
        ]

    def test_empty_prompts(self, tmp_path: Path) -> None:
        requests = [
            chat("hi", id="a"),
            Request(id="b", text=""),
            Request(id="c", token_ids=[]),
            chat("hi", id="d", chat_template="{{ '' }}"),
        ]
        trace, info, _ = rejected_of(requests, encoder_of(tmp_path, trusts_requests=True))
        assert list(trace.ids) == ["a"]
        assert info.rejected_by == {"empty_prompt": 3}

    def test_half_a_surrogate_pair(self, tmp_path: Path) -> None:
        requests = [chat("a\ud800", id="a"), Request(id="b", text="\udfff"), chat("fine", id="c")]
        trace, info, _ = rejected_of(requests, encoder_of(tmp_path))
        assert list(trace.ids) == ["c"] and info.rejected_by == {"lone_surrogate": 2}

    def test_text_without_an_encoder_ends_the_command(self) -> None:
        with pytest.raises(UnusableInputError, match=r"t.jsonl:1: .*--model DIR or --tokenizer PATH"):
            encode_trace([chat("hi")], None)

    def test_nothing_left_is_an_error_of_its_own(self) -> None:
        with pytest.raises(NoUsableRequestError, match="found 1 an empty prompt"):
            encode_trace([Request(id="a", token_ids=[])], None)


class TestChecking:
    def test_a_cut_that_changed_the_ids_would_be_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoder = encoder_of(tmp_path)
        encode = encoder.vocabulary.encode
        monkeypatch.setattr(
            encoder.vocabulary,
            "encode",
            lambda texts: [ids[: 5 if len(ids) < 30 else None] for ids in encode(texts)],
        )
        with pytest.raises(CutMismatchError, match="request r") as caught:
            encode_trace([chat("hello there", "yes", "really?")], encoder)
        assert caught.value.exit_code == 70

    @pytest.mark.parametrize(("asked", "checked"), [(0, 0), (3, 3), (99, 10)])
    def test_as_many_as_asked_for(self, tmp_path: Path, asked: int, checked: int) -> None:
        requests = [chat(f"number {n}", id=str(n)) for n in range(10)]
        _, info = encode_trace(requests, encoder_of(tmp_path), check=asked)
        assert info.checked_requests == checked


def test_the_bundled_sample_and_model() -> None:
    encoder = open_prompt_encoder(model=ROOT / "samples" / "tiny-hybrid")
    for name, requests, most in (("airline", 97, 400_000), ("functions", 150, 500_000)):
        read = read_trace([str(ROOT / "samples" / f"{name}.jsonl.gz")]).requests
        trace, info = encode_trace(read, encoder, check=10)
        assert len(trace) == requests and not info.rejected_by
        assert requests <= 150 and len(trace.tokens) <= most
        assert info.checked_requests == 10 and info.why_whole is None
        whole = encoder.vocabulary.encode([encoder.render(request).text for request in read])
        assert all(np.array_equal(trace.prompt(n), ids) for n, ids in enumerate(whole))
        assert int(trace.tokens.max()) < encoder.vocabulary.size <= 8000


def test_each_turn_of_the_bundled_sample_extends_the_one_before_and_its_answer() -> None:
    encoder = open_prompt_encoder(model=ROOT / "samples" / "tiny-hybrid")
    read = read_trace([str(ROOT / "samples" / "airline.jsonl.gz")]).requests
    trace, _ = encode_trace(read, encoder, outputs=True)
    assert trace.retokenised_outputs == len(trace) == 97
    assert trace.outputs is not None and trace.output_offsets is not None and trace.sessions is not None
    latest: dict[str | None, list[int]] = {}
    extended = 0
    for number, session in enumerate(trace.sessions):
        prompt = trace.prompt(number).tolist()
        before = latest.get(session)
        if before is not None:
            assert prompt[: len(before)] == before
            extended += 1
        answer = trace.outputs[trace.output_offsets[number] : trace.output_offsets[number + 1]]
        assert answer[-1] == encoder.vocabulary.special_tokens["<|end|>"]
        latest[session] = [*prompt, *answer.tolist()]
    assert extended == 97 - 14
