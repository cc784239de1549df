"""The bundled paged-KV engine: a real hybrid decoder that executes what the one bookkeeping decides.

Knows tensors, devices and clocks. Decides nothing about reuse: hits, chunk ends, block tables, copies and
evictions all come from `kvtune.analyzers`.
"""
