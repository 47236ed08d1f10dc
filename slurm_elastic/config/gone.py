"""Keys that a release has taken out of the configuration: a file that has one goes on as before.

A struct names its own in ``gone``: what holds in the key's place, for the warning to those who
still have it. CHANGELOG.md has all of them, each with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping

Gone = Mapping[str, str]
SINCE = "0.1.0"
"""The release that took all of them out."""


def farewell(key: str, now: str) -> str:
    """The sentence for a file that still has the key."""
    return f"the key {key} is gone since release {SINCE} and does nothing: {now}; take it out"
