"""Which release's rules a development build follows: the newest of its own number, its model's class, and its log.

A build such as `0.28.1rc1.dev120` was made after 0.28 and holds some of what later releases brought. Each sign below
shows one such change. Sources: `vllm/model_executor/models/registry.py` and the logger calls of 0.26 to 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kvtune.analyzers.sizing.model_config import ModelConfig
from kvtune.analyzers.sizing.releases import Release, parse_release
from kvtune.analyzers.sizing.startup_log import StartupLog


class Sign(NamedTuple):
    """The first release that has something, and what it is."""

    release: Release
    text: str


_CLASSES: dict[str, Release] = {
    "KimiK3ForConditionalGeneration": (0, 27),
    "Qwen3_5ForCausalLM": (0, 27),
    "Qwen3_5MoeForCausalLM": (0, 27),
    "BailingMoeV3ForCausalLM": (0, 28),
    "MuseGlimmerForCausalLM": (0, 28),
    "GraniteSWAForCausalLM": (0, 29),
    "GraniteMoeSWAForCausalLM": (0, 29),
    "Qwen4ExpForCausalLM": (0, 29),
    "Qwen4ExpForConditionalGeneration": (0, 29),
    "DeepseekV41ForCausalLM": (0, 30),
    "Glm5NextForCausalLM": (0, 30),
    "Glm5NextForConditionalGeneration": (0, 30),
}
"""Model classes of hybrid and sparse models that came after 0.26, by the first release whose registry has them."""

_NAMES = (
    (re.compile(r"qwen3\.8-flash-next", re.IGNORECASE), "Qwen4ExpForConditionalGeneration"),
    (re.compile(r"glm-5\.3-flash", re.IGNORECASE), "Glm5NextForConditionalGeneration"),
    (re.compile(r"deepseek-v4\.1", re.IGNORECASE), "DeepseekV41ForCausalLM"),
    (re.compile(r"kimi-k3", re.IGNORECASE), "KimiK3ForConditionalGeneration"),
)
"""Names by which a log says a model whose class is known."""


def dated(
    version: str | None, log: StartupLog | None, config: ModelConfig | None
) -> tuple[str | None, str | None]:
    """The version whose rules hold, and what has to be said about it.

    Released versions stay as they are, as do builds without a release in their number (`0.1.dev20073`).
    """
    if version is None or ".dev" not in version or re.match(r"v?0\.[01]\.dev", version):
        return version, None
    own = parse_release(version)
    newest = max(_signs(log, config), default=None, key=lambda sign: sign.release)
    if newest is None or newest.release <= own:
        return version, None
    name = f"{newest.release[0]}.{newest.release[1]}"
    return (
        f"{name}.0",
        f"{version} is a development build: the rules of {name} are used, since {newest.text}; later ones may hold. "
        "--engine-version sets others.",
    )


def _signs(log: StartupLog | None, config: ModelConfig | None) -> Iterator[Sign]:
    name = log.text("model") if log is not None else None
    found = next((kind for pattern, kind in _NAMES if name is not None and pattern.search(name)), None)
    for kind in (config.architecture if config is not None else None, found):
        if kind in _CLASSES:
            yield Sign(_CLASSES[kind], f"it serves {kind}, which came with that release")
    if log is None:
        return
    if log.flag("dense_beside_drafter"):
        yield Sign((0, 29), "its log keeps every state beside the drafter, as that release does")
    if "group_block_sizes" in log.facts:
        yield Sign((0, 30), "its log lists the group sizes, as that release does")
    if log.flag("capacity_in_one_line"):
        yield Sign((0, 28), "its log gives pool and concurrency in one line, as that release does")
    hybrid = "attention_block_size" in log.facts
    if hybrid and log.flag("enable_prefix_caching") and log.flag("arguments_without_caching"):
        yield Sign(
            (0, 28),
            "its log has prefix caching on for a hybrid model that was not told to, as that release does",
        )
