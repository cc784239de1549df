"""The Prometheus text format: samples of the engine's own metrics, nothing else of the page.

Knows names, labels and values; not what they mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PREFIX = "vllm:"
_MAX_LINE_CHARS = 65_536
_SAMPLE = re.compile(r"(vllm:[\w:]{1,120})(?:\{(.*)\})? (\S{1,40})")
_LABEL = re.compile(r'(\w{1,80})="((?:[^"\\]|\\.){0,2000})"')


@dataclass(frozen=True)
class Sample:
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples(page: str) -> Iterator[Sample]:
    """The engine's samples, in page order; lines that are none are passed over."""
    for line in page.split("\n"):
        if not line.startswith(PREFIX):
            continue
        match = _SAMPLE.match(line[:_MAX_LINE_CHARS])
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)
