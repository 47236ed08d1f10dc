"""Our child processes that run as the user, who may do with them whatever he likes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from .payload import calm
from .site import Refused

_BLOCK = 65536


class Child:
    """The leader of a process group."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def status(self) -> int | None:
        """Its wait status, once it has ended."""
        # Not reaped before ``end``: until then neither its pid nor its group's number can be
        # anybody else's (wait(2)).
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PIDFD, self._descriptor, how)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return found.si_status << 8
        return found.si_status | (0x80 if found.si_code == os.CLD_DUMPED else 0)

    def signal(self, number: int) -> None:
        """Send it to this process alone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def end(self) -> None:
        """Kill it and what is left of its group, and reap it."""
        with contextlib.suppress(ProcessLookupError):  # it may not lead its group yet
            os.killpg(self.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._descriptor)


def run(
    command: Sequence[str], timeout: float, user: tuple[int, int, Sequence[int]],
    most: int = 65536, more: Mapping[str, str] | None = None,
) -> tuple[int, str]:  # fmt: skip
    """Run a program as the user; its exit code and the beginning of its output. It is killed, and
    Refused raised, if it does not end in time. ``more``: variables of its environment.
    """
    uid, gid, groups = user
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(more or {})}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=calm, user=uid, group=gid,
        extra_groups=groups, cwd="/",
    ) as asked:  # fmt: skip
        try:
            said = _said(asked, timeout, most)
        finally:
            asked.kill()
    if said is None:
        raise Refused(f"{os.path.basename(command[0])}: no answer in {timeout:.0f} s")
    return asked.returncode, said.decode(errors="replace")


def _said(asked: subprocess.Popen[bytes], timeout: float, most: int) -> bytes | None:
    """Its first ``most`` bytes of output, once it has ended; None if it does not end in time."""
    output = asked.stdout.fileno() if asked.stdout else -1
    said, waited, until = b"", [output], time.monotonic() + timeout
    ends = os.pidfd_open(asked.pid)
    try:
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([*waited, ends], [], [], left)
            if output in ready:
                block = os.read(output, _BLOCK)
                said += block[: most - len(said)]
                waited = waited if block else []
            # Nobody waits for other processes that hold its output.
            elif ends in ready:
                return said
        return None
    finally:
        os.close(ends)
