"""pyslurm in a process of its own, which is kept: ``python -m
slurm_elastic.slurm.client.pyslurm_child``.

pyslurm holds Python's lock through each call of slurmctld's, for MessageTimeout where that hangs,
and libslurm's fatal errors end the process: neither may reach a service. The process is given a
socket as standard input; a line of JSON there is a ``ChildRequest``, its answer an
``ChildAnswer``. It ends with the socket, so with whoever started it.
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
from slurm_elastic.slurm.client.command import LOOK, Patience

_PART = 1 << 18


class ChildRequest(Struct, frozen=True, kw_only=True):
    """Set ``changes`` (pyslurm's words) of the nodes ``names``; without any: read all nodes."""

    names: tuple[str, ...] = ()
    changes: dict[str, str] = {}


class ChildAnswer(Struct, frozen=True, kw_only=True):
    """The nodes that were asked for, or why not."""

    nodes: tuple[SlurmNode, ...] = ()
    error: str = ""


class Child:
    """The process: begun at the first request, after a failure anew. Not for two threads."""

    def __init__(self, settings: SlurmSettings, patience: Patience) -> None:
        self._conf, self._patience = settings.conf, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def ask(self, request: ChildRequest) -> ChildAnswer:
        """Its answer. OSError where there is none, TimeoutError among them: the process is over."""
        began = time.monotonic()
        try:
            link = self._link or self._start()
            link.settimeout(self._patience.left(began))
            link.sendall(msgspec.json.encode(request) + b"\n")
            return msgspec.json.decode(self._line(link, began), type=ChildAnswer)
        except BaseException as error:
            code = self.close()
            if isinstance(error, (EOFError, ConnectionError, msgspec.DecodeError)):
                raise OSError(f"no answer, its process has ended ({code}): see the log") from error
            raise

    def close(self) -> int | None:
        """End the process, whatever it does; its exit status, None where there is none."""
        process, link, self._process, self._link = self._process, self._link, None, None
        if link is not None:
            link.close()
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)  # one that has failed tells why
        process.kill()
        return process.wait()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._link = ours
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],  # -P: nothing of where we were started
                env={**os.environ, "SLURM_CONF": self._conf},  # libslurm reads it
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
        return ours

    def _line(self, link: socket.socket, began: float) -> bytes:
        answer = bytearray()
        while not answer.endswith(b"\n"):
            link.settimeout(min(self._patience.left(began), LOOK))
            with contextlib.suppress(TimeoutError):
                part = link.recv(_PART)
                if not part:
                    raise EOFError
                answer += part
        return bytes(answer)


def node(raw: Any) -> SlurmNode:  # noqa: ANN401 - a pyslurm.Node
    """A node as pyslurm has it."""
    return SlurmNode(
        name=raw.name,
        states=answers.states(*raw.state.split("+")),
        reason=raw.reason or "",
        reason_user=raw.reason_user or "",
        partitions=tuple(raw.partitions or ()),
        address=raw.address or "",
        port=int(raw.slurmd_port or 0),
        cpus=int(raw.total_cpus or 0),
        memory=int(raw.real_memory or 0),
        last_busy=float(raw.last_busy_time or 0),
        boot_time=float(raw.boot_time or 0),
        weight=int(raw.weight or 0),
        comment=raw.comment or "",
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
    """Answer until the socket ends."""
    import pyslurm  # ends this process where there is no slurm.conf

    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as link, link.makefile("rb") as lines:
        for line in lines:
            request = msgspec.json.decode(line, type=ChildRequest)
            link.sendall(msgspec.json.encode(_answer(pyslurm, request)) + b"\n")


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError, KeyboardInterrupt):
        main()
