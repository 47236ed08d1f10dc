"""The section ``clouds`` of the configuration: what each provider is told, as frozen values.

Units are those of ``config``. No credentials are in here: each provider has its own place for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct, field

from slurm_elastic.config.access import Who
from slurm_elastic.config.numbers import (
    Count,
    Cpus,
    Mebibytes,
    Seconds,
    SlurmSeconds,
    SuspendSeconds,
)
from slurm_elastic.config.policies import CloudPolicies
from slurm_elastic.config.requirements import KnownType
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.policies.launch.boots import given_up_after

ONE_ZONE = "default"
"""The one zone of a cloud whose scheduler chooses by itself."""


class CloudSettings(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="provider"
):
    """The settings of every cloud. ``partition`` defaults to ``name``; ``node_address`` says who
    tells slurmctld a node's address: slurmd's own registration, or the provider (NAT, 22.05 w/o
    DNS). ``max_booting``: so many machines at most boot at once, the others wait for their turn.
    """

    name: str
    """Change it when it means something else to people; end its machines first, since their tags
    have it.
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
    timeout: Seconds = 30.0
    """Change it when the cloud's API is slow and its answers come later than that."""
    max_booting: Count | None = None
    """Change it when machines that boot at once overload the cloud, an image store or the head."""
    who: Who | None = None
    policies: CloudPolicies = field(default_factory=CloudPolicies)
    suspend_time: SuspendSeconds | None = None
    """Change it when an idle machine of this cloud costs more or less than one elsewhere."""
    resume_timeout: SlurmSeconds | None = None
    """Change it when machines of this cloud boot more slowly or faster than others."""
    suspend_timeout: SlurmSeconds | None = None
    """Change it when machines of this cloud need longer to end than others."""

    needs_types: ClassVar[bool] = False
    """Whether its pools have to say which of its types they take."""
    has_images: ClassVar[bool] = False
    """Whether its pools may choose an image."""
    shows_console: ClassVar[bool] = True
    """Whether it shows what its machines print."""
    by_user_data: ClassVar[bool] = False
    """Whether its machines are told how to join by user data; others share a host or an image."""
    unusable: ClassVar[str] = ""
    """Why nothing can be done with it, where its kind cannot be used; for after its name."""
    can_stop: ClassVar[bool] = False
    """Whether its machines can be stopped, and started again."""
    tells_launch: ClassVar[bool] = True
    """Whether machines are told facts of their launch that no other launch's machines are told."""
    reach_advice: ClassVar[str] = "look at the endpoint, the network and the cloud's own state"
    """Doctor's advice where it does not answer."""

    @property
    def catalogued(self) -> bool:
        """Whether types and prices that the file leaves out are asked of the cloud."""
        return bool(getattr(self, "catalogue", False))

    @property
    def type_class(self) -> type[InstanceType]:
        """The class of its types."""
        return InstanceType

    @property
    def provider(self) -> str:
        """The name of its kind, as the key ``provider`` has it."""
        return str(self.__struct_config__.tag)

    @property
    def partition_name(self) -> str:
        """The Slurm partition of this cloud."""
        return self.partition or self.name

    @property
    def shapes(self) -> Mapping[str, InstanceType]:
        """Its types of machine by name; none where a machine is whatever its pool says."""
        types: Mapping[str, InstanceType] = getattr(self, "types", {})
        return types

    @property
    def flat_price(self) -> float | None:
        """The price of every machine ($/h), where types have no prices of their own."""
        return None

    @property
    def markets(self) -> frozenset[Market]:
        """The markets that it sells on."""
        if self.location is Location.ON_PREMISES:
            return frozenset({Market.RESERVED, Market.ON_DEMAND})
        return frozenset(Market)

    @property
    def known_zones(self) -> tuple[str, ...]:
        """All that it has; none where the cloud itself tells."""
        return (ONE_ZONE,)

    @property
    def room(self) -> int | None:
        """How many machines it can have by its own settings."""
        return None

    @property
    def metadata(self) -> str:
        """The URL of the service that tells a machine of its notices; empty without one."""
        return ""

    @property
    def clock_url(self) -> str | None:
        """A URL of it whose answers have a date, by which doctor compares the clocks."""
        return None

    def shares_place(self, other: CloudSettings) -> bool:
        """Whether that cloud may see machines of this one: one account, front end or host."""
        return other.name == self.name

    def wrong_image_id(self, text: str) -> str | None:
        """The expected form, where the value cannot be an id of its images."""
        del text
        return None


class UnusableCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cloud whose kind cannot be used, as far as all clouds are alike: its pools and limits stay,
    the other clouds go on. Its own keys are not looked at.
    """

    any_keys: ClassVar[bool] = True

    @property
    def known_zones(self) -> tuple[str, ...]:
        """Nobody knows."""
        return ()


def without_spot(location: Location) -> frozenset[Market]:
    """The markets of a cloud whose machines nobody takes back."""
    on_premises = {Market.RESERVED} if location is Location.ON_PREMISES else set()
    return frozenset({Market.ON_DEMAND} | on_premises)


class InstanceType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of a machine of this type where no provider tells it; ``price``: on-demand."""

    cpus: Cpus
    """Change it when the type has another number of CPUs, as slurmd counts them."""
    memory: Mebibytes
    """Change it when the type has another size of memory."""
    price: float
    """Change it when the price on demand changes (own machines: power, depreciation)."""
    gres: dict[str, Count] = field(default_factory=dict)
    """Change it when the type has GPUs or other devices."""


def typed(name: str, kind: InstanceType) -> KnownType:
    """A type of the file, as catalogues have types."""
    gres = dict(kind.gres)
    return KnownType(name=name, cpus=kind.cpus, memory=kind.memory, price=kind.price, gres=gres)


LISTING_LAG = 60.0
"""Seconds for which a fresh machine may be missing from the lists of a cloud that takes no token
with an order. nova and oned list what their database holds, whose replicas lag for seconds at most.
But an order that we have given up may be on its way for as long as what is in between waits for an
answer: 60 s by default in oslo.messaging (``rpc_response_timeout``) and nginx
(``proxy_read_timeout``).
"""


def default_listing_lag(resume_timeout: float) -> float:
    """The default of ``listing_lag`` (s): at most half of the time after which a
    node is given up, so that an order that was lost is repeated before.
    """
    return round(min(LISTING_LAG, given_up_after(resume_timeout) / 2), 2)
