"""Step times: how long a scheduler step takes, from its shape, and where that is known from.

    StepShape --> StepTimes.step_s --> seconds        info: source, hardware, error, range

One interface; sources, best first: measured on a server, measured by the bundled engine, measured kernels, a
roofline. Knows shapes and seconds; neither requests nor caches.
"""

from kvtune.analyzers.step_times.info import StepTimesError, StepTimesInfo
from kvtune.analyzers.step_times.linear import ASSUMED, LinearStepTimes
from kvtune.analyzers.step_times.model import StepTimes
from kvtune.analyzers.step_times.shape import FEATURES, StepShape

__all__ = [
    "ASSUMED",
    "FEATURES",
    "LinearStepTimes",
    "StepShape",
    "StepTimes",
    "StepTimesError",
    "StepTimesInfo",
]
