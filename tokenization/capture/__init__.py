"""`kvtune capture`: a pass-through proxy that writes the requests it carries as a trace.

Reads top to bottom as the data flows: `proxy` carries bytes and keeps a copy (`exchange`), `writer` takes
the copies on its own thread, `record` turns each into one line of the samples' format (`answers` put a
stream together, `conversations` finds the turns), `serve` starts and stops it all. Only `proxy` and
`serve` need the extra `live`. Knows nothing about tokens or caches.
"""
