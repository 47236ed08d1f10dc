"""A program under DMTCP on this node: our child, with clocks of its own, and with the keeper of the
files that DMTCP must not cut.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from . import clock, uncut_files
from .child import Child
from .payload import HANDED, Payload, become
from .proc import family
from .site import RequestRefused


class DmtcpTask:
    """The program and its descendants. ``payload``: the program's user, directory and
    environment.
    """

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._own_clocks = clock.offsets()
        self._clocks: clock.Clocks | None = None
        self._child: Child | None = None
        self._keeper: uncut_files.FileKeeper | None = None

    @property
    def pid(self) -> int:
        """The pid of the first process; 0 if there is none."""
        return self._child.pid if self._child else 0

    def members(self) -> list[int]:
        """Return the pids of the first process and all its descendants."""
        return list(family(self._child.pid)) if self._child else []

    def run(
        self, argv: Sequence[str], variables: Mapping[bytes, bytes], handed: int | None = None,
        clocks: clock.Clocks | None = None, uncut: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Start the program as our child and a session leader, with the ``clocks`` that were saved.

        Until ``restored``, its truncate() does not change the files ``uncut``. ``handed``: a
        descriptor that it gets as ``payload.HANDED``.
        """
        environment = {**self._payload.environment, **variables}
        payload = replace(self._payload, argv=tuple(argv), environment=environment)
        handover = uncut_files.Handover.made() if uncut else None
        # A time namespace takes effect at the first fork after unshare(2), so the fork is inside.
        with self._with_clocks(clocks):
            pid = os.fork()
            if pid == 0:
                if handover:
                    handover.give()
                become(payload, bound=True, handed=handed)
        self._child = Child(pid)
        if handover:
            try:
                self._keeper = uncut_files.keep(handover, uncut, payload)
            except RequestRefused:
                self.end()
                raise

    @contextlib.contextmanager
    def _with_clocks(self, saved: clock.Clocks | None) -> Iterator[None]:
        """Give the children started in this block their own clocks, if this node can.

        RequestRefused if the job was saved with its own clocks and this node cannot provide them.
        """
        self._clocks = None
        with contextlib.ExitStack() as stack:
            try:
                self._clocks = stack.enter_context(clock.begun(self._own_clocks, saved))
            except OSError as error:
                if saved:
                    raise RequestRefused(
                        f"its clocks cannot continue here: {error.strerror}"
                    ) from error
            yield

    def clocks(self) -> clock.Clocks | None:
        """Return the present time on its own clocks; None if it uses the node's."""
        return None if self._clocks is None else clock.now(self._own_clocks, self._clocks)

    def restored(self) -> None:
        """Let all later truncate() calls pass, because they are the restored processes' own."""
        if self._keeper:
            self._keeper.restored()

    def status(self) -> int | None:
        """Return the first process's wait status; None if it runs, or if there is none."""
        return self._child.status() if self._child else None

    def signal(self, number: int) -> None:
        """Send a signal to the first process."""
        if self._child:
            self._child.signal(number)

    def end(self) -> None:
        """Kill the first process and all its descendants. Half restored processes do not obey
        their coordinator.
        """
        if self._child:
            _kill_family(self._child.pid)
            self._child.end()
            self._child = None
        if self._keeper:
            self._keeper.close()
            self._keeper = None


def handed_paths(names: Sequence[str]) -> list[str]:
    """Return the paths by which the program finds files in the directory that it was handed."""
    return [f"/proc/self/fd/{HANDED}/{name}" for name in names]


def _kill_family(pid: int) -> None:
    """Kill all descendants of a process.

    A pid may belong to another process by the time of the signal. We open a pidfd first, then check
    that the pid is still a descendant.
    """
    with contextlib.ExitStack() as stack:
        pidfds: dict[int, int] = {}
        for member in set(family(pid)) - {pid}:
            with contextlib.suppress(OSError):
                pidfds[member] = os.pidfd_open(member)
                stack.callback(os.close, pidfds[member])
        for member in set(family(pid)) & pidfds.keys():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfds[member], signal.SIGKILL)
