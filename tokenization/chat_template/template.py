"""One chat template, compiled once, rendered for many requests.

Knows the request's fields and the release's chat rules; gives text, and says why a request is refused without
ever quoting it. No token ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from kvtune.tokenization.chat_rules import ChatRules
from kvtune.tokenization.chat_template.budget import Budget, TemplateLimitError, size_of
from kvtune.tokenization.chat_template.content_format import detect_content_format
from kvtune.tokenization.chat_template.environment import ChatEnvironment
from kvtune.tokenization.chat_template.helpers import TemplateRaisedError
from kvtune.tokenization.chat_template.json_memo import JsonMemo
from kvtune.tokenization.chat_template.messages import ContentFormat
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Message

MAX_SOURCE_CHARS = 1 << 20
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    TypeError,
    ValueError,
)
"""What code that a template runs can raise on a request that it was not written for."""

_CONTINUE_MARK = "KVTUNE-CONTINUES-HERE "


class TemplateRefusedError(UnusableInputError):
    """This request cannot be rendered; others may be. `is_limit`: the template did more than it may."""

    is_limit = False


class ChatTemplate:
    """A compiled chat template.

    Attributes:
        source: the Jinja text. sha256: of its UTF-8 bytes, hex.
        content_format: what `auto` resolves to. mentions_developer: whether it knows the `developer` role.
    """

    def __init__(
        self, source: str, rules: ChatRules, *, name: str = "chat template", memo: JsonMemo | None = None
    ) -> None:
        """Compile `source`. Raises UnusableInputError where the text is too long or is no template."""
        self.source = source
        self.name = name
        self.sha256 = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        self._environment = ChatEnvironment(memo or JsonMemo())
        if len(source) > MAX_SOURCE_CHARS:
            raise UnusableInputError(
                "a chat template that is too long",
                where=name,
                found=f"{len(source)} characters",
                wanted=f"at most {MAX_SOURCE_CHARS}",
            )
        try:
            tree = self._environment.parse(source)
            self.content_format: ContentFormat = detect_content_format(
                tree, follows_macros=rules.follows_macros
            )
            self._template = self._environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise UnusableInputError(
                "not a chat template that Jinja can read", where=f"{name}:{error.lineno}"
            ) from error
        except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
            raise UnusableInputError(
                "a chat template that cannot be compiled", where=name, found=type(error).__name__
            ) from error
        self.mentions_developer = '"developer"' in source or "'developer'" in source

    @property
    def asked_for_date(self) -> bool:
        """Whether the latest rendering asked for the date."""
        return self._environment.asked_for_date

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[Any] | None = None,
        documents: list[Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        now: float | None = None,
    ) -> str:
        """The prompt text of one conversation, its messages already in the template's content format.

        Args:
            variables: the request's `chat_template_kwargs` and the tokenizer's special-token names.
            now: seconds since the epoch for `strftime_now`.

        Raises:
            TemplateRefusedError: the template refuses the request, fails on it, or does too much.
        """
        if continue_final_message and add_generation_prompt:
            raise TemplateRefusedError(
                "continue_final_message and add_generation_prompt cannot both be set", where=self.name
            )
        mark = ""
        if continue_final_message:
            messages, mark = _with_mark(messages, self.name)
        text = self._render(
            {
                **(variables or {}),
                "messages": messages,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
            },
            now,
        )
        return _cut_at_mark(text, mark, self.name) if mark else text

    def _render(self, variables: dict[str, Any], now: float | None) -> str:
        environment = self._environment
        environment.now = now
        environment.asked_for_date = False
        environment.memo.begin()
        environment.budget = Budget(
            messages=len(variables["messages"]), request_chars=lambda: size_of(list(variables.values()))
        )
        try:
            return self._template.render(variables)
        except TemplateRaisedError as error:
            raise TemplateRefusedError(
                f"the chat template refused the request: {self._own_words(str(error))}", where=self.name
            ) from error
        except TemplateLimitError as error:
            refusal = TemplateRefusedError(
                f"the chat template does more than a prompt needs: {error}", where=self.name
            )
            refusal.is_limit = True
            raise refusal from error
        except RecursionError as error:
            raise TemplateRefusedError("the chat template recurses without end", where=self.name) from error
        except _FAILURES as error:
            raise TemplateRefusedError(
                f"the chat template failed on the request with {type(error).__name__}",
                where=f"{self.name}:{_line_of(error)}",
            ) from error

    def _own_words(self, message: str) -> str:
        """As much of a refusal as stands in the template itself: the rest may be the request's text."""
        low, high = 0, min(len(message), 200)
        while low < high:
            middle = (low + high + 1) // 2
            if message[:middle] in self.source:
                low = middle
            else:
                high = middle - 1
        own = message[:low]
        return own if low == len(message) else f"{own}…"


def _with_mark(messages: list[Message], name: str) -> tuple[list[Message], str]:
    """The conversation with a mark where its last message's text ends, to cut the rendering there."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    mark = _CONTINUE_MARK
    while mark.strip() in str(content):
        mark = "X" + mark
    marked: Any = None
    if isinstance(content, str):
        marked = content + mark
    elif isinstance(content, list):
        at = next((n for n in reversed(range(len(content))) if "text" in content[n]), None)
        if at is not None:
            part = {**content[at], "text": content[at]["text"] + mark}
            marked = [*content[:at], part, *content[at + 1 :]]
    if marked is None:
        raise TemplateRefusedError(
            "continue_final_message is set, but the final message has no text to continue", where=name
        )
    return [*messages[:-1], {**last, "content": marked}], mark


def _cut_at_mark(text: str, mark: str, name: str) -> str:
    at = text.rfind(mark.strip())
    if at < 0:
        raise TemplateRefusedError(
            "continue_final_message is set, but the template drops the end of the final message", where=name
        )
    # A template that trims contents has eaten the mark's own space; the text before it is trimmed likewise.
    return text[:at] if text.startswith(mark, at) else text[:at].rstrip()


def _line_of(error: BaseException) -> int:
    """Line of the template where the error arose: Jinja gives its frames the template's line numbers."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
