"""Converts EC2's answers into our values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.tags import FleetNodeNames, price_text
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.machine_tags import reservation_of

Record = Mapping[str, Any]
"""An instance or another item of an answer, as boto3 returns it."""

STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}
MARKETS = {"": Market.ON_DEMAND, "spot": Market.SPOT}
"""The market of each ``InstanceLifecycle``. On-demand machines have none."""
READ = (
    "AmiLaunchIndex",
    "ImageId",
    "InstanceId",
    "InstanceLifecycle",
    "InstanceType",
    "Ipv6Address",
    "LaunchTime",
    "Placement",
    "PrivateIpAddress",
    "PublicIpAddress",
    "State",
    "StateReason",
    "Tags",
)
READ_OF_PLACEMENT = ("AvailabilityZone",)
"""These two lists are all the fields of a machine that this module reads; ``client`` removes all
others from botocore's model.
"""


def tags(record: Record) -> dict[str, str]:
    """The tags of a record."""
    return {tag["Key"]: tag["Value"] for tag in record.get("Tags", ())}


def instances(records: Iterable[Record], settings: AwsCloud) -> Sequence[Instance]:
    """The records, which must be of this cloud's machines, as machines."""
    names = FleetNodeNames()
    return [_instance(r, settings, names) for r in records]


def _instance(record: Record, settings: AwsCloud, names: FleetNodeNames) -> Instance:
    tagged = tags(record)
    kind, zone = record["InstanceType"], record.get("Placement", {}).get("AvailabilityZone", "")
    reservation = reservation_of(tagged, kind, settings)
    price = price_in(price_text(tagged, kind, zone))
    return Instance(
        id=record["InstanceId"],
        cloud=settings.name,
        node=names.node(tagged, record.get("AmiLaunchIndex", 0)),
        generation=tagged.get(machine_tags.GENERATION, ""),
        instance_type=kind,
        zone=zone,
        market=Market.RESERVED if reservation else market_of(record),
        price=price or 0.0,
        is_price_known=price is not None,
        state=_state(record),
        launched=record["LaunchTime"].timestamp(),
        # A machine in an IPv6-only subnet has no private IPv4 address.
        address=record.get("PrivateIpAddress") or record.get("Ipv6Address") or None,
        reservation=reservation,
        image=record.get("ImageId", ""),
        public_address=record.get("PublicIpAddress") or None,
    )


def lets_udp_in(rule: Record, port: int) -> bool:
    """Whether a rule of a security group lets UDP to this port in from some network."""
    protocol, networks = rule.get("IpProtocol"), ("IpRanges", "Ipv6Ranges", "PrefixListIds")
    is_udp = protocol == "udp" and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 0)
    return (protocol == "-1" or is_udp) and any(rule.get(key) for key in networks)


def market_of(record: Record) -> Market:
    """The market that a machine was bought on. Any other lifecycle than spot and on-demand (a
    capacity block, or a future one) was paid or promised in advance, so it counts as reserved.
    """
    return MARKETS.get(record.get("InstanceLifecycle") or "", Market.RESERVED)


def _state(record: Record) -> InstanceState:
    """The state of a machine. A machine that EC2 takes back is lost from that moment, and no longer
    paid for.
    """
    name = record["State"]["Name"]
    # Codes that begin with "Server." are EC2's doing (as Server.SpotInstanceTermination); "Client."
    # ones are ours.
    taken_by_ec2 = (record.get("StateReason") or {}).get("Code", "").startswith("Server.")
    if name == "shutting-down" and taken_by_ec2:
        return InstanceState.TERMINATED
    # An unknown state counts as stopping, so that no job is sent there.
    return STATES.get(name, InstanceState.STOPPING)
