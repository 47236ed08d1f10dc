"""The state of the emulated EC2 that moto lacks: stock, prices, spot interruptions, and the time
from which machines are visible.

It is not thread-safe. The front holds one lock around it and moto.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.providers.aws.tags import FleetNodeNames
from slurm_elastic.sandbox.ec2 import quotas as ec2_quotas
from slurm_elastic.sandbox.ec2.api import Ec2Call
from slurm_elastic.sandbox.ec2.buckets import Buckets
from slurm_elastic.sandbox.ec2.events import ACCOUNT, EventQueue
from slurm_elastic.sandbox.ec2.faults import Fault, Faults, FaultTarget, Stock
from slurm_elastic.sandbox.ec2.placement import EmulatedPlacementGroups
from slurm_elastic.sandbox.ec2.prices import Quote, shipped
from slurm_elastic.sandbox.ec2.reservations import Reservations, ReservationView

log = logging.getLogger(__name__)

_TERMINATED = "terminated"
LISTED_AFTER_END_S = 3600.0
"""Seconds for which EC2 lists a machine after its end. moto alone would list it for ever."""
_STOPPED = "stopped"
_INTERRUPTED = "Server.SpotInstanceTermination"


class Interruption(Struct, frozen=True):
    """The notice of a spot machine, taken at ``deadline`` (Unix time)."""

    announced: float
    deadline: float


class ScheduledEvent(Struct, frozen=True, kw_only=True):
    """Scheduled maintenance of a machine. ``not_before`` is Unix time."""

    code: str
    description: str
    not_before: float


class MachineView(Struct, frozen=True, kw_only=True):
    """A machine in the control API's answer. ``node``: from its tags, or "". Times are Unix
    time.
    """

    id: str
    state: str
    market: str
    type: str
    zone: str
    launched: float
    address: str | None
    node: str
    tags: dict[str, str]
    visible_from: float
    interruption: Interruption | None = None
    reason: str = ""
    reservation: str = ""
    image: str = ""


class Ec2View(Struct, frozen=True, kw_only=True):
    """The answer of the control API. ``calls``: requests by action since the reset; ``throttled``:
    requests that were rejected by rate limits.
    """

    now: float
    machines: tuple[MachineView, ...]
    calls: dict[str, int]
    access_keys: tuple[str, ...]
    faults: tuple[Fault, ...]
    stock: dict[str, int]
    prices: tuple[Quote, ...]
    visible_after: float
    throttled: int = 0
    reservations: tuple[ReservationView, ...] = ()


@dataclass
class EmulatedInstance:
    """A machine of moto, and our own facts about it."""

    instance: Any
    target: FaultTarget
    launched: float
    visible_from: float
    node: str
    spot_request: str | None = None
    spot_tags: dict[str, str] | None = None
    interruption: Interruption | None = None
    ended_at: float | None = None

    @property
    def id(self) -> str:
        """EC2's instance id."""
        return str(self.instance.id)

    @property
    def tags(self) -> dict[str, str]:
        """The present tags."""
        return {tag["key"]: tag["value"] for tag in self.instance.get_tags()}

    @property
    def region(self) -> str:
        """The region: the zone without its letter."""
        return self.target.zone[:-1]

    @property
    def state(self) -> str:
        """EC2's name of the state."""
        return str(self.instance.state)

    @property
    def alive(self) -> bool:
        """True unless the machine is terminated."""
        return self.state != _TERMINATED

    @property
    def placed(self) -> bool:
        """True if the machine counts against the stock. A stopped machine occupies no host."""
        return self.state not in (_TERMINATED, _STOPPED)

    def view(self) -> MachineView:
        """The machine as the control API shows it."""
        return MachineView(
            id=self.id,
            state=self.state,
            market=self.target.market,
            type=self.target.type,
            zone=self.target.zone,
            launched=self.launched,
            address=self.instance.private_ip,
            node=self.node or FleetNodeNames().node(self.tags, self.instance.ami_launch_index),
            tags=self.tags,
            visible_from=self.visible_from,
            interruption=self.interruption,
            reason=self.instance.state_reason.code,
            image=str(self.instance.image_id),
        )


