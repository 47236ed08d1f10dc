"""One command of Slurm's, with a time limit; what it prints is handed on while it prints it."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

_PART = 1 << 18
_MOST_ERRORS = 1 << 20
"""Bytes of a command's complaints that are kept."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    take: Callable[[bytes], object],
) -> tuple[int, str]:
    """Its exit status and its standard error. TimeoutExpired, OSError, and whatever ``take`` raises
    of its output: the command has ended by then.
    """
    complaints = bytearray()

    def complain(data: bytes) -> None:
        complaints.extend(data[: _MOST_ERRORS - len(complaints)])

    deadline = time.monotonic() + timeout
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            _hand_on(process, {"stdout": take, "stderr": complain}, deadline, timeout)
            code = process.wait(max(deadline - time.monotonic(), 0.01))
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(command, timeout) from None
            raise
    return code, complaints.decode(errors="replace")


def _hand_on(
    process: subprocess.Popen[bytes],
    takers: Mapping[str, Callable[[bytes], object]],
    deadline: float,
    timeout: float,
) -> None:
    """Until both streams have ended."""
    with selectors.DefaultSelector() as selector:
        for name, take in takers.items():
            selector.register(getattr(process, name), selectors.EVENT_READ, take)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout)
            for key, _ in selector.select(left):
                data = os.read(key.fd, _PART)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)
