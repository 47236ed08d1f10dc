"""The note in a job's AdminComment about the order of its clouds, beside the text of others. Pure.

``... [slurm-elastic clouds=west,east]``: the submit filter writes it for a list that it has made
(``slurm/hooks/job_order.lua``), and slurm-elasticd with each change. A user cannot write an
AdminComment, so a list with a note is not a user's choice.
"""

from __future__ import annotations

from slurm_elastic.model.admin_comment import NoteKind, note_of, with_note


def noted_order(comment: str) -> tuple[str, ...]:
    """Return the partitions of the note in force; empty without a note."""
    note = note_of(comment, NoteKind.CLOUDS)
    return tuple(note.split(",")) if note else ()


def with_order(comment: str, partitions: tuple[str, ...]) -> str:
    """Return the comment with a note of this order in place of an earlier note."""
    return with_note(comment, NoteKind.CLOUDS, ",".join(partitions))
