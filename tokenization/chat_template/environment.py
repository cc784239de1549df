"""The Jinja environment of chat templates: the sandbox, settings and helpers that the engine's has, and a budget.

Settings as in the `transformers` releases that vLLM 0.30 to 0.33 use: immutable sandbox, `trim_blocks`,
`lstrip_blocks`, loop controls, the `generation` tag, `tojson` without HTML escaping, `raise_exception`,
`strftime_now`, and `namespace` and `dict` without a way to attributes. Two things differ on purpose:
`strftime_now` tells the time of the request, not of today, and what a template may do is bounded
(`budget.py`): loops are charged through the syntax tree, everything else at the sandbox's own hooks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from kvtune.tokenization.chat_template.budget import Budget, TemplateLimitError
from kvtune.tokenization.chat_template.json_memo import JsonMemo

_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP_COUNTERS = frozenset({"first", "index", "index0", "last", "length", "previtem", "nextitem"})
_WIDENING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDENING_FILTERS = frozenset({"batch", "center", "indent", "slice"})
_EXPANDING_FILTERS = frozenset({"format", "join", "replace"})
# Filters that write their value out, containers included; the others look at its first level only.
_WRITING_FILTERS = frozenset(
    {"center", "e", "escape", "forceescape", "format", "indent", "join", "pprint", "replace", "string"}
    | {"striptags", "title", "truncate", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"}
)
_FREE_FILTERS = frozenset({"capitalize", "count", "d", "default", "length", "lower", "trim", "upper"})
_MAX_INDENT = 64
_MAX_POWER = 1 << 12


class TemplateRaisedError(TemplateError):
    """The template refused the request through `raise_exception`."""


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks an answer for training; a server renders the body as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _TemplateDict:
    """`dict(...)` and `dict.fromkeys(...)` for templates, without the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """`namespace(...)` that refuses names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a namespace cannot hold a name that starts with an underscore")


class _ChargedLoops(NodeTransformer):
    """Wraps what each loop iterates over so that iterations are charged with the fixed text of the body."""

    def visit_For(self, node: nodes.For, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        self.generic_visit(node, *args, **kwargs)
        node.iter = nodes.Filter(
            node.iter, "__ticks", [nodes.Const(fixed_chars(node))], [], None, None, lineno=node.lineno
        )
        return node

    def visit_Concat(self, node: nodes.Concat, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: N802
        self.generic_visit(node, *args, **kwargs)
        return nodes.Filter(node, "__charged", [], [], None, None, lineno=node.lineno)


def fixed_chars(node: nodes.Node) -> int:
    """Characters of literal template text below a node."""
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


class _ChatCodeGenerator(CodeGenerator):
    """Jinja's compiler with two shorter ways to the same results, which halve the time of a rendering."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802
        """`message.role` is looked up in the plain dict that it nearly always is, without a call.

        `ChatEnvironment.getattr` would give the same and gets every other case.
        """
        if node.attr in _DICT_ATTRIBUTES:
            super().visit_Getattr(node, frame)
            return
        held = self.temporary_identifier()
        self.write(f"({held}[{node.attr!r}] if type({held} := ")
        self.visit(node.node, frame)
        self.write(f") is dict and {node.attr!r} in {held} else environment.getattr({held}, {node.attr!r}))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        """A chain of additions as one call: the same operations in the same order, charged once."""
        terms: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            terms.append(left.right)
            left = left.left
        self.write("environment.add(")
        self.visit(left, frame)
        for term in reversed(terms):
            self.write(", ")
            self.visit(term, frame)
        self.write(")")


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
    code_generator_class = _ChatCodeGenerator

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
            if name not in _FREE_FILTERS:
                self.filters[name] = self._charged(name, function)
        self.filters["tojson"] = self._tojson
        self.filters["__ticks"] = self._ticks
        self.filters["__charged"] = self._write
        # Random text cannot be what the server saw; a template that asks for it is refused when it does.
        del self.filters["random"], self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace

    # How the sandbox compiles and looks things up.

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> Any:
        scopes = (nodes.Macro, nodes.CallBlock, nodes.Block, nodes.For)
        self.call_chars = max((fixed_chars(scope) for scope in source.find_all(scopes)), default=0)
        self.budget = Budget()
        return super()._generate(_ChargedLoops().visit(source), *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        # The common cases of the inherited look-up: a key of a plain dict that hides no method, a counter of
        # the loop, a namespace's own name.
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_ATTRIBUTES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif (kind is LoopContext and attribute in _LOOP_COUNTERS) or (
            kind is _TemplateNamespace and not attribute.startswith("_")
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

    def call(*args: Any, **kwargs: Any) -> Any:
        self, context, function = args[:3]
        budget = self.budget
        if isinstance(function, (Macro, BlockReference, LoopContext)):
            budget.step(1, self.call_chars)
            for value in args[3:]:
                if isinstance(value, (list, tuple)):
                    budget.step(len(value))
            if type(function) is Macro:
                # Always safe to call; what `Context.call` would do for it, without the search for how.
                kwargs.pop("_loop_vars", None)
                kwargs.pop("_block_vars", None)
                return function(context.eval_ctx, *args[3:], **kwargs)
        else:
            self._charge_call(function, args[3:], kwargs)
        return ImmutableSandboxedEnvironment.call(self, context, function, *args[3:], **kwargs)

    def _charge_call(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        budget = self.budget
        budget.step()
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if not isinstance(owner, str):
            for value in args:
                budget.value(value)
            return
        budget.text(len(owner))
        if name in _WIDENING_METHODS:
            for value in (*args, *kwargs.values()):
                budget.number(value)
                if isinstance(value, int):
                    budget.product(len(owner) if name == "expandtabs" else 1, value)
        elif name in ("format", "format_map"):
            budget.format_spec(owner, [*args, *kwargs.values()])
            for value in (*args, *kwargs.values()):
                budget.value(value)
        elif name == "join" and args:
            self._charge_join(args[0], owner)
        elif name == "replace" and len(args) > 1:
            self._charge_replace(owner, args[0], args[1])

    def _charge_join(self, items: Any, separator: Any) -> None:
        if isinstance(items, (list, tuple, dict, str)):
            self.budget.value(items)
            self.budget.product(len(items), len(separator) if isinstance(separator, str) else 1)

    def _charge_replace(self, text: Any, old: Any, new: Any) -> None:
        if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
            self.budget.text(len(text))
            self.budget.product(text.count(old), len(new))

    def _charged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is charged for its arguments before, and for its result after it ran."""
        leading = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            if name == "join" and len(args) > leading and hasattr(args[leading], "__next__"):
                args = (*args[:leading], list(args[leading]), *args[leading + 1 :])
            values = args[leading:]
            first = values[0] if values else None
            size = len(first) if isinstance(first, (str, list, tuple, dict)) else 1
            budget.step(1 if isinstance(first, str) else size)
            if name in _WRITING_FILTERS:
                budget.value(first)
            if name in _WIDENING_FILTERS:
                for value in (*values[1:], *kwargs.values()):
                    budget.number(value)
                    if isinstance(value, (int, str)):
                        budget.product(size, len(value) if isinstance(value, str) else value)
            elif name in _EXPANDING_FILTERS:
                self._charge_expansion(name, values, kwargs)
            elif name == "sum":
                budget.product(size, size)
            result = function(*args, **kwargs)
            if isinstance(result, (str, list, tuple)):
                budget.text(len(result))
            return result

        return charged

    def _charge_expansion(self, name: str, values: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        rest = [*values[1:], *kwargs.values()]
        if name == "format":
            for value in rest:
                self.budget.value(value)
            self.budget.format_spec(str(values[0]), rest)
        elif name == "join":
            self._charge_join(values[0], rest[0] if rest else "")
        elif len(rest) > 1:
            self._charge_replace(str(values[0]), rest[0], rest[1])

    def add(self, first: Any, *rest: Any) -> Any:
        """`first + rest[0] + ...`, left to right."""
        result = first
        for value in rest:
            result = result + value
        if isinstance(result, (str, list, tuple)):
            self.budget.text(len(result))
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        budget.step()
        if operator == "*":
            for sequence, count in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
                    budget.product(len(sequence), count)
        elif operator == "**":
            for value in (left, right):
                if isinstance(value, int) and abs(value) > _MAX_POWER:
                    raise TemplateLimitError("a number is too large")
        elif isinstance(left, str):
            values = right if isinstance(right, tuple) else (right,)
            budget.value(right)
            budget.format_spec(left, values)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and not isinstance(result, bool):
            budget.value(result)
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


def _raise_exception(message: Any) -> None:
    raise TemplateRaisedError(message if isinstance(message, str) else str(type(message).__name__))
