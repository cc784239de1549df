"""Kinds of layer, the shallow models that are timed, and what is composed of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kvtune.analyzers.step_times import StepShape
from kvtune.gpu_probe.engine import depth
from kvtune.gpu_probe.engine.cost import Timed
from kvtune.gpu_probe.engine.depth import (
    cost_of_whole,
    fitted_depths,
    layers_by_kind,
    tried_depth,
    with_layers,
)


def test_layers_of_equal_operators_are_of_one_kind(engine):
    spec = engine.spec(("delta", "delta", "full", "delta", "full"), experts=False)
    assert list(layers_by_kind(spec).values()) == [[0, 1, 3], [2, 4]]
    # Every second layer of this model has experts: a delta net with them is another kind than one without.
    mixed = engine.spec(("delta", "delta", "full", "delta", "full"), experts=True)
    assert list(layers_by_kind(mixed).values()) == [[0], [1, 3], [2, 4]]
    kept = with_layers(spec, (2, 1))
    assert sorted({block.layer for block in kept.blocks}) == [0, 1, 2]
    assert kept.num_layers == 3


def test_depths_by_hand():
    assert fitted_depths((24, 8)) == [(2, 2), (4, 2), (2, 4)]
    assert tried_depth((24, 8)) == (6, 6)  # twice the six layers of (4, 2)
    assert fitted_depths((32,)) == [(2,), (4,)]
    assert tried_depth((32,)) == (8,)
    assert fitted_depths((3, 1)) == [(2, 1), (3, 1)]  # no more layers than there are
    assert tried_depth((3, 1)) == (3, 1)


def test_the_whole_is_composed(engine, monkeypatch):
    """A step takes 1 s, 2 s per layer of the first kind and 3 s per layer of the second, and each prefilled token as
    much in thousandths."""
    timed = []

    def time_models(models, design, *, progress):
        shapes = [StepShape(tokens, 1, 0, 0, 0) for tokens in (10, 100, 300, 700, 2000)] * 3
        for probe, (first, second) in models:
            timed.append((probe.num_layers, first, second))
            seconds = [(1 + 2 * first + 3 * second) * (1 + shape.prefill_tokens / 1000) for shape in shapes]
            yield Timed((first, second), shapes, seconds), Timed((first, second), shapes, seconds)

    monkeypatch.setattr(depth, "time_models", lambda *given, **named: list(time_models(*given, **named)))
    spec = engine.spec(("delta", "full") * 8, experts=False)
    cost, layers = cost_of_whole(spec, list, design=None, progress=lambda done, total: None)
    assert timed == [(4, 2, 2), (6, 4, 2), (6, 2, 4), (12, 6, 6)]
    assert layers == 12
    assert cost.extrapolates
    # 8 layers of each kind: 1 + 2 * 8 + 3 * 8 = 41 seconds, and 0.041 per token.
    assert cost.step_s(StepShape(0, 1, 0, 0, 0)) == pytest.approx(41.0, rel=1e-6)
    assert cost.step_s(StepShape(1000, 1, 0, 0, 0)) == pytest.approx(82.0, rel=1e-6)


def test_a_model_of_many_kinds_is_not_composed(engine):
    spec = engine.spec(("delta", "window", "mamba", "full", "conv"))
    with pytest.raises(ValueError, match="kinds of layer"):
        cost_of_whole(spec, list, design=None, progress=lambda done, total: None)
