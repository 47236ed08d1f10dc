"""Runs the commands of Slurm: with a time limit and in one environment.

No other module of this room starts one (a test looks).
"""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.units import brief

if TYPE_CHECKING:  # as in ``release``
    from slurm_elastic.config import SlurmSettings

_READ_SIZE = 1 << 18
_MAX_ERROR_BYTES = 1 << 20  # of a command's standard error
AFTER_STOP_S = 1.0  # for a call once the service must end; more than any answer needs
STOP_POLL_S = 0.25  # how often a waiting call checks whether the service must end


def environment(settings: SlurmSettings) -> dict[str, str]:
    """The variables of every command of Slurm whose answer we read.

    Slurm's commands read and write times in the zone of TZ. If TZ is not set, they take the host's
    zone, which may differ from the zone of this process, and which repeats an hour of autumn. So
    every time that we pass or read is UTC.

    squeue otherwise shows all waiting tasks of an array in one row, also a task that has run and
    was requeued. Such a task has a job number of its own, and would be missing. It also cuts the
    list of an array's tasks after 64 characters, in JSON as well, so that hundreds of scattered
    tasks would count as twenty.
    """
    return {
        "SLURM_CONF": settings.conf,
        "PATH": f"{settings.bin_dir}:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "SLURM_BITSTR_LEN": "0",
        "SLURM_TIME_FORMAT": "standard",
        "SQUEUE_ARRAY_UNIQUE": "1",
        "TZ": "UTC0",
    }


def utc_text(timestamp: float) -> str:
    """A Unix time as these commands read it."""
    return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%dT%H:%M:%S}"


def unix_time(text: str) -> float:
    """The Unix time of a time as these commands print it."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def output(command: Sequence[str], settings: SlurmSettings) -> str:
    """The whole output of a command of this Slurm. SlurmError if it fails or takes too long."""
    return output_in(command, environment(settings), settings.command_timeout)


def output_in(command: Sequence[str], variables: Mapping[str, str], limit: float) -> str:
    """The whole output of a command with these variables. SlurmError as ``output``."""
    chunks: list[bytes] = []
    arguments = tuple(command)
    try:
        code, error_text = run(arguments, variables, CallTimeout(limit), chunks.append)
    except TimeoutError as error:
        raise SlurmError(arguments, None, "no answer in time") from error
    except (OSError, ValueError) as error:
        raise SlurmError(arguments, 127, str(error)) from error
    text = b"".join(chunks).decode(errors="replace")
    if code != 0:
        raise SlurmError(arguments, code, error_text or text)
    return text


class CallTimeout:
    """How long calls of slurmctld may take: ``limit`` seconds each, and ``AFTER_STOP_S`` seconds
    once ``stop`` is set. If a call takes longer than that, no further call waits, because slurmctld
    does not answer.
    """

    def __init__(self, limit: float, stop: threading.Event | None = None) -> None:
        self._limit = limit
        self._stop = stop
        self._stopped_at: float | None = None
        self._given_up = False

    def seconds_left(self, began_at: float) -> float:
        """The seconds that remain to a call that began then. TimeoutError if none remain."""
        if self._given_up:
            raise TimeoutError("the service is ending and slurmctld has not answered")
        now = time.monotonic()
        if self._stopped_at is None and self._stop is not None and self._stop.is_set():
            self._stopped_at = now
        end_at = began_at + self._limit
        if self._stopped_at is not None:
            end_at = min(end_at, max(began_at, self._stopped_at) + AFTER_STOP_S)
        if now < end_at:
            return end_at - now
        # Only while the service ends: then each further call would delay the end by as much again.
        self._given_up = self._stopped_at is not None
        raise TimeoutError(f"no answer in {brief(now - began_at)}")


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout: CallTimeout,
    take: Callable[[bytes], object],
) -> tuple[int, str]:
    """Return the command's exit status and standard error. TimeoutError, OSError, or any error that
    ``take`` raises about the output. The command has always ended afterwards.
    """
    error_bytes = bytearray()

    def keep_error(data: bytes) -> None:
        error_bytes.extend(data[: _MAX_ERROR_BYTES - len(error_bytes)])

    began_at = time.monotonic()
    # Do not start a command that could not be waited for.
    timeout.seconds_left(began_at)
    # No shell, and no standard input: a command that asks something must not wait for ever.
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # ``_pass_on`` reads from the descriptors, so no buffer may hold bytes back
    ) as process:
        try:
            _pass_on(process, {"stdout": take, "stderr": keep_error}, timeout, began_at)
            code = _exit_status(process, timeout, began_at)
        except BaseException:
            # Also after an error of `take`: its output is not read any further, so the command
            # would never end.
            process.kill()
            raise
    return code, error_bytes.decode(errors="replace")


def _pass_on(
    process: subprocess.Popen[bytes],
    takers: Mapping[str, Callable[[bytes], object]],
    timeout: CallTimeout,
    began_at: float,
) -> None:
    """Pass on the output of both streams until they end."""
    with selectors.DefaultSelector() as selector:
        for name, take in takers.items():
            selector.register(getattr(process, name), selectors.EVENT_READ, take)
        while selector.get_map():
            for key, _ in selector.select(min(timeout.seconds_left(began_at), STOP_POLL_S)):
                data = os.read(key.fd, _READ_SIZE)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)


def _exit_status(process: subprocess.Popen[bytes], timeout: CallTimeout, began_at: float) -> int:
    """The exit status. A process may close its streams and continue to run."""
    while True:
        try:
            return process.wait(min(timeout.seconds_left(began_at), STOP_POLL_S))
        except subprocess.TimeoutExpired:
            continue
