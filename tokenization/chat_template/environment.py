"""The Jinja environment of chat templates: the sandbox, settings and helpers that the engine's has, and a budget.

Settings as in the `transformers` releases that vLLM 0.30 to 0.33 use: immutable sandbox, `trim_blocks`,
`lstrip_blocks`, loop controls, the `generation` tag, `tojson` without HTML escaping, `raise_exception`,
`strftime_now`, and `namespace` and `dict` without a way to attributes. Two things differ on purpose:
`strftime_now` tells the time of the request, not of today, and what a template may do is bounded
(`budget.py`): some of it is charged where it is compiled, the rest at the sandbox's own hooks here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvtune.tokenization.chat_template.budget import CALL_STEPS, Budget, TemplateLimitError
from kvtune.tokenization.chat_template.charges import charge_call, charge_operator, charged_filter
from kvtune.tokenization.chat_template.compiler import (
    DICT_ATTRIBUTES,
    ChargedLoops,
    ChatCodeGenerator,
    fixed_chars,
)
from kvtune.tokenization.chat_template.helpers import (
    GenerationTag,
    TemplateDict,
    TemplateNamespace,
    raise_exception,
)
from kvtune.tokenization.chat_template.json_memo import JsonMemo

_LOOP_COUNTERS = frozenset({"first", "index", "index0", "last", "length", "previtem", "nextitem"})
_CONTAINERS = frozenset({dict, list, tuple})
_UNCHARGED_FILTERS = frozenset({"count", "d", "default", "length"})
_MAX_INDENT = 64


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """One per template text; not for use by two threads at a time.

    Attributes:
        budget: what the rendering in progress may still do; replaced before each one.
        now: seconds of the request being rendered, for `strftime_now`; None reads as 1970-01-01.
        asked_for_date: whether the template called `strftime_now` since this was last cleared.
        call_chars: the most fixed text that one call of a macro or block writes.
        memo: dumps of values that outlive one rendering.
    """

    intercepted_binops = frozenset({"*", "**", "%"})
    code_generator_class = ChatCodeGenerator

    def __init__(self, memo: JsonMemo) -> None:
        self.budget = Budget()
        self.now: float | None = None
        self.asked_for_date = False
        self.call_chars = 0
        self.memo = memo
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=self._write,
        )
        for name, function in list(self.filters.items()):
            if name not in _UNCHARGED_FILTERS:
                self.filters[name] = charged_filter(name, function, lambda: self.budget)
        self.filters["tojson"] = self._tojson
        self.filters["__ticks"] = self._ticks
        # Random text cannot be what the server saw; a template that asks for it is refused when it does.
        del self.filters["random"], self.globals["lipsum"]
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = self._strftime_now
        self.globals["dict"] = TemplateDict()
        self.globals["namespace"] = TemplateNamespace

    # How the sandbox compiles and looks things up.

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> Any:
        scopes = (nodes.Macro, nodes.CallBlock, nodes.Block, nodes.For)
        self.call_chars = max((fixed_chars(scope) for scope in source.find_all(scopes)), default=0)
        self.budget = Budget()
        return super()._generate(ChargedLoops().visit(source), *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        # The common cases of the inherited look-up: a key of a plain dict that hides no method, a counter of
        # the loop, a namespace's own name.
        kind = type(obj)
        if kind is dict:
            if attribute not in DICT_ATTRIBUTES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif (kind is LoopContext and attribute in _LOOP_COUNTERS) or (
            kind is TemplateNamespace and not attribute.startswith("_")
        ):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    # What is charged, and where.

    @pass_context  # keeps the optimizer from folding a constant loop's charge away
    def _ticks(self, _context: Context, iterable: Iterable[Any], chars: int) -> Iterable[Any]:
        return self.budget.ticks(iterable, chars)

    def _write(self, value: Any) -> Any:
        budget = self.budget
        if type(value) is str:
            budget.chars -= len(value)
            if budget.chars < 0:
                budget.text(0)
        else:
            budget.value(value)
        return value

    def call(self, context: Context, function: Any, /, *values: Any, **kwargs: Any) -> Any:
        if type(function) is Macro:
            # Always safe to call; what `Context.call` would do for it, without the search for how.
            self.budget.step(CALL_STEPS, self.call_chars)
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            if (
                not kwargs
                and len(values) == function._argument_count
                and not (function.caller or function.catch_kwargs or function.catch_varargs)
                and not context.eval_ctx.autoescape
            ):
                return function._func(*values)  # every parameter is given: nothing to fill in
            return function(context.eval_ctx, *values, **kwargs)
        if isinstance(function, (BlockReference, LoopContext)):
            self.budget.step(CALL_STEPS + sum(map(_length, values)), self.call_chars)
        else:
            if values and hasattr(values[0], "__next__") and getattr(function, "__name__", "") == "join":
                values = (list(values[0]), *values[1:])
            charge_call(self.budget, function, values, kwargs)
        return super().call(context, function, *values, **kwargs)

    def add(self, first: Any, *rest: Any) -> Any:
        """`first + rest[0] + ...`, left to right."""
        result = first
        for value in rest:
            result = result + value
        if type(result) is str:
            self.budget.text(len(result))
        elif isinstance(result, (list, tuple)):
            self.budget.items(len(result))
            self.budget.value(result)
        return result

    def concat_text(self, context: Context, *values: Any) -> str:
        """`values[0] ~ values[1] ~ ...`."""
        for value in values:
            self._write(value)
        return markup_join(values) if context.eval_ctx.autoescape else str_join(values)

    def built(self, container: Any) -> Any:
        """A list, tuple or dict that the template wrote, charged for all that is in it."""
        values = container.values() if type(container) is dict else container
        if any(type(value) in _CONTAINERS for value in values):
            self.budget.value(container)
        return container

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        charge_operator(self.budget, operator, left, right)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and not isinstance(result, bool):
            self.budget.value(result)
        return result

    # Helpers that templates know.

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        if separators is not None and sum(map(len, separators)) > _MAX_INDENT:
            raise TemplateLimitError("separators are too long")
        # A list of separators cannot be looked up; such a dump is made anew.
        options = (ensure_ascii, indent, separators, sort_keys) if not isinstance(separators, list) else None
        text = self.memo.get(value, options) if options else None
        if text is None:
            written = self.budget.value(value)
            if indent is not None:
                width = len(indent) if isinstance(indent, str) else int(indent)
                if width > _MAX_INDENT:
                    raise TemplateLimitError("an indent is too wide")
                self.budget.text(written * max(width, 1))
            text = json.dumps(
                value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
            )
            if options:
                self.memo.put(value, options, text)
        self.budget.text(len(text))
        return text

    def _strftime_now(self, spec: str) -> str:
        self.asked_for_date = True
        self.budget.format_spec(spec, ())
        return datetime.fromtimestamp(self.now or 0.0, UTC).strftime(spec)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple)) else 0
