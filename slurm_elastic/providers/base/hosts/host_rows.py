"""The rows of hosts about our machines. After a person has moved a machine, several hosts list it,
so rows of one machine are joined before anything is decided.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import counted
from slurm_elastic.model.cluster import Instance, InstanceState

log = logging.getLogger(__name__)

ENDED_KEPT_S = 3600.0
"""For so long an ended machine stays on its host. Each daemon counts from when it first saw the
machine ended.
"""
REMOVED_AT_ONCE = 5
"""One round removes this many ended machines at most, because each removal takes a while."""
TOLD = 5
"""How many machines ``Removals.trouble`` names."""


class Tagged(Struct, frozen=True, kw_only=True):
    """A machine and its ``name`` on its host. ``unstarted``: it was created and never started.
    ``moved``: a person has moved it to another host, and this host only kept its definition.
    """

    machine: Instance
    name: str
    host: str
    unstarted: bool
    tags: Mapping[str, str]
    moved: bool = False

    @property
    def short(self) -> str:
        """Our id of the machine."""
        return self.machine.id

    @property
    def node(self) -> str:
        """The node that the machine was made for."""
        return self.machine.node

    @property
    def ended(self) -> bool:
        """Whether the machine has stopped running for good."""
        return self.machine.state is InstanceState.TERMINATED

    @property
    def runs_here(self) -> bool:
        """Whether the host has the machine, and it has not ended there."""
        return not (self.ended or self.moved)


RowsById = Mapping[str, Sequence[Tagged]]


def place_of(rows: Sequence[Tagged]) -> Tagged:
    """The row that counts of one machine. If one host runs it, it runs, whatever the others say. A
    host that it was moved away from knows nothing of it.
    """
    return min(rows, key=lambda row: (row.moved, row.ended))


def live(rows_by_id: RowsById) -> Sequence[Instance]:
    """The machines before their end, each once."""
    places = [place_of(rows) for rows in rows_by_id.values()]
    return tuple(row.machine for row in places if not row.ended)


class HostRows:
    """The last list of each host. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_rows_by_host")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows_by_host: dict[str, Mapping[str, Tagged]] = {}

    def note(self, host: str, rows: Iterable[Tagged]) -> None:
        """Note the complete list of a host."""
        with self._lock:
            self._rows_by_host[host] = {row.short: row for row in rows}

    def of(self, ids: Iterable[str]) -> dict[str, Sequence[Tagged]]:
        """The rows of the known machines among these ids."""
        with self._lock:
            hosts = list(self._rows_by_host.values())
        rows_by_id = {i: [rows[i] for rows in hosts if i in rows] for i in ids}
        return {i: rows for i, rows in rows_by_id.items() if rows}


class Removals:
    """Removes machines some time after their end. Thread-safe. It holds nothing of the provider: in
    a cycle the garbage collector would close the provider's connections later, in any thread, and
    closing waits for a silent host.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_ended_at", "_failed_at", "_last_error")}

    def __init__(self, cloud: str, clock: Callable[[], float]) -> None:
        self._cloud = cloud
        self._clock = clock
        self._lock = threading.Lock()
        self._ended_at: dict[str, float] = {}
        self._failed_at: dict[str, float] = {}
        self._last_error = ""

    def trouble(self) -> str:
        """Which ended machines could not be removed, as a sentence; "" if there are none."""
        with self._lock:
            stuck, error = sorted(self._failed_at), self._last_error
        if not stuck:
            return ""
        unnamed = f" and {len(stuck) - TOLD} more" if len(stuck) > TOLD else ""
        return (
            f"the disks of {counted(len(stuck), 'ended machine')} stay and fill the storage: "
            f"{', '.join(stuck[:TOLD])}{unnamed}. The last removal failed: {error}"
        )

    def remove_old(self, rows_by_id: RowsById, remove: Callable[[Tagged], None]) -> None:
        """Remove machines that ended more than ENDED_KEPT_S ago, by the rows of all hosts.
        ``remove``: removes one row.
        """
        for machine_id in self._due(rows_by_id):
            try:
                for row in rows_by_id[machine_id]:
                    remove(row)
            except ProviderError as error:
                self._note_failure(machine_id, error)
            else:
                self._forget_failure(machine_id)

    def _due(self, rows_by_id: RowsById) -> Sequence[str]:
        now = self._clock()
        ended = [i for i, rows in rows_by_id.items() if place_of(rows).ended]
        with self._lock:
            self._ended_at = {i: self._ended_at.get(i, now) for i in ended}
            self._failed_at = {i: t for i, t in self._failed_at.items() if i in self._ended_at}
            removable = [i for i in ended if now - self._ended_at[i] >= ENDED_KEPT_S]
            failed_at = dict(self._failed_at)
        # A machine that could not be removed comes after the others, or a few such machines would
        # keep the disks of all others for ever.
        removable.sort(key=lambda i: failed_at.get(i, float("-inf")))
        return removable[:REMOVED_AT_ONCE]

    def _forget_failure(self, machine_id: str) -> None:
        with self._lock:
            self._failed_at.pop(machine_id, None)

    def _note_failure(self, machine_id: str, error: ProviderError) -> None:
        with self._lock:
            is_news = machine_id not in self._failed_at
            self._failed_at[machine_id] = self._clock()
            self._last_error = str(error)
        log.log(
            logging.WARNING if is_news else logging.DEBUG,
            "ended machine not removed, its disk stays until a later try cloud=%s id=%s error=%s",
            self._cloud, machine_id, error,
        )  # fmt: skip
