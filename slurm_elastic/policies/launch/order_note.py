"""The note in a job's AdminComment about the order of its clouds, beside the text of others. Pure.

``... [slurm-elastic clouds=west,east]``: the submit filter writes it for a list that it has made
(``slurm/hooks/job_order.lua``), and slurm-elasticd with each change. A user cannot write an
AdminComment, so a list with a note is not a user's choice.
"""

from __future__ import annotations

import re

_NOTE = re.compile(r"\s?\[slurm-elastic clouds=([^][]*)\]")


def noted_order(comment: str) -> tuple[str, ...]:
    """Return the partitions of the note in force; empty without a note."""
    notes = _NOTE.findall(comment)
    return tuple(notes[-1].split(",")) if notes else ()


def with_order(comment: str, partitions: tuple[str, ...]) -> str:
    """Return the comment with a note of this order in place of an earlier note."""
    others_text = _NOTE.sub("", comment)
    note = f"[slurm-elastic clouds={','.join(partitions)}]"
    return f"{others_text} {note}" if others_text else note
