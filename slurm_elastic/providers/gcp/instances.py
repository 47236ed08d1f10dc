"""The machines of this cluster in one region: listed completely, looked up by name, ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

from slurm_elastic.base.errors import (
    InstanceNotFound,
    ProviderError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.cluster import EndAnswer
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error
from slurm_elastic.providers.base.tags import CLOUD
from slurm_elastic.providers.gcp import convert, labels
from slurm_elastic.providers.gcp.client import Project
from slurm_elastic.providers.gcp.convert import MachineFields
from slurm_elastic.providers.gcp.errors import translated
from slurm_elastic.providers.gcp.operations import Operations
from slurm_elastic.providers.gcp.settings import GcpCloud

Answer = TypeVar("Answer")
ZONES_TTL_S = 3600.0
_HARMLESS = frozenset({"NO_RESULTS_ON_PAGE", "DEPRECATED_RESOURCE_USED", "DEPRECATED_TYPE_USED"})
"""Warnings of a list that lacks nothing. Any other may mean that machines are missing."""
LEAVING = ("STOPPING", "PENDING_STOP", "SUSPENDING", "DEPROVISIONING")
"""The states of a machine that is going off, or is being deleted."""
_MAX_REMEMBERED = 20_000


class Machines:
    """Lists, ends, stops and starts machines. Thread-safe. ``ours``: the names that were ever
    listed with our labels.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_zone_by_name")}

    def __init__(
        self,
        settings: GcpCloud,
        uuid: str,
        ownership: Ownership,
        project: Project,
        operations: Operations,
    ) -> None:
        self._settings = settings
        self._uuid = uuid
        self._project = project
        self._operations = operations
        self.ours = Ours(settings.name, ownership, key=labels.key_of(CLOUD))
        self._lock = threading.Lock()
        self._zone_by_name: dict[str, str] = {}
        self._zones = TtlCache[str, tuple[str, ...]]()

    def live(self) -> list[MachineFields]:
        """Our machines in all zones of the region. TransientError if a zone is missing, because a
        list without it would make its machines look lost.
        """
        answers = self._each(self.zones(), self._listed_in)
        return self._own([machine for answer in answers for machine in answer])

    def of_launch(self, zone: str, generation: str) -> list[MachineFields]:
        """The machines of a launch that the zone's list has."""
        return [
            m for m in self._own(self._listed_in(zone, generation)) if m.generation == generation
        ]

    def zones(self) -> tuple[str, ...]:
        """All zones of the region. A zone that the file no longer has may still have machines."""
        read = self._zones.get("region", self._read_zones, ttl_s=ZONES_TTL_S)
        return tuple(dict.fromkeys((*self._settings.zones, *read)))

    def _read_zones(self) -> tuple[str, ...]:
        region = self._project.call("GET", f"regions/{quote(self._settings.region)}")
        with translated(self._settings.name):
            return tuple(convert.last_part(zone) for zone in region["zones"])

    def _listed_in(self, zone: str, generation: str = "") -> list[MachineFields]:
        query = {
            "filter": labels.of_cluster(self._uuid, generation),
            "fields": f"nextPageToken,warning,items({convert.FIELDS})",
        }
        machines: list[MachineFields] = []
        for answer in self._project.pages(f"zones/{quote(zone)}/instances", query):
            with translated(self._settings.name):
                self._require_whole(zone, answer)
                machines += [convert.machine(record) for record in answer.get("items") or ()]
        return machines

    def _require_whole(self, zone: str, answer: Mapping[str, Any]) -> None:
        """TransientError if Google says that the list may lack machines."""
        code = str((answer.get("warning") or {}).get("code") or "")
        if (code and code not in _HARMLESS) or answer.get("unreachables"):
            text = f"the list of zone {zone} is not whole: {code or 'a part did not answer'}"
            raise TransientError(self._settings.name, code or "UNREACHABLE", text)

    def _own(self, machines: list[MachineFields]) -> list[MachineFields]:
        own = self.ours.among(machines, lambda m: m.tags, lambda m: m.name)
        self.remember(own)
        return own

    def remember(self, machines: Sequence[MachineFields]) -> None:
        """Note machines that are ours, and their zones."""
        self.ours.remember(m.name for m in machines)
        with self._lock:
            for machine in machines:
                self._zone_by_name.pop(machine.name, None)
                self._zone_by_name[machine.name] = machine.zone
            while len(self._zone_by_name) > _MAX_REMEMBERED:
                del self._zone_by_name[next(iter(self._zone_by_name))]

    def get(self, zone: str, name: str) -> MachineFields | None:
        """The machine of this name; None if the zone surely has none."""
        try:
            record = self._project.call("GET", _path(zone, name), query={"fields": convert.FIELDS})
        except InstanceNotFound:
            return None
        with translated(self._settings.name):
            return convert.machine(record)

    def find(self, name: str) -> MachineFields | None:
        """The machine of this name in any zone of the region; None if there surely is none."""
        for zone in self._zones_of(name):
            if (machine := self.get(zone, name)) is not None:
                return machine
        return None

    def _zones_of(self, name: str) -> tuple[str, ...]:
        with self._lock:
            zone = self._zone_by_name.get(name)
        return (zone,) if zone is not None else self.zones()

    def delete(self, names: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Delete all of them, then raise the first error; errors whose call must be repeated come
        first. Callers pass only names of machines that were listed with our labels.
        """
        return dict(zip(names, self._each(names, self._delete), strict=True))

    def look_up(self, names: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Whether Google has these machines, whose labels are not ours."""

        def answer(name: str) -> EndAnswer:
            return EndAnswer.GONE if self.find(name) is None else EndAnswer.NOT_OURS

        return dict(zip(names, self._each(names, answer), strict=True))

    def _delete(self, name: str) -> EndAnswer:
        answer = EndAnswer.GONE
        for zone in self._zones_of(name):
            try:
                self._project.call("DELETE", _path(zone, name))
            except InstanceNotFound:
                continue
            except ProviderError as error:
                # Google's text need not name the machine, and several are ended at a time.
                raise type(error)(error.cloud, error.code, f"{name}: {error.message}") from None
            answer = EndAnswer.ENDED
        return answer

    def stop(self, name: str) -> None:
        """Stop a machine: its guest shuts down."""
        machine = self._require(name)
        if not machine.is_off and machine.status not in LEAVING:
            self._project.call("POST", f"{_path(machine.zone, name)}/stop")

    def start(self, name: str) -> None:
        """Start a stopped machine, and wait until Google has room for it. UnsettledError while it
        is still stopping.
        """
        machine = self._require(name)
        if machine.status in LEAVING:
            text = f"machine {name} is still {machine.status}"
            raise UnsettledError(self._settings.name, "RESOURCE_NOT_READY", text)
        if machine.is_off:
            operation = self._project.call("POST", f"{_path(machine.zone, name)}/start")
            self._operations.wait(machine.zone, operation)

    def _require(self, name: str) -> MachineFields:
        machine = self.find(name)
        if machine is None:
            raise InstanceNotFound(self._settings.name, "NotFound", f"there is no machine {name}")
        return machine

    def console(self, name: str) -> str:
        """The end of a machine's output at its first serial port."""
        machine = self._require(name)
        answer = self._project.call("GET", f"{_path(machine.zone, name)}/serialPort")
        with translated(self._settings.name):
            return str(answer.get("contents") or "")

    def _each(self, items: Sequence[str], do: Callable[[str], Answer]) -> list[Answer]:
        results = each(list(items), do, self._settings.threads)
        raise_first_error(failures(results))
        return [result.result() for result in results]


def _path(zone: str, name: str) -> str:
    return f"zones/{quote(zone)}/instances/{quote(name, safe='')}"
