"""The cluster's values: pools, offers, limits, launches, machines, and what clouds say of them.

Units: money in US dollars, prices in dollars per machine-hour, memory in MiB, time in seconds
(points in time as Unix time), time limits in minutes where Slurm has them so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property

from msgspec import Struct, field

from slurm_elastic.base.units import money
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.causes import AnyCause


class Location(StrEnum):
    """Where a cloud stands; on-premises machines are used before public ones."""

    ON_PREMISES = "on-premises"
    PUBLIC = "public"


class Market(StrEnum):
    """How a machine is paid for."""

    RESERVED = "reserved"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class Pool(Struct, frozen=True, kw_only=True):
    """Equal nodes of one cloud, as Slurm is told of them.

    ``real_memory`` is Slurm's RealMemory (MiB): what every instance type of the pool must leave
    for jobs. ``instance_types``, ``zones`` and ``markets`` span the offers the pool may use;
    empty zones mean every zone of the cloud. ``max_age`` (s) is how old a machine may get,
    ``interruption_loss`` (s) what its node loses when the cloud takes it: work since the last
    checkpoint, and the restart.
    ``partial_jobs``: machines stay although not all nodes of their job could be had.
    ``max_booting``: so many machines at most boot at once. ``stopped``: so many machines that are
    idle are stopped instead of ended, at ``stopped_price`` ($/h) each.
    """

    name: str
    cloud: str
    nodes: tuple[str, ...]
    cpus: int
    real_memory: int
    gres: dict[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    markets: tuple[Market, ...] = (Market.ON_DEMAND,)
    max_price: float | None = None
    max_nodes: int | None = None
    max_age: float | None = None
    interruption_loss: float = 1800.0
    partial_jobs: bool = False
    max_booting: int | None = None
    image: ImageChoice | None = None
    weight: int = 1
    stopped: int = 0
    stopped_price: float = 0.0


class Offer(Struct, frozen=True, kw_only=True, dict=True):
    """One thing a cloud sells: an instance type in a zone on a market, with its price now.

    ``on_demand_price`` is the same machine's on-demand price where the cloud has one;
    ``free`` is how many the cloud says it has (None: it does not say), and ``free_reason`` why so
    few, in the cloud's words. ``interruption_rate``: how often an hour the cloud takes it.
    ``reference_price`` is the highest price that the cloud itself tells for this type of machine
    (``reference`` says which: its catalogue's, spot in some zone), to check a typed one by.
    """

    cloud: str
    location: Location
    instance_type: str
    zone: str
    market: Market
    price: float
    cpus: int
    memory: int
    gres: dict[str, int] = field(default_factory=dict)
    on_demand_price: float | None = None
    free: int | None = None
    free_reason: str = ""
    interruption_rate: float = 0.0
    reference_price: float | None = None
    reference: str = ""

    @cached_property
    def key(self) -> str:
        """The name cool-downs go by: ``cloud/type/zone/market``."""
        return f"{self.cloud}/{self.instance_type}/{self.zone}/{self.market}"

    @cached_property
    def worst_price(self) -> float:
        """The most that the machine could cost: a spot price never rises over the on-demand one, so
        the dearest of what is known.
        """
        return max(self.price, self.on_demand_price or 0.0, self.reference_price or 0.0)


def worst_price(instance: Instance, offers: Sequence[Offer]) -> float:
    """The highest price ($/h) that a machine of a launch on these offers may come to."""
    bought = [o for o in offers if o.key == instance.offer_key] or offers
    return max(instance.price, *(offer.worst_price for offer in bought))


class NodeRequest(Struct, frozen=True, kw_only=True):
    """Nodes of one pool that Slurm wants up, for these jobs; ``id`` is the correlation id.

    ``job_nodes`` says which of the nodes each job waits for, where that is known; ``owners`` whose
    each job is (``account``, ``user``), as far as that is known.
    """

    id: str
    pool: Pool
    nodes: tuple[str, ...]
    jobs: tuple[int, ...] = ()
    job_nodes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    owners: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


class Ranked(Struct, frozen=True, kw_only=True):
    """An offer that can serve a request, for at most ``room`` nodes; ``bound`` keeps it from more,
    None if it has room for all.
    """

    offer: Offer
    room: int
    bound: AnyCause | None = None

    @property
    def reason(self) -> str:
        """Why it stands here, for people."""
        text = f"{self.offer.location}, {self.offer.market}, {money(self.offer.price)}/h"
        mark = ", " if self.offer.interruption_rate else "; "
        return mark.join((text, self.notes)) if self.notes else text

    @property
    def notes(self) -> str:
        """The part of the reason that the offer's own columns in a table do not show."""
        rate = self.offer.interruption_rate
        taken = f"taken {rate:g} times an hour" if rate else ""
        bound = f"room is bounded: {self.bound}" if self.bound else ""
        return "; ".join(filter(None, (taken, bound)))


class Rejected(Struct, frozen=True, kw_only=True):
    """An offer that cannot serve a request now, and why."""

    offer: Offer
    cause: AnyCause

    @property
    def reason(self) -> str:
        """The cause for people."""
        return str(self.cause)


class Placement(Struct, frozen=True, kw_only=True):
    """The answer of the ranking: offers best first, and the rejected ones with reasons."""

    request: NodeRequest
    ranked: tuple[Ranked, ...]
    rejected: tuple[Rejected, ...]


class Limits(Struct, frozen=True, kw_only=True):
    """Upper bounds of one scope (the cluster or a cloud); None is unlimited."""

    nodes: int | None = None
    """Change it when more or fewer machines should run at a time."""
    spot: int | None = None
    """Change it when so many interruptions at once would hurt, or the spot quota is lower."""
    on_demand: int | None = None
    """Change it when machines at the full price should be fewer than all."""
    dollars_per_hour: float | None = None
    """Change it when the site may spend more or less; without it public clouds stay shut."""


class Usage(Struct, frozen=True, kw_only=True):
    """Everything that is paid for now (live instances and open launch intents), counted per scope.

    Keys of ``nodes``: ``""`` the cluster, ``cloud:NAME``, ``pool:NAME``, ``market:MARKET``,
    ``cloud:NAME:MARKET``. Keys of ``dollars_per_hour``: ``""`` and ``cloud:NAME``, at the
    worst price (on-demand where the cloud has one).
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    dollars_per_hour: Mapping[str, float] = field(default_factory=dict)


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """One launch call. ``generation`` names it, is its idempotency token and is tagged on machines.

    All of ``nodes`` are wanted; fewer is a partial launch, and none at all an error. Each machine
    of the answer says by its ``node`` whose it is. ``alternatives`` are offers of the same cloud
    and market that may serve any of the nodes instead of ``offer``, best first;
    only a ``model.protocols.Chooser`` is given some. ``again``: an earlier round, perhaps of a
    process that is gone, may have made this very call. ``owner``: the ``account`` and ``user``
    of its jobs, where all have the same. ``enrol``: the word of which their keys for enrolling
    follow (``controller.enrolment``).
    """

    generation: str
    pool: Pool
    nodes: tuple[str, ...]
    offer: Offer
    jobs: tuple[int, ...] = ()
    alternatives: tuple[Offer, ...] = ()
    enrol: str = ""
    again: bool = False
    owner: dict[str, str] = field(default_factory=dict)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All that machines may come from."""
        return (self.offer, *self.alternatives)


class InstanceState(StrEnum):
    """A machine's life as all clouds have it. STOPPED: it is off, and has its disk."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATED = "terminated"


STANDING = (InstanceState.PENDING, InstanceState.RUNNING)
"""It serves its node, or will."""
OFF = (InstanceState.STOPPING, InstanceState.STOPPED)
"""It serves nobody, and may be started again or end."""


class Instance(Struct, frozen=True, kw_only=True, dict=True):
    """One machine. ``node`` and ``generation`` come from its tags; ``launched`` is Unix time.

    ``id`` is unique within its cloud, while it is there and afterwards.
    """

    id: str
    cloud: str
    node: str
    generation: str
    instance_type: str
    zone: str
    market: Market
    price: float
    state: InstanceState
    launched: float
    address: str | None = None

    @cached_property
    def offer_key(self) -> str:
        """The ``Offer.key`` this machine was bought from."""
        return f"{self.cloud}/{self.instance_type}/{self.zone}/{self.market}"


class Lease(Struct, frozen=True, kw_only=True):
    """Paid time of an instance, from ``start`` to ``end`` (None: still) at ``price``."""

    instance: str
    node: str
    start: float
    end: float | None
    price: float

    def cost(self, now: float, minimum: float = 60.0) -> float:
        """Dollars so far, per second with a minimum (EC2's billing of Linux since 2017-10)."""
        seconds = max((now if self.end is None else self.end) - self.start, minimum)
        return seconds / 3600 * self.price


class NoticeKind(StrEnum):
    """What a warning announces: the first two a cloud gives (or a person in its place), the third
    comes of an operator's drain, replacement or migration.
    """

    INTERRUPTION = "interruption"
    REBALANCE = "rebalance"
    DEPARTURE = "departure"


class Notice(Struct, frozen=True, kw_only=True):
    """A cloud's warning about an instance; ``deadline`` (Unix time) where it gives one.

    ``node`` is set instead of ``instance`` where a person or an agent warns of a node; ``reason``
    is in their words.
    """

    instance: str
    kind: NoticeKind
    seen: float
    deadline: float | None = None
    node: str = ""
    reason: str = ""
