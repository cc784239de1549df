"""Tool definitions of any API's dialect, in the OpenAI shape that a chat template takes."""

from __future__ import annotations

from typing import Any

from kvtune.tokenization.formats.parts import function_tool
from kvtune.tokenization.rejects import RecordError, describe

CUSTOM_INPUT = "input"
"""The argument that carries the text of a free-form tool's call."""
_CUSTOM_ABOUT = (
    "The freeform text payload for this tool."  # the engine's own words: they are part of the prompt
)


def openai_tools(tools: Any, field: str, *, strict: bool = True) -> list[dict[str, Any]] | None:
    """The function tools, each by its own look; those that the provider runs itself reach no template.

    `strict` False leaves what is of no known dialect as it is, as chat completions' own tools are.

    Takes OpenAI's chat dialect, the Responses dialect (name and parameters beside the type), Anthropic's
    (`input_schema`) and Bedrock's (`toolSpec`).

    Raises:
        RecordError: no list of objects.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise RecordError("wrong_type", field, found=describe(tools), wanted="a list of tools")
    if all(type(one) is dict and type(one.get("function")) is dict for one in tools):
        return tools
    found: list[dict[str, Any]] = []
    for number, one in enumerate(tools):
        if not isinstance(one, dict):
            raise RecordError("wrong_type", f"{field}[{number}]", found=describe(one), wanted="an object")
        converted = _converted(one)
        found += converted if converted or strict else [one]
    unchanged = len(found) == len(tools) and all(
        one is other for one, other in zip(found, tools, strict=True)
    )
    return tools if unchanged else found


def _converted(one: dict[str, Any]) -> list[dict[str, Any]]:
    inner = one.get("tools")
    if one.get("type") == "namespace" and isinstance(inner, list):
        return [
            tool
            | {"function": tool["function"] | {"name": f"{one.get('name')}__{tool['function'].get('name')}"}}
            for held in inner
            if isinstance(held, dict) and held.get("type") == "function"
            for tool in _converted(held)
        ]
    tool = _tool(one)
    return [] if tool is None else [tool]


def _tool(one: dict[str, Any]) -> dict[str, Any] | None:
    if isinstance(one.get("function"), dict):
        return one
    spec = one.get("toolSpec")
    if isinstance(spec, dict):
        schema = spec.get("inputSchema")
        held = schema.get("json", schema) if isinstance(schema, dict) else schema
        return function_tool(spec.get("name"), spec.get("description"), held)
    if "input_schema" in one:
        return function_tool(one.get("name"), one.get("description"), one["input_schema"])
    if one.get("type") == "custom" and isinstance(one.get("name"), str):
        # vLLM 0.32 and later show a free-form tool as a function of one text.
        parameters = {
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string", "description": _CUSTOM_ABOUT}},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
        return function_tool(one["name"], one.get("description"), parameters)
    if isinstance(one.get("name"), str) and one.get("type", "function") == "function":
        return function_tool(
            one.get("name"), one.get("description"), one.get("parameters"), strict=one.get("strict")
        )
    return None
