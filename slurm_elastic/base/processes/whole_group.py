"""Runs a command of the site, and ends it with all processes that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence


def run_whole(command: Sequence[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run the command without input, as ``subprocess.run`` does. Whatever ends this call early
    ends the command's whole process group: ``subprocess.TimeoutExpired`` after ``timeout`` seconds,
    or the key of a person. OSError or ValueError if the command cannot start.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="backslashreplace", start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            output, error_output = process.communicate(timeout=timeout)
        except BaseException:
            # The death of a shell does not end its children. They would carry out an order after
            # the caller has taken it back. A group that has ended by itself is no error.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, error_output)
