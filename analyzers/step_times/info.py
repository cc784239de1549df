"""Where step times come from and how wrong they may be: the report's `step_times`."""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["server", "engine", "kernels", "roofline", "none"]
"""Measured on a server; by the bundled engine; kernels measured by others; a data sheet's estimate; assumed."""


class StepTimesError(msgspec.Struct, frozen=True, kw_only=True):
    """Relative errors on steps that took no part in the fit.

    Attributes:
        mean: mean of |predicted / measured - 1|.
        p90: its 90th percentile.
    """

    mean: float
    p90: float


class StepTimesInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Provenance of step times.

    Attributes:
        source: where they come from; `none` is assumed.
        hardware: the GPU's name; None where it is not known.
        tensor_parallel: GPUs that share each layer.
        provenance: one sentence on what was measured or read.
        error: on held-out steps; None where none were held out.
        overhead_tokens: [low, high] step overhead of small prefill steps on an idle server, tokens; None where it was
            not looked for, or where tokens cost nothing.
        range: [low, high] factors between which a real step's time is expected, over the predicted one.
    """

    source: Source
    hardware: str | None = None
    tensor_parallel: int = 1
    provenance: str = ""
    error: StepTimesError | None = None
    range: tuple[float, float] = (1.0, 1.0)
    overhead_tokens: tuple[float, float] | None = None
