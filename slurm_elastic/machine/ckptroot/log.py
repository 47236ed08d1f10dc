"""Root's lines in the node's syslog.

They may contain names of users' files. Unprintable characters and line breaks are escaped.
"""

from __future__ import annotations

import syslog

NOTICE, WARNING = syslog.LOG_NOTICE, syslog.LOG_WARNING


def begin() -> None:
    """Log under the program's own name."""
    syslog.openlog("slurm-elastic-ckpt-root", syslog.LOG_PID, syslog.LOG_DAEMON)


def write(level: int, line: str) -> None:
    """Log a line at this level."""
    syslog.syslog(level, shown(line))


def shown(text: str) -> str:
    """Return the text as one printable line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
