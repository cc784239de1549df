"""kvtune: finds the prefix match unit that your own vLLM traffic wants."""

__version__ = "0.1.0"
