"""The agent of the ``local`` cloud: it starts and powers off slurmd processes on this host.

It runs as root beside slurmctld, listens on a unix socket (``listening``), and serves only root and
SlurmUser. It knows only the node names of the cloud's own pools. The programs that it runs come
from root's configuration, never from a request.

Each machine is a file in the directory, written before its slurmd is started. One thread brings
every machine to the state in its file, so an agent that was killed continues where it stopped.
"""

from __future__ import annotations

import hashlib
import logging
import re
import signal
import time
from collections.abc import Callable

import msgspec

from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.driver import AgentSettings, Driver
from slurm_elastic.machine.local.records import LocalRegister
from slurm_elastic.machine.local.wire import (
    AgentAnswer,
    LaunchOrder,
    ListOrder,
    MachineRecord,
    Message,
    Ping,
    TerminateOrder,
)
from slurm_elastic.model.cluster import STANDING, InstanceState

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class AgentRefusal(Exception):  # noqa: N818 - an answer, not a failure of the agent
    """The agent's answer to a request that it refuses. The request has started nothing."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class LocalAgent:
    """The machines of one ``local`` cloud. Only one agent at a time may use a directory."""

    def __init__(self, settings: AgentSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._register = LocalRegister(settings.directory)
        self._driver = Driver(settings, self._register, clock)

    def close(self) -> None:
        """Release the directory to another agent; the machines keep running."""
        self._driver.close()
        self._register.close()

    def answer(self, line: bytes) -> bytes:
        """Answer one request line. No client input makes this raise."""
        try:
            message = msgspec.json.decode(line, type=Message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            answer = AgentAnswer(ok=False, code="InvalidRequest", message=str(error))
        else:
            answer = self._answer(message)
        return msgspec.json.encode(answer)

    def _answer(self, message: Message) -> AgentAnswer:
        try:
            match message:
                case Ping():
                    used = len(self._register.standing())
                    return AgentAnswer(ok=True, capacity=self._settings.room, used=used)
                case ListOrder():
                    machines = [r for r in self._register.live() if r.cluster == message.cluster]
                    return AgentAnswer(ok=True, machines=tuple(machines))
                case LaunchOrder():
                    return AgentAnswer(ok=True, machines=self.launch(message))
                case TerminateOrder():
                    return self.terminate(message)
        except AgentRefusal as refusal:
            log.info("refused code=%s message=%s", refusal.code, refusal.message)
            return AgentAnswer(ok=False, code=refusal.code, message=refusal.message)
        except OSError as error:
            log.exception("request failed")
            return AgentAnswer(ok=False, code="InternalError", message=str(error))

    def launch(self, message: LaunchOrder) -> tuple[MachineRecord, ...]:
        """Start machines for the message's nodes and return them.

        A repeated launch of a generation returns its machines and starts no new ones. It may raise
        AgentRefusal.
        """
        self._validate(message)
        # One lock around the look and the save: a repeated order must not start the machines twice.
        with self._register.changing:
            records = self._earlier_machines(message)
            if not records:
                records = self._new_records(message, self._room(message))
                for record in records:
                    self._register.save(record)
        self._driver.wake()
        log.info("launch generation=%s machines=%d", message.generation, len(records))
        return records

    def _earlier_machines(self, message: LaunchOrder) -> tuple[MachineRecord, ...]:
        """Return the remaining machines of an earlier launch of this generation.

        AgentRefusal if all of them have ended: a repeated launch must not replace them.
        """
        launch_key = (message.cluster, message.generation)
        launched = [r for r in self._register.all() if (r.cluster, r.generation) == launch_key]
        standing = [r for r in launched if r.state in STANDING]
        if launched and not standing:
            raise AgentRefusal("Gone", f"all machines of launch {message.generation} have ended")
        return tuple(sorted(standing, key=lambda r: r.index))

    def terminate(self, message: TerminateOrder) -> AgentAnswer:
        """Mark the machines as stopping and send SIGTERM to their slurmd. The driver does the
        rest.
        """
        ended_ids: list[str] = []
        not_ours: list[str] = []
        with self._register.changing:
            for id_ in message.ids:
                record = self._register.get(id_)
                if record is None or record.state is InstanceState.TERMINATED:
                    ended_ids.append(id_)
                elif record.cluster != message.cluster:
                    not_ours.append(id_)
                else:
                    self._begin_stop(record)
        self._driver.wake()
        return AgentAnswer(ok=True, gone=tuple(ended_ids), not_ours=tuple(not_ours))

    def _begin_stop(self, record: MachineRecord) -> None:
        if record.state not in STANDING:
            return
        log.info("terminate machine=%s node=%s", record.id, record.node)
        if record.process:
            # Before the record is saved: after a crash in between the machine still stands, and the
            # order comes again.
            local_processes.send(record.process, signal.SIGTERM)
        stop_by = self._clock() + self._settings.deadline
        self._register.save(record, state=InstanceState.STOPPING, stop_by=stop_by)

    def _validate(self, message: LaunchOrder) -> None:
        for name in (message.generation, message.cluster):
            if not _NAME.fullmatch(name):
                raise AgentRefusal("InvalidRequest", f"{name!r} is not a name")
        if unknown_nodes := sorted(set(message.nodes) - self._settings.nodes):
            raise AgentRefusal(
                "UnknownNode", f"not a node of this cloud: {', '.join(unknown_nodes)}"
            )
        if not message.nodes or len(set(message.nodes)) < len(message.nodes):
            raise AgentRefusal("InvalidRequest", "nodes must be named, and each once")

    def _room(self, message: LaunchOrder) -> int:
        standing = self._register.standing()
        if busy := sorted({r.node for r in standing} & set(message.nodes)):
            raise AgentRefusal("NodeBusy", f"there is a machine already for: {', '.join(busy)}")
        room = min(self._settings.room - len(standing), len(message.nodes))
        if room < 1:
            occupancy = f"{len(standing)} of {self._settings.room} machines are in use"
            raise AgentRefusal(
                "InsufficientCapacity", f"{occupancy}, {len(message.nodes)} more requested"
            )
        return room

    def _new_records(self, message: LaunchOrder, room: int) -> tuple[MachineRecord, ...]:
        now = self._clock()
        # Hash the cluster, too: generations are unique only within a cluster. Ids are file names
        # and are read by people, so keep them short.
        launch = f"{message.cluster} {message.generation}"
        name = hashlib.sha256(launch.encode()).hexdigest()[:10]
        return tuple(
            MachineRecord(
                id=f"m-{name}-{index}",
                cluster=message.cluster,
                node=node,
                generation=message.generation,
                index=index,
                pool=message.pool,
                instance_type=message.instance_type,
                market=message.market,
                price=message.price,
                jobs=message.jobs,
                state=InstanceState.PENDING,
                launched=now,
                due=now + self._settings.boot,
            )
            for index, node in enumerate(message.nodes[:room])
        )
