"""What calls, filters and operators of a template are charged, by what they can do to a text's size.

    text.ljust(n)         writes n            text.replace(a, b)     count(a) times b
    text * n              len * n             sep.join(items)        all items and separators
    "%5d" % x             the field's width   items | batch(n)       a new nesting level

Knows budgets and values; nothing about compiling or rendering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from kvtune.tokenization.chat_template.budget import CALL_STEPS, Budget, TemplateLimitError

_WIDENING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_WIDENING_FILTERS = frozenset({"batch", "center", "indent", "slice"})
_EXPANDING_FILTERS = frozenset({"format", "join", "replace"})
# Filters that write their value out, containers included; the others look at its first level only.
_WRITING_FILTERS = frozenset(
    {"center", "e", "escape", "forceescape", "format", "indent", "join", "pprint", "replace", "string"}
    | {"striptags", "title", "truncate", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr"}
)
# Filters that nest what they are given in new lists.
_NESTING_FILTERS = frozenset({"batch", "dictsort", "groupby", "items", "slice"})
# Filters that take about a microsecond a character.
_SLOW_FILTERS = frozenset({"pprint", "striptags", "title", "urlencode", "urlize", "wordcount", "wordwrap"})
_SLOW_FACTOR = 32
_MAX_POWER = 1 << 12


def charge_call(budget: Budget, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Charge a call of anything but macros and blocks, before it runs."""
    budget.step(CALL_STEPS)
    # The sandbox wraps `str.format`; what it wraps tells whose method it is.
    method = getattr(function, "__wrapped__", function)
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if not isinstance(owner, str):
        for value in (*args, *kwargs.values()):
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
        _charge_join(budget, args[0], owner)
    elif name == "replace" and len(args) > 1:
        _charge_replace(budget, owner, args[0], args[1])


def _charge_join(budget: Budget, items: Any, separator: Any) -> None:
    if isinstance(items, (list, tuple, dict, str)):
        budget.value(items)
        budget.product(len(items), len(separator) if isinstance(separator, str) else 1)


def _charge_replace(budget: Budget, text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        budget.text(len(text))
        budget.product(text.count(old), len(new))


def charged_filter(
    name: str, function: Callable[..., Any], budget_now: Callable[[], Budget]
) -> Callable[..., Any]:
    """A filter that is charged for its arguments before, and for its result after it ran."""
    leading = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        budget = budget_now()
        if name == "join" and len(args) > leading and hasattr(args[leading], "__next__"):
            args = (*args[:leading], list(args[leading]), *args[leading + 1 :])
        values = args[leading:]
        first = values[0] if values else None
        size = len(first) if isinstance(first, (str, list, tuple, dict)) else 1
        budget.step(1 if isinstance(first, str) else size)
        if name in _WRITING_FILTERS or name in _NESTING_FILTERS:
            budget.value(first)
        elif isinstance(first, str):
            budget.text(size)
        if name in _SLOW_FILTERS:
            budget.product(_SLOW_FACTOR, size)
        if name in _WIDENING_FILTERS:
            for value in (*values[1:], *kwargs.values()):
                budget.number(value)
                if isinstance(value, (int, str)):
                    budget.product(size, len(value) if isinstance(value, str) else value)
        elif name in _EXPANDING_FILTERS:
            _charge_expansion(budget, name, values, kwargs)
        elif name == "sum":
            budget.product(size, size)
        result = function(*args, **kwargs)
        if isinstance(result, str):
            budget.text(len(result))
        elif isinstance(result, (list, tuple)):
            budget.items(len(result))
        return result

    return charged


def _charge_expansion(budget: Budget, name: str, values: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    rest = [*values[1:], *kwargs.values()]
    if name == "format":
        for value in rest:
            budget.value(value)
        budget.format_spec(str(values[0]), rest)
    elif name == "join":
        _charge_join(budget, values[0], rest[0] if rest else "")
    elif len(rest) > 1:
        _charge_replace(budget, str(values[0]), rest[0], rest[1])


def charge_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Charge `*`, `**` or `%`, before it is done."""
    budget.step()
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str) and isinstance(count, int):
                budget.product(len(sequence), count)
            elif isinstance(sequence, (list, tuple)) and isinstance(count, int):
                budget.product(8, budget.value(sequence), count)
    elif operator == "**":
        for value in (left, right):
            if isinstance(value, int) and abs(value) > _MAX_POWER:
                raise TemplateLimitError("a number is too large")
    elif isinstance(left, str):
        values = right if isinstance(right, tuple) else (right,)
        budget.value(right)
        budget.format_spec(left, values)
