"""Keys that a release has removed from the configuration. A file that still has one works as
before, with a warning.

A struct's class variable ``gone`` says for each of its former keys what is true now.
"""

from __future__ import annotations

from collections.abc import Mapping

Gone = Mapping[str, str]


def farewell(key: str, now: str) -> str:
    """The warning for a file that still has the key."""
    return f"the key {key} was removed and does nothing: {now}; take it out"
