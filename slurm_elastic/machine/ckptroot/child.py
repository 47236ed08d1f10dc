"""Our child processes that run as the user. The user may do anything to them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from .payload import calm
from .site import RequestRefused

_BLOCK_BYTES = 65536


class Child:
    """The leader of a process group."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def status(self) -> int | None:
        """Return the child's wait status, or None if the child runs."""
        # WNOWAIT: do not reap it before ``end``. Until it is reaped, no other process can get its
        # pid or its group's number (wait(2)).
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        info = os.waitid(os.P_PIDFD, self._descriptor, options)
        if info is None:
            return None
        if info.si_code == os.CLD_EXITED:
            return info.si_status << 8
        return info.si_status | (0x80 if info.si_code == os.CLD_DUMPED else 0)

    def signal(self, number: int) -> None:
        """Send the signal to this process alone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def end(self) -> None:
        """Kill the process and the rest of its group, and reap it."""
        with contextlib.suppress(ProcessLookupError):  # it may not lead its group yet
            os.killpg(self.pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        # Reap it only now: afterwards the kernel may reuse the pid and the group's number.
        os.waitpid(self.pid, 0)
        os.close(self._descriptor)


def run(
    command: Sequence[str], timeout: float, user: tuple[int, int, Sequence[int]],
    max_bytes: int = 65536, variables: Mapping[str, str] | None = None,
) -> tuple[int, str]:  # fmt: skip
    """Run a program as the user and return its exit code and the beginning of its output.

    RequestRefused if it does not end in ``timeout`` seconds; it is killed. ``max_bytes``: of the
    output. ``variables``: added to its environment.
    """
    uid, gid, groups = user
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", **(variables or {})}
    # ``calm``: the program would inherit our blocked signals.
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=calm, user=uid, group=gid,
        extra_groups=groups, cwd="/",
    ) as process:  # fmt: skip
        try:
            output = _output_until_end(process, timeout, max_bytes)
        finally:
            process.kill()
    if output is None:
        raise RequestRefused(f"{os.path.basename(command[0])}: no answer in {timeout:.0f} s")
    return process.returncode, output.decode(errors="replace")


def _output_until_end(
    process: subprocess.Popen[bytes], timeout: float, max_bytes: int
) -> bytes | None:
    """Return the first ``max_bytes`` of the output of ``process`` after its end; None after the
    time-out.
    """
    output = process.stdout.fileno() if process.stdout else -1
    content, open_outputs, until = b"", [output], time.monotonic() + timeout
    ends = os.pidfd_open(process.pid)
    try:
        while (remaining := until - time.monotonic()) > 0:
            ready, _, _ = select.select([*open_outputs, ends], [], [], remaining)
            if output in ready:
                block = os.read(output, _BLOCK_BYTES)
                content += block[: max_bytes - len(content)]
                open_outputs = open_outputs if block else []
            # The program has ended. Do not wait for other processes that hold its output open.
            elif ends in ready:
                return content
        return None
    finally:
        os.close(ends)
