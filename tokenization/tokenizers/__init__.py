"""Text to token ids: vocabularies, where a text may be cut, and the memory of encoded pieces.

Knows no messages and no templates.
"""
