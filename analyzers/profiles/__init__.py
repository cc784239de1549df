"""Release profiles: what each vLLM release does, as data. Code asks a profile, never a version number."""

from kvtune.analyzers.profiles.history import (
    FIRST_WITH_MATCH_UNIT,
    NEWEST,
    PROFILES,
    SelectedProfile,
    UnknownReleaseError,
    nearest_profile,
    profile_for,
)
from kvtune.analyzers.profiles.release import ReleaseProfile

__all__ = [
    "FIRST_WITH_MATCH_UNIT",
    "NEWEST",
    "PROFILES",
    "ReleaseProfile",
    "SelectedProfile",
    "UnknownReleaseError",
    "nearest_profile",
    "profile_for",
]
