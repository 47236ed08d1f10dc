"""Keys that a release has taken out of the configuration. A file that still has one works as
before, with a warning.

A struct's ``gone`` says for each of its former keys what holds now. Why each key went stands in
docs/design/21-a-key-says-when-to-change-it.md.
"""

from __future__ import annotations

from collections.abc import Mapping

Gone = Mapping[str, str]
SINCE = "0.1.0"  # the release that took all of them out


def farewell(key: str, now: str) -> str:
    """The sentence for a file that still has the key."""
    return f"the key {key} is gone since release {SINCE} and does nothing: {now}; take it out"
