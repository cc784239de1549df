"""The user's `vllm serve …` line, once per candidate: what is added, what is replaced, what is shown.

    VLLM_X=1 vllm serve MODEL --port 8000   ->   … --host 127.0.0.1 --port 40123 --prefix-match-unit 16 …

Knows words; starts nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from kvtune.tokenization.errors import UnusableInputError

HOST = "127.0.0.1"
_TAKEN_OVER = {"host": 1, "port": 1, "prefix-match-unit": 1, "uds": 1}
"""Flags that a candidate's start sets itself, with the number of words behind them."""
_SWITCHES = {"enable-prompt-tokens-details", "no-enable-prompt-tokens-details"}
_SECRET = re.compile(r"key|token$|secret|password", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_SECRET_WITHIN = re.compile(r"(?:key|token|secret|password)[\"']?[\s=:]+", re.IGNORECASE)
"""Where a secret begins in the middle of a word: `HF_TOKEN=…` for `docker run -e`, JSON, a whole line for `bash -c`."""
_SEVERAL = "api-key"
"""A flag that any number of words may follow."""
_HIDDEN = "***"


@dataclass(frozen=True)
class ServeLine:
    """A serve command as the user gave it.

    Attributes:
        variables: leading `NAME=value` words.
        words: the program and its arguments, without the flags that each start sets itself.
        unit: the match unit that the line asks for; None where it leaves it unset.
    """

    variables: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    unit: int | None = None

    def start(self, unit: int | None, port: int) -> tuple[str, ...]:
        """The words of one start. `unit` None leaves the match unit unset."""
        added = ["--host", HOST, "--port", str(port), "--enable-prompt-tokens-details"]
        if unit is not None:
            added += ["--prefix-match-unit", str(unit)]
        return (*self.words, *added)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Development endpoints are on (they tell resolved settings and empty the cache): the port is loopback only."""
        return {"VLLM_SERVER_DEV_MODE": "1", **inherited, **dict(self.variables)}

    def shown(self, unit: int | None, port: int) -> str:
        """The start as a shell takes it, without secrets."""
        front = [
            f"{name}={_HIDDEN if _SECRET.search(name) else shlex.quote(value)}"
            for name, value in self.environment({}).items()
        ]
        return " ".join([*front, *(shlex.quote(word) for word in _without_secrets(self.start(unit, port)))])

    def retold(self) -> str:
        """The line as it can be given once more, for a report: what each start sets itself is left out, and so are
        secrets, which the environment may hold."""
        front = [f"{name}={value}" for name, value in self.variables if not _SECRET.search(name)]
        unit = () if self.unit is None else ("--prefix-match-unit", str(self.unit))
        return shlex.join([*front, *_without_secrets(self.words, hidden=None), *unit])

    def api_key(self, inherited: Mapping[str, str]) -> str | None:
        """The key that this server will ask for."""
        for index, word in enumerate(self.words):
            name, equals, value = word.partition("=")
            if name.lstrip("-").replace("_", "-") == "api-key":
                if equals:
                    return value
                return self.words[index + 1] if index + 1 < len(self.words) else None
        return self.environment(inherited).get("VLLM_API_KEY")


def parse_serve_line(text: str) -> ServeLine:
    """Split a command as a shell does, without expanding anything.

    Raises:
        UnusableInputError: no command, or open quotes.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UnusableInputError(f"cannot be split into words: {error}", field="--serve") from None
    first = next((place for place, word in enumerate(words) if not _ASSIGNMENT.match(word)), len(words))
    if first == len(words):
        raise UnusableInputError(
            "names no command", field="--serve", wanted='the server\'s start, such as "vllm serve MODEL"'
        )
    variables = tuple((name, value) for name, _, value in (word.partition("=") for word in words[:first]))
    return ServeLine(variables, tuple(_without_taken_over(words[first:])), _unit(words[first:]))


def _unit(words: list[str]) -> int | None:
    unit = None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("--") and name.lstrip("-").replace("_", "-") == "prefix-match-unit":
            text = value if equals else words[index + 1] if index + 1 < len(words) else ""
            if not (text.isascii() and text.isdigit() and 0 < len(text) < 10):
                raise UnusableInputError(
                    "asks for no match unit",
                    field="--prefix-match-unit",
                    found=repr(text[:40]),
                    wanted="a number",
                )
            unit = int(text)
    return unit


def _without_taken_over(words: list[str]) -> list[str]:
    kept: list[str] = []
    skip = 0
    for word in words:
        if skip:
            skip -= 1
            continue
        name, equals, _ = word.partition("=")
        name = name.lstrip("-").replace("_", "-") if word.startswith("--") else ""
        if name in _TAKEN_OVER:
            skip = 0 if equals else _TAKEN_OVER[name]
        elif name not in _SWITCHES:
            kept.append(word)
    return kept


def _without_secrets(words: tuple[str, ...], hidden: str | None = _HIDDEN) -> list[str]:
    """Words with secrets replaced by `hidden`; None leaves them out together with their flags."""
    shown: list[str] = []
    flag, further = "", False  # the secret flag that words belong to, and whether it has one already
    for word in words:
        if flag and not word.startswith("-" if further else "--"):
            shown += [] if hidden is None else [hidden]
            flag, further = (flag, True) if flag == _SEVERAL else ("", False)
            continue
        name, equals, _ = word.partition("=")
        secret = word.startswith("--") and bool(_SECRET.search(name)) and "tokens" not in name
        if not secret:
            within = _SECRET_WITHIN.search(word)
            shown.append(word if within is None else word[: within.end()] + _HIDDEN)
        elif hidden is not None:
            shown.append(f"{name}={hidden}" if equals else word)
        flag, further = (name.lstrip("-").replace("_", "-") if secret and not equals else ""), False
    return shown
