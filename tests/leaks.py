"""Changes that a test may not leave behind in the process that all tests share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping

OWN = {"PYTEST_CURRENT_TEST"}
"""Variables that pytest sets."""
SIGNALS = set(signal.Signals) - {signal.SIGALRM}
"""All but that of pytest-timeout, which stops its clock when a test has failed."""


def state() -> dict[str, object]:
    """All of the process that a test could change for others, by what it is."""
    root = logging.getLogger()
    mask = os.umask(0o022)
    os.umask(mask)
    return {
        **{f"${name}": value for name, value in os.environ.items() if name not in OWN},
        "working directory": _here(),
        "umask": oct(mask),
        "sys.path": tuple(sys.path),
        "garbage collection": gc.isenabled(),
        "socket timeout": socket.getdefaulttimeout(),
        "logging.disable": root.manager.disable,
        "log level": root.level,
        "excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        **{s.name: signal.getsignal(s) for s in SIGNALS},
    }


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "gone"


def left(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """One line for each change."""
    changed = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    return "\n".join(f"{n}: {before.get(n)!r} became {after.get(n)!r}" for n in changed)
