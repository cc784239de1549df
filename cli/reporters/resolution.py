"""What an engine resolves, for a terminal: sizes, legal units, what other flags would give. A pure function."""

from __future__ import annotations

from itertools import groupby

from kvtune.analyzers.resolution import Resolution, ResolvedGroup
from kvtune.cli.reporters.content import Column, Role, Table
from kvtune.cli.reporters.layout import Page
from kvtune.cli.reporters.numbers import clean, count
from kvtune.cli.reporters.traffic import traffic_sentences

KIND_WORDS = {
    "full": "full attention",
    "sliding_window": "sliding window",
    "chunked_local": "chunked attention",
    "ring": "ring",
    "mamba": "recurrent state",
    "unspecified": "not stated",
}
SOURCE_WORDS = {
    "flags": "--groups",
    "model-config": "the model config and flags",
    "startup-log": "the start-up log",
    "metrics": "the metrics page",
}


def render_resolution(found: Resolution, *, width: int = 80, colour: bool = False) -> str:
    """The resolution as text of at most `width` columns."""
    page = Page(max(width, 60), colour)
    lines = [*page.paragraph(_headline(found), "bold", first="", rest=""), ""]
    for sentence in _sentences(found):
        lines += page.paragraph(sentence)
    lines += [*page.heading("Groups", f"from {SOURCE_WORDS[found.source]}"), *page.table(_groups(found))]
    lines += page.heading("Match units")
    for word, text in _units(found):
        lines += page.paragraph(text, first=f"  {word:<15}", rest=" " * 17)
    if found.traffic is not None:
        lines += page.heading("Traffic")
        for sentence in traffic_sentences(found.traffic):
            lines += page.paragraph(sentence)
    if found.what_if:
        lines += [*page.heading("What the block would be with"), *page.table(_what_if(found))]
    if found.findings:
        lines += page.heading("Worth knowing")
        for finding in found.findings:
            change = f" Changed by: {clean(finding.change)}." if finding.change else ""
            text = f"{finding.name}: {clean(finding.text).rstrip('.')}.{change}"
            lines += page.paragraph(text, first="  · ", rest="    ")
    if found.warnings or found.ignored_flags:
        lines += page.heading("Caveats")
        for warning in found.warnings:
            lines += page.paragraph(clean(warning), first="  · ", rest="    ")
        if found.ignored_flags:
            flags = clean(", ".join(found.ignored_flags))
            lines += page.paragraph(f"passed over in the serve command: {flags}", first="  · ", rest="    ")
    return "\n".join(lines) + "\n"


def _headline(found: Resolution) -> str:
    engine = f"vLLM {clean(found.engine_version)}"
    if found.error is not None:
        return f"{engine} refuses to start: {clean(found.error)}"
    if not found.enable_prefix_caching:
        return f"{engine} runs without prefix caching: no prompt is reused"
    if not _kinds_known(found):
        return (
            f"{engine}: scheduler block {found.scheduler_block_size:,}, match unit {found.hash_block_size:,}"
        )
    return f"{engine} reuses prompts in steps of {found.cache_hit_alignment:,} tokens"


def _kinds_known(found: Resolution) -> bool:
    return all(row.kind != "unspecified" for row in found.groups)


def _sentences(found: Resolution) -> list[str]:
    if not found.enable_prefix_caching:
        return ["The sizes below hold as they are; a match unit would be ignored."]
    if not _kinds_known(found):
        return ["Which of the two hits land on depends on the kinds of the groups, which are not stated."]
    least, shared = found.minimum_reusable_prefix, found.minimum_shared_prefix
    sentences = [
        f"A prompt that is sent again hits from {least:,} tokens on; prompts that part later must share {shared:,}.",
    ]
    if found.partial_hits:
        sentences.append(
            f"Hits may end inside a block: the match unit is {found.hash_block_size:,}, the scheduler's block "
            f"{found.scheduler_block_size:,}."
        )
    elif found.hash_block_size != found.cache_hit_alignment:
        sentences.append(
            f"Keys are computed every {found.hash_block_size:,} tokens, and hits still land on whole blocks of "
            f"{found.scheduler_block_size:,}."
        )
    if (
        found.padding_pct is not None
        and found.mamba_page_bytes is not None
        and found.attention_bytes_per_token
    ):
        sentences.append(
            f"One recurrent state takes {found.mamba_page_bytes:,} bytes, one token of attention "
            f"{found.attention_bytes_per_token:,}: a block holds a whole state, padded by {found.padding_pct:.2f}%."
        )
    if found.num_blocks is not None:
        sentences.append(f"The pool has {found.num_blocks:,} blocks.")
    return sentences


def _groups(found: Resolution) -> Table:
    return Table(
        (
            Column("kind", "left"),
            Column("groups"),
            Column("block"),
            Column("layers each"),
            Column("", "left", keep=1),
        ),
        tuple(
            (KIND_WORDS[row.kind], count(row.count), count(row.block_size), count(row.layers), _remark(row))
            for row in found.groups
        ),
        note=f"scheduler block {found.scheduler_block_size:,} (least common multiple), "
        f"default match unit {_default(found):,} (greatest common divisor)",
    )


def _remark(row: ResolvedGroup) -> str:
    remarks = []
    if row.window is not None:
        remarks.append(f"window {row.window:,}")
    if row.mode is not None:
        remarks.append(f"mode {row.mode}")
    if not row.cacheable:
        remarks.append("never cached")
    return ", ".join(remarks)


def _default(found: Resolution) -> int:
    return max((row.unit for row in found.candidates if row.valid), default=found.hash_block_size)


def _units(found: Resolution) -> list[tuple[str, str]]:
    """Working units, and struck and neutralised ones with their reason."""
    lines = []
    works = [row for row in found.candidates if row.valid and row.reason is None]
    if works:
        lines.append(("legal", ", ".join(f"{row.unit:,}" for row in works)))
    others = [row for row in found.candidates if row.reason is not None]
    for (valid, reason), run in groupby(others, key=lambda row: (row.valid, row.reason)):
        units = ", ".join(f"{row.unit:,}" for row in run)
        lines.append(("without effect" if valid else "refused", f"{units}: {clean(reason or '')}"))
    return lines


def _what_if(found: Resolution) -> Table:
    today = found.attention_block_size
    rows, roles = [], list[Role]()
    for row in found.what_if:
        block = count(row.attention_block_size)
        if row.error is not None:
            difference = "cannot be served"
        elif row.current or row.attention_block_size == today:
            difference = "today" if row.current else "the same"
        else:
            difference = ""
        rows.append((row.what, clean(row.flag), block, difference))
        roles.append("current" if row.current else "")
    return Table(
        (Column("", "left", keep=2), Column("flag", "left"), Column("block"), Column("", "left", keep=1)),
        tuple(rows),
        tuple(roles),
    )
