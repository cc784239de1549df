"""Names for groups of like requests: the same tools, first system line, tenant and adapter."""

from __future__ import annotations

import hashlib

from kvtune.tokenization.encoding.tool_sets import ToolSet
from kvtune.tokenization.request import Identity, Request

_SHOWN_CHARS = 60


class FamilyNames:
    """Names requests' families; a name holds prompt text only where that was allowed."""

    def __init__(self, *, show_text: bool = False) -> None:
        self._show_text = show_text
        self._names: dict[tuple[str, str, str], str] = {}

    def of(self, request: Request, tools: ToolSet | None) -> str:
        """Such as "14 tools a1b2c3, system d4e5f6, tenant acme"."""
        owner = _owner(request.identity)
        if request.block_hashes is not None:
            return "block hashes" + owner
        if request.token_ids is not None:
            return "token ids" + owner
        if request.messages is None:
            return "completions" + owner
        line = _first_system_line(request)
        # Shuffled tools are the same tools: that they are shuffled is for the reader of the family to find out.
        digest = tools.unordered if tools else ""
        name = self._names.get((digest, line, owner))
        if name is None:
            parts = [f"{len(tools.tools)} tools {digest[:6]}"] if tools else ["no tools"]
            parts.append(self._system(line))
            name = self._names[digest, line, owner] = ", ".join(parts) + owner
        return name

    def _system(self, line: str) -> str:
        if not line:
            return "no system message"
        if self._show_text:
            return f'system "{line[:_SHOWN_CHARS]}"'
        return f"system {hashlib.sha256(line.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


def _owner(identity: Identity) -> str:
    """Whose requests they are, as far as the log names a tenant or an adapter."""
    named = (("tenant", identity.tenant), ("adapter", identity.lora))
    return "".join(f", {what} {name[:_SHOWN_CHARS]}" for what, name in named if name)


def _first_system_line(request: Request) -> str:
    for message in request.messages or ():
        if message.get("role") in ("system", "developer"):
            content = message.get("content")
            if isinstance(content, list):
                texts = [part.get("text") if isinstance(part, dict) else part for part in content]
                content = next((text for text in texts if isinstance(text, str)), "")
            return content.lstrip().partition("\n")[0].strip() if isinstance(content, str) else ""
    return ""
