"""A model onto a device: which one the options ask for, with its own weights or synthetic ones.

Knows model folders and precision; nothing of requests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from kvtune.analyzers.layout import EngineConfig
from kvtune.gpu_probe.engine.checkpoint import load_weights
from kvtune.gpu_probe.engine.grid import ExactGrid
from kvtune.gpu_probe.engine.model_config import model_spec
from kvtune.gpu_probe.engine.probe import Precision, Probe
from kvtune.gpu_probe.engine.spec import ModelSpec
from kvtune.gpu_probe.engine.stand_in import Chosen, choose_model
from kvtune.gpu_probe.engine.weights import synthetic_weights
from kvtune.gpu_probe.validate import ProbeOptions
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.small_file import read_small_file

_MAX_CONFIG_BYTES = 1 << 26


def choose(options: ProbeOptions) -> Chosen:
    """What the options say is to be run.

    Raises:
        UnusableInputError: the model's config cannot be read, or is of a model that cannot be run.
    """
    if options.model is None:
        return choose_model(None, device=options.device, layers=options.layers, has_weights=False)
    path = options.model / "config.json"
    data = read_small_file(path, _MAX_CONFIG_BYTES, "a model's config")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnusableInputError("cannot be read as a model's config", where=str(path)) from error
    if not isinstance(document, dict):
        raise UnusableInputError("is no JSON object", where=str(path))
    weights = any(options.model.glob("*.safetensors"))
    return choose_model(
        model_spec(document, str(path)), device=options.device, layers=options.layers, has_weights=weights
    )


def build(chosen: Chosen, config: EngineConfig, options: ProbeOptions, device: torch.device) -> Probe:
    """That model on the device, for any unit of a server.

    Raises:
        UnusableInputError: its weights cannot be read, or the server's groups do not fit it.
    """
    precision = _precision(options, device)
    if chosen.rung.startswith("L2"):
        assert options.model is not None
        weights = load_weights(options.model, chosen.spec, precision.dtype, precision.state_dtype, device)
    else:
        weights = synthetic_weights(chosen.spec, options.seed, precision.dtype, precision.state_dtype, device)
    grid = ExactGrid() if options.exact else None
    return Probe(chosen.spec, config, weights, precision=precision, grid=grid)


def build_parts(
    specs: Sequence[ModelSpec], config: EngineConfig, options: ProbeOptions, device: torch.device
) -> list[Probe]:
    """Models of some layers of one model; each one's layers are among the last one's, whose synthetic weights all use.

    Raises:
        UnusableInputError: the server's groups do not fit them.
    """
    precision = _precision(options, device)
    weights = synthetic_weights(specs[-1], options.seed, precision.dtype, precision.state_dtype, device)
    grid = ExactGrid() if options.exact else None
    return [Probe(spec, config, weights, precision=precision, grid=grid) for spec in specs]


def _precision(options: ProbeOptions, device: torch.device) -> Precision:
    # Half types prove nothing about equality: 0 to 4 of 24 requests part at near ties.
    return Precision(torch.bfloat16 if device.type == "cuda" and not options.exact else torch.float32)
