"""One model's way from a request to prompt text and token ids: its template, its special tokens, its vocabulary.

The vocabulary is loaded when the first text needs it. Knows requests, templates and vocabularies; no traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from kvtune.tokenization.chat_rules import ChatRules, chat_rules
from kvtune.tokenization.chat_template.json_memo import JsonMemo
from kvtune.tokenization.chat_template.messages import (
    Conversation,
    MessageReader,
    merge_developer_into_system,
)
from kvtune.tokenization.chat_template.template import ChatTemplate, TemplateRefusedError
from kvtune.tokenization.encoding.media_lengths import MediaLengths
from kvtune.tokenization.encoding.model_folder import ChatTemplates
from kvtune.tokenization.encoding.tool_sets import ToolSet, ToolSets
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Message, Request
from kvtune.tokenization.tokenizers.vocabulary import Vocabulary

_TEMPLATES_KEPT = 64
_REFUSALS = 16


class CannotEncodeError(UnusableInputError):
    """Nothing can be done for any request like this one: no vocabulary, or no usable template."""


class Rendered(NamedTuple):
    """What a template wrote: the text, and in it the JSON of the tools, one text for each, in their order."""

    text: str
    tool_texts: list[str]


@dataclass(frozen=True)
class Prompt:
    """A rendered chat, and the conversation as the template saw it."""

    text: str
    tool_texts: list[str]
    conversation: Conversation


class PromptEncoder:
    """Renders requests; holds the vocabulary.

    Attributes:
        source: where the vocabulary comes from, for the report.
        trusts_requests: whether a request's own `chat_template` is rendered (the engine's
            `--trust-request-chat-template`); without it such a request is refused, as by the engine.
    """

    def __init__(
        self,
        load_vocabulary: Callable[[], Vocabulary] | None,
        *,
        source: str,
        templates: ChatTemplates | None = None,
        chat_template: str | None = None,
        content_format: Literal["auto", "string", "openai"] = "auto",
        special_tokens: Mapping[str, Any] | None = None,
        media_token_ids: Mapping[str, int] | None = None,
        media_lengths: MediaLengths | None = None,
        rules: ChatRules | None = None,
        trusts_requests: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        excludes_tools: bool = False,
    ) -> None:
        """Put the parts together.

        Args:
            load_vocabulary: None where only prompts without media will be rendered.
            templates: the model's own; `chat_template` is what the command line gave in their place, a text
                or the name of one of them.
            template_kwargs: variables that the server gives every template; a request's own come before them.
            excludes_tools: whether requests that rule tools out (`tool_choice: none`) are rendered without them.
            media_token_ids: modality -> id of its placeholder token.
            media_lengths: tokens of an image, where the model's processor is known.
        """
        self._load_vocabulary = load_vocabulary
        self._loading: Future[Vocabulary] | None = None
        self.source = source
        self.trusts_requests = trusts_requests
        self._template_kwargs = dict(template_kwargs or {})
        self._excludes_tools = excludes_tools
        self._rules = rules or chat_rules()
        self._templates = templates or ChatTemplates()
        self._given = chat_template
        self._content_format = content_format
        self._special_tokens = dict(special_tokens or {})
        self._media_token_ids = dict(media_token_ids or {})
        self.media_lengths = media_lengths
        self._memo = JsonMemo()
        self._tool_sets = ToolSets(self._memo.keep)
        self._compiled: dict[str, ChatTemplate | UnusableInputError] = {}
        self._refusals: dict[str, int] = {}
        self._untimed_dates = 0
        self.rendered_with: ChatTemplate | None = None
        """The template of the first chat that was rendered."""

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, loaded on first use.

        Raises:
            CannotEncodeError: it cannot be loaded, so that no request can be encoded.
        """
        if self._load_vocabulary is None:
            raise CannotEncodeError("opened without a vocabulary", where=self.source)
        try:
            return self._load_vocabulary() if self._loading is None else self._loading.result()
        except UnusableInputError as error:
            raise CannotEncodeError(
                error.what,
                where=error.where,
                field=error.field,
                found=error.found,
                wanted=error.wanted,
                way_out=error.way_out,
            ) from error

    def load_meanwhile(self) -> None:
        """Load the vocabulary on another thread; what is wrong with it is said where it is needed."""
        if self._load_vocabulary is not None and self._loading is None:
            executor = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
            self._loading = executor.submit(self._load_vocabulary)
            executor.shutdown(wait=False)

    @cached_property
    def bos_id(self) -> int | None:
        """The id of the BOS token, as far as the vocabulary or the configuration names one."""
        affixes = self.vocabulary.affixes
        if affixes is not None and len(affixes[0]):
            return int(affixes[0][0])
        return self.vocabulary.special_tokens.get(self._special_tokens.get("bos_token", ""))

    @property
    def untimed_dates(self) -> int:
        """How often a template asked for the date while its request had no time."""
        return self._untimed_dates

    @cached_property
    def media_token_ids(self) -> dict[str, int]:
        """Modality -> id of the token that a template writes for an item, as far as known."""
        found = dict(self._media_token_ids)
        for modality, tokens in _PLACEHOLDERS.items():
            for token in tokens:
                number = self.vocabulary.special_tokens.get(token)
                if number is not None:
                    found.setdefault(modality, number)
        return found

    @cached_property
    def _reader(self) -> MessageReader:
        placeholders = {}
        if self._load_vocabulary is not None:
            texts = {number: token for token, number in self.vocabulary.special_tokens.items()}
            placeholders = {m: texts[number] for m, number in self.media_token_ids.items() if number in texts}
        return MessageReader(self._rules, placeholders, self._memo.keep)

    def tool_set(self, request: Request) -> ToolSet | None:
        """The request's tools as a template sees them."""
        excluded = self._excludes_tools and request.tool_choice == "none"
        return None if excluded else self._tool_sets.of(request.tools)

    def forget_messages(self) -> None:
        """Let go of messages that were read."""
        self._reader.forget()

    def render(self, request: Request, rendered: Rendered | None = None) -> Prompt:
        """The prompt of a chat request.

        Args:
            rendered: what the template writes, where that is known already.

        Raises:
            UnusableInputError: the engine, or the template, would refuse this request.
        """
        return self._render(
            request,
            request.messages or [],
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
            rendered=rendered,
        )

    def render_with_answer(self, request: Request, answer: Message) -> Prompt:
        """The conversation with its logged answer as one more message, nothing to be generated."""
        messages = [*(request.messages or []), {"role": "assistant", **answer}]
        return self._render(request, messages, add_generation_prompt=False, continue_final_message=False)

    def _render(
        self,
        request: Request,
        messages: list[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        rendered: Rendered | None = None,
    ) -> Prompt:
        tools = self.tool_set(request)
        template = self._template(request, has_tools=tools is not None)
        content_format = template.content_format if self._content_format == "auto" else self._content_format
        conversation = self._reader.read(messages, content_format)
        if not template.mentions_developer:
            conversation.messages = merge_developer_into_system(conversation.messages)
        variables = {**self._special_tokens, **self._template_kwargs, **(request.chat_template_kwargs or {})}
        if "chat_template" in variables or "tokenize" in variables:
            raise TemplateRefusedError(
                "chat_template_kwargs must not hold chat_template or tokenize", field="chat_template_kwargs"
            )
        # Templates that requests bring share one account.
        account = template.source if request.chat_template is None else ""
        if self._refusals.get(account, 0) >= _REFUSALS:
            raise TemplateRefusedError(
                f"not rendered: {_REFUSALS} requests before had templates that did more than a prompt needs"
            )
        if rendered is not None:
            self.rendered_with = self.rendered_with or template
            return Prompt(*rendered, conversation)
        try:
            text = template.render(
                conversation.messages,
                tools=tools.tools if tools else None,
                documents=request.documents or variables.get("documents"),
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=variables,
                now=request.arrival,
            )
        except TemplateRefusedError as error:
            if error.is_limit:
                self._refusals[account] = self._refusals.get(account, 0) + 1
            raise
        self._untimed_dates += template.asked_for_date and request.arrival is None
        self.rendered_with = self.rendered_with or template
        return Prompt(text, self._memo.texts_of(tools.tools) if tools else [], conversation)

    def _template(self, request: Request, *, has_tools: bool) -> ChatTemplate:
        given = request.chat_template
        if given is not None and not self.trusts_requests:
            raise TemplateRefusedError(
                "the request brings its own chat template, which the engine refuses by default",
                field="chat_template",
                way_out="analyze it with --trust-request-chat-template if the server ran with that",
            )
        chosen = self._templates.choose(given or self._given, has_tools=has_tools)
        if chosen is None:
            raise CannotEncodeError(
                "the model has no chat template, and the trace holds chats",
                where=self.source,
                wanted="a chat_template.jinja in the model folder",
                way_out="give one with --chat-template FILE",
            )
        name, source = chosen
        if given is not None:
            name = "the request's chat template"
        compiled = self._compiled.get(source)
        if compiled is None:
            if len(self._compiled) >= _TEMPLATES_KEPT:
                self._compiled.clear()
                self._refusals.clear()
            try:
                compiled = ChatTemplate(source, self._rules, name=f"chat template ({name})", memo=self._memo)
            except UnusableInputError as error:
                compiled = error
            self._compiled[source] = compiled
        if isinstance(compiled, UnusableInputError):
            if given is None:
                raise CannotEncodeError(str(compiled), way_out="give another with --chat-template FILE")
            raise compiled
        return compiled


_PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "image": (
        "<|image_pad|>",
        "<|image|>",
        "<image>",
        "<image_soft_token>",
        "<start_of_image>",
        "[IMG]",
        "<|media_pad|>",
    ),
    "video": ("<|video_pad|>", "<|video|>", "<video>"),
    "audio": ("<|audio_pad|>", "<|audio|>", "<audio>", "<audio_soft_token>", "<|AUDIO|>"),
}
"""Tokens that templates of public models write for an item, most specific first."""
