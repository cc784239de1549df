"""`KernelStepTimes`: step times from kernels that others measured on the GPU (`aiconfigurator-core`, an extra).

The library sums measured kernel times; launch overhead is not in them. It is asked once for each different step, and
what it said is kept: in this value, and by the caller beyond it. The model is handed over as its config.json in a
folder, so that the library never looks a name up on a network.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvtune.analyzers.step_times.info import StepTimesInfo
from kvtune.analyzers.step_times.shape import StepShape
from kvtune.tokenization.errors import MissingDependencyError
from kvtune.tokenization.trace import Float64, Int64

PACKAGE = "aiconfigurator_core"
RANGE = (0.5, 2.0)
"""Factors between which a real step is expected: kernels of another release, and launch overhead, which is not
counted. Kimi-K3's published TTFT is 0.55 of what the library gives for 8,193 tokens and 1.7 times it for 129."""

_POSITION_BITS = 24
_STEPS_PER_OCTAVE = 16
"""Mixed steps are looked up on a grid of sixteenths of an octave: within 2.2% of their own tokens and context."""
_DECODE_CONTEXTS = (512, 8_192)


class UnknownToKernelsError(Exception):
    """The library holds no measurement for this model on this GPU. The message says why, in one line."""


@dataclass(frozen=True)
class KernelQuery:
    """What decides the times.

    Attributes:
        config: the model's config.json, as text.
        system: the library's name of the GPU.
        tensor_parallel: GPUs that share each layer.
        expert_parallel: whether whole experts are spread over them.
        kv_cache_dtype: the library's name; None follows the model.
    """

    config: str
    system: str
    tensor_parallel: int = 1
    expert_parallel: bool = False
    kv_cache_dtype: str | None = None

    def key(self) -> str:
        """Names the query and the library's version: what is kept of its answers is kept under it."""
        parts = (
            hashlib.sha256(self.config.encode()).hexdigest(),
            self.system,
            str(self.tensor_parallel),
            str(self.expert_parallel),
            str(self.kv_cache_dtype),
            library_version(),
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def library_version() -> str:
    """Of the installed `aiconfigurator-core`.

    Raises:
        MissingDependencyError: it is not installed.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError as error:
        raise MissingDependencyError(
            "measured kernel times need the package aiconfigurator-core",
            field="--hardware",
            way_out="pip install 'kvtune[times]'",
        ) from error


def has_library() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


@dataclass
class KernelAnswers:
    """What the library said so far, in milliseconds.

    Attributes:
        chunks: int64[N], sorted: start * 2**24 + tokens of a prefill step. chunk_ms: float64[N].
        steps: of mixed and decode steps, by their place on the grid.
        grown: whether there is more than was loaded.
    """

    chunks: Int64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    chunk_ms: Float64 = field(default_factory=lambda: np.zeros(0))
    steps: dict[str, float] = field(default_factory=dict)
    grown: bool = False


class KernelStepTimes:
    """Step times of one model on one kind of GPU."""

    def __init__(
        self, query: KernelQuery, hardware: str, version: str, answers: KernelAnswers | None = None
    ) -> None:
        """`version`: of the library. `answers`: what it said before, in this process or another."""
        self.query = query
        self.answers = answers or KernelAnswers()
        self._engine: Any = None
        self._info = StepTimesInfo(
            source="kernels",
            hardware=hardware,
            tensor_parallel=query.tensor_parallel,
            provenance=f"kernel times measured on {query.system}, aiconfigurator-core {version}; no launch overhead",
            range=RANGE,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    @property
    def info(self) -> StepTimesInfo:
        return self._info

    def prefill_s(self, start: Int64, tokens: Int64) -> Float64:
        """Seconds of steps that hold one chunk each: exactly what the library says of them."""
        wanted = (start << _POSITION_BITS) + tokens
        distinct, place = np.unique(wanted, return_inverse=True)
        self._learn(np.setdiff1d(distinct, self.answers.chunks, assume_unique=True))
        milliseconds = self.answers.chunk_ms[np.searchsorted(self.answers.chunks, distinct)]
        seconds: Float64 = milliseconds[place] / 1000
        return seconds

    def _learn(self, chunks: Int64) -> None:
        if not len(chunks):
            return
        answers, mask = self.answers, (1 << _POSITION_BITS) - 1
        ask = self.engine.predict_prefill_latency
        with _silenced():
            told = [
                ask(1, (chunk >> _POSITION_BITS) + (chunk & mask), chunk >> _POSITION_BITS)
                for chunk in chunks.tolist()
            ]
        every = np.concatenate([answers.chunks, chunks])
        order = np.argsort(every, kind="stable")
        answers.chunk_ms = np.concatenate([answers.chunk_ms, np.array(told)])[order]
        answers.chunks = every[order]
        answers.grown = True

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step; mixed ones from the grid."""
        decodes = shape.decode_tokens
        if not shape.prefill_requests:
            return self.decode_s(1, decodes, shape.decode_context) if decodes else 0.0
        start, tokens = shape.mean_chunk()
        start, tokens = _on_grid(start), _on_grid(tokens)
        if not decodes:
            return self._ms(("prefill", shape.prefill_requests, start, tokens)) / 1000
        decodes = _on_grid(decodes)
        mixed = self._ms(("mixed", shape.prefill_requests, start, tokens, decodes))
        _, slope = self._decode_line(decodes)
        context = shape.decode_context / shape.decode_tokens
        alone = self.decode_s(1, shape.decode_tokens, shape.decode_context)
        return max(alone, (mixed + slope * (context - start - tokens)) / 1000)

    def decode_s(self, steps: int, requests: int, context: int) -> float:
        """Seconds of a run of decode steps: linear in the context, as attention is."""
        if not requests:
            return 0.0
        flat, slope = self._decode_line(_on_grid(requests))
        mean = context / requests + (steps - 1) / 2
        return steps * (flat + slope * mean) / 1000

    def _decode_line(self, requests: int) -> tuple[float, float]:
        """Milliseconds of a step that decodes so many requests: at no context, and per position of each."""
        near, far = _DECODE_CONTEXTS
        first, last = (self._ms(("decode", requests, context)) for context in _DECODE_CONTEXTS)
        slope = max(0.0, (last - first) / (far - near))
        return first - slope * near, slope

    def _ms(self, step: tuple[Any, ...]) -> float:
        name = " ".join(map(str, step))
        known = self.answers.steps.get(name)
        if known is None:
            with _silenced():
                known = self._ask(*step)
            self.answers.steps[name] = known
            self.answers.grown = True
        return known

    def _ask(self, kind: str, requests: int, *rest: int) -> float:
        engine = self.engine
        if kind == "decode":
            return float(engine.decode_step_latency(requests, rest[0], 2))
        start, tokens = rest[:2]
        if kind == "prefill":
            return float(engine.predict_prefill_latency(requests, start + tokens, start))
        return float(engine.mixed_step_latency(requests * tokens, rest[2], start + tokens, 2, start))

    def check(self) -> None:
        """Whether the library can answer at all; asked once a query, then kept.

        Raises:
            UnknownToKernelsError: it knows no such model, or has no measurements for it on this GPU.
        """
        if not (len(self.answers.chunks) or self.answers.steps):
            self.prefill_s(np.zeros(1, dtype=np.int64), np.array([64], dtype=np.int64))

    @property
    def engine(self) -> Any:
        """The library's model, compiled when it is first asked.

        Raises:
            UnknownToKernelsError: it knows no such model, or has no measurements for it on this GPU.
        """
        if self._engine is None:
            self._engine = _compile(self.query)
        return self._engine


def _on_grid(value: float) -> int:
    """To the nearest sixteenth of an octave; small numbers stay as they are."""
    if value <= 2 * _STEPS_PER_OCTAVE:
        return round(value)
    return round(2 ** (round(math.log2(value) * _STEPS_PER_OCTAVE) / _STEPS_PER_OCTAVE))


def _compile(query: KernelQuery) -> Any:
    with _silenced(), tempfile.TemporaryDirectory() as folder:
        from aiconfigurator_core.sdk.engine import EngineHandle

        config = json.loads(query.config)
        _complete(config)
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        options: dict[str, Any] = {"tp_size": query.tensor_parallel}
        if _has_experts(config):
            ranks = query.tensor_parallel
            options |= (
                {"moe_tp_size": 1, "moe_ep_size": ranks}
                if query.expert_parallel
                else {
                    "moe_tp_size": ranks,
                    "moe_ep_size": 1,
                }
            )
        if query.kv_cache_dtype is not None:
            options["kvcache_quant_mode"] = query.kv_cache_dtype
        try:
            engine = EngineHandle.compile(folder, query.system, "vllm", **options)
            engine.predict_prefill_latency(1, 64, 0)
            engine.decode_step_latency(1, 64, 2)
        except (
            Exception
        ) as error:  # the library raises ValueError, KeyError, RuntimeError and kinds of its own
            raise UnknownToKernelsError(_one_line(error)) from error
    return engine


def _complete(config: dict[str, Any]) -> None:
    """Lengths that bound nothing here, which the library asks for."""
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and ("hidden_size" in part or "num_hidden_layers" in part):
            part.setdefault("max_position_embeddings", 1 << 18)


def _has_experts(config: Mapping[str, Any]) -> bool:
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    return any(
        (part.get(name) or 0) > 1 for part in parts for name in names if isinstance(part.get(name), int)
    )


def _one_line(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the model's config lacks {error.args[0]!s}"[:200]
    # What follows lists every architecture, or the key that was looked up.
    return re.split(r"\.? Supported arch| for \w+Key \{", " ".join(str(error).split()))[0][:200]


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """The library writes to its log and to stdout."""
    logger = logging.getLogger("aiconfigurator_core")
    before, root = logger.level, logging.getLogger()
    disabled = root.manager.disable
    logger.setLevel(logging.CRITICAL)
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)
        logging.disable(disabled)
