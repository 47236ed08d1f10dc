"""The ``local`` cloud's door to root: starts and powers off slurmd's on this host, nothing else.

Runs as root beside slurmctld and listens on a unix socket (local_socket). It serves root and
SlurmUser only and knows only the node names of the cloud's own pools; what it executes comes from
root's configuration, never from a request.

Each machine is a file in the directory, written before its slurmd is started. One thread drives
every machine towards what its file says, so a killed agent goes on where it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from slurm_elastic import nodeproc
from slurm_elastic.local_wire import Answer, Launch, List, Message, Ping, Record, Terminate
from slurm_elastic.model import InstanceState

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FORGET_AFTER = 3600.0
_PERIOD = 0.25
_STANDING = (InstanceState.PENDING, InstanceState.RUNNING)


class AgentSettings(Struct, frozen=True, kw_only=True):
    """What root's configuration says. ``directory`` holds the machines' files, mode 0700.

    ``capacity`` bounds how many machines may run (None: as many as there are ``nodes``); ``boot``
    delays each slurmd by so many seconds; ``deadline`` (s) is how long slurmd may take to end by
    itself before the machine is powered off.
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


class Refusal(Exception):  # noqa: N818 - an answer, not a failure of the agent
    """The agent's answer to a request that it does not carry out; nothing was started."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Agent:
    """The machines of one ``local`` cloud. Only one agent may have a directory at a time."""

    def __init__(self, settings: AgentSettings, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        settings.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._guard = _exclusive(settings.directory / "lock")
        self._records = {r.id: self._recovered(r) for r in read_records(settings.directory)}
        self._driver = threading.Thread(target=self._drive, name="driver", daemon=True)
        self._driver.start()

    def close(self) -> None:
        """Stop driving; the machines go on."""
        self._stopped = True
        self._wake.set()
        self._driver.join()
        self._guard.close()

    def answer(self, line: bytes) -> bytes:
        """The answer to one request line; never raises for what a client sent."""
        try:
            message = msgspec.json.decode(line, type=Message)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = Answer(ok=False, code="InvalidRequest", message=str(error))
        else:
            said = self._answer(message)
        return msgspec.json.encode(said)

    def _answer(self, message: Message) -> Answer:
        try:
            match message:
                case Ping():
                    return Answer(ok=True, capacity=self.capacity, used=len(self._standing()))
                case List():
                    found = [r for r in self._live() if r.cluster == message.cluster]
                    return Answer(ok=True, machines=tuple(found))
                case Launch():
                    return Answer(ok=True, machines=self.launch(message))
                case Terminate():
                    self.terminate(message)
                    return Answer(ok=True)
        except Refusal as refusal:
            log.info("refused code=%s message=%s", refusal.code, refusal.message)
            return Answer(ok=False, code=refusal.code, message=refusal.message)
        except OSError as error:
            log.exception("request failed")
            return Answer(ok=False, code="InternalError", message=str(error))

    @property
    def capacity(self) -> int:
        """How many machines may be there at once."""
        limit = self._settings.capacity
        return len(self._settings.nodes) if limit is None else min(limit, len(self._settings.nodes))

    def launch(self, message: Launch) -> tuple[Record, ...]:
        """Machines for the message's nodes, the same ones if its generation came before."""
        self._validate(message)
        with self._lock:
            records = self._known(message)
            if not records:
                records = self._new(message, self._room(message))
                for record in records:
                    self._save(record)
        self._wake.set()
        log.info("launch generation=%s machines=%d", message.generation, len(records))
        return records

    def _known(self, message: Launch) -> tuple[Record, ...]:
        """What is left of an earlier launch of this generation; a Refusal if all of it is gone."""
        name = (message.cluster, message.generation)
        known = [r for r in self._records.values() if (r.cluster, r.generation) == name]
        standing = [r for r in known if r.state in _STANDING]
        if known and not standing:
            raise Refusal("Gone", f"all machines of launch {message.generation} have ended")
        return tuple(sorted(standing, key=lambda r: r.index))

    def terminate(self, message: Terminate) -> None:
        """Mark the machines for their end and tell their slurmd's; the driver does the rest."""
        with self._lock:
            for record in map(self._records.get, message.ids):
                if record is not None and record.cluster == message.cluster:
                    self._begin_stop(record)
        self._wake.set()

    def _begin_stop(self, record: Record) -> None:
        if record.state not in _STANDING:
            return
        log.info("terminate machine=%s node=%s", record.id, record.node)
        if record.process:
            nodeproc.send(record.process, signal.SIGTERM)
        stop_by = self._clock() + self._settings.deadline
        self._save(_with(record, state=InstanceState.STOPPING, stop_by=stop_by))

    def _validate(self, message: Launch) -> None:
        for what in (message.generation, message.cluster):
            if not _NAME.fullmatch(what):
                raise Refusal("InvalidRequest", f"{what!r} is not a name")
        if strangers := sorted(set(message.nodes) - self._settings.nodes):
            raise Refusal("UnknownNode", f"not a node of this cloud: {', '.join(strangers)}")
        if not message.nodes or len(set(message.nodes)) < len(message.nodes):
            raise Refusal("InvalidRequest", "nodes must be named, and each once")

    def _room(self, message: Launch) -> int:
        standing = self._standing()
        if busy := sorted({r.node for r in standing} & set(message.nodes)):
            raise Refusal("NodeBusy", f"there is a machine already for: {', '.join(busy)}")
        room = min(self.capacity - len(standing), len(message.nodes))
        if room < max(message.minimum, 1):
            wanted = len(message.nodes)
            text = f"{len(standing)} of {self.capacity} machines are taken, {wanted} more wanted"
            raise Refusal("InsufficientCapacity", text)
        return room

    def _new(self, message: Launch, room: int) -> tuple[Record, ...]:
        now = self._clock()
        # Generations are unique within a cluster only, and machines' ids are file names.
        owner = hashlib.sha256(message.cluster.encode()).hexdigest()[:8]
        return tuple(
            Record(
                id=f"{message.generation}-{owner}-{index}",
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

    def _live(self) -> list[Record]:
        return [r for r in tuple(self._records.values()) if r.state != InstanceState.TERMINATED]

    def _standing(self) -> list[Record]:
        return [r for r in self._live() if r.state in _STANDING]

    def _drive(self) -> None:
        while not self._stopped:
            self._wake.wait(_PERIOD)
            self._wake.clear()
            for record in tuple(self._records.values()):
                self._drive_one(record)

    def _drive_one(self, record: Record) -> None:
        try:
            if record.state == InstanceState.PENDING:
                self._boot(record)
            elif record.state == InstanceState.TERMINATED:
                self._forget(record)
            elif not self._stands(record):
                self._end(record)
        except OSError:
            # One machine must not keep the others from being driven; it is tried again.
            log.exception("machine failed id=%s node=%s", record.id, record.node)

    def _boot(self, record: Record) -> None:
        if self._clock() < record.due or record.node in self._settings.never_boot:
            return
        if self._in_the_way(record):
            return
        with self._lock:
            if self._records[record.id].state != InstanceState.PENDING:
                return
            process = nodeproc.start(self._machine(record))
            self._save(_with(record, state=InstanceState.RUNNING, process=process))
        log.info("started node=%s machine=%s pid=%d", record.node, record.id, process.pid)

    def _in_the_way(self, record: Record) -> bool:
        """Machines that are ending hold their node's port and their share of the host till then."""
        ending = [r for r in self._live() if r.state == InstanceState.STOPPING]
        started = [r for r in self._live() if r.process is not None]
        return record.node in {r.node for r in ending} or len(started) >= self.capacity

    def _stands(self, record: Record) -> bool:
        if record.process is None or not nodeproc.alive(record.process):
            return False
        return record.stop_by is None or self._clock() < record.stop_by

    def _end(self, record: Record) -> None:
        nodeproc.power_off(self._workdir(record), slurmd=record.process)
        asked = record.state == InstanceState.STOPPING
        why = "terminated as asked" if asked else "slurmd ended by itself"
        log.info("ended node=%s machine=%s reason=%s", record.node, record.id, why)
        now = self._clock()
        with self._lock:
            self._save(_with(record, state=InstanceState.TERMINATED, ended=now, why=why))

    def _forget(self, record: Record) -> None:
        """Ended machines stay known for a while, so that a repeated launch is not a new one."""
        if record.ended is None or self._clock() < record.ended + _FORGET_AFTER:
            return
        with self._lock:
            del self._records[record.id]
            (self._settings.directory / f"{record.id}.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.rmdir(self._workdir(record))

    def _recovered(self, record: Record) -> Record:
        """A machine may have been started just before we were killed, and not yet recorded."""
        if record.process is None and (found := nodeproc.find(self._workdir(record))):
            state = InstanceState.RUNNING if record.state == InstanceState.PENDING else record.state
            return _with(record, state=state, process=found)
        return record

    def _machine(self, record: Record) -> nodeproc.Machine:
        return nodeproc.Machine(
            id=record.id,
            node=record.node,
            directory=self._workdir(record),
            log=str(self._settings.log_dir / f"slurmd-{record.node}.out"),
            conf=self._settings.slurm_conf,
            slurmd=self._settings.slurmd,
        )

    def _workdir(self, record: Record) -> str:
        return workdir(self._settings.directory, record)

    def _save(self, record: Record) -> None:
        write_atomically(
            self._settings.directory / f"{record.id}.json", msgspec.json.encode(record)
        )
        self._records[record.id] = record


def workdir(directory: Path, record: Record) -> str:
    """The working directory of a machine's slurmd; by it its processes are known."""
    return str((directory / record.id).resolve())


def read_records(directory: Path) -> Sequence[Record]:
    """All machines that the files tell of; a file that cannot be read is logged and left."""
    records = []
    for path in sorted(directory.glob("*.json")):
        try:
            records.append(msgspec.json.decode(path.read_bytes(), type=Record))
        except (OSError, msgspec.DecodeError) as error:
            log.error("machine file unreadable file=%s reason=%s", path, error)  # noqa: TRY400
    return records


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{threading.get_ident()}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _with(record: Record, **changes: object) -> Record:
    return msgspec.structs.replace(record, **changes)


def _exclusive(path: Path) -> IO[bytes]:
    file = open(path, "ab")  # noqa: SIM115 - held open as long as the agent lives
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise BlockingIOError(f"another agent already works in {path.parent}") from None
    return file
