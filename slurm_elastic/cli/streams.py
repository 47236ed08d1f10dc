"""The needs of our programs in their standard streams, whoever started it, and how."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from textwrap import indent
from typing import Any

TIME = "%(asctime)s "
LINE = f"{TIME}%(levelname)s %(name)s %(message)s"  # a line of a service's log
NO_READER = 141  # exit code where the reader of stdout went away, as a shell has it for SIGPIPE
LONGEST = 8192  # characters of such a line: some SDKs put a whole answer into an error
# And those that turn the direction of what follows, or end a line for some readers.
_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def prepare() -> None:
    """Have stdout and stderr be there and take any text. To be called before anything is opened.

    A stream that was closed (``>&-``) leads to /dev/null, as no file of ours must get its number.
    A character that a stream's encoding lacks is written as its number. ``COLUMNS=0``, as some
    terminals have it, means that the width is not known.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if os.environ.get("COLUMNS", "").strip("0") == "":
        os.environ.pop("COLUMNS", None)


def let_go() -> None:
    """Give up output that stdout does not take: Python would try again, and fail, at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def visible(text: str) -> str:
    """``text`` with the numbers of control characters: what was read rules no terminal."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def in_a_line(text: str) -> str:
    """``visible`` without lines or columns of its own, so that no words look like a row of ours."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


class PlainFormatter(logging.Formatter):
    """Each message is one line of plain characters, whoever's words are in it: a job's comment must
    neither rule a terminal nor look like a line of ours. A traceback keeps its lines, indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line."""
        text = super().formatMessage(record)
        more = len(text) - LONGEST
        line = in_a_line(text[:LONGEST])
        return f"{line} ... {more} characters more" if more > 0 else line

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802
        """The traceback, which may quote anything."""
        return indent(visible(super().formatException(ei)), "  ", lambda _: True)

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """The calls that led to a message."""
        return indent(visible(stack_info), "  ", lambda _: True)


def _to_journal() -> bool:
    """Whether systemd-journald has our stderr, which gives each line its time (systemd.exec(5))."""
    with contextlib.suppress(OSError):
        found = os.fstat(2)
        return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
    return False


def log_plainly(level: int | str, form: str = LINE) -> None:
    """Have all that is logged go to stderr, as PlainFormatter writes it."""
    if _to_journal():
        form = form.removeprefix(TIME)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
