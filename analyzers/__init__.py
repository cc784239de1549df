"""What the engine would do with a trace, and what to advise: sizes, units, replay, losses, the report.

Knows no files, no terminals and no devices. What leaves this room is a `Report`.
"""
