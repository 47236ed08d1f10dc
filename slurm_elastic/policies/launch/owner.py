"""The owner of a launch, for the tags of its machines. Pure.

A cloud's cost report groups by the single value of a tag. So a machine gets a tag only if all jobs
of its launch agree; a machine for several users has no owner.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}", re.ASCII)
"""A value that every cloud accepts; EC2's tags may have more characters, GCE's labels fewer."""


def agreed(
    jobs: Iterable[int], owners: Mapping[int, Mapping[str, str]], keys: Collection[str]
) -> dict[str, str]:
    """Return the tags (of ``keys``: ``account``, ``user``) for which all jobs have the same value,
    if clouds accept it. An unknown job agrees with no other.
    """
    numbers = tuple(jobs)
    agreed_tags: dict[str, str] = {}
    for key in sorted(keys):
        values = {owners.get(job, {}).get(key, "") for job in numbers}
        value = values.pop() if len(values) == 1 else ""
        if _SAFE.fullmatch(value):
            agreed_tags[key] = value
    return agreed_tags
