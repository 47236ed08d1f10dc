"""EC2's answers as our values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.tags import FleetNodeNames, price_text
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.tags import price_of

Record = Mapping[str, Any]
"""An instance or another item of an answer, as boto3 gives it."""

STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}
MARKETS = {"": Market.ON_DEMAND, "spot": Market.SPOT}
"""By ``InstanceLifecycle``, which machines on demand have not."""
READ = (
    "AmiLaunchIndex",
    "InstanceId",
    "InstanceLifecycle",
    "InstanceType",
    "Ipv6Address",
    "LaunchTime",
    "Placement",
    "PrivateIpAddress",
    "State",
    "StateReason",
    "Tags",
)
READ_OF_PLACEMENT = ("AvailabilityZone",)
"""All that is read here of a machine; the client knows no other (client)."""


def tags(record: Record) -> dict[str, str]:
    """The tags of a record."""
    return {tag["Key"]: tag["Value"] for tag in record.get("Tags", ())}


def instances(records: Iterable[Record], settings: AwsCloud) -> Sequence[Instance]:
    """The records, which are of machines of this cloud's, as machines."""
    names = FleetNodeNames()
    return [_instance(r, settings, names) for r in records]


def _instance(record: Record, settings: AwsCloud, names: FleetNodeNames) -> Instance:
    tagged = tags(record)
    kind, zone = record["InstanceType"], record.get("Placement", {}).get("AvailabilityZone", "")
    return Instance(
        id=record["InstanceId"],
        cloud=settings.name,
        node=names.node(tagged, record.get("AmiLaunchIndex", 0)),
        generation=tagged.get(machine_tags.GENERATION, ""),
        instance_type=kind,
        zone=zone,
        market=market_of(record),
        price=price_of(price_text(tagged, kind, zone), kind, settings.types),
        state=_state(record),
        launched=record["LaunchTime"].timestamp(),
        # In a subnet of IPv6 alone it has no other.
        address=record.get("PrivateIpAddress") or record.get("Ipv6Address") or None,
    )


def market_of(record: Record) -> Market:
    """How a machine is paid for; where EC2 names another way (a capacity block, another one of
    tomorrow), it was paid or promised before: neither spot nor on demand.
    """
    return MARKETS.get(record.get("InstanceLifecycle") or "", Market.RESERVED)


def _state(record: Record) -> InstanceState:
    """One that EC2 takes back is lost from then on, and no longer paid."""
    name = record["State"]["Name"]
    taken = (record.get("StateReason") or {}).get("Code", "").startswith("Server.")
    if name == "shutting-down" and taken:
        return InstanceState.TERMINATED
    return STATES.get(name, InstanceState.STOPPING)
