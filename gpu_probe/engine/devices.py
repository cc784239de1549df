"""The device that was asked for, or the reason why there is none. Never another one in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtune.gpu_probe.validate import DeviceName
from kvtune.tokenization.errors import MissingDependencyError

if TYPE_CHECKING:
    import torch


def open_device(name: DeviceName, *, threads: int = 1) -> torch.device:
    """The torch device.

    Args:
        threads: of the CPU's operations. One by default: small operations are slower on two, and a shared machine
            makes the difference large.

    Raises:
        MissingDependencyError: torch is not installed, or there is no such device.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "validate on the bundled engine needs torch, which is not installed",
            way_out="pip install 'kvtune[gpu]', or validate on a server with --serve or --endpoint",
        ) from error
    if name == "cpu":
        torch.set_num_threads(threads)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        reason = (
            f"torch {torch.__version__} was built without CUDA"
            if torch.version.cuda is None
            else "torch finds no CUDA device or driver"
        )
        raise MissingDependencyError(
            "there is no GPU for --gpu",
            found=reason,
            way_out="use --device cpu, or run on a machine with a GPU and its driver",
        )
    return torch.device("cuda")


def device_label(device: torch.device) -> str:
    """The device in words, as a report names it: the same for the same kind of machine."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
