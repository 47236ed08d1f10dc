"""Our two lines in slurm.conf and gres.conf: added at the end, removed again byte for byte. Pure.

The marker comment ends in ``(a newline was added)`` if the file had no final one, and in
``(two ...)`` if its last line ended in a continuation backslash. So the removal needs no record of
the original file.
"""

from __future__ import annotations

import functools
import re

from slurm_elastic.slurm.conf import fragment

_MARKER = b"# slurm-elastic: this and the next line come and go with `slurm-elastic conf`"
_NOTES = (b"", b" (a newline was added)", b" (two newlines were added)")
_RECORD = re.compile(
    rb"[ \t]*(#.*|(NodeName|NodeSet|PartitionName|DownNodes)[ \t]*=.*[^\\ \t])?[ \t]*",
    re.IGNORECASE,
)
"""A whole line that sets no option: a record, a comment or nothing."""


@functools.cache
def _block(name: str) -> re.Pattern[bytes]:
    return re.compile(
        rb"(?P<before>(?:\r?\n)*)"
        + re.escape(_MARKER)
        + rb"(?P<note>"
        + b"|".join(re.escape(note) for note in reversed(_NOTES))
        + rb")(?P<newline>\r?\n)[ \t]*include "
        + re.escape(name.encode())
        + rb"[ \t]*(?P<end>\r?\n|$)",
        re.IGNORECASE,
    )


def with_include(text: bytes, name: str = fragment.FILE_NAME) -> bytes:
    """``text`` with our lines as its last options. Nodes, partitions and comments may follow them,
    because the last line wins only for options.
    """
    match = _block(name).search(text)
    if match and all(map(_RECORD.fullmatch, text[match.end() :].splitlines())):
        return text
    text = without_include(text, name)
    newline = b"\r\n" if text.endswith(b"\r\n") or _mostly_crlf(text) else b"\n"
    added = _newlines_needed(text)
    # A relative name: an absolute one does not reach configless nodes, whose slurmd and commands
    # then fail (measured on 22.05 to 26.05).
    block = (_MARKER + _NOTES[added], b"include " + name.encode(), b"")
    return text + newline * added + newline.join(block)


def without_include(text: bytes, name: str = fragment.FILE_NAME) -> bytes:
    """``text`` without our lines and the newlines added with them. Later edits stay."""
    while match := _block(name).search(text):
        before, text_after = match["before"], text[match.end() :]
        if not text_after.strip():
            for _ in range(_NOTES.index(match["note"])):
                before = before.removesuffix(match["newline"])
        text = text[: match.start()] + before + text_after
    return text


def has_include(text: bytes, name: str = fragment.FILE_NAME) -> bool:
    """Whether our lines are in ``text``."""
    return _block(name).search(text) is not None


def _newlines_needed(text: bytes) -> int:
    """How many newlines our comment needs before it, so that no line is continued into it
    (slurm.conf(5)).
    """
    if not text:
        return 0
    last_line = text.rstrip(b"\r\n").rsplit(b"\n", 1)[-1].split(b"#", 1)[0].rstrip()
    has_newline = text.endswith(b"\n")
    if last_line.endswith(b"\\") and text[len(text.rstrip(b"\r\n")) :].count(b"\n") < 2:
        return 1 if has_newline else 2
    return 0 if has_newline else 1


def _mostly_crlf(text: bytes) -> bool:
    return text.count(b"\r\n") * 2 > text.count(b"\n") > 0
