"""The emulated Compute Engine itself: machines and operations, without HTTP. Not thread-safe."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field

from slurm_elastic.sandbox.gce.world import GceType, GceWorld

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
OFF = "TERMINATED"
_EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED"
_TEXTS = {
    _EXHAUSTED: "The zone does not have enough resources available to fulfill the request.",
    "QUOTA_EXCEEDED": "Quota 'CPUS' exceeded. Limit: 0.0 in region us-central1.",
    "RESOURCE_ALREADY_EXISTS": "The resource already exists",
    "VM_MIN_COUNT_NOT_REACHED": "Requested minimum count of instances could not be created.",
}


class GceRefusal(Exception):  # noqa: N818 - an answer of the emulated cloud
    """An HTTP refusal in Google's form."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class Machine(Struct, kw_only=True):
    """A machine. Times are Unix time; 0: not due. ``record``: the properties that its creator gave
    to it. ``keeper``: whether it is protected from deletion. ``taken_at``: when Google
    takes it back.
    """

    number: int
    name: str
    zone: str
    record: dict[str, Any]
    created: float
    boots_at: float
    status: str = "PROVISIONING"
    stops_at: float = 0.0
    ends_at: float = 0.0
    stopped_at: float = 0.0
    keeper: bool = False
    maintenance_at: float = 0.0
    taken_at: float = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether nobody has deleted it."""
        return not self.ends_at


class Operation(Struct, kw_only=True):
    """An operation. ``done_at``: Unix time. ``errors``: codes and messages."""

    name: str
    zone: str
    type: str
    request: str
    done_at: float
    group: str = ""
    target: str = ""
    errors: list[dict[str, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


class GceCloud:
    """One project in one region. Times are given by the caller."""

    def __init__(self, world: GceWorld) -> None:
        self.world = world
        self.machines: dict[str, Machine] = {}
        self.operations: dict[str, Operation] = {}
        self.ever_made: list[str] = []
        self.silent_zones: set[str] = set()
        self._numbers = iter(range(7000000000000000001, 8000000000000000000))

    def advance(self, now: float) -> None:
        """Carry out what is due."""
        for machine in list(self.machines.values()):
            if (machine.taken_at and now >= machine.taken_at) or (
                machine.ends_at and now >= machine.ends_at
            ):
                del self.machines[machine.name]
            elif machine.stops_at and now >= machine.stops_at:
                machine.status, machine.stopped_at, machine.stops_at = OFF, now, 0.0
            elif machine.status == "PROVISIONING" and now >= machine.boots_at:
                machine.status = "RUNNING"

    # machines

    def bulk_insert(
        self, zone: str, body: Mapping[str, Any], request: str, now: float, refused: str = ""
    ) -> Operation:
        """Make machines. ``refused``: a code with which none is made. A request id that was used
        before brings its operation again.
        """
        known = next(
            (o for o in self.operations.values() if request and o.request == request), None
        )
        if known is not None:
            return known
        names, properties = self._names(body), body.get("instanceProperties") or {}
        self._require_valid(zone, names, properties)
        existing = [name for name in names if name in self.machines]
        free = [name for name in names if name not in self.machines]
        kind = self.world.types[properties["machineType"]]
        room = 0 if refused else max(min(self._room(), self._quota(kind)), 0)
        # A bulk call does not choose which machines it makes.
        made = set(random.Random(request or names[0]).sample(free, min(room, len(free))))  # noqa: S311
        code, group = refused or self._lack(kind), str(uuid.uuid4())
        failed = {name: code for name in free if name not in made}
        failed |= dict.fromkeys(existing, "RESOURCE_ALREADY_EXISTS")
        bulk = self._operation(zone, "bulkInsert", request, now, group=group)
        least = int(body.get("minCount") or body.get("count") or len(names))
        created = len(made)
        if created < least:
            # All are rolled back.
            bulk.errors = [_error("VM_MIN_COUNT_NOT_REACHED" if made else code)]
            if existing and not made:
                bulk.errors = [_error("RESOURCE_ALREADY_EXISTS")]
            made = set()
        bulk.counts = {
            "targetVmCount": len(names), "createdVmCount": created,
            "failedToCreateVmCount": len(failed), "deletedVmCount": created - len(made),
        }  # fmt: skip
        for name in names:
            member = self._operation(zone, "insert", "", now, group=group, target=name)
            if name in failed:
                member.errors = [_error(failed[name])]
            elif name in made:
                self._make(zone, name, properties, now)
        return bulk

    def _names(self, body: Mapping[str, Any]) -> list[str]:
        names = list(body.get("perInstanceProperties") or ())
        if len(names) != int(body.get("count") or len(names)) or not names:
            raise GceRefusal(400, "invalid", "count differs from perInstanceProperties")
        return names

    def _room(self) -> int:
        return self.world.capacity - len(self.alive())

    def _quota(self, kind: GceType) -> int:
        return int((self.world.cpus - self.used_cpus()) // kind.cpus)

    def _lack(self, kind: GceType) -> str:
        return "QUOTA_EXCEEDED" if self._quota(kind) <= self._room() else _EXHAUSTED

    def used_cpus(self) -> float:
        """Return the vCPUs of all machines that run."""
        kinds = (m.record.get("machineType", "") for m in self.machines.values() if m.status != OFF)
        return float(sum(self.world.types[kind].cpus for kind in kinds if kind in self.world.types))

    def _require_valid(
        self, zone: str, names: Iterable[str], properties: Mapping[str, Any]
    ) -> None:
        kind = properties.get("machineType", "")
        if kind not in self.world.types:
            path = f"projects/{self.world.project}/zones/{zone}/machineTypes/{kind}"
            raise GceRefusal(404, "notFound", f"The resource '{path}' was not found")
        wrong = next((name for name in names if not NAME.fullmatch(name)), "")
        if wrong:
            raise GceRefusal(400, "invalid", f"Invalid value for field 'name': '{wrong}'")
        for key, value in (properties.get("labels") or {}).items():
            if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
                raise GceRefusal(400, "invalid", f"Label {key}={value} violates format constraints")
        if len(properties.get("labels") or ()) > 64:
            raise GceRefusal(400, "invalid", "too many labels")
        words = properties.get("scheduling") or {}
        if words.get("provisioningModel") == "SPOT" and (
            words.get("automaticRestart") is not False
            or words.get("onHostMaintenance") == "MIGRATE"
        ):
            raise GceRefusal(400, "invalid", "Scheduling must not restart spot instances")
        stays = properties.get("resourcePolicies") or self.world.types[kind].gpus
        if stays and words.get("onHostMaintenance") != "TERMINATE":
            text = "Instances with guest accelerators or a placement do not support live migration."
            raise GceRefusal(400, "invalid", text)
        for disk in properties.get("disks") or ():
            self.image(str(disk["initializeParams"]["sourceImage"]))

    def image(self, path: str) -> Any:  # noqa: ANN401 - a GceImage
        """Return the image at a path of the project or of another one. Raises GceRefusal."""
        name = path.rpartition("/")[2]
        is_family = "/family/" in path
        found = [i for i in self.world.images if (i.family if is_family else i.name) == name]
        if not found or f"projects/{self.world.project}/" not in path:
            raise GceRefusal(404, "notFound", f"The resource '{path}' was not found")
        return max(found, key=lambda image: image.created)

    def _make(self, zone: str, name: str, properties: Mapping[str, Any], now: float) -> None:
        self.add(name, zone, dict(properties), now)

    def add(self, name: str, zone: str, record: dict[str, Any], now: float) -> Machine:
        """Add a machine, as a call of ours or of somebody else does."""
        machine = Machine(
            number=next(self._numbers), name=name, zone=zone, record=record, created=now,
            boots_at=now + self.world.pace.boot,
        )  # fmt: skip
        self.machines[name] = machine
        self.ever_made.append(name)
        return machine

    def alive(self) -> list[Machine]:
        """Return the machines that nobody has deleted."""
        return [machine for machine in self.machines.values() if machine.is_alive]

    def get(self, zone: str, name: str) -> Machine:
        """Return a machine. Raises GceRefusal."""
        machine = self.machines.get(name)
        if machine is None or machine.zone != zone:
            path = f"projects/{self.world.project}/zones/{zone}/instances/{name}"
            raise GceRefusal(404, "notFound", f"The resource '{path}' was not found")
        return machine

    def delete(self, zone: str, name: str, now: float) -> Operation:
        """Delete a machine."""
        machine = self.get(zone, name)
        if machine.keeper:
            text = "Invalid resource usage: 'Resource cannot be deleted if it's protected'."
            raise GceRefusal(412, "conditionNotMet", text)
        if machine.is_alive:
            machine.status, machine.ends_at = "STOPPING", now + self.world.pace.delete
        self.advance(now)
        return self._operation(zone, "delete", "", now, target=name)

    def stop(self, zone: str, name: str, now: float) -> Operation:
        """Stop a machine."""
        machine = self.get(zone, name)
        if machine.is_alive and machine.status != OFF:
            machine.status, machine.stops_at = "STOPPING", now + self.world.pace.stop
        self.advance(now)
        return self._operation(zone, "stop", "", now, target=name)

    def start(self, zone: str, name: str, now: float) -> Operation:
        """Start a stopped machine."""
        machine = self.get(zone, name)
        if machine.status == "STOPPING":
            text = f"The resource 'projects/p/zones/{zone}/instances/{name}' is not ready"
            raise GceRefusal(400, "resourceNotReady", text)
        if machine.status == OFF:
            machine.status, machine.boots_at = "PROVISIONING", now + self.world.pace.boot
        self.advance(now)
        return self._operation(zone, "start", "", now, target=name)

    def preempt(self, name: str, notice_s: float, now: float) -> None:
        """Tell a spot machine that it is taken, and take it after ``notice_s``."""
        self.machines[name].taken_at = now + notice_s

    def metadata(self, name: str, path: str) -> str:
        """Return the answer of a machine's own metadata server. Raises GceRefusal."""
        machine = self.machines.get(name)
        values = {} if machine is None else {
            "instance/name": name,
            "instance/preempted": "TRUE" if machine.taken_at else "FALSE",
            "instance/maintenance-event": "NONE",
        }  # fmt: skip
        if path not in values:
            raise GceRefusal(404, "notFound", f"no metadata {path}")
        return values[path]

    def halt(self, names: Iterable[str], now: float) -> None:
        """Let machines go off, as a host error or a shutdown of the guest does."""
        for name in names:
            machine = self.machines[name]
            machine.status, machine.stopped_at = OFF, now

    def _operation(
        self, zone: str, kind: str, request: str, now: float, **more: Any,  # noqa: ANN401
    ) -> Operation:  # fmt: skip
        name = f"operation-{int(now * 1000)}-{uuid.uuid4().hex[:12]}"
        made = Operation(
            name=name, zone=zone, type=kind, request=request,
            done_at=now + self.world.pace.operation, **more,
        )  # fmt: skip
        self.operations[name] = made
        return made


def _error(code: str) -> dict[str, str]:
    return {"code": code, "message": _TEXTS.get(code, code)}


def stamp(time_s: float) -> str:
    """Return a Unix time as Google writes it."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
