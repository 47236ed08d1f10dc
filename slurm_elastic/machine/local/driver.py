"""Bring each machine of the local agent to the state in its record, in one thread.

Every round examines all machines from scratch, so a restart needs no recovery of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.records import LocalRegister
from slurm_elastic.machine.local.wire import MachineRecord
from slurm_elastic.model.cluster import InstanceState

log = logging.getLogger(__name__)

_FORGET_AFTER_S = 3600.0
_ROUND_EVERY_S = 0.25


class AgentSettings(Struct, frozen=True, kw_only=True):
    """The settings from root's configuration. ``directory`` contains the machines' files, mode
    0700.

    - ``capacity``: machines that may run at once (None: the number of ``nodes``).
    - ``boot``: seconds by which the start of each slurmd is delayed.
    - ``deadline``: seconds that slurmd has to exit before the machine is powered off.
    - ``never_boot``: nodes whose slurmd is never started.
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
    """Starts pending machines, ends stopping and dead ones, and removes records of long-ended
    ones.
    """

    def __init__(
        self, settings: AgentSettings, register: LocalRegister, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._register = register
        self._clock = clock
        self._wake = threading.Event()
        self._stop = threading.Event()
        with register.changing:
            for record in register.live():
                self._recover(record)
        task = PeriodicTask("driver", self._drive, _ROUND_EVERY_S, first_in_s=_ROUND_EVERY_S)
        self._thread = PeriodicThread(task, self._stop, woken=self._wake)
        self._thread.start()

    def wake(self) -> None:
        """Start the next round now."""
        self._wake.set()

    def close(self) -> None:
        """Stop the thread; the machines keep running."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def _drive(self) -> None:
        for record in self._register.all():
            self._step(record)

    def _step(self, record: MachineRecord) -> None:
        try:
            if record.state == InstanceState.PENDING:
                self._boot(record)
            elif record.state == InstanceState.TERMINATED:
                self._forget(record)
            elif not self._is_sound(record):
                self._end(record)
        except OSError:
            # One machine's error must not stop the others. The next round retries this machine.
            log.exception("machine failed id=%s node=%s", record.id, record.node)

    def _boot(self, record: MachineRecord) -> None:
        must_wait = self._clock() < record.due or record.node in self._settings.never_boot
        if must_wait or self._must_wait_for_others(record):
            return
        with self._register.changing:
            # The agent may have received its termination since the round began.
            current = self._register.get(record.id)
            if current is not None and current.state == InstanceState.PENDING:
                self._start(current)

    def _start(self, record: MachineRecord) -> None:
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
            reason = f"slurmd cannot be started: {error}"
            ended = self._clock()
            self._register.save(record, state=InstanceState.TERMINATED, ended=ended, why=reason)
            return
        self._register.save(record, state=InstanceState.RUNNING, process=process)
        log.info("started node=%s machine=%s pid=%d", record.node, record.id, process.pid)

    def _must_wait_for_others(self, record: MachineRecord) -> bool:
        """Return whether the node, or all room on the host, is occupied by other machines."""
        live = self._register.live()
        # An ending slurmd still holds its node's port and its share of the host.
        ending = {r.node for r in live if r.state == InstanceState.STOPPING}
        started = [r for r in live if r.process is not None]
        return record.node in ending or len(started) >= self._settings.room

    def _is_sound(self, record: MachineRecord) -> bool:
        if record.process is None or not local_processes.alive(record.process):
            return False
        return record.stop_by is None or self._clock() < record.stop_by

    def _end(self, record: MachineRecord) -> None:
        # This may take 30 s, and the agent must answer at once: do not hold the lock.
        local_processes.power_off(self._register.workdir(record), slurmd=record.process)
        was_asked = record.state == InstanceState.STOPPING
        reason = "terminated as asked" if was_asked else "slurmd exited"
        log.info("ended node=%s machine=%s reason=%s", record.node, record.id, reason)
        with self._register.changing:
            ended = self._clock()
            self._register.save(record, state=InstanceState.TERMINATED, ended=ended, why=reason)

    def _forget(self, record: MachineRecord) -> None:
        """Remove the record of a machine that ended long ago.

        As long as there is a record, a repeated launch of its generation starts no new machine.
        """
        if record.ended is not None and self._clock() >= record.ended + _FORGET_AFTER_S:
            with self._register.changing:
                self._register.forget(record)

    def _recover(self, record: MachineRecord) -> None:
        """Find and record the slurmd of a machine whose record has none."""
        # The last agent was killed after it started slurmd and before it saved the record.
        if record.process is None and (
            process := local_processes.find(self._register.workdir(record))
        ):
            pending = record.state == InstanceState.PENDING
            state = InstanceState.RUNNING if pending else record.state
            self._register.save(record, state=state, process=process)
