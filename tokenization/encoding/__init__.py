"""From `Request` to the rows of a `TokenTrace`: a model's encoder, prompts in pieces, answers, media, parts.

`kvtune.tokenization.encode` is the way in. No trace formats and no caches here.
"""
