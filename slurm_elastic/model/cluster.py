"""The cluster's values: pools, offers, limits, launches, machines, and clouds' warnings.

Units: money in US dollars, prices in dollars per machine-hour, memory in MiB, time in seconds
(points in time as Unix time), time limits in minutes if Slurm uses minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct, field

from slurm_elastic.base.billing import billed_dollars, paid_seconds
from slurm_elastic.model.boot_image import ImageChoice, Replacement
from slurm_elastic.model.machine_options import NO_OPTIONS, MachineOptions
from slurm_elastic.model.max_price import MaxPrice
from slurm_elastic.model.reserved import Held

if TYPE_CHECKING:
    # Not at run time: programs that run as root on machines load no causes.
    from slurm_elastic.model.causes.refusals import NoSpot


class Location(StrEnum):
    """Where a cloud's machines are. On-premises machines are used before public ones."""

    ON_PREMISES = "on-premises"
    PUBLIC = "public"


class Market(StrEnum):
    """How a machine is paid for."""

    RESERVED = "reserved"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class Pool(Struct, frozen=True, kw_only=True):
    """Equal nodes of one cloud, as slurm.conf describes them.

    ``real_memory``: Slurm's RealMemory (MiB), which every instance type of the pool must leave for
    jobs. ``instance_types``, ``zones``, ``markets``: the offers that the pool may use; empty zones
    mean all zones of the cloud. ``on_demand_nodes``: so many nodes, the last ones, never have spot
    machines. ``max_price``: $/h of any offer, or of spot machines alone.
    ``max_age``: maximum age of a machine (s).
    ``interruption_loss``: time lost when the cloud takes a machine (s): the work since the last
    checkpoint, and the restart. ``partial_jobs``: keep machines although their job did not get all
    its nodes. ``max_booting``: maximum number of machines that boot at once. ``stopped``: so many
    idle machines are stopped instead of ended, at ``stopped_price`` ($/h) each. ``machine``: disks,
    network and placement of its machines. ``replacement``: whether a new image replaces machines,
    of which at most ``max_unavailable`` leave or boot at a time.
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
    on_demand_nodes: int = 0
    max_price: float | MaxPrice | None = None
    max_nodes: int | None = None
    max_age: float | None = None
    interruption_loss: float = 1800.0
    partial_jobs: bool = False
    max_booting: int | None = None
    image: ImageChoice | None = None
    weight: int = 1
    stopped: int = 0
    stopped_price: float = 0.0
    machine: MachineOptions = NO_OPTIONS
    replacement: Replacement = Replacement.BY_HAND
    max_unavailable: int = 1

    @property
    def spot_nodes(self) -> tuple[str, ...]:
        """The nodes that may have spot machines."""
        if Market.SPOT not in self.markets:
            return ()
        return self.nodes[: max(len(self.nodes) - self.on_demand_nodes, 0)]

    @property
    def steady_nodes(self) -> int:
        """How many nodes never have spot machines."""
        return len(self.nodes) - len(self.spot_nodes)

    def highest_price(
        self, market: Market, instance_type: str, on_demand_price: float | None
    ) -> float | None:
        """The highest price ($/h, with disks) of an offer that the pool uses. None: no bound.
        ``on_demand_price``: of the same machine, with disks; None if it is not known.
        """
        if not isinstance(self.max_price, MaxPrice):
            return self.max_price
        if market is not Market.SPOT:
            return None
        return self.max_price.of_type(instance_type, on_demand_price)

    def bid(self, offer: Offer) -> float | None:
        """The bid ($/h, as clouds publish spot prices) for a spot machine of that offer. None if
        the pool has no highest price: then the cloud's own rule decides.

        Providers send it, checkpoint policies compare prices with it, and the simulator loses
        machines by it.
        """
        on_demand_price = offer.on_demand_price
        highest = self.highest_price(Market.SPOT, offer.instance_type, on_demand_price)
        if highest is None:
            return None
        # The cloud never charges more for spot than its on-demand price, so a higher bid means the
        # same to it, and a threshold half way to that bid would mean nothing. If only on-demand
        # machines have a discount, a spot machine above their price is no bargain.
        if on_demand_price is not None:
            highest = min(highest, on_demand_price)
        return offer.published(highest)


def offer_key_of(
    cloud: str, instance_type: str, zone: str, market: Market, reservation: str
) -> str:
    """Return the key of an offer: ``cloud/type/zone/market``, and ``:reservation`` if the offer is
    of one. Two reservations may have one type in one zone, and one may be full while the other has
    free machines.
    """
    suffix = f":{reservation}" if reservation else ""
    return f"{cloud}/{instance_type}/{zone}/{market}{suffix}"


class Offer(Struct, frozen=True, kw_only=True, dict=True):
    """An offer of a cloud: an instance type in a zone on a market, with its present price ($/h).

    ``memory``: MiB. ``on_demand_price``: the on-demand price of the same machine ($/h), if the
    cloud has one. ``free``: the number of available machines, None if the cloud does not report it.
    ``free_reason``: the cloud's text about ``free``. ``interruption_rate``: interruptions per hour.
    ``reference_price``: the highest price ($/h) that the cloud itself publishes for this type, to
    check a configured price. ``reference``: which price that is (catalogue, spot in a zone).
    ``held``: the reservation that covers the machine; ``price`` is then the true price of an hour
    on it. ``disk_price``: the part of all these prices that is for the disks and fees ($/h), which
    no reservation covers. ``paid_share``: the part of the cloud's published price that the site
    pays. ``highest_spot``: what the site pays if the published spot price rises to the published
    on-demand price; None without discounts.
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
    held: Held | None = None
    disk_price: float = 0.0
    paid_share: float = 1.0
    highest_spot: float | None = None

    @cached_property
    def key(self) -> str:
        """The key of cool-downs and prices: see ``offer_key_of``."""
        reservation = "" if self.held is None else self.held.name
        return offer_key_of(self.cloud, self.instance_type, self.zone, self.market, reservation)

    @cached_property
    def worst_price(self) -> float:
        """The highest price ($/h) that the machine could reach. A spot price never rises over the
        on-demand price, so this is the maximum of the known prices.
        """
        possible = self.on_demand_price, self.reference_price, self.highest_spot
        return max(self.price, *(price or 0.0 for price in possible))

    @property
    def marginal_price(self) -> float:
        """What a machine-hour adds to the bill ($/h). The rest of a reservation's price is paid in
        any case.
        """
        return self.price if self.held is None else self.held.marginal_price + self.disk_price

    @property
    def capped_price(self) -> float:
        """The price ($/h) that a new machine takes from the caps. The fixed price of a reservation
        counts there from its begin to its end, whether machines use it or not.
        """
        return self.worst_price if self.held is None else self.marginal_price

    def paid(self, published: float) -> float:
        """The price ($/h) to the site while the cloud publishes that price for the offer's type."""
        return published * self.paid_share + self.disk_price

    def published(self, paid: float) -> float:
        """The price ($/h) that the cloud publishes for its type if the site pays ``paid``."""
        return (paid - self.disk_price) / self.paid_share

    @property
    def covered_price(self) -> float:
        """The part of the price that a reservation covers ($/h)."""
        return self.price - self.disk_price


