"""Keys that a release has removed from the configuration. A file that still has one works as
before, with a warning.

A struct's ``gone`` says for each of its former keys what is true now. The reasons are in
docs/design/21-a-key-says-when-to-change-it.md.
"""

from __future__ import annotations

from collections.abc import Mapping

Gone = Mapping[str, str]
SINCE = "0.1.0"  # the release that removed all of them


def farewell(key: str, now: str) -> str:
    """The warning for a file that still has the key."""
    return f"the key {key} was removed in release {SINCE} and does nothing: {now}; take it out"
