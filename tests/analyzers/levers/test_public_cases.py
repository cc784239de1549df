"""What people ran into with templates (I), tokens (J) and cache keys (K), and the lever that kvtune puts first.

Names carry the number that the collection of cases gives each one; a case without a trace here is in `NOT_HERE`
with its reason. A token is a character here, so that lengths can be counted in the text. `first` leaves
combinations out: they hold the same lever and more.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvtune.analyzers.layout import EngineConfig, parse_groups
from kvtune.analyzers.levers import Wording, find_levers
from kvtune.analyzers.levers.history import find_rewritten
from kvtune.analyzers.levers.template import template
from kvtune.analyzers.levers.trial import Baseline, measure
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.report import Lever
from kvtune.analyzers.sessions import find_sessions
from kvtune.analyzers.shared import Outputs, find_shared_prefixes
from kvtune.analyzers.sweep import no_progress
from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.traces import trace_of

CASES = """
    K075 K077 K079 K081 K082 K083 K085 K087 K131
    K089 K090 K091 K093 K095
    K096 K098 K099 K100 K102
"""
"""Every public case of categories I, J and K."""

NOT_HERE = {
    "K099": "stale blocks after an adapter is loaded anew under its name: a wrong answer, which no hit count shows; "
    "an adapter of another path has a namespace of its own",
    "K100": "a store outside the engine that keys images by 16 bits: its own defect, not the engine's",
    "K102": "images are ids that depend on their content (tests of media ids): what stands before one is shared",
}

HEAD = "You answer questions of clients."  # 32 characters
THINK = "<think>\n\n</think>\n\n"  # 19


def prose(seed: int, size: int) -> str:
    """Text without digits that no other seed gives."""
    letters = random.Random(seed)
    return "".join(letters.choice("abcdefghijklmnopqrstuvwxyz ,.") for _ in range(size))


STABLE = prose(0, 480)


def ids(text: str) -> list[int]:
    return [ord(character) for character in text]


def decode(numbers: Sequence[int]) -> str:
    return "".join(map(chr, numbers))


def question(number: int, size: int = 24) -> str:
    """A question that differs from all others in its first character."""
    return chr(ord("A") + number) + prose(100 + number, size - 1)


def base_of(trace: TokenTrace, groups: str, unit: int | None = None, outputs: Outputs = "none") -> Baseline:
    options = AnalyzeOptions(step_cost_tokens=0, outputs=outputs)
    config = EngineConfig(parse_groups(groups), match_unit=unit)
    sessions = find_sessions(trace, find_shared_prefixes(trace))
    return measure(trace, config, options, replica=None, sessions=sessions)


def first(base: Baseline) -> Lever:
    found = find_levers(base, base.trace, no_progress, Wording(decode))
    return next(one.lever for one in found if one.lever.kind != "combination")


def dated(values: Sequence[str]) -> TokenTrace:
    """A prompt per value: 32 tokens of head, the value, 480 tokens that all have in common, a question of 24."""
    return trace_of([ids(HEAD + value + STABLE + question(index)) for index, value in enumerate(values)])


def test_every_case_has_a_test_or_a_reason() -> None:
    own = Path(__file__).read_text(encoding="utf-8")
    tested = {name.upper() for name in re.findall(r"k\d{3}", " ".join(re.findall(r"def test_(\w+)\(", own)))}
    assert tested | set(NOT_HERE) == set(CASES.split())
    assert not tested & set(NOT_HERE)


def test_k075_a_time_near_the_start_that_changes_every_minute() -> None:
    # The prompts part after 46 tokens, inside the time: 32 are reused by each of four. With the two digits moved
    # to the end 526 are common, 512 of them in blocks of 16: 4 * (512 - 32).
    values = [f"2026-09-17 14:{minute}" for minute in ("05", "16", "27", "38", "49")]
    base = base_of(dated(values), "full:16")
    assert base.result.hit_tokens.tolist() == [0, 32, 32, 32, 32]
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("reorder", 1920)
    assert "date and time at token 46" in lever.evidence
    assert "5 values in 5 requests" in lever.evidence


@pytest.mark.parametrize(
    ("values", "gain"),
    [
        # To the second: every prompt parts inside it, after 49 tokens (48 in blocks); moved: 529 (528). 5 * 480.
        ([f"2026-09-17 14:05:{second}" for second in (10, 21, 32, 43, 54, "05")], 5 * 480),
        # To the minute, two prompts each: three new minutes part after 46 (32), and reuse 512 when it is moved. The
        # four that come second in their minute have 528 in common as they are, and lose 16: it parts them, too.
        (
            [f"2026-09-17 14:{minute}" for minute in ("05", "05", "16", "16", "27", "27", "38", "38")],
            3 * 480 - 4 * 16,
        ),
        # To the day, two prompts each: three new days part after 41 (32); moved, all have 521 in common (512).
        ([f"2026-09-1{day}" for day in (1, 1, 2, 2, 3, 3, 4, 4)], 3 * 480),
    ],
    ids=["second", "minute", "day"],
)
def test_k077_what_a_variable_costs_by_its_resolution(values: list[str], gain: int) -> None:
    lever = first(base_of(dated(values), "full:16"))
    assert (lever.kind, lever.gain_tokens) == ("reorder", gain)


def test_k077_a_time_written_to_the_day_is_left_where_it_is() -> None:
    # Five seconds of one day: with the day only, all have 32 + 19 + 480 = 531 tokens in common, 528 in blocks of 16.
    trace = dated([f"2026-09-17 14:05:{second}" for second in (10, 21, 32, 43, 54)])
    lever = first(base_of(replace(trace, arrival=np.arange(5.0)), "full:16"))
    assert lever.gain_tokens == 4 * (528 - 48)
    assert f"written to the day only, it would bring {4 * (528 - 48):,} tokens" in lever.evidence


def test_two_spans_close_together_are_moved_both() -> None:
    # A date, 40 tokens in common, an id, and 480 in common: moving the date alone brings blocks up to the id.
    values = [
        f"2026-09-{11 * index:02} "
        + prose(5, 39)
        + f"id-{prose(30 + index, 12).replace(' ', 'x').replace(',', 'y')}-0"
        for index in range(1, 5)
    ]
    lever = first(base_of(dated(values), "full:16"))
    # What varies: two digits of the day, and the id from its 4th token on (12 tokens); 32 + 8 + 1 + 39 + 3 = 83 stand
    # before the id, "-0" and 480 behind it: 565 in common, 560 in blocks of 16, instead of 40 (32).
    assert lever.kind == "reorder"
    assert lever.gain_tokens == 3 * (560 - 32)
    assert "once that is moved" in lever.evidence


def test_k079_a_percentage_in_a_header() -> None:
    # Prompts part at the percentage's first digit, after 40 tokens (32); with two digits moved 527 are common (512).
    values = [f"Memory [{share}% used]" for share in (19, 28, 37, 46, 55)]
    lever = first(base_of(dated(values), "full:16"))
    assert (lever.kind, lever.gain_tokens) == ("reorder", 4 * (512 - 32))
    assert "a percentage at token 40" in lever.evidence


def test_k081_a_date_that_a_template_writes() -> None:
    # One miss a day: of four days with three prompts each, three begin anew after 41 tokens (32 of them reused).
    values = [f"2026-08-0{day}" for day in (5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8)]
    lever = first(base_of(dated(values), "full:16"))
    assert (lever.kind, lever.gain_tokens) == ("reorder", 3 * 480)
    assert "a date at token 41" in lever.evidence


def talk(*turns: str, sessions: str = "s") -> TokenTrace:
    """The prompts of one named conversation."""
    return trace_of([ids(turn) for turn in turns], sessions=[sessions] * len(turns))


def test_k082_an_empty_think_block_in_the_last_turn_only() -> None:
    # The first prompt (600 tokens) leaves states at 512, its last block, and at 592, its last unit. The second
    # parts from it at 581, where the think block stood, so it resumes at 512. With the block kept it resumes at
    # 592, and is 19 tokens longer.
    start = HEAD + prose(1, 549)
    base = base_of(
        talk(start + THINK, start + prose(2, 200) + question(3) + THINK), "mamba:256,full:256", unit=16
    )
    assert base.result.hit_tokens.tolist() == [0, 512]
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("template", 592 - 512 - 19)
    assert "empty think block in 1 of 2 requests" in lever.evidence
    assert "at token 581 of 600" in lever.evidence


def test_k083_reasoning_that_is_dropped_when_the_user_speaks_again() -> None:
    # Turn 1: 320 tokens. Turn 2 adds 96 of reasoning and 704 of calls and results: 1,120. Turn 3 drops the
    # reasoning, parts at 320 and resumes there; kept, it resumes at 1,104 and is 96 tokens longer.
    start, chain = HEAD + prose(1, 288), prose(2, 704)
    thought = "<think>" + prose(3, 81) + "</think>"
    base = base_of(talk(start, start + thought + chain, start + chain + question(1)), "full:16")
    assert base.result.hit_tokens.tolist() == [0, 320, 320]
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("template", 1120 - 320 - 96)
    assert "reasoning dropped in 1 of 3 requests" in lever.evidence
    assert "token 320" in lever.evidence


def test_k083_later_turns_go_on_from_what_was_kept() -> None:
    # As above, and a fourth turn that repeats the third. Kept, both are 96 tokens longer, six whole blocks: the fourth
    # computes what it did before, and the gain is the third turn's alone.
    start, chain = HEAD + prose(1, 288), prose(2, 704)
    thought = "<think>" + prose(3, 81) + "</think>"
    third = start + chain + question(1)
    base = base_of(talk(start, start + thought + chain, third, third + prose(4, 200)), "full:16")
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("template", 1120 - 320 - 96)


def test_k085_a_think_marker_at_the_boundary_of_long_turns() -> None:
    # 71,324 and 80,882 tokens that part after 71,320. Blocks of 1,056 and 2,096 reach 70,752 and 71,264 either way,
    # so the template is named and nothing is gained there.
    start = np.random.default_rng(1).integers(1000, 100_000, 71_320).tolist()
    turns = [start + ids("<thk"), start + np.random.default_rng(2).integers(1000, 100_000, 9_562).tolist()]
    trace = trace_of(turns, sessions=["s", "s"])
    (found,) = find_rewritten(trace, find_shared_prefixes(trace), answers=False)
    assert (found.kept, found.resumed, len(found.removed)) == (71_320, 71_320, 4)
    for block, reached in ((1056, 70_752), (2096, 71_264)):
        base = base_of(trace, f"full:{block}")
        assert base.result.hit_tokens.tolist() == [0, reached]
        assert template(base, Wording(decode)) == []


class ToolsAt:
    """Tools stand from `start` to `end` in every prompt."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def part_of(self, request: int, position: int) -> str:
        return "tools" if self.start <= position < self.end else "system"