def worst_price(instance: Instance, offers: Sequence[Offer]) -> float:
    """The highest price ($/h) that a machine of a launch on these offers may reach."""
    # If no offer matches, the machine may be of any of them.
    bought = [o for o in offers if o.key == instance.offer_key] or offers
    return max(instance.price, *(offer.worst_price for offer in bought))


class NodeRequest(Struct, frozen=True, kw_only=True):
    """Nodes of one pool that Slurm wants to power up for ``jobs``. ``id``: the correlation id.

    ``job_nodes``: by job, the nodes that it waits for. ``owners``: by job, its ``account`` and
    ``user``. Both contain only the known jobs. ``needs_s``: for so long (s) the machines must stay
    after they have registered, because a job may run so long and cannot be saved. ``job_needs_s``:
    the same for each job whose time limit Slurm has reported, if a reservation ends its machines.
    ``least_by_node``: by node that a growth policy has started, how many of the machines that were
    started with it are of use to a job. ``no_spot``: why no spot
    machine is bought for these nodes; None if it is allowed.
    """

    id: str
    pool: Pool
    nodes: tuple[str, ...]
    jobs: tuple[int, ...] = ()
    job_nodes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    owners: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    needs_s: float = 0.0
    job_needs_s: Mapping[int, float] = field(default_factory=dict)
    least_by_node: Mapping[str, int] = field(default_factory=dict)
    no_spot: NoSpot | None = None


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
    """The paid machines (live instances and open launch intents), counted per scope.

    Keys of ``nodes``: ``""`` (the cluster), ``cloud:NAME``, ``pool:NAME``, ``market:MARKET``,
    ``cloud:NAME:MARKET``, ``reservation:CLOUD/NAME``. Keys of ``dollars_per_hour``: ``""``,
    ``cloud:NAME`` and ``reservation:CLOUD/NAME``. It counts each machine at its worst price
    (on-demand if the cloud has an on-demand price), and each reservation at its fixed price. A
    machine on a reservation counts with what it adds to that; its true price counts in the scope of
    the reservation.
    """

    nodes: Mapping[str, int] = field(default_factory=dict)
    dollars_per_hour: Mapping[str, float] = field(default_factory=dict)


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """One launch call. ``generation`` is its name and idempotency token, and a tag of its machines.

    The call asks for a machine for each of ``nodes``. Fewer machines are a partial launch, and none
    is an error. The ``node`` of each returned machine says which node it serves. ``alternatives``:
    offers of the same cloud and market that may serve any node instead of ``offer``, best first.
    Only a ``model.protocols.Chooser`` gets alternatives. ``is_repeated``: the same call may have
    been made before, perhaps by an earlier process. ``owner``: the ``account`` and ``user`` of the
    jobs if all have the same. ``enrol``: the word from which the machines' enrolment keys are
    derived (``features.enrolment``). ``least``: fewer machines are of no use to the jobs, so a
    cloud that can refuse a smaller launch as a whole must do so.
    """

    generation: str
    pool: Pool
    nodes: tuple[str, ...]
    offer: Offer
    jobs: tuple[int, ...] = ()
    alternatives: tuple[Offer, ...] = ()
    enrol: str = ""
    is_repeated: bool = False
    owner: dict[str, str] = field(default_factory=dict)
    least: int = 1

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All offers that the machines may come from."""
        return (self.offer, *self.alternatives)


class InstanceState(StrEnum):
    """A machine's state in its cloud. STOPPED: the machine is off and keeps its disk."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATED = "terminated"


