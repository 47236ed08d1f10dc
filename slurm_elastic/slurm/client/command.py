"""One command of Slurm's, with a time limit; what it prints is handed on while it prints it."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from slurm_elastic.base.units import brief

_PART = 1 << 18
_MOST_ERRORS = 1 << 20  # bytes of a command's complaints that are kept
AT_THE_END = 1.0  # seconds of a call once the service is to end: more than any answer needs
LOOK = 0.25  # seconds after which who waits looks whether the service is to end


class Patience:
    """How long calls of slurmctld's may take: ``limit`` seconds each. Once ``stop`` is set each has
    ``AT_THE_END``, and after one that took longer nobody waits: slurmctld does not answer.
    """

    def __init__(self, limit: float, stop: threading.Event | None = None) -> None:
        self._limit = limit
        self._stop = stop
        self._ended: float | None = None
        self._given_up = False

    def left(self, began: float) -> float:
        """Seconds left of a call that began then; TimeoutError where there are none."""
        if self._given_up:
            raise TimeoutError("nobody waits for slurmctld any more, as the service ends")
        now = time.monotonic()
        if self._ended is None and self._stop is not None and self._stop.is_set():
            self._ended = now
        until = began + self._limit
        if self._ended is not None:
            until = min(until, max(began, self._ended) + AT_THE_END)
        if now < until:
            return until - now
        self._given_up = self._ended is not None
        raise TimeoutError(f"no answer in {brief(now - began)}")


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    patience: Patience,
    take: Callable[[bytes], object],
) -> tuple[int, str]:
    """Its exit status and its standard error. TimeoutError, OSError, and whatever ``take`` raises
    of its output: the command has ended by then.
    """
    complaints = bytearray()

    def complain(data: bytes) -> None:
        complaints.extend(data[: _MOST_ERRORS - len(complaints)])

    began = time.monotonic()
    # No command is begun that nobody would wait for.
    patience.left(began)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            _hand_on(process, {"stdout": take, "stderr": complain}, patience, began)
            code = _ended(process, patience, began)
        except BaseException:
            process.kill()
            raise
    return code, complaints.decode(errors="replace")


def _hand_on(
    process: subprocess.Popen[bytes],
    takers: Mapping[str, Callable[[bytes], object]],
    patience: Patience,
    began: float,
) -> None:
    """Until both streams have ended."""
    with selectors.DefaultSelector() as selector:
        for name, take in takers.items():
            selector.register(getattr(process, name), selectors.EVENT_READ, take)
        while selector.get_map():
            for key, _ in selector.select(min(patience.left(began), LOOK)):
                data = os.read(key.fd, _PART)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)


def _ended(process: subprocess.Popen[bytes], patience: Patience, began: float) -> int:
    """Its exit status; it may close its streams and go on."""
    while True:
        try:
            return process.wait(min(patience.left(began), LOOK))
        except subprocess.TimeoutExpired:
            continue
