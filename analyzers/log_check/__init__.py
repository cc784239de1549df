"""The log's own numbers against this analysis: prompt tokens and cached tokens, request by request.

Servers log what they counted. Where that is not what was counted here, the trace was misread or the server is another
one, and its advice would be about something else.
"""
