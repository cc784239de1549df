"""What beside the match unit would recover tokens, each lever priced by replaying the changed trace or server."""

from kvtune.analyzers.levers.by_family import advise_families
from kvtune.analyzers.levers.inputs import LeverInputs, Prompts
from kvtune.analyzers.levers.search import find_culprits, find_levers
from kvtune.analyzers.levers.server import OtherServing
from kvtune.analyzers.levers.trial import Baseline, Found
from kvtune.analyzers.levers.wording import Decode, Wording

__all__ = [
    "Baseline",
    "Decode",
    "Found",
    "LeverInputs",
    "OtherServing",
    "Prompts",
    "Wording",
    "advise_families",
    "find_culprits",
    "find_levers",
]