class EmulatedCloud:
    """The account. The caller passes ``now`` (Unix time) to each method."""

    def __init__(self, speed: float, now: float) -> None:
        self.speed = speed
        self.queue = EventQueue()
        self.reset(now)

    def reset(self, now: float) -> None:
        """Discard all state: machines, faults, stock, prices set by hand, counts."""
        from moto.ec2.models import ec2_backends

        for backends in ec2_backends.values():
            backends.reset()
        self.queue.reset()
        self._backends: Any = ec2_backends[ACCOUNT]
        self.machines: dict[str, EmulatedInstance] = {}
        self.faults = Faults()
        self.stock = Stock()
        self.prices = shipped(self.speed, now)
        self.calls: Counter[str] = Counter()
        self.access_keys: set[str] = set()
        self.visible_after = 0.0
        self.listed_after_end = LISTED_AFTER_END_S
        self.buckets = Buckets()
        self.quotas = ec2_quotas.shipped()
        self.listed_prices: dict[str, float] = {}
        self.events: dict[str, ScheduledEvent] = {}
        self.consoles: dict[str, str] = {}
        self.reservations = Reservations()
        self.placement = EmulatedPlacementGroups()

    def zone_of(self, call: Ec2Call) -> str:
        """Return the zone in which a launch would place its machines."""
        placed = call.params.get("Placement.AvailabilityZone")
        subnet = call.params.get("SubnetId") or call.params.get("NetworkInterface.1.SubnetId", "")
        by_zone = self._backends[call.region].subnets
        zone = next((str(zone) for zone, subnets in by_zone.items() if subnet in subnets), None)
        return placed or zone or f"{call.region}a"

    def template(self, region: str, name: str) -> Any:  # noqa: ANN401 - moto's, as it was posted
        """Return the data of a launch template's first version; None if there is no such
        template.
        """
        backend = self._backends[region]
        if name not in backend.launch_template_name_to_ids:
            return None
        return backend.get_launch_template_by_name(name).get_version(1).data

    def free(self, target: FaultTarget) -> int | None:
        """Return how many machines of this kind are available now; None: any number."""
        # A reservation has hosts of its own.
        reserved = self.reservations.machines
        placed = (m for m in self.machines.values() if m.placed and m.id not in reserved)
        return self.stock.free(target, (m.target for m in placed))

    def free_reserved(self, call: Ec2Call) -> int:
        """Return how many more machines fit into the reservation that the launch names."""
        return self.reservations.room(call, self._placed())

    def _placed(self) -> list[str]:
        return [m.id for m in self.machines.values() if m.placed]

    def stopped(self, ids: Iterable[str]) -> list[FaultTarget]:
        """Return the kinds of the stopped machines among ``ids``."""
        machines = [m for i in ids if (m := self.machines.get(i)) is not None]
        return [m.target for m in machines if m.state == _STOPPED]

    def launched(
        self, call: Ec2Call, reservation: str, target: FaultTarget, now: float
    ) -> Sequence[str]:
        """Record the machines of a reservation that moto has just made. Returns their ids."""
        instances: list[Any] = self._backends[call.region].reservations[reservation].instances
        names, spot_tags = FleetNodeNames(), call.spot_tags()
        for instance in instances:
            tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
            machine = EmulatedInstance(
                instance=instance,
                target=target,
                launched=now,
                visible_from=now + self.visible_after,
                node=names.node(tags, instance.ami_launch_index),
            )
            if target.market == "spot":
                machine.spot_request = f"sir-{uuid.uuid4().hex[:8]}"
                machine.spot_tags = spot_tags
                # moto writes this attribute into its answers if it exists.
                instance.spot_instance_request_id = machine.spot_request
            self.machines[machine.id] = machine
        ids = [str(instance.id) for instance in instances]
        lifecycle = self.reservations.launched(call, ids)
        for instance in instances if lifecycle else ():
            # moto writes this attribute into its answers if it is set.
            instance.lifecycle = lifecycle
        return [str(instance.id) for instance in instances]

    def hidden(self, now: float) -> set[str]:
        """Return the machines that Describe calls do not show yet."""
        if not self.visible_after:
            return set()
        return {m.id for m in self.machines.values() if m.visible_from > now}

    def spot_machines(self) -> Iterator[EmulatedInstance]:
        """Return all machines with a spot request, including terminated machines."""
        return (m for m in self.machines.values() if m.spot_request)

    def interrupt(self, ids: Iterable[str], notice: float, now: float) -> Sequence[str]:
        """Give notice that these spot machines are taken ``notice`` seconds from now. Returns their
        ids.

        A second notice counts, and is sent, only if its deadline is earlier than the first.
        """
        if notice < 0:
            raise SandboxError(f"a notice cannot be {notice} seconds long")
        chosen = [self._spot(instance_id) for instance_id in ids]
        for machine in chosen:
            before = machine.interruption
            if before is None or now + notice < before.deadline:
                announced = before.announced if before else now
                machine.interruption = Interruption(announced, now + notice)
                self.queue.warn(machine.region, machine.id, now + notice)
        return [machine.id for machine in chosen]

    def shut_down(self, ids: Iterable[str]) -> Sequence[str]:
        """Let these machines power themselves off. Their launch decided whether that terminates or
        stops them (InstanceInitiatedShutdownBehavior). Returns the ids of the living machines.
        """
        chosen = [m for i in ids if (m := self.machines.get(i)) is not None and m.alive]
        for machine in chosen:
            if machine.instance.instance_initiated_shutdown_behavior == "terminate":
                machine.instance.terminate()
            else:
                machine.instance.stop()
        return [machine.id for machine in chosen]

    def print_on(self, instance_id: str, text: str) -> None:
        """Set the machine's whole console output since its boot."""
        if instance_id not in self.machines:
            raise SandboxError(f"there is no machine {instance_id!r}")
        self.consoles[instance_id] = text

    def reap(self, now: float) -> None:
        """Terminate the machines whose notice or capacity block has ended. Forget the machines that
        ended long ago.
        """
        over = self.reservations.over(now)
        for machine in self.machines.values():
            if machine.id in over and machine.alive:
                log.info("machine of a block ended id=%s node=%s", machine.id, machine.node)
                machine.instance.terminate()
        for machine in self.machines.values():
            is_due = machine.interruption is not None and machine.interruption.deadline <= now
            if is_due and machine.alive:
                log.info("spot machine taken id=%s node=%s", machine.id, machine.node)
                machine.instance.terminate()
                reason = machine.instance.state_reason
                reason.code = _INTERRUPTED
                reason.message = f"{_INTERRUPTED}: Spot instance termination"

        self._forget_ended(now)

    def _forget_ended(self, now: float) -> None:
        for machine in tuple(self.machines.values()):
            if machine.alive:
                continue
            if machine.ended_at is None:
                machine.ended_at = now
            if now - machine.ended_at >= self.listed_after_end:
                self._forget(machine)

    def _forget(self, machine: EmulatedInstance) -> None:
        backend = self._backends[machine.region]
        for number, reservation in tuple(backend.reservations.items()):
            if machine.instance in reservation.instances:
                reservation.instances.remove(machine.instance)
                if not reservation.instances:
                    del backend.reservations[number]
                break
        backend.tags.pop(machine.id, None)
        del self.machines[machine.id]

    def view(self, now: float) -> Ec2View:
        """Return the whole state for the control API."""
        return Ec2View(
            now=now,
            machines=tuple(
                replace(m.view(), reservation=self.reservations.machines.get(m.id, ""))
                for m in self.machines.values()
            ),
            calls=dict(self.calls),
            access_keys=tuple(sorted(self.access_keys)),
            faults=self.faults.standing(),
            stock=dict(self.stock.limits),
            prices=tuple(self.prices.quotes(now)),
            visible_after=self.visible_after,
            throttled=self.buckets.rejected,
            reservations=self.reservations.views(self._placed(), now),
        )

    def _spot(self, instance_id: str) -> EmulatedInstance:
        machine = self.machines.get(instance_id)
        if machine is None or not machine.alive:
            raise SandboxError(f"there is no running machine {instance_id!r}")
        if machine.spot_request is None:
            raise SandboxError(f"machine {instance_id!r} is not a spot machine")
        return machine
