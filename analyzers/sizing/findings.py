"""What a person who serves this model should know, by name, with the flag that changes it.

Each finding is a rule of the engine that public reports show people running into. Knows sizes and settings; what
real prompts lose by it is a matter of replay.
"""

from __future__ import annotations

from kvtune.analyzers.layout import EngineConfig
from kvtune.analyzers.resolver import ResolvedSizes
from kvtune.analyzers.sizing.finding import Finding
from kvtune.analyzers.sizing.serving_findings import find_about_serving
from kvtune.analyzers.sizing.sources import SizedServer
from kvtune.analyzers.sizing.unit_findings import find_about_units
from kvtune.analyzers.units import UnitCandidate


def find_all(
    server: SizedServer,
    config: EngineConfig,
    sizes: ResolvedSizes | None,
    candidates: tuple[UnitCandidate, ...],
) -> tuple[Finding, ...]:
    """Every finding, most consequential first. `sizes` None: the engine refuses the configuration."""
    return (*find_about_units(server, config, sizes, candidates), *find_about_serving(server, config, sizes))
