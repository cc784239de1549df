"""Which content format a template wants: does it loop over a message's content?

The engine reads the template's syntax tree (vLLM 0.24 to 0.33): `{% for message in messages %}` gives names of
messages, through aliases (`set`, slices, filters, namespace attributes); a loop over such a name's `content`, over
a variable called `content` outside macros, or, since 0.30, over a macro's parameter that is given such a
content, means "openai": every content reaches the template as a list of parts. Otherwise "string".
Scopes are not told apart, as in the engine. Knows syntax trees only.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from kvtune.tokenization.chat_template.messages import ContentFormat


def detect_content_format(tree: nodes.Template, *, follows_macros: bool) -> ContentFormat:
    """The format that `auto` resolves to for a parsed template."""
    message_names = _message_names(tree)
    in_macros: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        given = _content_parameters(tree, macro, message_names) if follows_macros else set()
        for loop in macro.find_all(nodes.For):
            in_macros.setdefault(id(loop), set()).update(given)
    for loop in tree.find_all(nodes.For):
        if _is_content(loop.iter, message_names):
            return "openai"
        if (
            follows_macros
            and isinstance(loop.iter, nodes.Name)
            and loop.iter.name in in_macros.get(id(loop), {"content"})
        ):
            return "openai"
    return "string"


def _message_names(tree: nodes.Template) -> set[str]:
    """Loop variables of the loops over `messages` or an alias of it."""
    aliases = _aliases(tree)
    return {
        loop.target.name
        for loop in tree.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _dotted(_bare(loop.iter)) in aliases
    }


def _aliases(tree: nodes.Template) -> set[str]:
    """`messages` and every name, or `namespace.attribute`, that is set to it or to a slice of it."""
    known = {"messages"}
    pending = ["messages"]
    while pending:
        current = pending.pop()
        for assign in tree.find_all(nodes.Assign):
            for name, value in _assigned(assign):
                if name not in known and _dotted(_bare(value)) == current:
                    known.add(name)
                    pending.append(name)
    return known


def _assigned(assign: nodes.Assign) -> Iterator[tuple[str, nodes.Node]]:
    target, value = assign.target, assign.node
    name = _dotted(target)
    if name is None:
        return
    yield name, value
    if isinstance(value, nodes.Call) and _dotted(value.node) == "namespace":
        for keyword in value.kwargs:
            yield f"{name}.{keyword.key}", keyword.value


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, message_names: set[str]) -> set[str]:
    """Parameters of a macro that some call gives a message's content."""
    found: set[str] = set()
    names = [argument.name for argument in macro.args]
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        found.update(
            n for n, value in zip(names, call.args, strict=False) if _is_content(value, message_names)
        )
        found.update(k.key for k in call.kwargs if k.key in names and _is_content(k.value, message_names))
    return found


def _is_content(node: nodes.Node, message_names: set[str]) -> bool:
    node = _bare(node)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content" and _dotted(node.node) in message_names
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value == "content" and _dotted(node.node) in message_names
    return False


def _bare(node: nodes.Node) -> nodes.Node:
    """The node below filters, tests and slices."""
    while True:
        inner = node.node if isinstance(node, (nodes.Filter, nodes.Test)) else None
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            inner = node.node
        if inner is None:
            return node
        node = inner


def _dotted(node: nodes.Node) -> str | None:
    """`name` or `name.attribute` of a variable, None for anything else."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.NSRef):
        return f"{node.name}.{node.attr}"
    if isinstance(node, nodes.Getattr):
        base = _dotted(node.node)
        return f"{base}.{node.attr}" if base else None
    return None
