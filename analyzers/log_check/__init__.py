"""The log's own numbers against this analysis: prompt tokens and cached tokens, request by request, and why they differ.

Servers log what they counted. Where that is not what was counted here, the trace was misread or the server is another
one, and its advice would be about something else.
"""

from kvtune.analyzers.log_check.check import LogChecked, check_log
from kvtune.analyzers.log_check.info import (
    CachedTokensCheck,
    Difference,
    LogCause,
    LogCheck,
    PromptTokensCheck,
)

__all__ = [
    "CachedTokensCheck",
    "Difference",
    "LogCause",
    "LogCheck",
    "LogChecked",
    "PromptTokensCheck",
    "check_log",
]
