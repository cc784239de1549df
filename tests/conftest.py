"""Hypothesis without deadlines: a busy machine fails no test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("kvtune", deadline=None)
settings.load_profile("kvtune")
