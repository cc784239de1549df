"""One plan: the recommendation, its flags and the steps agree, also where an optimization leads."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from kvtune.analyzers.advice import Worth, recommendation
from kvtune.analyzers.decision import Choice, Objective
from kvtune.analyzers.plan import leading_lever, plan_of, unit_of
from kvtune.analyzers.report import Action, Lever
from kvtune.analyzers.why import Setting

WARM_UP = Lever(
    kind="prime",
    title="Warm up the shared prefix of 1,500 tokens with --prefix-match-unit 16",
    what="Send the first 1,500 tokens once.",
    gain_tokens=9000,
    gain_ci95=(7000, 11_000),
    flags=("--prefix-match-unit 16",),
    cost="1,500 tokens",
)
ADVISED: tuple[Action, Action] = ("set", "unset")


def choice(action: Action = "keep", unit: int = 2096, *, undecidable: bool = False) -> Choice:
    return Choice(action, unit, 0, 0, (0, 0), "high", (), Objective("overhead"), undecidable=undecidable)


def setting(current: int = 2096) -> Setting:
    lengths = np.full(20, 3000, dtype=np.int64)
    return Setting(lengths, lengths, current, 2096, 2096, Objective("overhead"), has_recurrent_state=True)


def test_a_lever_with_a_unit_is_one_plan() -> None:
    """The unit alone loses 127,344 tokens: the plan says so, and its unit, flags and gain are the recommendation's."""
    found, server = choice(), setting()
    lever = leading_lever(found, [WARM_UP])
    steps = plan_of(found, server, lever, {2096: 0, 16: -127_344})
    assert [step.kind for step in steps] == ["flag", "warm_up"]
    assert steps[0].if_only_this == "Match unit 16 alone loses 127,344 tokens net: do not stop here."
    assert "To go back, drop the flag and restart: nothing else changes." in steps[0].text
    advice = recommendation(
        found, why="", setting=server, worth=Worth(1, None, None), caveats=(), lever=lever, plan=steps
    )
    assert (advice.action, advice.unit, advice.flags) == ("set", 16, WARM_UP.flags)
    assert (advice.gain_tokens, advice.gain_ci95, advice.net_gain_tokens) == (9000, (7000, 11_000), 9000)
    assert advice.gain_fraction == pytest.approx(9000 / 60_000)
    assert advice.plan == (0, 1)
    assert advice.confidence == "medium"
    assert advice.regret is None  # it was of keeping the unit
    assert advice.why.startswith("No other match unit pays by itself.")


def test_a_lever_without_a_unit_keeps_the_unit() -> None:
    lever = msgspec.structs.replace(WARM_UP, flags=None)
    steps = plan_of(choice(), setting(), lever, {})
    assert [(step.kind, step.flags, step.if_only_this) for step in steps] == [("warm_up", None, None)]
    advice = recommendation(
        choice(), why="", setting=setting(), worth=Worth(1, None, None), caveats=(), lever=lever, plan=steps
    )
    assert (advice.action, advice.unit, advice.flags) == ("keep", 2096, ())


@pytest.mark.parametrize(
    ("kind", "step"),
    [("reorder", "edit"), ("tool_order", "edit"), ("retention", "server"), ("prime", "warm_up")],
)
def test_each_lever_is_a_step_of_its_kind(kind: str, step: str) -> None:
    lever = msgspec.structs.replace(WARM_UP, kind=kind, flags=None)
    assert plan_of(choice(), setting(), lever, {})[0].kind == step


def test_what_never_leads() -> None:
    touching = msgspec.structs.replace(WARM_UP, gain_ci95=(0, 11_000))
    price = msgspec.structs.replace(WARM_UP, advice=False)
    assert leading_lever(choice(), [touching, price]) is None
    assert leading_lever(choice(), [touching, WARM_UP]) is WARM_UP
    assert [leading_lever(choice(action, 16), [WARM_UP]) for action in ADVISED] == [None, None]
    assert leading_lever(choice("cannot_help", undecidable=True), [WARM_UP]) is None


def test_steps_of_a_unit_say_how_to_go_back() -> None:
    (step,) = plan_of(choice("set", 16), setting(), None, {})
    assert (step.kind, step.flags) == ("flag", ("--prefix-match-unit 16",))
    assert "To go back, drop the flag" in step.text
    (step,) = plan_of(choice("set", 16), setting(current=48), None, {})
    assert "To go back, set --prefix-match-unit 48" in step.text
    (step,) = plan_of(choice("unset", 2096), setting(current=48), None, {})
    assert step.text.startswith("Drop --prefix-match-unit")
    assert plan_of(choice(), setting(), None, {}) == ()


def test_the_unit_of_a_lever() -> None:
    assert unit_of(WARM_UP) == 16
    assert unit_of(msgspec.structs.replace(WARM_UP, flags=("--prefix-cache-retention-interval 16",))) is None