def test_k087_tools_in_another_order_each_time() -> None:
    # Four tools of 119 tokens in four orders: prompts part where the tools begin, 9 tokens into the first ('{"name":"'
    # is alike). In one order all have 32 + 476 + 480 in common, 976 in blocks: 3 * (976 - 32).
    tools = [f'{{"name":"{letter}"' + prose(ord(letter), 107) + "}" for letter in "wxyz"]
    orders = [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)]
    prompts = [
        HEAD + "".join(tools[place] for place in order) + STABLE + question(index)
        for index, order in enumerate(orders)
    ]
    assert {len(tool) for tool in tools} == {119}
    trace = trace_of(
        [ids(prompt) for prompt in prompts], tool_sets=["t"] * 4, parts=ToolsAt(32, 32 + 4 * 119)
    )
    base = base_of(trace, "full:16")
    assert base.shared.shared.tolist() == [0, 41, 41, 41]
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("tool_order", 3 * (976 - 32))
    assert "1 different tool set is written in 4 ways" in lever.evidence


def test_k131_ids_in_the_first_tokens() -> None:
    # Prompts part at token 47: 32 tokens are reused in blocks of 16, none in blocks of 528. Behind the id 1,800
    # tokens are common: moved, 47 + 1,800 are, three blocks of 528.
    prompts = [
        prose(1, 47)
        + f"{index}{prose(10 + index, 30).replace(' ', 'x')}".ljust(31, "0")
        + prose(2, 1800)
        + question(index)
        for index in range(6)
    ]
    trace = trace_of([ids(prompt) for prompt in prompts])
    assert base_of(trace, "full:16").result.hit_tokens.tolist() == [0, 32, 32, 32, 32, 32]
    base = base_of(trace, "full:528")
    assert base.result.hit_tokens.sum() == 0
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("reorder", 5 * 3 * 528)


