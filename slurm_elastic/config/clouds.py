"""The section ``clouds``: the settings that all clouds have.

The file has no credentials. Each provider finds them in a place of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field

from slurm_elastic.config.basics.metadata_service import NO_WARNINGS, MetadataService
from slurm_elastic.config.basics.numbers import (
    Count,
    Cpus,
    Mebibytes,
    Seconds,
    SlurmSeconds,
    SuspendSeconds,
)
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.copying import Data, Traffic
from slurm_elastic.config.sections.discounts import Discount
from slurm_elastic.config.sections.policies import CloudPolicies
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.model.reserved import Held
from slurm_elastic.policies.launch.boots import given_up_after

ONE_ZONE = "default"  # the one zone of a cloud whose scheduler chooses by itself


class CloudSettings(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="provider"
):
    """The settings of every cloud. ``node_address``: whether slurmd or the provider reports a
    node's address to slurmctld. At most ``max_booting`` machines boot at a time.
    """

    name: str
    """Change it when it means something else to people; end its machines first, because their tags
    have this name.
    """
    location: Location
    """Change it when a cloud of your own starts to cost money (`public`), or its machines are paid
    already (`on-premises`).
    """
    partition: str | None = None
    """Change it when jobs should name the partition by another word than the cloud's name."""
    limits: Limits = field(default_factory=Limits)
    node_address: str = "registration"
    """Change it when slurmctld cannot resolve machines' names: NAT, or Slurm 22.05 without DNS."""
    api_timeout: Seconds = 30.0
    """Change it when the cloud's API is slow and needs longer for its answers."""
    max_booting: Count | None = None
    """Change it when machines that boot at once overload the cloud, an image store or the head."""
    allow: Who | None = None
    policies: CloudPolicies = field(default_factory=CloudPolicies)
    data: Data = Data.SHARED
    """Change it when the cloud's machines share no file system with the head."""
    traffic: Traffic = field(default_factory=Traffic)
    reservations: tuple[Reservation, ...] = ()
    """Change it when the site buys or ends reserved capacity in this cloud."""
    discounts: tuple[Discount, ...] = ()
    """Change it when a contract changes the site's prices, or a licence costs $/h a machine."""
    suspend_time: SuspendSeconds | None = None
    """Change it when an idle machine of this cloud costs more or less than one elsewhere."""
    resume_timeout: SlurmSeconds | None = None
    """Change it when machines of this cloud boot more slowly or faster than others."""
    suspend_timeout: SlurmSeconds | None = None
    """Change it when machines of this cloud need longer to end than others."""

    zones_are_hosts: ClassVar[bool] = False
    """Whether each zone is one host, so that machines of a zone share its fate and its power."""
    needs_types: ClassVar[bool] = False
    """Whether its pools must say which of its types they use."""
    has_images: ClassVar[bool] = False
    """Whether its pools may choose an image."""
    shows_console: ClassVar[bool] = True
    """Whether it shows the console output of its machines."""
    by_user_data: ClassVar[bool] = False
    """Whether user data tells its machines how to join. Otherwise they share a host or an image."""
    unusable: ClassVar[str] = ""
    """Why its kind cannot be used, to follow the cloud's name. Empty if it can be used."""
    names_images: ClassVar[bool] = False
    """Whether the cloud says from which image each machine started, and from which image a new
    machine would start.
    """
    can_stop: ClassVar[bool] = False
    """Whether its machines can be stopped and started again."""
    tells_launch: ClassVar[bool] = True
    """Whether user data may differ from launch to launch."""
    targets_reservations: ClassVar[bool] = False
    """Whether a launch can name a reservation by its id."""
    refuses_parts: ClassVar[bool] = False
    """Whether it starts none of a launch's machines if it has fewer than ``LaunchSpec.least``."""
    has_spot_prices: ClassVar[bool] = False
    """Whether the cloud reports the history of its spot prices (``CloudKind.spot_prices``)."""
    has_queue: ClassVar[bool] = False
    """Whether its account can read a queue of notices (``CloudKind.queue_client``)."""
    machine_keys: ClassVar[frozenset[str]] = frozenset()
    """The keys of a pool's section ``machine`` that it understands."""

    @property
    def switches_hosts(self) -> bool:
        """Whether hosts of this cloud are switched off while they have no machine. Full hosts and
        empty ones are then better than half-full ones.
        """
        return False

    @property
    def reach_advice(self) -> str:
        """The advice of ``doctor`` if the cloud does not answer."""
        return "look at the endpoint, the network and the cloud's own state"

    @property
    def catalogued(self) -> bool:
        """Whether we ask the cloud for the types and prices that the file leaves out."""
        return bool(getattr(self, "catalogue", False))

    @property
    def type_class(self) -> type[InstanceType]:
        """The class that describes a machine type of this cloud."""
        return InstanceType

    @property
    def provider(self) -> str:
        """The name of its kind, the value of the key ``provider``."""
        return str(self.__struct_config__.tag)

    @property
    def partition_name(self) -> str:
        """The Slurm partition of this cloud."""
        return self.partition or self.name

    @property
    def shapes(self) -> Mapping[str, InstanceType]:
        """Its machine types by name. Empty if a machine has the size that its pool asks for."""
        types: Mapping[str, InstanceType] = getattr(self, "types", {})
        return types

    @property
    def flat_price(self) -> float | None:
        """The price of every machine ($/h), if types have no prices of their own."""
        return None

    @property
    def markets(self) -> frozenset[Market]:
        """The markets on which this cloud sells."""
        if self.location is Location.ON_PREMISES:
            return frozenset({Market.RESERVED, Market.ON_DEMAND})
        return frozenset({Market.SPOT, Market.ON_DEMAND}) | self.reserved_market

    @property
    def reserved_market(self) -> frozenset[Market]:
        """The market of this cloud's reservations. Empty without reservations."""
        return frozenset({Market.RESERVED} if self.reservations else ())

    @property
    def held(self) -> tuple[Held, ...]:
        """Its reservations in the form of the domain model."""
        return tuple(reservation.held(self.name) for reservation in self.reservations)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """All its zones. Empty if only the cloud itself knows them."""
        return (ONE_ZONE,)

    @property
    def room(self) -> int | None:
        """How many machines the cloud can have according to its settings. None if the settings do
        not say.
        """
        return None

    @property
    def metadata(self) -> MetadataService:
        """The metadata service of its machines."""
        return NO_WARNINGS

    @property
    def stop_command(self) -> str:
        """The command by which a machine of this cloud ends itself, if a shutdown does not end its
        bill. Empty: ``join.stop_command``.
        """
        return ""

    @property
    def clock_url(self) -> str | None:
        """A URL of the cloud that answers with a date, so that ``doctor`` can compare clocks."""
        return None

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether the cloud ``other`` may see this cloud's machines: same account, front end or
        host.
        """
        return other.name == self.name

    def wrong_image_id(self, text: str) -> str | None:
        """The expected form of an image's id, if ``text`` does not have it."""
        del text
        return None


class UnusableCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud whose kind cannot be used. Its pools and limits stay, and other clouds continue."""

    any_keys: ClassVar[bool] = True

    @property
    def known_zones(self) -> tuple[str, ...]:
        """Empty, because only the kind knows them."""
        return ()


def without_spot(location: Location) -> frozenset[Market]:
    """The markets of a cloud that never takes machines back."""
    on_premises = {Market.RESERVED} if location is Location.ON_PREMISES else set()
    return frozenset({Market.ON_DEMAND} | on_premises)


class InstanceType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of a type of machine, and its price on demand ($/h)."""

    cpus: Cpus
    """Change it when the type has another number of CPUs, as slurmd counts them."""
    memory: Mebibytes
    """Change it when the type has another size of memory."""
    price: float
    """Change it when the price on demand changes (own machines: power, depreciation)."""
    gres: dict[str, Count] = field(default_factory=dict)
    """Change it when the type has GPUs or other devices."""

    def price_on(self, market: Market) -> float | None:
        """The configured price on a market ($/h). None if the type is not sold there."""
        del market
        return self.price


class SpotType(InstanceType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of a cloud that does not report its spot prices itself."""

    spot_price: float | None = None
    """Change it when the spot price of the type changes. Without it the type is not bought as spot.
    """

    def price_on(self, market: Market) -> float | None:
        """See InstanceType."""
        return self.spot_price if market is Market.SPOT else self.price


def typed(name: str, kind: InstanceType) -> KnownType:
    """A type of the file in the form of a catalogue's type."""
    gres = dict(kind.gres)
    return KnownType(name=name, cpus=kind.cpus, memory=kind.memory, price=kind.price, gres=gres)


LISTING_LAG = 60.0
"""How long (s) a new machine may be missing from the lists of a cloud whose orders take no token.
nova and oned list the content of their databases, and replicas lag by seconds at most. But an order
that we gave up may be on its way for as long as a proxy in between waits for an answer: by default
60 s in oslo.messaging (``rpc_response_timeout``) and nginx (``proxy_read_timeout``).
"""


def default_listing_lag(resume_timeout: float) -> float:
    """Seconds, at most half of the time that a node is waited for, so that a lost order is
    repeated in time.
    """
    return round(min(LISTING_LAG, given_up_after(resume_timeout) / 2), 2)
