"""What a request holds in a run of like Mamba groups: a few rows of blocks, and how far they got."""

from __future__ import annotations

from kvtune.analyzers.bookkeeping.block_pool import Block

Row = tuple[Block, ...]


class StateTable:
    """A request's states in a run of like groups.

    Attributes:
        rows: position -> row; every other position below `length` is the null block.
        cached: leading positions that need no key any more.
        partial: (position, row) of a state that ends inside a block: a hit's, to be copied before it is written,
            or the request's own tail, whose key moves to a copy.
        last_position: where the state of the step before stands.
        tail: the chunk end that is keyed as the prompt tail; -1 until it is asked for.
        allocated: blocks were allocated since admission. export: (token position, table position) of the state
            that the current chunk exports.
    """

    __slots__ = ("allocated", "cached", "export", "last_position", "length", "partial", "rows", "tail")

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.length = 0
        self.cached = 0
        self.partial: tuple[int, Row] | None = None
        self.last_position = -1
        self.tail = -1
        self.allocated = False
        self.export: tuple[int, int] | None = None