BOS = 1


def test_k089_k090_k091_bos_twice_on_one_path() -> None:
    # The same 480 tokens with one BOS (chats, text only) and with two (completions, images, responses): the first
    # of the second kind shares nothing but the BOS. With one everywhere it reuses 480 like the others.
    prompts = [[BOS] * (1 + index % 2) + ids(STABLE + question(index)) for index in range(4)]
    base = base_of(trace_of(prompts), "full:16")
    assert base.result.hit_tokens.tolist() == [0, 0, 480, 480]
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("template", 480)
    assert "2 prompts begin with two BOS" in lever.what


def test_k093_k095_the_same_text_in_other_tokens() -> None:
    # The model wrote " ~" as one token and the rest of a 254-token answer; sent back as text it is " " and "~", and
    # the prompt is one token longer. It is reused up to there (336 of 337); sent back as ids, to the answer's end.
    wide = 0x2_0000

    def text(numbers: Sequence[int]) -> str:
        return "".join(" ~" if number == wide else chr(number) for number in numbers)

    prompt, rest = ids(HEAD + prose(1, 303)), ids(prose(2, 251))
    again = [*prompt, *ids("ab ~"), *rest, *ids(question(1))]
    trace = trace_of([prompt, again], [[*ids("ab"), wide, *rest], []], sessions=["s", "s"])
    base = base_of(trace, "full:16", outputs="recorded")
    assert base.shared.shared.tolist() == [0, 337]
    assert base.result.hit_tokens.tolist() == [0, 336]
    found = find_levers(base, trace, no_progress, Wording(text))
    lever = found[0].lever
    # 335 + 254 = 589 tokens sent before, 576 in blocks; and the next prompt is one token shorter.
    assert (lever.kind, lever.gain_tokens) == ("template", 576 - 336 + 1)
    assert "same text, other tokens in 1 of 2 requests" in lever.evidence


