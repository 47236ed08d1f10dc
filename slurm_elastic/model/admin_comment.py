"""A job's AdminComment: the text of others, then our notes, each between marks of its own. Pure.

Five writers share the comment of a job. Each one reads the comment, puts its own note in with
``with_note`` and writes the result, so the text of the site and the other notes stay::

    ticket 7 [slurm-elastic: aws: ...] [slurm-elastic clouds=west,east]

A user can see but not write an AdminComment. The submit filter writes the same form
(``slurm/hooks/job_order.lua``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class NoteKind(StrEnum):
    """Our notes, in the order in which they stand. The value follows ``[slurm-elastic``."""

    WAIT = ": "
    """Why the pending job waits for us (``features.wait_notes``)."""
    UNSAVED = " checkpoint: "
    """Why the running job cannot be saved (``ckptman.verdicts``)."""
    DATA = " data: "
    """Why the job is held: its files cannot be copied (``features.copying``)."""
    CLOUDS = " clouds="
    """The order of its clouds that the submit filter or we have made (``launch.order_note``)."""
    COST = " cost="
    """The cost of the ended job (``money.cost_note``)."""


_SENTENCES = (NoteKind.WAIT, NoteKind.UNSAVED, NoteKind.DATA)
MAX_SENTENCE_LENGTH = 400
"""Characters of a sentence. Slurm itself has no limit (22.05), but sends each comment to squeue."""
_NOTE = re.compile(
    rf"\s?\[slurm-elastic({'|'.join(re.escape(kind.value) for kind in NoteKind)})([^][]*)\]"
)
_BRACKETS = str.maketrans("[]", "()")


class AdminComment(Struct, frozen=True, kw_only=True):
    """``site_text``: the text of others, unchanged. ``notes``: our notes, without their marks."""

    site_text: str = ""
    notes: Mapping[NoteKind, str] = {}

    def __str__(self) -> str:
        kinds = [kind for kind in NoteKind if kind in self.notes]
        marked_notes = [f"[slurm-elastic{kind}{self.notes[kind]}]" for kind in kinds]
        return " ".join([self.site_text, *marked_notes] if self.site_text else marked_notes)


def parsed(comment: str) -> AdminComment:
    """Read a comment. If a note is there twice, the later one counts."""
    notes = {NoteKind(match[1]): match[2] for match in _NOTE.finditer(comment)}
    return AdminComment(site_text=_NOTE.sub("", comment), notes=notes)


def note_of(comment: str, kind: NoteKind) -> str:
    """Return the text of a note; "" without that note."""
    return parsed(comment).notes.get(kind, "")


def with_note(comment: str, kind: NoteKind, text: str) -> str:
    """Return the comment with this note, or without a note of this kind if the text is empty."""
    if note_of(comment, kind) == (text := fitted(kind, text)):
        return comment
    present = parsed(comment)
    notes = {other: note for other, note in present.notes.items() if other is not kind}
    return str(
        AdminComment(site_text=present.site_text, notes=notes | ({kind: text} if text else {}))
    )


def fitted(kind: NoteKind, text: str) -> str:
    """Return the text as a note can hold it: one line, without square brackets, not too long."""
    line = " ".join(text.translate(_BRACKETS).split())
    if kind not in _SENTENCES or len(line) <= MAX_SENTENCE_LENGTH:
        return line
    return f"{line[: MAX_SENTENCE_LENGTH - 3]}..."
