"""Requests to a `TokenTrace`: ids, namespaces, families, answers, media, block hashes, and what is left out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtune.analyzers.prefix_tree import build_prefix_tree
from kvtune.tokenization.encode import EncodeInfo, encode_trace
from kvtune.tokenization.encoding.check import CutMismatchError
from kvtune.tokenization.encoding.open_encoder import open_prompt_encoder
from kvtune.tokenization.errors import NoUsableRequestError, UnusableInputError
from kvtune.tokenization.reading import read_trace
from kvtune.tokenization.request import Identity, Request
from kvtune.tokenization.trace import TokenTrace
from tests.tokenization.encoding.models import ID, STRINGS, TEMPLATE, chat, encoder_of, text_ids, write_model

ROOT = Path(__file__).resolve().parents[2]


def rejected_of(
    requests: list[Request], encoder: Any, **options: Any
) -> tuple[TokenTrace, EncodeInfo, list[Any]]:
    rejected: list[Any] = []
    trace, info = encode_trace(
        requests, encoder, on_reject=lambda *reject: rejected.append(reject), **options
    )
    return trace, info, rejected


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


class TestMedia:
    @staticmethod
    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    def prompt(self, folder: Path, *contents: list[Any], template: str = TEMPLATE) -> list[list[int]]:
        requests = [
            chat(messages=[{"role": "user", "content": content}], id=str(n))
            for n, content in enumerate(contents)
        ]
        trace, _ = encode_trace(requests, encoder_of(folder, template))
        return [trace.prompt(n).tolist() for n in range(len(trace))]

    def test_an_item_stands_above_the_vocabulary_where_its_placeholder_was(self, tmp_path: Path) -> None:
        cat, dog = self.image("http://a/cat"), self.image("http://a/dog")
        a, b, c = self.prompt(tmp_path, ["look ", cat, " x"], ["look ", dog, " x"], ["look ", cat, " x", dog])
        size = 256 + len(ID)
        head = text_ids("<s><|turn|>user\nlook ")
        assert a == [*head, size, *text_ids(" x<|end|>\n<|turn|>assistant\n")]
        assert b[: len(head) + 1] == [*head, size + 1]
        assert c == [*head, size, *text_ids(" x"), size + 1, *text_ids("<|end|>\n<|turn|>assistant\n")]

    def test_an_item_without_a_placeholder_stands_before_the_piece_with_its_message(
        self, tmp_path: Path
    ) -> None:
        film = {"type": "video_url", "video_url": {"url": "http://a/film"}}
        [plain] = self.prompt(tmp_path / "a", ["watch"], template=STRINGS)
        [watched] = self.prompt(tmp_path / "b", ["watch", film], template=STRINGS)
        item = 256 + len(ID)
        assert watched == [*text_ids("<s><|turn|>"), item, *plain[2:]]

    def test_items_that_nothing_identifies_are_unlike_any_other(self, tmp_path: Path) -> None:
        nameless = {"type": "image_url", "image_url": {}}
        a, b = self.prompt(tmp_path, [nameless], [nameless])
        assert a != b


class TestBlockHashes:
    def request(
        self, hashes: list[int], tokens: int | None = None, span: int = 512, **fields: Any
    ) -> Request:
        return Request(
            **{"id": "a", "block_hashes": hashes, "prompt_tokens": tokens, "hash_block_size": span, **fields}
        )

    def test_hashes_become_dense_ids_and_lengths_stay_in_tokens(self) -> None:
        requests = [self.request([10**18, 7], 1000), self.request([10**18, 9, 7], 1536, id="b")]
        trace, info = encode_trace(requests, None)
        assert (trace.span, info.kind) == (512, "blocks")
        assert trace.tokens.tolist() == [0, 1, 0, 2, 1]
        assert trace.offsets.tolist() == [0, 2, 5]
        assert trace.prompt_tokens.tolist() == [1000, 1536]
        assert trace.families == ["block hashes"] * 2
        assert trace.parts.part_of(1, 700) == "user"

    @pytest.mark.parametrize(("count", "tokens"), [(2, 1000), (1, 1000), (2, 1024), (2, None)])
    def test_a_log_may_leave_the_partial_last_block_out(self, count: int, tokens: int | None) -> None:
        trace, _ = encode_trace([self.request(list(range(count)), tokens)], None)
        assert trace.prompt_tokens.tolist() == [tokens or 1024]

    @pytest.mark.parametrize(("count", "tokens"), [(3, 1024), (1, 1024), (0, None), (1, 0)])
    def test_lengths_that_do_not_fit_are_rejected(self, count: int, tokens: int | None) -> None:
        requests = [self.request([1], 512), self.request(list(range(count)), tokens, id="b")]
        trace, info, _ = rejected_of(requests, None)
        assert list(trace.ids) == ["a"] and info.rejected_by == {"inconsistent_blocks": 1}

    def test_another_block_size_or_another_kind_of_prompt_is_rejected(self) -> None:
        requests = [self.request([1], 512), self.request([1], 16, 16, id="b"), Request(id="c", token_ids=[1])]
        trace, info, _ = rejected_of(requests, None)
        assert list(trace.ids) == ["a"]
        assert info.rejected_by == {"inconsistent_blocks": 1, "wrong_type": 1}
        trace, info, _ = rejected_of([Request(id="c", token_ids=[1]), self.request([1], 512)], None)
        assert list(trace.ids) == ["c"] and trace.span == 1


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
