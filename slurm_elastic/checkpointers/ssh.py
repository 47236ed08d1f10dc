"""Runs commands on nodes over SSH. Connections stay open for reuse, and go to known hosts only."""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import paramiko
from msgspec import Struct

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.processes import bounded
from slurm_elastic.base.processes.bounded import BoundedSocket, ReadBudget
from slurm_elastic.config.sections.checkpoint import BlcrSettings

log = logging.getLogger(__name__)

_MAX_ANSWER_BYTES = 1 << 20
"""Bytes of an answer that we keep. The answers to our commands have a few lines."""
_MAX_TRAFFIC_BYTES = 4 * _MAX_ANSWER_BYTES
"""Bytes that a host may send for one command, and between two commands. The connection of a host
that sends more is closed.
"""


class CommandResult(Struct, frozen=True, kw_only=True):
    """A command's output and exit code."""

    code: int
    out: str
    err: str


class Shells:
    """Runs commands on hosts, one at a time on each host. Thread-safe.

    A host is refused if its key is not in ``known_hosts``, or differs. At most ``connections``
    connections stay open; the least recently used is closed first.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_changing": Guarded("_open", "_hosts", "_links"),
        "_hosts": "the commands on one host",
    }

    def __init__(self, settings: BlcrSettings) -> None:
        self._settings = settings
        self._open: OrderedDict[str, paramiko.SSHClient] = OrderedDict()
        self._links: dict[paramiko.SSHClient, BoundedSocket] = {}
        self._hosts: dict[str, threading.Lock] = {}
        self._changing = threading.Lock()

    def run(self, host: str, command: Sequence[str], *, deadline: float) -> CommandResult:
        """Run a command; no shell changes its words. ``deadline`` is Unix time.

        If the connection broke while it was idle, one new connection is tried. Raises
        CheckpointError.
        """
        with self._turn(host, deadline):
            for is_last_try in (False, True):
                client, was_open = self._client(host, deadline)
                with self._changing:
                    link = self._links[client]
                link.renew(ReadBudget(_MAX_TRAFFIC_BYTES, _seconds_left(deadline)))
                try:
                    channel = _channel(client, deadline)
                except (OSError, EOFError, paramiko.SSHException) as error:
                    self._drop(host)
                    if is_last_try or not was_open:
                        raise _error_of(host, error) from error
                    continue
                try:
                    return _execute(channel, command, deadline)
                # Never repeat the command, because the host may have run it.
                except (OSError, EOFError, paramiko.SSHException) as error:
                    self._drop(host)
                    raise _error_of(host, error) from error
                finally:
                    channel.close()
                    link.rest(_MAX_TRAFFIC_BYTES)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close all connections."""
        with self._changing:
            hosts = list(self._open)
        for host in hosts:
            self._drop(host)

    @contextlib.contextmanager
    def _turn(self, host: str, deadline: float) -> Iterator[None]:
        with self._changing:
            turn = self._hosts.setdefault(host, threading.Lock())
        if not turn.acquire(timeout=max(deadline - time.time(), 0.001)):
            raise CheckpointError(f"{host}: busy with another command until the deadline")
        try:
            yield
        finally:
            turn.release()

    def _client(self, host: str, deadline: float) -> tuple[paramiko.SSHClient, bool]:
        """Return a connection, and whether it existed before this call."""
        with self._changing:
            client = self._open.get(host)
            if client is not None:
                self._open.move_to_end(host)
                return client, True
        client = self._connect(host, deadline)
        with self._changing:
            self._open[host] = client
            surplus = [
                self._open.pop(idle)
                for idle in list(self._open)[: max(len(self._open) - self._settings.connections, 0)]
                # Keep the connection of a host that is running a command.
                if idle != host and not self._hosts[idle].locked()
            ]
        for surplus_client in surplus:
            self._close(surplus_client)
        return client, False

    def _connect(self, host: str, deadline: float) -> paramiko.SSHClient:
        settings = self._settings
        timeout_s = min(settings.timeout, _seconds_left(deadline))
        client = paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        try:
            known_hosts = Path(settings.known_hosts or "~/.ssh/known_hosts").expanduser()
            client.load_host_keys(str(known_hosts))
            link = bounded.connect(host, settings.port, ReadBudget(_MAX_TRAFFIC_BYTES, timeout_s))
            with self._changing:
                self._links[client] = link
            client.connect(
                host, port=settings.port, username=settings.user, key_filename=settings.key,
                timeout=timeout_s, banner_timeout=timeout_s, auth_timeout=timeout_s,
                allow_agent=False, look_for_keys=settings.key is None,
                sock=link,  # type: ignore[arg-type] # has all methods that paramiko calls
            )  # fmt: skip
        except (OSError, EOFError, paramiko.SSHException, ValueError) as error:
            self._close(client)
            raise _error_of(host, error) from error
        log.debug("connected host=%s", host)
        return client

    def _drop(self, host: str) -> None:
        with self._changing:
            client = self._open.pop(host, None)
        if client is not None:
            self._close(client)

    def _close(self, client: paramiko.SSHClient) -> None:
        client.close()
        with self._changing:
            link = self._links.pop(client, None)
        if link is not None:
            link.close()


def _channel(client: paramiko.SSHClient, deadline: float) -> paramiko.Channel:
    transport = client.get_transport()
    if transport is None or not transport.is_active():
        raise EOFError("the connection has ended")
    return transport.open_session(timeout=_seconds_left(deadline))


def _execute(channel: paramiko.Channel, command: Sequence[str], deadline: float) -> CommandResult:
    """Run the command. Each word is quoted, because sshd gives the line to the user's shell."""
    channel.settimeout(_seconds_left(deadline))
    channel.exec_command(shlex.join(command))
    channel.shutdown_write()
    out, err = bytearray(), bytearray()
    while True:
        # Check for the end before reading: output that arrives between the read and the check would
        # be lost.
        ready, over = False, channel.exit_status_ready() and channel.eof_received
        for has_data, read, into in (
            (channel.recv_ready, channel.recv, out),
            (channel.recv_stderr_ready, channel.recv_stderr, err),
        ):
            if has_data():
                ready = True
                into.extend(read(65536)[: max(_MAX_ANSWER_BYTES - len(into), 0)])
        if not ready and over:
            break
        if time.time() >= deadline:
            raise TimeoutError("no answer by the deadline")
        if not ready:
            time.sleep(0.02)
    return CommandResult(
        code=channel.recv_exit_status(),
        out=out.decode(errors="replace"),
        err=err.decode(errors="replace"),
    )


def _seconds_left(deadline: float) -> float:
    return max(deadline - time.time(), 0.001)


def _error_of(host: str, error: BaseException) -> CheckpointError:
    return CheckpointError(f"{host}: SSH: {error or type(error).__name__}")
