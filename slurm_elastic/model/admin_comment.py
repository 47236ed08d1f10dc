"""A job's AdminComment: the text of others, then our parts, each between marks of its own. Pure.

Four writers share the comment of a job. Each one reads the comment, puts its own part in with
``with_part`` and writes the result, so the text of the site and the parts of the others stay::

    ticket 7 [slurm-elastic: aws: ...] [slurm-elastic clouds=west,east]

A user can see but not write an AdminComment. The submit filter writes the same form
(``slurm/hooks/job_order.lua``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct


class Part(StrEnum):
    """Our parts, in the order in which they stand. The value follows ``[slurm-elastic``."""

    WAIT = ": "
    """Why the pending job waits for us (``features.wait_notes``)."""
    UNSAVED = " checkpoint: "
    """Why the running job cannot be saved (``ckptman.verdicts``)."""
    CLOUDS = " clouds="
    """The order of its clouds that the submit filter or we have made (``launch.order_note``)."""
    COST = " cost="
    """What the ended job cost (``money.cost_note``)."""


MAX_SENTENCE_LENGTH = 400
"""Characters of a sentence. Slurm itself has no limit (22.05), but sends each comment to squeue."""
_SENTENCES = (Part.WAIT, Part.UNSAVED)
_PART = re.compile(
    rf"\s?\[slurm-elastic({'|'.join(re.escape(part.value) for part in Part)})([^][]*)\]"
)
_BRACKETS = str.maketrans("[]", "()")


class AdminComment(Struct, frozen=True, kw_only=True):
    """``others``: the text of others, unchanged. ``parts``: our parts, without their marks."""

    others: str = ""
    parts: Mapping[Part, str] = {}

    def __str__(self) -> str:
        ours = (f"[slurm-elastic{part}{self.parts[part]}]" for part in Part if part in self.parts)
        return " ".join([*([self.others] if self.others else []), *ours])


def parsed(comment: str) -> AdminComment:
    """Read a comment. If a part is there twice, the later one counts."""
    parts = {Part(match[1]): match[2] for match in _PART.finditer(comment)}
    return AdminComment(others=_PART.sub("", comment), parts=parts)


def part_of(comment: str, part: Part) -> str:
    """Return the text of a part; "" without that part."""
    return parsed(comment).parts.get(part, "")


def with_part(comment: str, part: Part, text: str) -> str:
    """Return the comment with this text as the part, or without the part if the text is empty."""
    if part_of(comment, part) == (text := fitted(part, text)):
        return comment
    read = parsed(comment)
    others = {kind: value for kind, value in read.parts.items() if kind is not part}
    return str(AdminComment(others=read.others, parts=others | ({part: text} if text else {})))


def fitted(part: Part, text: str) -> str:
    """Return the text as a part can hold it: one line, without square brackets, not too long."""
    line = " ".join(text.translate(_BRACKETS).split())
    if part not in _SENTENCES or len(line) <= MAX_SENTENCE_LENGTH:
        return line
    return f"{line[: MAX_SENTENCE_LENGTH - 3]}..."
