"""From what people logged to exact token ids: trace formats, chat templates, tokenizers.

Knows nothing about caches. What leaves this room is a `TokenTrace`.
"""
