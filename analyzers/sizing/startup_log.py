"""What a server's start-up log says about its sizes: each value with the line that it stands on.

    lines --> facts of every start, by process --> the last start's facts, where its processes agree

Any release from 0.19 to 0.33, with or without colours, prefixes of containers and log formats, several processes
and several starts in one file, a file that begins or ends in the middle. Messages are recognised by their wording
(`log_patterns`); nothing else of a line is kept. Knows text; neither files nor what the values mean for hits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvtune.analyzers.sizing.log_patterns import PATTERNS, STARTS, FactName, Pattern, Value
from kvtune.tokenization.errors import UnusableInputError

MAX_LINE_CHARS = 65_536
"""What lies behind is not read: no start-up message is that long."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PROCESS = re.compile(r"\((EngineCore\w*|Worker\w*|APIServer\w*|DPSupervisor\w*)(?: pid=\d+)?\)")
_SUMMED_DOWN = frozenset({"kv_cache_tokens", "max_concurrency"})
"""Figures of one engine's own pool: engines side by side may differ, and the smallest is what any of them has."""


@dataclass(frozen=True)
class Fact:
    """One value, the 1-based line that it was read from, and the process that said so (empty: unnamed)."""

    value: Value
    line: int
    process: str


@dataclass(frozen=True)
class StartupLog:
    """The last start in a log that got as far as its sizes.

    Attributes:
        facts: by name. starts: how often a server started in this text. processes: of the last start.
        warnings: what a reader should know: several starts, processes that disagree.
    """

    facts: dict[FactName, Fact]
    starts: int
    processes: tuple[str, ...]
    warnings: tuple[str, ...]
    where: str | None = None

    def value(self, name: FactName) -> Value | None:
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    def number(self, name: FactName) -> int | None:
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, name: FactName) -> str | None:
        value = self.value(name)
        return value if isinstance(value, str) else None

    def flag(self, name: FactName) -> bool | None:
        value = self.value(name)
        return value if isinstance(value, bool) else None

    def line_of(self, name: FactName) -> str:
        """`server.log:12`, or `log line 12` for a text without a name."""
        line = self.facts[name].line
        return f"{self.where}:{line}" if self.where else f"log line {line}"


def read_startup_log(lines: Iterable[str], where: str | None = None) -> StartupLog:
    """Read a log, line by line.

    Raises:
        UnusableInputError: no line says anything about sizes.
    """
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        reader.read(number, line)
    log = reader.result(where)
    if not log.facts:
        raise UnusableInputError(
            "no line of a vLLM start-up log was recognised",
            where=where,
            wanted="lines such as `Setting attention block size to 528 tokens` or `kv cache group sizes (528, 528)`",
            way_out="give the log from the server's first line on, at level INFO",
        )
    return log


@dataclass
class _Start:
    """One start: every process's latest value of each fact, and the processes that began an engine."""

    facts: dict[FactName, dict[str, Fact]] = field(default_factory=dict)
    engines: set[str] = field(default_factory=set)
    processes: dict[str, None] = field(default_factory=dict)
    resolved: bool = False


class _Reader:
    def __init__(self) -> None:
        self._starts = [_Start()]

    def read(self, number: int, line: str) -> None:
        text = _ESCAPES.sub("", line[:MAX_LINE_CHARS])
        matches = [
            (pattern, match)
            for pattern in PATTERNS
            if pattern.trigger in text and (match := pattern.find(text))
        ]
        if not matches:
            return
        found = _PROCESS.search(text)
        process = found[1] if found else ""
        self._begin_if_new(matches, process)
        start = self._starts[-1]
        if process:
            start.processes[process] = None
        for pattern, match in matches:
            start.resolved |= pattern.resolves
            for name, value in pattern.facts(match).items():
                start.facts.setdefault(name, {})[process] = Fact(value, number, process)

    def _begin_if_new(self, matches: list[tuple[Pattern, re.Match[str]]], process: str) -> None:
        """A banner, an argument list or an engine after the sizes of an earlier one begin a new start.

        Engines side by side have names of their own; the same name a second time is a restart.
        """
        start = self._starts[-1]
        names = {pattern.start for pattern, _ in matches if pattern.start}
        if "engine" in names:
            if process in start.engines:
                self._starts.append(start := _Start())
            start.engines.add(process)
        elif names & STARTS and (start.resolved or start.engines):
            self._starts.append(_Start())

    def result(self, where: str | None) -> StartupLog:
        known = [start for start in self._starts if start.facts]
        if not known:
            return StartupLog({}, 0, (), (), where)
        last = next((start for start in reversed(known) if start.resolved), known[-1])
        warnings = []
        if len(known) > 1:
            which = "the last one" if last is known[-1] else "the last one that got as far as its sizes"
            warnings.append(f"the log holds {len(known)} starts: {which} is used")
        facts: dict[FactName, Fact] = {}
        for name, by_process in last.facts.items():
            values = list(by_process.values())
            if name in _SUMMED_DOWN:
                facts[name] = min(values, key=lambda fact: float(fact.value))  # type: ignore[arg-type]
                continue
            facts[name] = values[0]
            for other in values[1:]:
                if other.value != facts[name].value:
                    warnings.append(
                        f"processes disagree about {name}: {_shown(facts[name])} and {_shown(other)}; "
                        f"the first is used"
                    )
                    break
        return StartupLog(facts, len(known), tuple(last.processes), tuple(warnings), where)


def _shown(fact: Fact) -> str:
    who = f" ({fact.process})" if fact.process else ""
    return f"{fact.value} in line {fact.line}{who}"
