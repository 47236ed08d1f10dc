"""pyslurm in a child process that stays: ``python -m slurm_elastic.slurm.client.pyslurm_child``.

pyslurm holds Python's lock through each call of slurmctld, which takes MessageTimeout if slurmctld
hangs, and libslurm's fatal errors end the process. Neither may happen in a service. The process
gets a socket as standard input. Each line of JSON on it is a ``ChildRequest``, and its answer is a
``ChildAnswer``. The process ends with the socket, and so with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from typing import Any

import msgspec
from msgspec import Struct

from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.slurm.client import answers
from slurm_elastic.slurm.client.command import STOP_POLL_S, CallTimeout

_READ_SIZE = 1 << 18


class ChildRequest(Struct, frozen=True, kw_only=True):
    """Set ``changes`` (in pyslurm's names) of the nodes ``names``. Without names read all nodes."""

    names: tuple[str, ...] = ()
    changes: dict[str, str] = {}


class ChildAnswer(Struct, frozen=True, kw_only=True):
    """The requested nodes, or the error."""

    nodes: tuple[SlurmNode, ...] = ()
    error: str = ""


class PyslurmChild:
    """The process with pyslurm. The first request starts the process. After a failure the next
    request starts it again. Not thread-safe.
    """

    def __init__(self, settings: SlurmSettings, timeout: CallTimeout) -> None:
        self._conf, self._timeout = settings.conf, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def ask(self, request: ChildRequest) -> ChildAnswer:
        """Return the answer. OSError, such as TimeoutError, if there is none. The process has then
        ended.
        """
        began_at = time.monotonic()
        try:
            link = self._link or self._start()
            link.settimeout(self._timeout.seconds_left(began_at))
            link.sendall(msgspec.json.encode(request) + b"\n")
            return msgspec.json.decode(self._line(link, began_at), type=ChildAnswer)
        except BaseException as error:
            # End the process after every failure. Otherwise its late answer would be taken for the
            # answer to the next request.
            code = self.close()
            if isinstance(error, (EOFError, ConnectionError, msgspec.DecodeError)):
                raise OSError(f"no answer, its process has ended ({code}): see the log") from error
            raise

    def close(self) -> int | None:
        """End the process, whatever it does. Return its exit status, or None if it had none."""
        process, link, self._process, self._link = self._process, self._link, None, None
        if link is not None:
            link.close()
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)  # a process that has failed may log its reason
        process.kill()
        return process.wait()

    def _start(self) -> socket.socket:
        own_end, child_end = socket.socketpair()
        with child_end:
            self._link = own_end
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],  # -P: import nothing from the directory
                env={**os.environ, "SLURM_CONF": self._conf},  # for libslurm
                stdin=child_end.fileno(),
                stdout=subprocess.DEVNULL,
            )
        return own_end

    def _line(self, link: socket.socket, began_at: float) -> bytes:
        answer = bytearray()
        while not answer.endswith(b"\n"):
            # Wait in short pieces, because `seconds_left` also notices that the service must end.
            link.settimeout(min(self._timeout.seconds_left(began_at), STOP_POLL_S))
            with contextlib.suppress(TimeoutError):
                chunk = link.recv(_READ_SIZE)
                if not chunk:
                    raise EOFError
                answer += chunk
        return bytes(answer)


def node(pyslurm_node: Any) -> SlurmNode:  # noqa: ANN401 - a pyslurm.Node
    """A node as pyslurm gives it."""
    return SlurmNode(
        name=pyslurm_node.name,
        states=answers.states(*pyslurm_node.state.split("+")),
        reason=pyslurm_node.reason or "",
        reason_user=pyslurm_node.reason_user or "",
        partitions=tuple(pyslurm_node.partitions or ()),
        address=pyslurm_node.address or "",
        port=int(pyslurm_node.slurmd_port or 0),
        cpus=int(pyslurm_node.total_cpus or 0),
        memory=int(pyslurm_node.real_memory or 0),
        last_busy=float(pyslurm_node.last_busy_time or 0),
        boot_time=float(pyslurm_node.boot_time or 0),
        weight=int(pyslurm_node.weight or 0),
        comment=pyslurm_node.comment or "",
        reason_at=float(pyslurm_node.reason_time or 0),
    )


def _answer(pyslurm: Any, request: ChildRequest) -> ChildAnswer:  # noqa: ANN401 - the module
    try:
        if request.names:
            pyslurm.Nodes(list(request.names)).modify(pyslurm.Node(**request.changes))
            return ChildAnswer()
        return ChildAnswer(nodes=tuple(map(node, pyslurm.Nodes.load().values())))
    except pyslurm.PyslurmError as error:
        return ChildAnswer(error=str(error) or type(error).__name__)


def main() -> None:
    """Answer requests until the socket ends."""
    import pyslurm  # ends this process if there is no slurm.conf

    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as link, link.makefile("rb") as lines:
        for line in lines:
            request = msgspec.json.decode(line, type=ChildRequest)
            link.sendall(msgspec.json.encode(_answer(pyslurm, request)) + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError, KeyboardInterrupt):
        main()
