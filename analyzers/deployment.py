"""What `resolve` says of connectors and ranks, for an analysis: judged for the match unit that it recommends."""

from __future__ import annotations

from dataclasses import replace

from kvtune.analyzers.analysis import Analysis
from kvtune.analyzers.options import Provenance
from kvtune.analyzers.sizing.deployment_findings import deployment_findings


def deployment_caveats(found: Analysis, provenance: Provenance) -> tuple[str, ...]:
    """One caveat a finding, and the flags that nothing here models."""
    unit = found.choice.unit
    match_unit = None if unit == found.setting.default_unit else unit
    config = replace(found.config, match_unit=match_unit)
    several = found.task.replica is not None
    caveats = [
        finding.text + (f" Change: {finding.change}." if finding.change else "")
        for finding in deployment_findings(provenance.flags, config, found.sizes)
        if not (several and finding.name == "data_parallel_caches")
        and not (finding.name == "connector_with_finer_unit" and found.choice.action in ("set", "unset"))
    ]
    if provenance.unmodelled:
        caveats.append(f"Flags that are not modelled: {', '.join(provenance.unmodelled)}.")
    return tuple(caveats)
