"""Prepare the standard streams of our programs, however they were started, and the log."""

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
NO_READER = 141  # exit code if the reader of stdout went away: 128 + SIGPIPE, as in a shell
MAX_LOG_LINE_LENGTH = 8192  # characters; some SDKs put a whole answer into an error
# Control characters, and Unicode characters that reverse the direction of text or end a line.
_CONTROL = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def prepare() -> None:
    """Make stdout and stderr exist and accept any text. Call it before any file is opened.

    A closed stream (``>&-``) is opened on /dev/null: else the next file that we open would get its
    number, and our output. Characters that a stream's encoding lacks are written as numbers. Some
    terminals set ``COLUMNS=0``, which means that the width is unknown: we remove it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free number, which is this one.
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


def flush_or_discard() -> None:
    """Discard output that stdout does not accept: Python would retry at exit, and fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def visible(text: str) -> str:
    """``text`` with control characters as escapes, so that it cannot control a terminal."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def in_a_line(text: str) -> str:
    """``visible`` without line breaks and tabs, so that foreign text cannot forge a row of ours."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


class PlainFormatter(logging.Formatter):
    """Writes each message as one line of visible characters.

    A job's comment in a message must neither control a terminal nor look like a log line of ours.
    A traceback keeps its lines, indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The message as one line, cut after MAX_LOG_LINE_LENGTH characters."""
        text = super().formatMessage(record)
        excess = len(text) - MAX_LOG_LINE_LENGTH
        line = in_a_line(text[:MAX_LOG_LINE_LENGTH])
        return f"{line} ... {excess} characters more" if excess > 0 else line

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802
        """The traceback, indented; it may quote any text."""
        return indent(visible(super().formatException(ei)), "  ", lambda _: True)

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """The stack of calls, indented."""
        return indent(visible(stack_info), "  ", lambda _: True)


def _stderr_is_journal() -> bool:
    """Whether stderr goes to systemd-journald, which adds times to lines (systemd.exec(5))."""
    with contextlib.suppress(OSError):
        status = os.fstat(2)
        return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


def log_plainly(level: int | str, form: str = LINE) -> None:
    """Send the log to stderr, formatted by PlainFormatter."""
    if _stderr_is_journal():
        form = form.removeprefix(TIME)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
