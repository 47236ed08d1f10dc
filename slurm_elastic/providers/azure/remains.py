"""Network cards and disks that have outlived our machines. They cost as long as they exist.

Each part belongs to its machine by ``deleteOption: Delete``, but a failed creation may leave it.
Its name or tags prove that it is this cluster's (``requests.machine_of_part``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from msgspec import Struct

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.units import counted
from slurm_elastic.providers.azure.client import COMPUTE, DISKS, NETWORK, ArmApi
from slurm_elastic.providers.azure.errors import translated
from slurm_elastic.providers.azure.requests import machine_of_part
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.parallel import each

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 300.0
ORPHAN_S = 600.0
"""A card or disk without a machine is deleted after this time. Before a machine appears, and after
it has gone, Azure works on them for minutes.
"""
_CARDS = "networkInterfaces"
_DISKS = "disks"


class Part(Struct, frozen=True):
    """A card or disk. ``is_used``: a machine has it."""

    kind: str
    name: str
    is_used: bool
    tags: Mapping[str, str]


class Remains:
    """Finds and deletes cards and disks without a machine. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_seen_at", "_next_at", "_trouble")}

    def __init__(
        self,
        settings: AzureCloud,
        api: ArmApi,
        cluster_uuid: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._api = api
        self._uuid = cluster_uuid
        self._clock = clock
        self._lock = threading.Lock()
        # Since when each part has been without a machine.
        self._seen_at: dict[tuple[str, str], float] = {}
        self._next_at = clock()
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """The parts that could not be deleted, as a sentence; "" if there are none."""
        with self._lock:
            return self._trouble

    def sweep(self) -> None:
        """Look for remains if it is time. An error is logged: the next sweep tries again."""
        now = self._clock()
        with self._lock:
            if now < self._next_at:
                return
            self._next_at = now + SWEEP_EVERY_S
        try:
            orphans = self._orphans()
        except ProviderError as error:
            # Nothing is deleted unless all three lists are complete. The times stay, because only
            # lists count that have shown the part without a machine.
            log.warning("cards and disks not read cloud=%s error=%s", self._settings.name, error)
            return
        with self._lock:
            self._seen_at = {key: self._seen_at.get(key, now) for key in orphans}
            due = [key for key, seen_at in self._seen_at.items() if now - seen_at >= ORPHAN_S]
        kept = self._delete(due)
        text = (
            f"{counted(len(kept), 'part')} of ended machines could not be deleted: "
            f"{', '.join(kept[:3])}"
        )
        with self._lock:
            self._trouble = text if kept else ""
            # From the end: a sweep that took long must not follow itself at once.
            self._next_at = self._clock() + SWEEP_EVERY_S

    def _delete(self, due: Sequence[tuple[str, str]]) -> list[str]:
        """Delete these parts, several at a time. Returns the parts that were not deleted.

        The cloud's other calls wait meanwhile. So no further part is tried after ``api_timeout``,
        or once a call had no answer. The next sweep tries the rest.
        """
        is_over = threading.Event()
        give_up_at = time.monotonic() + self._settings.api_timeout

        def is_deleted(part: tuple[str, str]) -> bool:
            if is_over.is_set() or time.monotonic() >= give_up_at:
                return False
            try:
                return self._deleted(*part)
            except TransientError:
                is_over.set()
                return False

        results = each(due, is_deleted, self._settings.threads)
        return [
            f"{kind} {name}"
            for (kind, name), result in zip(due, results, strict=True)
            if not result.result()
        ]

    def _orphans(self) -> list[tuple[str, str]]:
        """Our cards and disks without a machine."""
        parts = [*self._parts(_CARDS), *self._parts(_DISKS)]
        unused = {
            (part.kind, part.name): machine
            for part in parts
            if not part.is_used and (machine := machine_of_part(self._uuid, part.name, part.tags))
        }
        if not unused:
            return []
        # After the parts: each machine that had ordered one of them is in this list.
        machines = {str(vm["name"]).lower() for vm in self._listed("virtualMachines")}
        return [key for key, machine in unused.items() if machine.lower() not in machines]

    def _parts(self, kind: str) -> Iterator[Part]:
        for record in self._listed(kind):
            with translated(self._settings.name, "GET", kind):
                properties = record["properties"]
                owner = properties.get("virtualMachine") if kind == _CARDS else None
                is_used = bool(owner or record.get("managedBy"))
                if kind == _DISKS and not is_used:
                    # Such as Attached, Reserved, ActiveSAS: somebody uses it.
                    is_used = properties["diskState"] != "Unattached"
                tags = {str(k): str(v) for k, v in (record.get("tags") or {}).items()}
                yield Part(kind, str(record["name"]), is_used, tags)

    def _listed(self, kind: str) -> Iterator[Any]:
        return self._api.listed(self._path(kind), _VERSIONS[kind])

    def _path(self, kind: str) -> str:
        service = "Microsoft.Network" if kind == _CARDS else "Microsoft.Compute"
        return f"{self._settings.group_path}/providers/{service}/{kind}"

    def _deleted(self, kind: str, name: str) -> bool:
        try:
            path = f"{self._path(kind)}/{quote(name, safe='')}"
            self._api.call("DELETE", path, _VERSIONS[kind])
        except InstanceNotFound:
            return True
        except ProviderError as error:
            log.warning(
                "remains not deleted, tried again later cloud=%s %s=%s error=%s",
                self._settings.name, kind, name, error,
            )  # fmt: skip
            if isinstance(error, TransientError):
                raise
            return False
        log.info("deleted, its machine is gone cloud=%s %s=%s", self._settings.name, kind, name)
        return True


_VERSIONS = {_CARDS: NETWORK, _DISKS: DISKS, "virtualMachines": COMPUTE}