@pytest.mark.parametrize("tenants", [2, 4])
def test_k096_k098_separate_namespaces_have_a_price(tenants: int) -> None:
    # Eight prompts with 480 tokens in common, over tenants (or adapters): the first of each computes them. The price
    # of keeping them apart is 480 for each namespace but one; it is shown, and is no advice.
    prompts = [ids(STABLE + question(index)) for index in range(8)]
    namespace = np.arange(8, dtype=np.int32) % tenants
    base = base_of(trace_of(prompts, namespace=namespace), "full:16")
    assert base.result.hit_tokens.sum() == (8 - tenants) * 480
    lever = first(base)
    assert (lever.kind, lever.gain_tokens, lever.advice) == ("isolation", (tenants - 1) * 480, False)


def test_text_is_quoted_only_where_it_may_be() -> None:
    base = base_of(dated([f"2026-09-17 14:{minute}" for minute in ("05", "16", "27", "38")]), "full:16")
    quiet, loud = (
        find_levers(base, base.trace, no_progress, Wording(decode, show_text))[0].lever
        for show_text in (False, True)
    )
    assert '("05", in another request "16")' in loud.evidence
    assert '"' not in quiet.evidence


def test_nothing_is_found_in_prompts_that_part_for_good() -> None:
    trace = trace_of([ids(HEAD + question(index, 300)) for index in range(6)])
    found = find_levers(base_of(trace, "full:16"), trace, no_progress, Wording(decode))
    assert found == []


def test_repeated_prompts_want_nothing() -> None:
    trace = replace(trace_of([ids(HEAD + STABLE)] * 4), sessions=["s"] * 4)
    assert find_levers(base_of(trace, "full:16"), trace, no_progress, Wording(decode)) == []


class AnswersAt:
    """The assistant's text stands from `start` to `end` in the second prompt; the user's is all else."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def part_of(self, request: int, position: int) -> str:
        return "assistant" if request and self.start <= position < self.end else "user"


def test_answers_count_again_once_history_is_kept() -> None:
    # A prompt of 320 that ends in "<think>\n" (8), which the next one drops: nobody can tell the ids of the answer, and
    # 304 of 312 are reused. Kept, the answer of 160 and its end are the ids that were generated, and all but the last
    # are cached: 320 + 161 - 1 = 480 are reused, and the prompt is 8 tokens longer.
    start, answer = HEAD + prose(1, 280), prose(2, 160)
    turns = [ids(start + "<think>\n"), ids(start + answer + "#" + question(1))]
    trace = trace_of(turns, [[], []], sessions=["s", "s"], parts=AnswersAt(312, 312 + 160))
    base = base_of(trace, "full:16", outputs="recorded")
    assert base.result.hit_tokens.tolist() == [0, 304]
    lever = first(base)
    assert (lever.kind, lever.gain_tokens) == ("template", 480 - 304 - 8)
    assert "empty think block in 1 of 2 requests" in lever.evidence


def test_two_causes_that_only_pay_together() -> None:
    # Turn 2 (1,120 tokens) holds 96 of reasoning, which turn 3 drops: it resumes at 320 of its 1,067. Turn 4 drops the
    # empty block (19) that turn 3 ended with, and resumes at 1,040 of its 1,168.
    # Reasoning kept in turn 3 alone: 704 fewer computed there, and 720 more in turn 4, which now parts from it at 320.
    # The block kept in turn 4 alone: 16 more reused, 19 longer. Both: 704 there, and 1,152 of 1,283 reused here.
    start, chain, thought = HEAD + prose(1, 288), prose(2, 704), "<think>" + prose(3, 81) + "</think>"
    third = start + chain + question(1)
    trace = talk(start, start + thought + chain, third + THINK, third + prose(4, 96) + question(2))
    base = base_of(trace, "full:16")
    assert base.result.hit_tokens.tolist() == [0, 320, 320, 1040]
    (found,) = template(base, Wording(decode))
    assert found.lever.gain_tokens == 704 - 3
    assert "empty think block or reasoning dropped in 2 of 4 requests" in found.lever.evidence
