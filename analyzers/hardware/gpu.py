"""`Hardware`: the GPUs of a server, as people and drivers name them.

`H100`, `NVIDIA H100 80GB HBM3`, `L40Sx4`, `rtx 4090`, or a data sheet of one's own:
`memory=48GiB,bandwidth=864GB/s,bf16=362TFLOPS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtune.analyzers.hardware.data_sheets import DATA_SHEETS
from kvtune.tokenization.errors import UnusableInputError

OPTION = "--hardware"
CUSTOM = "custom"
"""The name of a card that is given as a data sheet."""
MOST_GPUS = 1 << 10

_COUNT = re.compile(r"^(?P<name>.*?[^\s×x*])\s*(?<!rt)(?<!gt)[x×*]\s*(?P<count>\d{1,4})$", re.IGNORECASE)
_WORD = re.compile(r"[a-z]+\d+[a-z]*|\d+gb|\d+|[a-z]+")
_NUMBER = re.compile(r"\d{4}")
_OWN = {
    "memory": re.compile(r"^(\d+(?:\.\d+)?)\s*(gib|gb|g)?$"),
    "bandwidth": re.compile(r"^(\d+(?:\.\d+)?)\s*(gb/s|tb/s)$"),
    "bf16": re.compile(r"^(\d+(?:\.\d+)?)\s*(tflops|pflops)$"),
}
_SCALES = {"tb/s": 1000.0, "pflops": 1000.0}
_EXPECTED_OWN = "memory=48GiB,bandwidth=864GB/s,bf16=362TFLOPS"


@dataclass(frozen=True)
class Gpu:
    """One card.

    Attributes:
        name: of its data sheet, or `custom`.
        memory_bytes: as the driver reports it.
        bandwidth_byte_s: of its memory, bytes a second.
        bf16_flop_s: dense, FLOP a second.
        capability: CUDA compute capability (90 is 9.0); 0 where it is not known.
        kernels: the system of `aiconfigurator-core` with its measured kernels, if there is one.
        link_byte_s: to other cards of the server, one way, bytes a second.
    """

    name: str
    memory_bytes: int
    bandwidth_byte_s: float
    bf16_flop_s: float
    capability: int = 0
    kernels: str | None = None
    link_byte_s: float = 32e9


@dataclass(frozen=True)
class Hardware:
    """`count` GPUs of one kind; None: as many as the serve command's tensor parallel size."""

    gpu: Gpu
    count: int | None = None


def parse_hardware(text: str) -> Hardware:
    """The value of `--hardware`.

    Raises:
        UnusableInputError: no known card and no data sheet.
    """
    text = " ".join(text.split())
    if "=" in text:
        return Hardware(_own_data_sheet(text))
    match = _COUNT.match(text)
    name, count = (match["name"], int(match["count"])) if match else (text, None)
    if count is not None and not 0 < count <= MOST_GPUS:
        raise UnusableInputError(
            "is unusable", field=OPTION, found=repr(text[:80]), wanted=f"NAMExN, N from 1 to {MOST_GPUS:,}"
        )
    return Hardware(_named(name), count)


def _named(name: str) -> Gpu:
    words = {*_WORD.findall(name.lower()), *_NUMBER.findall(name)}
    matching = [sheet for sheet in DATA_SHEETS if words.issuperset(sheet.words)]
    if not matching:
        names = ", ".join(sheet.name for sheet in DATA_SHEETS)
        raise UnusableInputError(
            "unknown GPU",
            field=OPTION,
            found=repr(name[:80]),
            wanted=f"one of {names}",
            way_out=f"or its data sheet: {_EXPECTED_OWN}",
        )
    sheet = max(matching, key=lambda each: len(each.words))
    return Gpu(
        sheet.name,
        int(sheet.memory_gib * 2**30),
        sheet.bandwidth_gb_s * 1e9,
        sheet.bf16_tflops * 1e12,
        sheet.capability,
        sheet.kernels,
        sheet.link_gb_s * 1e9,
    )


def _own_data_sheet(text: str) -> Gpu:
    values: dict[str, float] = {}
    for part in text.lower().split(","):
        key, _, value = part.strip().partition("=")
        pattern = _OWN.get(key)
        match = pattern.match(value.strip()) if pattern is not None else None
        if match is None or key in values or not float(match[1]):
            raise UnusableInputError(
                "is unusable", field=OPTION, found=repr(part.strip()[:80]), wanted=_EXPECTED_OWN
            )
        values[key] = float(match[1]) * _SCALES.get(match[2] or "", 1.0)
    missing = [key for key in _OWN if key not in values]
    if missing:
        raise UnusableInputError(
            f"lacks {' and '.join(missing)}", field=OPTION, found=repr(text[:80]), wanted=_EXPECTED_OWN
        )
    return Gpu(CUSTOM, int(values["memory"] * 2**30), values["bandwidth"] * 1e9, values["bf16"] * 1e12)
