"""Root's lines in the node's journal. They contain names of users' files, which may have
unprintable characters or line breaks: those are shown by their numbers.
"""

from __future__ import annotations

import syslog

NOTICE, WARNING = syslog.LOG_NOTICE, syslog.LOG_WARNING


def begin() -> None:
    """Log under our own name."""
    syslog.openlog("slurm-elastic-ckpt-root", syslog.LOG_PID, syslog.LOG_DAEMON)


def tell(level: int, line: str) -> None:
    syslog.syslog(level, shown(line))


def shown(text: str) -> str:
    """The text, printable and in one line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