STANDING = (InstanceState.PENDING, InstanceState.RUNNING)
"""The machine serves its node, or soon will."""
OFF = (InstanceState.STOPPING, InstanceState.STOPPED)
"""The machine serves no node. It may be started again or ended."""


class EndAnswer(StrEnum):
    """A cloud's answer about one machine that it must end."""

    ENDED = "ended"
    """The cloud has accepted the end of our machine."""
    GONE = "gone"
    """The cloud has no machine with this id, or has it as ended. It was asked about this id alone:
    a list that lacks the machine proves nothing.
    """
    NOT_OURS = "not-ours"
    """The cloud has a machine with this id that does not bear our tags. It was not ended."""


class Instance(Struct, frozen=True, kw_only=True, dict=True):
    """One machine. ``node`` and ``generation`` come from its tags. ``price``: $/h. ``launched``:
    Unix time. ``id`` is unique within the cloud, also after the machine's end. ``reservation``: the
    name of the reservation on which it was launched; empty if on none. ``image``: the id of the
    image that it started from, as its cloud lists it; empty if the cloud does not say it.
    ``is_price_known``: False only in a provider's own list, for a machine whose tags do not say its
    price. ``sanitize_listing`` then gives it the configured price. ``public_address``: a public or
    floating address that leads to it, for hosts outside of the cloud. The ledger keeps none of
    these three.
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
    reservation: str = ""
    image: str = ""
    public_address: str | None = None
    is_price_known: bool = True

    @cached_property
    def offer_key(self) -> str:
        """The ``Offer.key`` this machine was bought from."""
        return offer_key_of(
            self.cloud, self.instance_type, self.zone, self.market, self.reservation
        )


class Lease(Struct, frozen=True, kw_only=True):
    """The paid time of an instance from ``start`` to ``end`` (Unix time; None: it has no end
    yet), at ``price`` ($/h). ``increment_s``: how many seconds are billed at a time.
    """

    instance: str
    node: str
    start: float
    end: float | None
    price: float
    increment_s: int = 1

    def cost(self, now: float) -> float:
        """The cost until ``now`` ($), by the rule of ``base.billing``."""
        seconds = (now if self.end is None else self.end) - self.start
        return billed_dollars(self.price, paid_seconds(seconds, self.increment_s))


class NoticeKind(StrEnum):
    """The event that a warning announces. INTERRUPTION and REBALANCE come from a cloud, or from a
    person in its place. DEPARTURE comes from an operator's drain, replacement or migration.
    """

    INTERRUPTION = "interruption"
    REBALANCE = "rebalance"
    DEPARTURE = "departure"


class Notice(Struct, frozen=True, kw_only=True):
    """A warning about an instance. ``seen``, ``deadline``: Unix time; None without a deadline.

    If a person or an agent warns about a node, ``node`` is set instead of ``instance``, and
    ``reason`` is their text.
    """

    instance: str
    kind: NoticeKind
    seen: float
    deadline: float | None = None
    node: str = ""
    reason: str = ""
