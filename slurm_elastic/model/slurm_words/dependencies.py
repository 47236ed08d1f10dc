"""The words by which a waiting job depends on the end of another job (``--dependency``). Pure.

As squeue shows them, measured on 22.05: ``afterok:7(unfulfilled),afternotok:9_*(unfulfilled)``,
``afterany:9_2(unfulfilled)?afterok:7(unfulfilled)``, ``singleton(unfulfilled)``.
"""

from __future__ import annotations

import re

_OF_END = re.compile(r"\bafter(?:any|ok|notok|corr|burstbuffer):([\d_*:]+)")
"""``after`` is missing: it waits for the start of a job."""
_SINGLETON = re.compile(r"\bsingleton\b")


def jobs_to_end(dependency: str) -> frozenset[str]:
    """The labels of the jobs whose end decides whether the waiting job may start. ``9_*`` means
    all tasks of an array.
    """
    lists = (match[1].split(":") for match in _OF_END.finditer(dependency))
    return frozenset(label for labels in lists for label in labels if label)


def waits_for_name(dependency: str) -> bool:
    """Whether the waiting job waits for the end of all jobs of its user with its name."""
    return _SINGLETON.search(dependency) is not None
