"""Engine vectors against this bookkeeping: what an unmodified vLLM did, replayed, and every difference named.

Reads documents that are already parsed; files, options and exit codes belong to the command line.
"""

from kvtune.analyzers.conform.document import conform_document
from kvtune.analyzers.conform.result import ConformResult, Difference

__all__ = ["ConformResult", "Difference", "conform_document"]
