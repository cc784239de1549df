"""Sizes from what the user has: a model config and flags, a whole serve command, a start-up log, `/metrics`.

    config.json + flags --> layers --> block --> groups      (`model_sizes`)
    start-up log ------------------------------> sizes       (`startup_log`)
    /metrics ----------------------------------> labels      (`metrics`)
    all of them ---------> one `EngineConfig`, with what disagreed   (`sources`)

Takes text and parsed documents, never file names. Knows how a server arrives at its sizes; what they mean for
hits is `kvtune.analyzers.resolver`'s and `kvtune.analyzers.units`' business.
"""
