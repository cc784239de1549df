"""What a fitted step cost may price, and what it may not; that it times replays by timestamps."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from kvtune.analyzers.analysis import find
from kvtune.analyzers.fitted_cost import (
    FittedStepCost,
    beyond_limits,
    check_same_model,
    check_usable,
)
from kvtune.analyzers.layout import EngineConfig, KVCacheGroup
from kvtune.analyzers.options import AnalyzeOptions
from kvtune.analyzers.step_times import LinearStepTimes
from kvtune.analyzers.sweep import no_progress
from kvtune.analyzers.validation import Validation
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.trace import TokenTrace
from tests.analyzers.fits import FITTED


def changed(**fields: object) -> FittedStepCost:
    return msgspec.structs.replace(FITTED, **fields)


def test_the_limits_are_ten_and_twenty_per_cent():
    assert beyond_limits(0.10, 0.20, 1) is None
    assert beyond_limits(0.101, 0.20, 1) is not None
    assert beyond_limits(0.10, 0.201, 1) == ("held-out error: mean 10.0%, p90 20.1%, above 10% or 20%")
    assert beyond_limits(0.0, 0.0, 0) is not None  # nothing was held out: nothing is known


@pytest.mark.parametrize("covers", ["model", "composed"])
def test_a_good_fit_of_the_whole_model_is_used(covers):
    assert check_usable(changed(covers=covers), "r.json").step_times().coefficients == (
        2e-3,
        2e-5,
        1e-9,
        1e-5,
        1e-9,
        4e-4,
    )


@pytest.mark.parametrize(
    ("fitted", "words"),
    [
        (None, "r.json: validation.step_cost: the report holds no fitted step cost; make one with"),
        (
            changed(mean_error=0.17),
            "is too far off to price anything (found held-out error: mean 17.0%, p90 13.0%, wanted at most 10% "
            "and 20%); validate again on a quiet machine, or state a number",
        ),
        (changed(p90_error=0.21), "is too far off"),
        (changed(held_out=0), "is too far off"),
        (
            changed(step_cost_tokens=None),
            "validation.step_cost.step_cost_tokens: the fitted step cost is no price in tokens (found null, wanted",
        ),
        (changed(step_cost_tokens=0.0), "is no price in tokens (found 0, wanted above 0"),
        (changed(step_cost_tokens=1e300), "is no price in tokens (found 1e+300, wanted above 0, at most"),
        (
            changed(mean_error=0.17, extrapolates=True),
            "is too far off",
        ),  # the errors decide, not what is claimed
        (
            changed(covers="stand_in", rung="L0 tiny model, 8 layers in place of 48"),
            "is not that of the server's model (found 'L0 tiny model, 8 layers in place of 48', wanted",
        ),
        (changed(covers="layers"), "with --gpu, or with more --layers, or state a number of tokens"),
    ],
)
def test_everything_else_is_refused(fitted, words):
    with pytest.raises(UnusableInputError) as caught:
        check_usable(fitted, "r.json")
    assert words in str(caught.value)


def test_another_models_fit_is_refused():
    groups = (KVCacheGroup("mamba", 528, count=3, mode="align"), KVCacheGroup("full", 528))
    check_same_model((("mamba", 3), ("full", 1)), groups, "r.json")
    with pytest.raises(UnusableInputError, match=r"found full\*1, wanted mamba\*3, full\*1"):
        check_same_model((("full", 1),), groups, "r.json")


def test_the_caveat_says_where_the_cost_came_from():
    assert FITTED.caveat("r.json", 4096) == (
        "steps cost what r.json measured: a card, L1 full width, 48 of 48 layers, synthetic weights, one step like 120 "
        "prefilled tokens (held-out error: mean 6.0%, p90 13.0%); a server on another device "
        "has costs of its own"
    )
    composed = changed(covers="composed", layers=12).caveat("r.json", 9000)
    assert "48 layers were composed of the times of 12" in composed
    assert composed.endswith("contexts beyond 4,096 tokens were not timed")
    assert "composed" not in changed(covers="composed").caveat(
        "r.json", 4096
    )  # its whole depth was timed, too


def test_negative_seconds_are_no_cost():
    document = msgspec.json.encode(changed(step_s=-1.0))
    with pytest.raises(msgspec.ValidationError, match="step_s"):
        msgspec.json.decode(document, type=FittedStepCost)


def test_validations_of_before_still_decode():
    old = {
        "rung": "L0",
        "device": "CPU",
        "clock": "model",
        "order": "",
        "runs": 1,
        "candidates": [],
        "agrees": True,
    }
    found = msgspec.convert(old, Validation)
    assert (found.step_cost, found.rate_search) == (None, None)


def test_replays_by_timestamps_take_the_cost():
    """Two equal prompts 1 s apart: the second hits where a step has ended by then, and not where it takes 3 s."""
    prompt = np.arange(1, 34)
    trace = TokenTrace(
        tokens=np.concatenate([prompt, prompt]).astype(np.uint32),
        offsets=np.array([0, 33, 66]),
        prompt_tokens=np.array([33, 33]),
        arrival=np.array([0.0, 1.0]),
        namespace=np.zeros(2, np.int32),
        ids=["a", "b"],
    )
    config = EngineConfig(groups=(KVCacheGroup("full", 16),))

    def hits(step_s: float) -> list[int]:
        cost = LinearStepTimes((step_s, 0.0, 0.0, 0.0, 0.0, 0.0))
        found = find(trace, config, AnalyzeOptions(arrivals="trace", step_times=cost), no_progress)
        return found.result_on(16).finished_s.round(3).tolist()

    assert hits(0.5) == [0.5, 1.5]
    assert hits(3.0) == [3.0, 6.0]
