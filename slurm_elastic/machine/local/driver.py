"""Brings each machine of the local agent to the state that its record says, in one thread.

Every round looks at all machines anew, so a restart needs no recovery of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.records import Register
from slurm_elastic.machine.local.wire import Record
from slurm_elastic.model.cluster import InstanceState

log = logging.getLogger(__name__)

_FORGET_AFTER = 3600.0
_PERIOD = 0.25


class AgentSettings(Struct, frozen=True, kw_only=True):
    """The settings of root's configuration. ``directory`` has the machines' files, mode 0700.

    ``capacity`` bounds how many machines may run (None: as many as there are ``nodes``); each
    slurmd starts ``boot`` seconds late; slurmd has ``deadline`` seconds to end by itself before the
    machine is powered off.
    """

    nodes: frozenset[str]
    directory: Path
    slurm_conf: str
    log_dir: Path
    slurmd: str = "/usr/sbin/slurmd"
    capacity: int | None = None
    boot: float = 0.0
    deadline: float = 5.0
    never_boot: frozenset[str] = frozenset()

    @property
    def room(self) -> int:
        """How many machines may exist at once."""
        nodes = len(self.nodes)
        return nodes if self.capacity is None else min(self.capacity, nodes)


class Driver:
    """Starts pending machines, ends those that are to end or have died, forgets those that ended
    long ago.
    """

    def __init__(
        self, settings: AgentSettings, register: Register, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._register = register
        self._clock = clock
        self._wake = threading.Event()
        self._stop = threading.Event()
        with register.changing:
            for record in register.live():
                self._recover(record)
        task = PeriodicTask("driver", self._drive, _PERIOD, first_in_s=_PERIOD)
        self._thread = PeriodicThread(task, self._stop, woken=self._wake)
        self._thread.start()

    def wake(self) -> None:
        """Begin the next round now."""
        self._wake.set()

    def close(self) -> None:
        """Stop driving; the machines go on."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _drive(self) -> None:
        for record in self._register.all():
            self._step(record)

    def _step(self, record: Record) -> None:
        try:
            if record.state == InstanceState.PENDING:
                self._boot(record)
            elif record.state == InstanceState.TERMINATED:
                self._forget(record)
            elif not self._stands(record):
                self._end(record)
        except OSError:
            # The other machines must go on; this one is tried again in the next round.
            log.exception("machine failed id=%s node=%s", record.id, record.node)

    def _boot(self, record: Record) -> None:
        waits = self._clock() < record.due or record.node in self._settings.never_boot
        if waits or self._in_the_way(record):
            return
        with self._register.changing:
            # It may have been told to end since the round began.
            now = self._register.get(record.id)
            if now is not None and now.state == InstanceState.PENDING:
                self._start(now)

    def _start(self, record: Record) -> None:
        try:
            process = local_processes.start(
                local_processes.SlurmdSettings(
                    id=record.id, node=record.node, directory=self._register.workdir(record),
                    log=str(self._settings.log_dir / f"slurmd-{record.node}.out"),
                    conf=self._settings.slurm_conf, slurmd=self._settings.slurmd,
                )
            )  # fmt: skip
        except OSError as error:
            log.exception("slurmd cannot be started node=%s", record.node)
            why = f"slurmd cannot be started: {error}"
            ended = self._clock()
            self._register.save(record, state=InstanceState.TERMINATED, ended=ended, why=why)
            return
        self._register.save(record, state=InstanceState.RUNNING, process=process)
        log.info("started node=%s machine=%s pid=%d", record.node, record.id, process.pid)

    def _in_the_way(self, record: Record) -> bool:
        """Whether the machine has to wait for others to end."""
        live = self._register.live()
        # Those that are ending still have their node's port and their share of the host.
        ending = {r.node for r in live if r.state == InstanceState.STOPPING}
        started = [r for r in live if r.process is not None]
        return record.node in ending or len(started) >= self._settings.room

    def _stands(self, record: Record) -> bool:
        if record.process is None or not local_processes.alive(record.process):
            return False
        return record.stop_by is None or self._clock() < record.stop_by

    def _end(self, record: Record) -> None:
        local_processes.power_off(self._register.workdir(record), slurmd=record.process)
        asked = record.state == InstanceState.STOPPING
        why = "terminated as asked" if asked else "slurmd ended by itself"
        log.info("ended node=%s machine=%s reason=%s", record.node, record.id, why)
        with self._register.changing:
            ended = self._clock()
            self._register.save(record, state=InstanceState.TERMINATED, ended=ended, why=why)

    def _forget(self, record: Record) -> None:
        """Remember ended machines for a while, so that a repeated launch does not
        start new ones.
        """
        if record.ended is not None and self._clock() >= record.ended + _FORGET_AFTER:
            with self._register.changing:
                self._register.forget(record)

    def _recover(self, record: Record) -> None:
        """Find a slurmd that is not recorded."""
        # It was started just before we were killed.
        if record.process is None and (
            found := local_processes.find(self._register.workdir(record))
        ):
            pending = record.state == InstanceState.PENDING
            state = InstanceState.RUNNING if pending else record.state
            self._register.save(record, state=state, process=found)
