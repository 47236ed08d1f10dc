"""The state of the emulated EC2 beyond moto's: stock, prices, spot interruptions, who sees what
when.

Not thread-safe by itself; the front holds one lock around it and moto.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.providers.aws.tags import FleetNodeNames
from slurm_elastic.sandbox import ec2_quotas
from slurm_elastic.sandbox.ec2_api import Call
from slurm_elastic.sandbox.ec2_buckets import Buckets
from slurm_elastic.sandbox.ec2_events import ACCOUNT, EventQueue
from slurm_elastic.sandbox.ec2_faults import Fault, Faults, Stock, Target
from slurm_elastic.sandbox.ec2_prices import Quote, shipped

log = logging.getLogger(__name__)

_GONE = "terminated"
_STOPPED = "stopped"
_INTERRUPTED = "Server.SpotInstanceTermination"


class Interruption(Struct, frozen=True):
    """A spot machine is announced to be taken at ``deadline`` (Unix time)."""

    announced: float
    deadline: float


class Event(Struct, frozen=True, kw_only=True):
    """Maintenance that is scheduled for a machine; ``not_before`` is Unix time."""

    code: str
    description: str
    not_before: float


class MachineView(Struct, frozen=True, kw_only=True):
    """A machine as the control API shows it; ``node`` is the one its tags name, if any."""

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


class View(Struct, frozen=True, kw_only=True):
    """All that the control API shows. ``calls`` counts requests by action since the reset,
    ``throttled`` those that found no token.
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


@dataclass
class EmulatedInstance:
    """A machine of moto's and what we hold about it."""

    instance: Any
    target: Target
    launched: float
    visible_from: float
    node: str
    spot_request: str | None = None
    spot_tags: dict[str, str] | None = None
    interruption: Interruption | None = None

    @property
    def id(self) -> str:
        """EC2's instance id."""
        return str(self.instance.id)

    @property
    def tags(self) -> dict[str, str]:
        """Its tags of now."""
        return {tag["key"]: tag["value"] for tag in self.instance.get_tags()}

    @property
    def region(self) -> str:
        """Where it is: its zone without the letter."""
        return self.target.zone[:-1]

    @property
    def state(self) -> str:
        """EC2's word for its state."""
        return str(self.instance.state)

    @property
    def alive(self) -> bool:
        """Whether it is there, running or stopped."""
        return self.state != _GONE

    @property
    def placed(self) -> bool:
        """Whether it takes from the stock: one that is stopped has no host."""
        return self.state not in (_GONE, _STOPPED)

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
        )


class EmulatedCloud:
    """The account. ``now`` is Unix time, given by the caller each time."""

    def __init__(self, speed: float, now: float) -> None:
        self.speed = speed
        self.queue = EventQueue()
        self.reset(now)

    def reset(self, now: float) -> None:
        """Forget everything: machines, faults, stock, prices set by hand, counts."""
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
        self.buckets = Buckets()
        self.quotas = ec2_quotas.shipped()
        self.listed_prices: dict[str, float] = {}
        self.events: dict[str, Event] = {}
        self.consoles: dict[str, str] = {}

    def zone_of(self, call: Call) -> str:
        """Where a launch would put its machines."""
        placed = call.params.get("Placement.AvailabilityZone")
        subnet = self._backends[call.region].subnets.get(call.params.get("SubnetId", ""), {})
        for zone in subnet:
            placed = placed or str(zone)
        return placed or f"{call.region}a"

    def template(self, region: str, name: str) -> Any:  # noqa: ANN401 - moto's, as it was posted
        """The data of a launch template's first version; None where there is none of that name."""
        backend = self._backends[region]
        if name not in backend.launch_template_name_to_ids:
            return None
        return backend.get_launch_template_by_name(name).get_version(1).data

    def free(self, target: Target) -> int | None:
        """How many machines of this kind can be had now; None: any number."""
        return self.stock.free(target, (m.target for m in self.machines.values() if m.placed))

    def stopped(self, ids: Iterable[str]) -> list[Target]:
        """The kinds of those of these machines that are stopped."""
        found = [m for i in ids if (m := self.machines.get(i)) is not None]
        return [m.target for m in found if m.state == _STOPPED]

    def launched(self, call: Call, reservation: str, target: Target, now: float) -> Sequence[str]:
        """Take note of the machines of a reservation that moto has just made; their ids."""
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
                # moto writes the attribute into its answers where there is one.
                instance.spot_instance_request_id = machine.spot_request
            self.machines[machine.id] = machine
        return [str(instance.id) for instance in instances]

    def hidden(self, now: float) -> set[str]:
        """The machines that Describe calls do not show yet."""
        if not self.visible_after:
            return set()
        return {m.id for m in self.machines.values() if m.visible_from > now}

    def spot_machines(self) -> Iterator[EmulatedInstance]:
        """All machines with a spot request, gone ones included."""
        return (m for m in self.machines.values() if m.spot_request)

    def interrupt(self, ids: Iterable[str], notice: float, now: float) -> Sequence[str]:
        """Announce to take these spot machines ``notice`` seconds from now; the ids announced.

        A second notice counts, and is told, where its time is sooner than the first one's.
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
        """These machines power themselves off, which ends them or stops them, as their launch said
        (InstanceInitiatedShutdownBehavior); the ids of those that were on.
        """
        chosen = [m for i in ids if (m := self.machines.get(i)) is not None and m.alive]
        for machine in chosen:
            if machine.instance.instance_initiated_shutdown_behavior == "terminate":
                machine.instance.terminate()
            else:
                machine.instance.stop()
        return [machine.id for machine in chosen]

    def print_on(self, instance_id: str, text: str) -> None:
        """Everything that the machine has printed on its console since its boot."""
        if instance_id not in self.machines:
            raise SandboxError(f"there is no machine {instance_id!r}")
        self.consoles[instance_id] = text

    def reap(self, now: float) -> None:
        """Take the machines whose notice is over."""
        for machine in self.machines.values():
            due = machine.interruption is not None and machine.interruption.deadline <= now
            if due and machine.alive:
                log.info("spot machine taken id=%s node=%s", machine.id, machine.node)
                machine.instance.terminate()
                reason = machine.instance.state_reason
                reason.code = _INTERRUPTED
                reason.message = f"{_INTERRUPTED}: Spot instance termination"

    def view(self, now: float) -> View:
        """All there is to see."""
        return View(
            now=now,
            machines=tuple(m.view() for m in self.machines.values()),
            calls=dict(self.calls),
            access_keys=tuple(sorted(self.access_keys)),
            faults=self.faults.standing(),
            stock=dict(self.stock.limits),
            prices=tuple(self.prices.quotes(now)),
            visible_after=self.visible_after,
            throttled=self.buckets.rejected,
        )

    def _spot(self, instance_id: str) -> EmulatedInstance:
        machine = self.machines.get(instance_id)
        if machine is None or not machine.alive:
            raise SandboxError(f"there is no running machine {instance_id!r}")
        if machine.spot_request is None:
            raise SandboxError(f"machine {instance_id!r} is not a spot machine")
        return machine
