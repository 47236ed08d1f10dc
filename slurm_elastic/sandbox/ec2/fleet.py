"""CreateFleet of type instant. moto supports only one instance type; this module adds several types
and zones with stock, faults and prices, partial fulfilment, errors per type, and client tokens.

EC2's choice is imitated: ``price-capacity-optimized`` prefers types that can serve the whole
request, then the cheapest; the prioritized strategies go in order of priority; ``lowest-price`` on
demand uses the order of the request.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.sandbox.ec2.api import Ec2Call, answer_xml, elements
from slurm_elastic.sandbox.ec2.faults import Ec2Error, FaultTarget

if TYPE_CHECKING:
    from slurm_elastic.sandbox.ec2.cloud import EmulatedCloud

_NO_CAPACITY = Ec2Error(
    "InsufficientInstanceCapacity", 500, "There is no capacity available that matches your request."
)


class Override(Struct, frozen=True, kw_only=True):
    """A requested type and zone of a fleet. ``price``: dollars per hour."""

    template: Mapping[str, str]
    fields: Mapping[str, str]
    target: FaultTarget
    price: float

    @property
    def priority(self) -> float:
        """The priority; smaller goes first, and no priority last."""
        return float(self.fields.get("Priority", "inf"))


class FleetAnswer(Struct, frozen=True, kw_only=True):
    """The result: machines and errors per override."""

    id: str
    machines: tuple[tuple[Override, tuple[str, ...]], ...]
    errors: tuple[tuple[Override, Ec2Error], ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all machines of the fleet."""
        return tuple(id_ for _, ids in self.machines for id_ in ids)


class Shop(Protocol):
    """The front's part in a launch."""

    cloud: EmulatedCloud

    def refusal_of(self, target: FaultTarget, call: Ec2Call) -> Ec2Error | None:
        """Return the reason, apart from the stock, why a target is not available now: a fault or
        the maximum price. None if it is available.
        """
        ...

    def start_machines(self, call: Ec2Call, target: FaultTarget, count: int) -> Sequence[str]:
        """Start so many machines by RunInstances. Returns their ids."""
        ...


def create(shop: Shop, call: Ec2Call, now: float) -> FleetAnswer:
    """Carry out CreateFleet. The errors of single overrides are in the result."""
    requested = int(call.params["TargetCapacitySpecification.TotalTargetCapacity"])
    overrides = _in_order(shop, call, list(_overrides(shop, call, now)), requested)
    machines: list[tuple[Override, tuple[str, ...]]] = []
    errors: list[tuple[Override, Ec2Error]] = []
    remaining = requested
    for override in overrides:
        run = run_call(shop.cloud, call, override)
        error = shop.refusal_of(override.target, run)
        free = shop.cloud.free(override.target) if error is None else 0
        count = remaining if free is None else min(remaining, free)
        if count < remaining:
            errors.append((override, error or _NO_CAPACITY))
        if count and count >= _minimum(call):
            machines.append((override, tuple(shop.start_machines(run, override.target, count))))
            remaining -= count
        if not remaining:
            break
    return FleetAnswer(id=f"fleet-{uuid.uuid4()}", machines=tuple(machines), errors=tuple(errors))


def unknown_template(shop: Shop, call: Ec2Call) -> Ec2Error | None:
    """Return EC2's error if the launch template does not exist, else None."""
    name = call.params.get(f"{_SPEC}.LaunchTemplateName", "")
    if shop.cloud.template(call.region, name) is not None:
        return None
    text = f"The specified launch template, with template name {name}, does not exist."
    return Ec2Error("InvalidLaunchTemplateName.NotFoundException", 400, text)


_CONFIG = "LaunchTemplateConfigs.1"
_SPEC = f"{_CONFIG}.LaunchTemplateSpecification"


def _minimum(call: Ec2Call) -> int:
    kinds = ("SpotOptions", "OnDemandOptions")
    return max(int(call.params.get(f"{kind}.MinTargetCapacity", 0)) for kind in kinds)


def _market(call: Ec2Call) -> str:
    return call.params.get("TargetCapacitySpecification.DefaultTargetCapacityType", "on-demand")


def _overrides(shop: Shop, call: Ec2Call, now: float) -> Iterator[Override]:
    name = call.params[f"{_SPEC}.LaunchTemplateName"]
    for n in range(1, len(call.params)):
        prefix = f"{_CONFIG}.Overrides.{n}."
        fields = {k.removeprefix(prefix): v for k, v in call.params.items() if k.startswith(prefix)}
        if not fields:
            return
        place = {k: fields[k] for k in ("SubnetId",) if k in fields}
        if "AvailabilityZone" in fields:
            place["Placement.AvailabilityZone"] = fields["AvailabilityZone"]
        zone = shop.cloud.zone_of(replace(call, params=place))
        target = FaultTarget(
            action=call.action, market=_market(call), type=fields["InstanceType"], zone=zone
        )
        quote = shop.cloud.prices.quote(target.type, zone, now)
        yield Override(
            template={"LaunchTemplateName": name, "Version": call.params[f"{_SPEC}.Version"]},
            fields=fields,
            target=target,
            price=quote.price if quote else float("inf"),
        )


