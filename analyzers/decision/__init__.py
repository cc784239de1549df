"""The decision: from what each match unit reused to one recommendation, what it rests on, and how sure it is.

Outcome per unit --> Objective (what is minimised) --> Choice (the unit, its gain, regret and grade)
                '--> decision line (the best unit by step overhead)
"""

from kvtune.analyzers.decision.choice import Cap, Choice, choose
from kvtune.analyzers.decision.interval import session_interval
from kvtune.analyzers.decision.line import DecisionRange, decision_line
from kvtune.analyzers.decision.objective import Objective, net_gain
from kvtune.analyzers.decision.outcome import Outcome
from kvtune.analyzers.decision.regret import Evidence, Regret

__all__ = [
    "Cap",
    "Choice",
    "DecisionRange",
    "Evidence",
    "Objective",
    "Outcome",
    "Regret",
    "choose",
    "decision_line",
    "net_gain",
    "session_interval",
]
