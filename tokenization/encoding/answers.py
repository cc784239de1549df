"""The text of a logged answer as the engine generated it: what the conversation with it adds to the prompt."""

from __future__ import annotations

from collections.abc import Iterable

from kvtune.tokenization.encoding.prompt_encoder import CannotEncodeError, Prompt, PromptEncoder
from kvtune.tokenization.errors import UnusableInputError
from kvtune.tokenization.request import Request


def answer_text(encoder: PromptEncoder, request: Request, prompt: Prompt | None) -> str | None:
    """The answer up to and with the end of its turn; None where there is none or it cannot be told.

    A chat's answer is rendered as one more message. If that does not extend the prompt (the template rewrites
    what came before), nobody can tell what the engine generated.
    """
    output = request.output
    if isinstance(output, str):
        return output or None
    if prompt is None or not isinstance(output, dict):
        return None
    try:
        text = encoder.render_with_answer(request, output).text
    except CannotEncodeError:
        raise
    except UnusableInputError:
        return None
    if not text.startswith(prompt.text):
        return None
    return _to_end_of_turn(text[len(prompt.text) :], encoder.vocabulary.special_tokens) or None


def _to_end_of_turn(text: str, special_tokens: Iterable[str]) -> str:
    """`text` without the whitespace that a template writes after the token that ends the turn."""
    trimmed = text.rstrip()
    return trimmed if any(trimmed.endswith(token) for token in special_tokens) else text
