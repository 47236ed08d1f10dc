"""Whose a launch is, for the tags of its machines. Pure.

A cloud's cost explorer sums by one value of a tag, so a machine has one only where all jobs of its
launch agree; a machine for several users is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}", re.ASCII)
"""A value that every cloud takes; EC2's tags may have more, GCE's labels less."""


def agreed(
    jobs: Iterable[int], owners: Mapping[int, Mapping[str, str]], keys: Collection[str]
) -> dict[str, str]:
    """The ``keys`` (``account``, ``user``) of which all jobs have the same value, and one that
    clouds take; a job that is not known agrees with nobody.
    """
    numbers = tuple(jobs)
    found: dict[str, str] = {}
    for key in sorted(keys):
        values = {owners.get(job, {}).get(key, "") for job in numbers}
        value = values.pop() if len(values) == 1 else ""
        if _SAFE.fullmatch(value):
            found[key] = value
    return found
