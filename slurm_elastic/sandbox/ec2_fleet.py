"""CreateFleet of type instant, which moto does only for one type: several types and zones, stock,
faults and prices each, partial fulfilment, what each lacked, client tokens.

EC2's choice is imitated: ``price-capacity-optimized`` takes what can serve all first, then the
cheapest; the prioritized ones go by priority; ``lowest-price`` on demand takes the order given.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.sandbox.ec2_api import Call, answer_xml, elements
from slurm_elastic.sandbox.ec2_faults import Ec2Error, Target

if TYPE_CHECKING:
    from slurm_elastic.sandbox.ec2_cloud import EmulatedCloud

_NO_CAPACITY = Ec2Error(
    "InsufficientInstanceCapacity", 500, "There is no capacity available that matches your request."
)


class Override(Struct, frozen=True, kw_only=True):
    """One type and zone that the fleet may use, as it was asked for."""

    template: Mapping[str, str]
    fields: Mapping[str, str]
    target: Target
    price: float

    @property
    def priority(self) -> float:
        """Smaller goes first; without one it goes last."""
        return float(self.fields.get("Priority", "inf"))


class Fleet(Struct, frozen=True, kw_only=True):
    """The answer: machines and errors by override."""

    id: str
    machines: tuple[tuple[Override, tuple[str, ...]], ...]
    errors: tuple[tuple[Override, Ec2Error], ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """All its machines."""
        return tuple(id_ for _, ids in self.machines for id_ in ids)


class Shop(Protocol):
    """The front's part in a launch."""

    cloud: EmulatedCloud

    def refused(self, target: Target, call: Call) -> Ec2Error | None:
        """Why a target cannot be had now whatever the stock: a fault, a bound on the price."""
        ...

    def started(self, call: Call, target: Target, count: int) -> Sequence[str]:
        """Start so many machines by a RunInstances; their ids."""
        ...


def create(shop: Shop, call: Call, now: float) -> Fleet:
    """Serve a CreateFleet. Ec2Error-s of single overrides are in the fleet."""
    wanted = int(call.params["TargetCapacitySpecification.TotalTargetCapacity"])
    overrides = _in_order(shop, call, list(_overrides(shop, call, now)), wanted)
    machines: list[tuple[Override, tuple[str, ...]]] = []
    errors: list[tuple[Override, Ec2Error]] = []
    left = wanted
    for override in overrides:
        run = run_call(shop.cloud, call, override)
        error = shop.refused(override.target, run)
        free = shop.cloud.free(override.target) if error is None else 0
        count = left if free is None else min(left, free)
        if count < left:
            errors.append((override, error or _NO_CAPACITY))
        if count and count >= _minimum(call):
            machines.append((override, tuple(shop.started(run, override.target, count))))
            left -= count
        if not left:
            break
    return Fleet(id=f"fleet-{uuid.uuid4()}", machines=tuple(machines), errors=tuple(errors))


def unknown_template(shop: Shop, call: Call) -> Ec2Error | None:
    """The answer where there is no such launch template."""
    name = call.params.get(f"{_SPEC}.LaunchTemplateName", "")
    if shop.cloud.template(call.region, name) is not None:
        return None
    text = f"The specified launch template, with template name {name}, does not exist."
    return Ec2Error("InvalidLaunchTemplateName.NotFoundException", 400, text)


_CONFIG = "LaunchTemplateConfigs.1"
_SPEC = f"{_CONFIG}.LaunchTemplateSpecification"


def _minimum(call: Call) -> int:
    kinds = ("SpotOptions", "OnDemandOptions")
    return max(int(call.params.get(f"{kind}.MinTargetCapacity", 0)) for kind in kinds)


def _market(call: Call) -> str:
    return call.params.get("TargetCapacitySpecification.DefaultTargetCapacityType", "on-demand")


def _overrides(shop: Shop, call: Call, now: float) -> Iterator[Override]:
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
        target = Target(
            action=call.action, market=_market(call), type=fields["InstanceType"], zone=zone
        )
        quote = shop.cloud.prices.quote(target.type, zone, now)
        yield Override(
            template={"LaunchTemplateName": name, "Version": call.params[f"{_SPEC}.Version"]},
            fields=fields,
            target=target,
            price=quote.price if quote else float("inf"),
        )


def _in_order(shop: Shop, call: Call, overrides: list[Override], wanted: int) -> list[Override]:
    market = "Spot" if _market(call) == "spot" else "OnDemand"
    strategy = call.params.get(f"{market}Options.AllocationStrategy", "lowest-price")
    if "prioritized" in strategy:
        return sorted(overrides, key=lambda o: o.priority)
    # EC2 would take the cheapest, but only spot prices are known here.
    if market == "OnDemand":
        return overrides

    def short(override: Override) -> bool:
        free = shop.cloud.free(override.target)
        return free is not None and free < wanted

    return sorted(overrides, key=lambda o: (short(o), o.price))


def run_call(cloud: EmulatedCloud, call: Call, override: Override) -> Call:
    """The RunInstances that an override comes to."""
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
    }
    if override.target.market == "spot":
        params["InstanceMarketOptions.MarketType"] = "spot"
        if "MaxPrice" in override.fields:
            params["InstanceMarketOptions.SpotOptions.MaxPrice"] = override.fields["MaxPrice"]
    return replace(call, action="RunInstances", params={**params, **_tags(call, data)})


def _tags(call: Call, data: Mapping[str, Any]) -> dict[str, str]:
    """The tags of the call and, for the spot requests, of the template, as RunInstances has them:
    numbered without a gap, and none of a fleet.
    """
    given = [f"TagSpecification.{n}." for n in range(1, 10)]
    kinds = [(call.params.get(f"{prefix}ResourceType"), prefix) for prefix in given]
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


def created_xml(fleet: Fleet) -> bytes:
    """The answer to CreateFleet."""
    return answer_xml("CreateFleet", elements(fleetId=fleet.id) + _contents(fleet))


def described_xml(fleets: Sequence[Fleet]) -> bytes:
    """The answer to DescribeFleets."""
    items = "".join(
        f"<item>{elements(fleetId=f.id, type='instant', fleetState='active')}{_contents(f)}</item>"
        for f in fleets
    )
    return answer_xml("DescribeFleets", f"<fleetSet>{items}</fleetSet>")


def _contents(fleet: Fleet) -> str:
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
