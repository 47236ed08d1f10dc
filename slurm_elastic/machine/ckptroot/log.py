"""Root's lines in the node's journal. Names of users' files come in them, which may be no text and
may have lines of their own: all that cannot be printed is shown by its number.
"""

from __future__ import annotations

import syslog

NOTICE, WARNING = syslog.LOG_NOTICE, syslog.LOG_WARNING


def begin() -> None:
    """Under our own name."""
    syslog.openlog("slurm-elastic-ckpt-root", syslog.LOG_PID, syslog.LOG_DAEMON)


def tell(level: int, line: str) -> None:
    """One line."""
    syslog.syslog(level, shown(line))


def shown(text: str) -> str:
    """The text as it can be printed, in one line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
