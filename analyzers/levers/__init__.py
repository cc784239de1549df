"""What beside the match unit would recover tokens, each lever priced by replaying the changed trace or server."""

from kvtune.analyzers.levers.search import find_levers

__all__ = ["find_levers"]
