"""A fitted step cost as a validation on a card would leave it: of the whole model, and well within the limits."""

from __future__ import annotations

from kvtune.analyzers.fitted_cost import FittedStepCost

FITTED = FittedStepCost(
    step_s=2e-3,
    prefill_token_s=2e-5,
    attended_pair_s=1e-9,
    decode_sequence_s=1e-5,
    context_token_s=1e-9,
    prefill_sequence_s=4e-4,
    step_cost_tokens=120.0,
    mean_error=0.06,
    p90_error=0.13,
    held_out=24,
    longest_context_tokens=4096,
    device="a card",
    rung="L1 full width, 48 of 48 layers, synthetic weights",
    covers="model",
    layers=48,
    model_layers=48,
    extrapolates=True,
)
