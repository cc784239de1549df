"""Chunked scans over packed sequences: Mamba-2 in its dual form, the gated delta rule in its WY form.

All chunks of all sequences are computed at once; only the states pass from chunk to chunk, one round for the i-th
chunks of all sequences. Single tokens take the recurrence itself, batched, unless the run is exact. Sources: Dao
and Gu 2024 (arXiv 2405.21060) section 6; Yang et al. 2024 (arXiv 2412.06464) section 3.

Differences of cumulative log decays are taken before `exp`, and what must not be seen is set to -inf before it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.ops.pointwise import unit_length
from kvtune.gpu_probe.engine.ops.scan_layout import Chunks, ScanLayout, scan_layout
from kvtune.gpu_probe.engine.pools import StateLayer
from kvtune.gpu_probe.engine.spec import GatedDeltaNet, Mamba2
from kvtune.gpu_probe.engine.step import Step

Tensor = torch.Tensor
Chunked = Callable[[Tensor, ScanLayout, Tensor], tuple[Tensor, Tensor]]
Single = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def run_scan(
    step: Step,
    group: int,
    inputs: Tensor,
    cache: StateLayer,
    grid: ExactGrid | None,
    chunked: Chunked,
    single: Single,
) -> Tensor:
    """Carries the states of a step's sequences through `inputs` [T, scan inputs] -> [T, heads, width].

    `chunked` maps inputs [N, Q, scan inputs], the layout and states [S, ...] to outputs [N, Q, ...] and new states;
    `single` maps inputs [B, scan inputs] and states [B, ...] to outputs [B, ...] and new states.
    """
    assert cache.state is not None
    replay = grid is not None and grid.chunk_replay and grid.scan_grid
    one_token = np.zeros_like(step.lengths, dtype=bool) if replay else step.lengths == 1
    source, target = step.state_source[group], step.state_target[group]
    out: Tensor | None = None
    if one_token.any():
        rows, members = step.plan(
            "single tokens",
            lambda: (step.upload(step.first_row[:-1][one_token]), step.upload(np.flatnonzero(one_token))),
        )
        result, state = single(inputs[rows], cache.state[source[members]])
        cache.state[target[members]] = state
        if len(result) == len(inputs):
            return result
        out = inputs.new_zeros((len(inputs), *result.shape[1:]))
        out[rows] = result
    if not one_token.all():
        layout = step.plan("scan layout", lambda: scan_layout(step, np.flatnonzero(~one_token), grid))
        opened = cache.open_chunk.index_select(0, source) if replay and cache.open_chunk is not None else None
        laid = _lay_out(step, layout, inputs, opened)
        members = source[layout.sequences]
        result, state = chunked(laid, layout, cache.state[members])
        kept = target[layout.sequences]
        cache.state[kept] = state
        if layout.open_places is not None:
            assert cache.open_chunk is not None
            flat = torch.cat([laid.flatten(0, 1), laid.new_zeros(1, laid.shape[-1])])
            cache.open_chunk[kept] = flat[layout.open_places]
        if layout.lead is not None:
            picked = result.flatten(0, 1)[layout.lead : layout.lead + step.num_tokens]
            if len(picked) == len(inputs):
                return picked
        else:
            picked = result.flatten(0, 1).index_select(0, layout.places)
        if out is None:
            out = inputs.new_zeros((len(inputs), *picked.shape[1:]))
        out.index_copy_(0, layout.rows, picked)
    assert out is not None
    return out


def _lay_out(step: Step, layout: ScanLayout, inputs: Tensor, opened: Tensor | None) -> Tensor:
    """Inputs in chunks [N, chunk, scan inputs]; `opened` [B, chunk, scan inputs] are those since the last boundary."""
    width = inputs.shape[1]
    if layout.lead is not None:
        missing = layout.num_chunks * layout.chunk - layout.lead - step.num_tokens
        parts = [inputs[: step.num_tokens], inputs.new_zeros(missing, width)]
        if opened is not None:
            parts.insert(0, opened[0, : layout.lead])
        elif layout.lead:
            parts.insert(0, inputs.new_zeros(layout.lead, width))
        return torch.cat(parts).view(layout.num_chunks, layout.chunk, width)
    earlier = [] if opened is None else [opened.flatten(0, 1)]
    together = torch.cat([inputs, *earlier, inputs.new_zeros(1, width)])
    return together.index_select(0, layout.gather).view(layout.num_chunks, layout.chunk, width)


def delta_rule(
    step: Step,
    group: int,
    spec: GatedDeltaNet,
    qkv: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    cache: StateLayer,
    grid: ExactGrid | None,
) -> Tensor:
    """`Ops.delta_rule`; inputs already in the state's dtype."""

    def parts(inputs: Tensor) -> tuple[Tensor, ...]:
        query, key, value, decay, gain = inputs.split(
            [spec.key_size, spec.key_size, spec.inner_size, spec.num_value_heads, spec.num_value_heads],
            dim=-1,
        )
        query = unit_length(query.unflatten(-1, (spec.num_key_heads, spec.key_dim))) * spec.key_dim**-0.5
        key = unit_length(key.unflatten(-1, (spec.num_key_heads, spec.key_dim)))
        return query, key, value.unflatten(-1, (spec.num_value_heads, spec.value_dim)), decay, gain

    share = spec.num_value_heads // spec.num_key_heads

    def single(inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, decay, gain = parts(inputs)
        query, key = query.repeat_interleave(share, 1), key.repeat_interleave(share, 1)
        state = state * decay.exp()[..., None, None]
        error = (value - (key[:, :, None] @ state)[:, :, 0]) * gain[..., None]
        state = state + key[..., None] * error[:, :, None]
        return (query[:, :, None] @ state)[:, :, 0], state

    def chunked(inputs: Tensor, layout: ScanLayout, state: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, decay, gain = (part.transpose(1, 2).contiguous() for part in parts(inputs))
        total = decay.cumsum(-1)  # [N, value heads, Q]
        difference = total[..., :, None] - total[..., None, :]
        lower = difference.masked_fill(_above_diagonal(layout.chunk, difference.device), float("-inf")).exp()
        # Key heads are shared: products of keys are formed once per key head.
        key_products = (key @ key.transpose(-1, -2)).repeat_interleave(share, 1)
        seen = (query @ key.transpose(-1, -2)).repeat_interleave(share, 1) * lower
        query, key = query.repeat_interleave(share, 1), key.repeat_interleave(share, 1)
        weights = (gain[..., None] * key_products * lower).tril(-1)
        grown = total.exp()[..., None]
        right = torch.cat([value, key * grown], dim=-1) * gain[..., None]
        solved = torch.linalg.solve_triangular(weights, right, upper=False, unitriangular=True)
        own, carried = solved.split([spec.value_dim, spec.key_dim], dim=-1)
        last = total[..., -1:]
        into_state = (key * (last - total).exp()[..., None]).transpose(-1, -2)
        remains = last.exp()[..., None]

        corrected = torch.empty_like(own)
        before = own.new_empty((layout.num_chunks, *state.shape[1:]))
        state = state.clone()
        for chunks, closed in layout.rounds:
            active = state[: _count(chunks)]
            before[chunks] = active
            fresh = own[chunks] - carried[chunks] @ active
            corrected[chunks] = fresh
            _advance(state, active * remains[chunks] + into_state[chunks] @ fresh, closed)
        out = (query * grown) @ before + seen @ corrected
        return out.transpose(1, 2), state

    inputs = torch.cat([qkv, log_decay, beta], dim=-1)
    return run_scan(step, group, inputs, cache, grid, chunked, single)


def state_space(
    step: Step,
    group: int,
    spec: Mamba2,
    xbc: Tensor,
    dt: Tensor,
    decay_rate: Tensor,
    cache: StateLayer,
    grid: ExactGrid | None,
) -> Tensor:
    """`Ops.state_space`; inputs already in the state's dtype."""
    shared = spec.num_groups * spec.state_size
    share = spec.num_heads // spec.num_groups

    def parts(inputs: Tensor) -> tuple[Tensor, ...]:
        x, b_in, c_out, dt = inputs.split([spec.inner_size, shared, shared, spec.num_heads], dim=-1)
        x = x.unflatten(-1, (spec.num_heads, spec.head_dim)) * dt[..., None]
        b_in = b_in.unflatten(-1, (spec.num_groups, spec.state_size))
        return x, b_in, c_out.unflatten(-1, (spec.num_groups, spec.state_size)), dt * decay_rate

    def single(inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        x, b_in, c_out, decay = parts(inputs)
        b_in, c_out = b_in.repeat_interleave(share, 1), c_out.repeat_interleave(share, 1)
        state = state * decay.exp()[..., None, None] + x[..., None] * b_in[:, :, None]
        return (state @ c_out[..., None])[..., 0], state

    def chunked(inputs: Tensor, layout: ScanLayout, state: Tensor) -> tuple[Tensor, Tensor]:
        x, b_in, c_out, decay = (part.transpose(1, 2).contiguous() for part in parts(inputs))
        total = decay.cumsum(-1)  # [N, heads, Q]
        difference = total[..., :, None] - total[..., None, :]
        lower = difference.masked_fill(_above_diagonal(layout.chunk, difference.device), float("-inf")).exp()
        weights = (c_out @ b_in.transpose(-1, -2)).repeat_interleave(share, 1) * lower
        b_in, c_out = b_in.repeat_interleave(share, 1), c_out.repeat_interleave(share, 1)
        last = total[..., -1:]
        added = (x * (last - total).exp()[..., None]).transpose(
            -1, -2
        ) @ b_in  # [N, heads, head_dim, state_size]
        remains = last.exp()[..., None]

        before = added.new_empty(added.shape)
        state = state.clone()
        for chunks, closed in layout.rounds:
            active = state[: _count(chunks)]
            before[chunks] = active
            _advance(state, active * remains[chunks] + added[chunks], closed)
        out = weights @ x + (c_out * total.exp()[..., None]) @ before.transpose(-1, -2)
        return out.transpose(1, 2), state

    inputs = torch.cat([xbc, dt], dim=-1)
    return run_scan(step, group, inputs, cache, grid, chunked, single)


def _count(chunks: Chunks) -> int:
    return 1 if isinstance(chunks, slice) else len(chunks)


def _advance(state: Tensor, following: Tensor, closed: Tensor | None) -> None:
    """Moves the first states on, where their chunk is closed."""
    active = state[: len(following)]
    if closed is not None:
        following = torch.where(closed[:, None, None, None], following, active)
    state[: len(following)] = following


def _above_diagonal(size: int, device: torch.device) -> Tensor:
    return torch.ones((size, size), dtype=torch.bool, device=device).triu(1)
