"""How much of its data sheet each generation of GPUs reaches, and how wrong estimates from it are.

Fitted on half of the models whose kernels `aiconfigurator-core` 0.12.0 has measured, judged on the other half: steps
of 64 and 1,024 tokens and the time of a token in a long prefill. `benchmarks/roofline.py --fit` prints these figures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kvtune.analyzers.hardware.gpu import Gpu
from kvtune.analyzers.step_times.info import StepTimesError
from kvtune.analyzers.step_times.kernels import RANGE as KERNELS_RANGE


class Efficiency(NamedTuple):
    """Of one generation. Shares of the data sheet's figure.

    Attributes:
        bandwidth: at which dense weights, activations, states, keys and values are read.
        experts_bandwidth: at which experts are read.
        compute: of dense matrices with many tokens.
        experts_compute: of experts, where they are wide.
        attention: of attention pairs.
        launch_s: seconds a mixer or feed-forward layer, whatever it computes.
        link_pair: of the link between GPUs, in an all-reduce of two.
        link_many: in one of more.
    """

    bandwidth: float
    experts_bandwidth: float
    compute: float
    experts_compute: float
    attention: float
    launch_s: float
    link_pair: float
    link_many: float


class RooflineError(NamedTuple):
    """On the judged pairs of model and GPU.

    Attributes:
        mean: of |estimated / measured - 1|. p90: its 90th percentile.
        low, high: 10th and 90th percentile of measured / estimated.
    """

    mean: float
    p90: float
    low: float
    high: float

    @property
    def relative(self) -> StepTimesError:
        return StepTimesError(mean=self.mean, p90=self.p90)

    @property
    def range(self) -> tuple[float, float]:
        """Factors between which a real step is expected: this error and that of measured kernels, as independent."""
        down, up = math.log(min(1.0, self.low)), math.log(max(1.0, self.high))
        kernels_down, kernels_up = (math.log(factor) for factor in KERNELS_RANGE)
        return (
            round(math.exp(-math.hypot(down, kernels_down)), 2),
            round(math.exp(math.hypot(up, kernels_up)), 2),
        )


class Generation(NamedTuple):
    """GPUs with kernels alike.

    Attributes:
        name: of the architecture.
        capabilities: CUDA compute capabilities, first and last.
        efficiency: fitted.
        error: judged.
    """

    name: str
    capabilities: tuple[int, int]
    efficiency: Efficiency
    error: RooflineError

    def judges(self, gpu: Gpu) -> bool:
        """Whether kernels of the card's own generation are measured."""
        first, last = self.capabilities
        return first <= gpu.capability <= last


GENERATIONS = (
    Generation(
        "Ampere",
        (80, 88),
        Efficiency(0.765, 0.672, 0.74, 0.545, 0.863, 3.27e-05, 0.221, 0.304),
        RooflineError(0.19, 0.36, 0.74, 0.98),
    ),
    Generation(
        "Ada",
        (89, 89),
        Efficiency(0.788, 0.766, 0.606, 0.697, 0.915, 1e-06, 0.421, 0.071),
        RooflineError(0.23, 0.51, 0.66, 1.19),
    ),
    Generation(
        "Hopper",
        (90, 90),
        Efficiency(0.907, 0.775, 0.818, 0.676, 0.903, 3.01e-05, 0.319, 0.349),
        RooflineError(0.10, 0.18, 0.86, 1.18),
    ),
    Generation(
        "Blackwell",
        (100, 121),
        Efficiency(0.793, 0.807, 0.665, 0.398, 0.929, 3.18e-05, 0.44, 0.351),
        RooflineError(0.11, 0.22, 0.83, 1.09),
    ),
)
QUANTIZED_ERROR = RooflineError(0.36, 0.70, 0.91, 3.34)
"""On models with FP8 or 4-bit weights, all generations: none of them took part in the fits. Most of it is FP8, whose
measured kernels take 60 µs a matrix on Hopper and 200 µs on Blackwell, however few tokens."""

UNJUDGED_RANGE = (0.33, 3.0)
"""On other makers' and older cards. Efficiencies of Ampere, Hopper or Blackwell on the judged pairs of the other
generations are off by up to 2.7."""


def generation_of(gpu: Gpu) -> Generation:
    """The card's own; Ampere's for older ones, Hopper's for other makers' and unknown ones."""
    for generation in GENERATIONS:
        if generation.judges(gpu):
            return generation
    return GENERATIONS[0] if 0 < gpu.capability < GENERATIONS[0].capabilities[0] else GENERATIONS[2]