def _in_order(
    shop: Shop, call: Ec2Call, overrides: list[Override], requested: int
) -> list[Override]:
    market = "Spot" if _market(call) == "spot" else "OnDemand"
    strategy = call.params.get(f"{market}Options.AllocationStrategy", "lowest-price")
    if "prioritized" in strategy:
        return sorted(overrides, key=lambda o: o.priority)
    # EC2 would take the cheapest, but only spot prices are known here.
    if market == "OnDemand":
        return overrides

    def is_short(override: Override) -> bool:
        free = shop.cloud.free(override.target)
        return free is not None and free < requested

    return sorted(overrides, key=lambda o: (is_short(o), o.price))


def run_call(cloud: EmulatedCloud, call: Ec2Call, override: Override) -> Ec2Call:
    """Return the RunInstances call for an override."""
    data: Mapping[str, Any] = (
        cloud.template(call.region, override.template["LaunchTemplateName"]) or {}
    )
    params = {
        "Action": "RunInstances",
        "Version": call.params.get("Version", "2016-11-15"),
        "ImageId": data.get("ImageId", ""),
        "UserData": data.get("UserData", ""),
        "InstanceType": override.target.type,
        "Placement.AvailabilityZone": override.target.zone,
        **_hardware(data),
    }
    if override.target.market == "spot":
        params["InstanceMarketOptions.MarketType"] = "spot"
        if "MaxPrice" in override.fields:
            params["InstanceMarketOptions.SpotOptions.MaxPrice"] = override.fields["MaxPrice"]
    return replace(call, action="RunInstances", params={**params, **_tags(call, data)})


def _hardware(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the template's placement group and disks as fields of a request."""
    group = data.get("Placement", {}).get("GroupName")
    fields = {"Placement.GroupName": group} if group else {}
    for n, disk in enumerate(data.get("BlockDeviceMappings", ()), 1):
        prefix = f"BlockDeviceMapping.{n}"
        fields[f"{prefix}.DeviceName"] = disk["DeviceName"]
        fields |= {f"{prefix}.Ebs.{key}": str(value) for key, value in disk["Ebs"].items()}
    return fields


def _tags(call: Ec2Call, data: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags for the machines: the call's tags except the fleet's own, and the template's
    tags of spot requests. RunInstances needs their numbers without a gap.
    """
    prefixes = [f"TagSpecification.{n}." for n in range(1, 10)]
    kinds = [(call.params.get(f"{prefix}ResourceType"), prefix) for prefix in prefixes]
    specs = [
        {k.removeprefix(prefix): v for k, v in call.params.items() if k.startswith(prefix)}
        for kind, prefix in kinds
        if kind not in (None, "fleet")
    ]
    specs += [
        {
            "ResourceType": spec["ResourceType"],
            **{f"Tag.{n}.{k}": tag[k] for n, tag in enumerate(spec["Tags"], 1) for k in tag},
        }
        for spec in data.get("TagSpecifications", ())
        if spec["ResourceType"] == "spot-instances-request"
    ]
    return {
        f"TagSpecification.{n}.{k}": v for n, spec in enumerate(specs, 1) for k, v in spec.items()
    }


def created_xml(fleet: FleetAnswer) -> bytes:
    """Return the answer to CreateFleet."""
    return answer_xml("CreateFleet", elements(fleetId=fleet.id) + _contents(fleet))


def described_xml(fleets: Sequence[FleetAnswer]) -> bytes:
    """Return the answer to DescribeFleets."""
    items = "".join(
        f"<item>{elements(fleetId=f.id, type='instant', fleetState='active')}{_contents(f)}</item>"
        for f in fleets
    )
    return answer_xml("DescribeFleets", f"<fleetSet>{items}</fleetSet>")


def _contents(fleet: FleetAnswer) -> str:
    errors = "".join(
        f"<item>{_override_xml(o)}"
        + elements(lifecycle=o.target.market, errorCode=e.code, errorMessage=e.message)
        + "</item>"
        for o, e in fleet.errors
    )
    machines = "".join(
        f"<item>{_override_xml(o)}"
        + elements(lifecycle=o.target.market, instanceType=o.target.type)
        + f"<instanceIds>{''.join(f'<item>{i}</item>' for i in ids)}</instanceIds></item>"
        for o, ids in fleet.machines
    )
    return f"<errorSet>{errors}</errorSet><fleetInstanceSet>{machines}</fleetInstanceSet>"


def _override_xml(override: Override) -> str:
    fields = {k[0].lower() + k[1:]: v for k, v in override.fields.items()}
    template = {k[0].lower() + k[1:]: v for k, v in override.template.items()}
    return (
        "<launchTemplateAndOverrides>"
        f"<launchTemplateSpecification>{elements(**template)}</launchTemplateSpecification>"
        f"<overrides>{elements(**fields)}</overrides></launchTemplateAndOverrides>"
    )
