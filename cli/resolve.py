"""`kvtune resolve`: the sizes that an engine will resolve, or did, and which units are legal."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvtune.cli.analysis_options import ENGINE, REPLAY, EngineOptions, Model, SizeOptions
from kvtune.cli.options import Force, GeneralOptions, JsonTarget, option, with_options
from kvtune.cli.output import STDOUT, claim_files, has_colour, note, terminal_width, write_file, write_stdout
from kvtune.tokenization.errors import UnusableInputError

if TYPE_CHECKING:
    from kvtune.analyzers.resolution import Resolution

Serve = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- vllm serve ...]",
        help="A whole serve command behind two dashes; its flags lie over the options.",
        show_default=False,
    ),
]
Units = Annotated[
    str,
    option(
        "--units", "auto|16,32,...", "Match units to judge; auto is every divisor.", REPLAY, show_default=True
    ),
]


@dataclass(frozen=True)
class LayerOptions:
    """Flags of the server that decide how large a page is."""

    tp: Annotated[int, option("--tp", "N", "Tensor parallel size.", ENGINE, min=1)] = 1
    kv_cache_dtype: Annotated[str, option("--kv-cache-dtype", "T", "Dtype of the KV cache.", ENGINE)] = "auto"
    mamba_cache_dtype: Annotated[
        str, option("--mamba-cache-dtype", "T", "Dtype of convolution states.", ENGINE)
    ] = "auto"
    mamba_ssm_cache_dtype: Annotated[
        str, option("--mamba-ssm-cache-dtype", "T", "Dtype of recurrent states.", ENGINE)
    ] = "auto"
    block_size: Annotated[
        int | None, option("--block-size", "N", "Block that the server is asked for.", ENGINE, min=1)
    ] = None
    num_speculative_tokens: Annotated[
        int, option("--num-speculative-tokens", "K", "Draft tokens a step.", ENGINE, min=0)
    ] = 0
    attention_backend: Annotated[
        str | None, option("--attention-backend", "NAME", "Attention kernels, such as FLASH_ATTN.", ENGINE)
    ] = None


@with_options
def resolve(
    serve: Serve = None,
    *,
    model: Model = None,
    sizes: SizeOptions,
    layers: LayerOptions,
    engine: EngineOptions,
    units: Units = "auto",
    json: JsonTarget = None,
    force: Force = False,
    general: GeneralOptions,
) -> None:
    """Show the block sizes that the engine resolves, which match units are legal, and why the others are not.

    From a model's config and flags, a whole serve command, a start-up log, a metrics page, or stated groups.
    """
    from kvtune.cli.documents import encode_document
    from kvtune.cli.reporters.resolution import render_resolution

    claim_files([json], force=force)
    found = resolve_sizes(serve or [], model, sizes, layers, engine, units)
    if json is not None:
        write_file(json, encode_document(found), force=force)
    if json != STDOUT:
        write_stdout(
            render_resolution(found, width=terminal_width(sys.stdout), colour=has_colour(sys.stdout))
        )
    else:
        for warning in found.warnings:
            note(warning, quiet=general.quiet)
    if found.error is not None:
        raise UnusableInputError(f"the engine refuses to start: {found.error}")


def resolve_sizes(
    serve: list[str],
    model: str | None,
    sizes: SizeOptions,
    layers: LayerOptions,
    engine: EngineOptions,
    units: str,
) -> Resolution:
    """Read the sources and resolve them.

    Raises:
        UnusableInputError: nothing gives a size, or something that was named cannot be used.
    """
    from kvtune.analyzers.resolution import resolve as resolve_server
    from kvtune.analyzers.sizing.serve_command import parse_serve_command
    from kvtune.analyzers.sizing.sources import size_server
    from kvtune.cli.engine import serve_flags, size_sources, units_of

    flags = replace(
        serve_flags(engine),
        tensor_parallel_size=layers.tp,
        kv_cache_dtype=layers.kv_cache_dtype,
        mamba_cache_dtype=layers.mamba_cache_dtype,
        mamba_ssm_cache_dtype=layers.mamba_ssm_cache_dtype,
        block_size=layers.block_size,
        attention_backend=layers.attention_backend,
    )
    if layers.num_speculative_tokens:
        flags = replace(flags, num_speculative_tokens=layers.num_speculative_tokens)
    ignored: tuple[str, ...] = ()
    if serve:
        command = parse_serve_command(serve, flags)
        flags, ignored, model = command.flags, command.ignored, model or command.model
    server = size_server(size_sources(flags, sizes, model))
    return resolve_server(server, units=units_of(units), ignored_flags=ignored)
