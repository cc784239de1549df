"""A whole model's step cost out of a few of its layers: models of several small depths are timed, the cost of each
kind of layer is fitted, and a deeper one than any of them says how far the composition can be believed.

    kinds of layer        A A A B A A A B ...     24 of A, 8 of B
    fitted on             (2 A, 2 B)  (4 A, 2 B)  (2 A, 4 B)
    tried on              (6 A, 6 B)  twice as deep
    composed              (24 A, 8 B)

Layers are of one kind where their operators are equal. What is composed in the end is fitted on the deep model too.
Knows specs and times; no request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvtune.analyzers.step_times import LinearStepTimes
from kvtune.gpu_probe.engine.calibrate import Design, Progress, time_models
from kvtune.gpu_probe.engine.cost import compose
from kvtune.gpu_probe.engine.probe import Probe
from kvtune.gpu_probe.engine.spec import ModelSpec, Operator

FEW, MORE = 2, 4
"""Layers of a kind in the models that are fitted. One layer alone would stay in caches that no server's model fits."""

MOST_KINDS = 4
"""Of layers; models with more are not composed."""

Kind = tuple[Operator, ...]


def layers_by_kind(spec: ModelSpec) -> dict[Kind, list[int]]:
    """The layers of each kind, kinds in order of their first layer."""
    operators: dict[int, list[Operator]] = {}
    for block in spec.blocks:
        operators.setdefault(block.layer, []).append(block.operator)
    kinds: dict[Kind, list[int]] = {}
    for layer, found in operators.items():
        kinds.setdefault(tuple(found), []).append(layer)
    return kinds


def with_layers(spec: ModelSpec, counts: Sequence[int]) -> ModelSpec:
    """The first `counts[k]` layers of each kind k, in the model's order."""
    kept = {
        layer
        for layers, count in zip(layers_by_kind(spec).values(), counts, strict=True)
        for layer in layers[:count]
    }
    return replace(spec, blocks=tuple(block for block in spec.blocks if block.layer in kept))


def fitted_depths(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """A few layers of each kind, and that with more of one kind, for each kind that has more."""
    base = tuple(min(FEW, count) for count in counts)
    more = [
        (*base[:kind], min(MORE, count), *base[kind + 1 :])
        for kind, count in enumerate(counts)
        if count > FEW
    ]
    return [base, *more]


def tried_depth(counts: Sequence[int]) -> tuple[int, ...]:
    """Alike of each kind, together twice as many as in the deepest model that is fitted; no more than there are."""
    deepest = FEW * len(counts) + MORE - FEW
    each = -(-2 * deepest // len(counts))
    return tuple(min(each, count) for count in counts)


def cost_of_whole(
    spec: ModelSpec,
    make_probes: Callable[[Sequence[ModelSpec]], Sequence[Probe]],
    *,
    design: Design,
    progress: Progress,
) -> tuple[LinearStepTimes, int]:
    """The cost of all of a model's layers, with the error on the deepest model that was timed; and its layers.

    Args:
        make_probes: told specs, each one's layers among the last one's.

    Raises:
        ValueError: too many kinds of layer, or too few batches fit.
        UnusableInputError: a model of a few layers does not fit in memory.
    """
    counts = tuple(len(layers) for layers in layers_by_kind(spec).values())
    if len(counts) > MOST_KINDS:
        raise ValueError(f"{len(counts)} kinds of layer are too many to compose a model of")
    depths, tried = fitted_depths(counts), tried_depth(counts)
    models = [*depths, tried]
    probes = make_probes([with_layers(spec, depth) for depth in models])
    timed = time_models(list(zip(probes, models, strict=True)), design, progress=progress)
    held, grids = timed[-1][1], [grid for grid, _ in timed]
    judged = compose(grids[:-1], held, counts)
    return replace(judged, coefficients=compose(grids, held, counts).coefficients), sum(tried)
