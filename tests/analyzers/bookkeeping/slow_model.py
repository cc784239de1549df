"""A slow, obvious prefix cache with real hashes: one list of free blocks, chained SHA-256, no shortcuts.

It serves one group of full attention, one request at a time, and says what the replay has to say of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


def chained_hashes(tokens: list[int], block: int, salt: str = "") -> list[bytes]:
    """One hash per full block; each covers the whole prefix."""
    hashes: list[bytes] = []
    parent = b"seed" + salt.encode()
    for end in range(block, len(tokens) + 1, block):
        text = ",".join(map(str, tokens[end - block : end])).encode()
        parent = hashlib.sha256(parent + text).digest()
        hashes.append(parent)
    return hashes


@dataclass
class SlowPrefixCache:
    """`free` is ordered: the first block is used next. A block has a hash or None; ids count from 1."""

    num_blocks: int
    block: int
    budget: int
    free: list[int] = field(default_factory=list)
    hash_of: dict[int, bytes] = field(default_factory=dict)
    evicted: int = 0

    def __post_init__(self) -> None:
        self.free = list(range(1, self.num_blocks))

    def blocks_of(self, digest: bytes) -> list[int]:
        """Blocks with a hash, first hashed first."""
        return [block for block, held in self.hash_of.items() if held == digest]

    def run(self, prompt: list[int]) -> tuple[int, int, int]:
        """(hit tokens, prefill steps, evicted blocks) of a request that samples one token."""
        hashes = chained_hashes(prompt, self.block)
        before = self.evicted
        table: list[int] = []
        for digest in hashes[: (len(prompt) - 1) // self.block]:
            holders = self.blocks_of(digest)
            if not holders:
                break
            table.append(holders[0])
        for block in table:
            if block in self.free:
                self.free.remove(block)
        hit = computed = len(table) * self.block
        steps = 0
        while computed < len(prompt):
            computed = min(len(prompt), computed + self.budget)
            while len(table) * self.block < computed:
                table.append(self._take())
            for place in range(hit // self.block, computed // self.block):
                self.hash_of.setdefault(table[place], hashes[place])
            steps += 1
        hashed = [block for block in reversed(table) if block in self.hash_of]
        plain = [block for block in reversed(table) if block not in self.hash_of]
        self.free = plain + self.free + hashed
        return hit, steps, self.evicted - before

    def _take(self) -> int:
        block = self.free.pop(0)
        if self.hash_of.pop(block, None) is not None:
            self.evicted += 1
        return block
