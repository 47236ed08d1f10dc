"""EC2 by CreateFleet: the contract once more, and what is a fleet's own."""

from __future__ import annotations

import base64
import gzip
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from providers.aws.bed import AwsBed, FleetBed, between

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec, Market, Pool
from slurm_elastic.model.protocols import Provider, list_tidily
from slurm_elastic.providers.aws import fleet, requests, site_template
from slurm_elastic.providers.aws import tags as machine_tags
from slurm_elastic.providers.aws.provider import AwsProvider
from slurm_elastic.providers.aws.requests import create_fleet
from slurm_elastic.providers.aws.settings import Allocation
from slurm_elastic.providers.base.tags import OWNER
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import (
    UUID,
    DelayedContract,
    FaultContract,
    LaunchContract,
    ScarceContract,
    spec_for,
)

pytestmark = pytest.mark.usefixtures("guarded")

TYPES = {
    "c5.large": InstanceType(cpus=2, memory=4096, price=0.085),
    "m5.large": InstanceType(cpus=2, memory=8192, price=0.096),
}


@pytest.fixture
def bed(ec2: Ec2Control) -> AwsBed:
    return FleetBed(ec2)


@pytest.mark.release
class TestFleetLaunches(LaunchContract): ...


@pytest.mark.release
class TestFleetScarcity(ScarceContract): ...


@pytest.mark.release
class TestFleetFaults(FaultContract):
    def test_a_lost_answer_is_found_by_tag(self, bed: AwsBed) -> None:
        """Its machines get their nodes when the launch is repeated, or minutes later."""
        provider = bed.open()
        spec = spec_for(bed, provider, 3)
        bed.lose_answers()
        with pytest.raises(TransientError):
            provider.launch(spec)
        bed.heal()
        assert {(m.node, m.generation) for m in list_tidily(bed.open())} == {("", "g1")}
        later = AwsProvider(
            bed.settings(), Cluster(name="site", uuid=UUID), clock=lambda: time.time() + 400
        )
        for provider in (later, bed.open()):
            assert {(m.node, m.generation) for m in list_tidily(provider)} == {
                (n, "g1") for n in spec.nodes
            }
        calls = bed.calls("CreateTags")
        assert nodes_of(bed.open().launch(spec)) == list(spec.nodes)
        assert bed.calls("CreateTags") == calls


@pytest.mark.release
class TestFleetDelays(DelayedContract): ...


def wide(bed: AwsBed, count: int, *, market: Market = Market.SPOT, **more: object) -> LaunchSpec:
    """A launch that may use two types in two zones, cheapest first."""
    pool = replace(bed.pool, instance_types=tuple(TYPES), markets=(market,))
    offers = sorted(opened(bed).offers(pool), key=lambda o: (o.price, o.key))
    values = {"generation": "g1", "jobs": (7,), **more}
    return LaunchSpec(
        pool=pool,
        nodes=pool.nodes[:count],
        offer=offers[0],
        alternatives=tuple(offers[1:]),
        **values,
    )


def opened(bed: AwsBed, **more: object) -> AwsProvider:
    provider = bed.open(types=TYPES, **more)
    assert isinstance(provider, AwsProvider)
    return provider


def nodes_of(machines: Sequence[Instance]) -> list[str]:
    return [m.node for m in machines]


def priced(bed: AwsBed) -> None:
    """c5 in a, c5 in b, m5 in a, m5 in b, from cheap to dear."""
    for n, (kind, zone) in enumerate((k, z) for k in TYPES for z in ("us-east-1a", "us-east-1b")):
        bed.control.price(kind, zone, 0.01 + n / 100)


def test_a_fleet_takes_the_next_type_and_zone_where_one_has_too_few(bed: AwsBed) -> None:
    priced(bed)
    bed.control.stock("c5.large/us-east-1a/spot", 2)
    bed.control.stock("c5.large/us-east-1b/spot", 0)
    provider = opened(bed)
    spec = wide(bed, 5)
    machines = provider.launch(spec)
    assert nodes_of(machines) == list(spec.nodes)
    kinds = sorted((m.instance_type, m.zone, m.price) for m in machines)
    # What can serve them all comes first, as EC2 looks at capacity before the price.
    assert kinds == [("m5.large", "us-east-1a", pytest.approx(0.03))] * 5
    assert bed.calls("CreateFleet") == 1
    found = list_tidily(opened(bed))
    assert {(m.id, m.node, m.price, m.offer_key) for m in found} == {
        (m.id, m.node, m.price, m.offer_key) for m in machines
    }


def test_one_launch_spreads_over_what_there_is_and_says_what_each_offer_lacked(bed: AwsBed) -> None:
    priced(bed)
    bed.control.stock("*/us-east-1a/spot", 2)
    bed.control.stock("*/us-east-1b/spot", 1)
    bed.control.fail(
        Fault(kind=FaultKind.QUOTA, type="m5.large", zone="us-east-1b", code="VcpuLimitExceeded")
    )
    provider = opened(bed)
    spec = wide(bed, 8)
    machines = provider.launch(spec)
    assert len(machines) == len(set(nodes_of(machines))) == 3
    assert nodes_of(machines) == list(spec.nodes[:3])
    refusals = provider.refusals("g1")
    assert {key: type(error) for key, error in refusals.items()} == {
        "aws/c5.large/us-east-1a/spot": CapacityError,
        "aws/c5.large/us-east-1b/spot": CapacityError,
        "aws/m5.large/us-east-1a/spot": CapacityError,
        "aws/m5.large/us-east-1b/spot": QuotaError,
    }
    assert refusals["aws/m5.large/us-east-1b/spot"].code == "VcpuLimitExceeded"
    assert provider.refusals("another") == {}


def test_a_fleet_that_gives_nothing_is_refused_with_its_first_offers_reason(bed: AwsBed) -> None:
    bed.control.stock("*/*/*", 0)
    provider = opened(bed)
    with pytest.raises(CapacityError, match="InsufficientInstanceCapacity"):
        provider.launch(wide(bed, 2))
    assert len(provider.refusals("g1")) == 4
    assert bed.calls("CreateFleet") == 1
    assert bed.alive() == set()


def test_credentials_that_are_refused_are_an_auth_error(bed: AwsBed) -> None:
    bed.control.fail(Fault(kind=FaultKind.CAPACITY, code="AuthFailure", type="m5.large"))
    bed.control.stock("c5.large/*/*", 0)
    with pytest.raises(AuthError) as caught:
        opened(bed).launch(wide(bed, 2))
    assert not isinstance(caught.value, DeniedError)


def test_a_right_that_is_missing_for_a_type_is_that_offers_refusal(bed: AwsBed) -> None:
    denied = Fault(kind=FaultKind.CAPACITY, code="UnauthorizedOperation", type="m5.large")
    bed.control.fail(denied)
    bed.control.stock("c5.large/*/*", 0)
    provider = opened(bed)
    with pytest.raises((CapacityError, DeniedError)):
        provider.launch(wide(bed, 2))
    kinds = {key.split("/")[1]: type(why) for key, why in provider.refusals("g1").items()}
    assert kinds == {"c5.large": CapacityError, "m5.large": DeniedError}


def test_a_fleet_that_may_not_be_made_is_denied_for_all_its_offers(bed: AwsBed) -> None:
    code = "UnauthorizedOperation"
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="CreateFleet", code=code))
    provider = opened(bed)
    with pytest.raises(DeniedError, match="no right to ec2:CreateFleet"):
        provider.launch(wide(bed, 2))
    assert provider.refusals("g1") == {}


def test_a_fleet_that_found_ec2_too_busy_is_repeated_under_another_token(bed: AwsBed) -> None:
    throttle = Fault(kind=FaultKind.CAPACITY, code="RequestLimitExceeded", count=4)
    bed.control.fail(throttle)
    provider = opened(bed)
    spec = wide(bed, 3)
    assert len(provider.launch(spec)) == 3
    assert bed.calls("CreateFleet") == 2
    # A daemon that was started anew goes the same way, and finds the same machines.
    assert len(opened(bed).launch(spec)) == 3
    assert len(bed.alive()) == 3
    bed.control.fail(replace(throttle, count=None))
    with pytest.raises(TransientError, match="RequestLimitExceeded"):
        provider.launch(wide(bed, 3, generation="g2"))


def test_places_are_tagged_in_few_calls(bed: AwsBed) -> None:
    provider = opened(bed)
    spec = wide(bed, 120)
    machines = provider.launch(spec)
    assert nodes_of(machines) == list(spec.nodes)
    assert bed.calls("CreateTags") == 2 + 10 + 10
    views = {m.id: m for m in bed.control.state().machines}
    assert {views[m.id].node for m in machines} == set(spec.nodes)
    assert {m.id: m.node for m in list_tidily(opened(bed))} == {m.id: m.node for m in machines}


@pytest.mark.parametrize(
    "calls", [2, *(pytest.param(calls, marks=pytest.mark.release) for calls in (1, 3, 4, 5, 6))]
)
def test_tags_that_are_lost_half_way_are_set_when_the_launch_is_repeated(
    bed: AwsBed, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No machine ever has two nodes, and none is the second of a node."""
    provider = opened(bed)
    spec = wide(bed, 13)
    made = 0

    def failing(real: Callable[[], Any], operation: str, _: object) -> object:
        nonlocal made
        made += operation == "create_tags"
        if operation == "create_tags" and made >= calls:
            raise TransientError("aws", "Lost", "the connection broke")
        return real()

    between(monkeypatch, failing)
    with pytest.raises(TransientError):
        provider.launch(spec)
    early = {m.id: m.node for m in list_tidily(opened(bed)) if m.node}
    monkeypatch.undo()
    machines = opened(bed).launch(spec)
    assert nodes_of(machines) == list(spec.nodes)
    assert early.items() <= {m.id: m.node for m in machines}.items()
    assert len(bed.alive()) == 13


def test_a_launch_that_may_not_tag_is_in_doubt_and_never_lost(bed: AwsBed) -> None:
    provider = opened(bed)
    spec = wide(bed, 2)
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="CreateTags", code="UnauthorizedOperation"))
    with pytest.raises(TransientError, match="cannot be given their nodes"):
        provider.launch(spec)
    assert [m.node for m in list_tidily(provider)] == ["", ""]
    bed.heal()
    assert nodes_of(provider.launch(spec)) == list(spec.nodes)


def test_a_launch_whose_machines_cannot_be_listed_is_in_doubt_and_never_lost(bed: AwsBed) -> None:
    """As where the credentials end just after CreateFleet."""
    provider = opened(bed)
    spec = wide(bed, 2)
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="DescribeInstances", code="RequestExpired"))
    with pytest.raises(TransientError, match="cannot be given their nodes") as raised:
        provider.launch(spec)
    assert raised.value.code == "RequestExpired"
    bed.heal()
    assert nodes_of(provider.launch(spec)) == list(spec.nodes)
    assert len(bed.alive()) == 2


def test_a_launch_by_a_daemon_that_died_before_the_answer_is_found(bed: AwsBed) -> None:
    spec = wide(bed, 4)
    bed.lose_answers()
    with pytest.raises(TransientError):
        opened(bed).launch(spec)
    bed.heal()
    lost = opened(bed)
    assert {(m.node, m.generation) for m in list_tidily(lost)} == {("", "g1")}
    assert nodes_of(lost.launch(spec)) == list(spec.nodes)
    assert len(bed.alive()) == 4


def test_machines_that_are_not_listed_yet_get_their_places(bed: AwsBed) -> None:
    bed.hide_fresh(60)
    provider = opened(bed)
    spec = wide(bed, 12)
    machines = provider.launch(spec)
    assert nodes_of(machines) == list(spec.nodes)
    assert {m.state for m in machines} == {InstanceState.PENDING}
    assert {m.offer_key for m in machines} <= {o.key for o in spec.offers}
    assert list_tidily(provider) == []
    assert nodes_of(provider.launch(spec)) == list(spec.nodes)
    assert bed.alive() == {m.id for m in machines}


def lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 does not know the fleet's first machine for tags, and its lists lack it."""
    lost: set[str] = set()

    def send(real: Callable[[], Any], operation: str, request: Any) -> Any:
        if operation == "create_tags" and not lost.isdisjoint(request["Resources"]):
            text = f"The instance ID '{min(lost)}' does not exist"
            raise InstanceNotFound("aws", "InvalidInstanceID.NotFound", text)
        answer = real()
        if operation == "create_fleet":
            lost.add(answer["Instances"][0]["InstanceIds"][0])
        for reservation in answer.get("Reservations", ()):
            some = reservation["Instances"]
            reservation["Instances"] = [i for i in some if i["InstanceId"] not in lost]
        return answer

    between(monkeypatch, send)


def test_a_machine_that_ec2_does_not_know_keeps_no_other_from_its_node(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was taken at once; the others would end themselves for want of a node."""
    now = time.time()
    cluster = Cluster(name="site", uuid=UUID)
    provider = AwsProvider(bed.settings(types=TYPES), cluster, lambda: now)
    spec = wide(bed, 13, generation=f"g{int(now * 1000):013}-0001")
    lost_at_once(monkeypatch)
    with pytest.raises(TransientError, match="does not know these machines of the fleet yet: i-"):
        provider.launch(spec)
    early = {m.node for m in list_tidily(provider)}
    assert len(early - {""}) == 12
    now += fleet._ABANDONED_AFTER_S + 1
    machines = provider.launch(spec)
    assert {m.node for m in machines} == early, "and the launch does not stay in doubt"


@pytest.mark.release
def test_changed_settings_do_not_start_a_launch_twice(bed: AwsBed) -> None:
    spec = wide(bed, 3)
    first = opened(bed).launch(spec)
    changed = opened(bed, image="ami-99999999")
    assert {m.id: m.node for m in changed.launch(spec)} == {m.id: m.node for m in first}
    assert len(bed.alive()) == 3


def test_a_template_is_made_once_for_one_content(bed: AwsBed) -> None:
    provider = opened(bed)
    provider.launch(wide(bed, 1))
    provider.launch(wide(bed, 1, generation="g2"))
    opened(bed).launch(wide(bed, 1, generation="g3"))
    opened(bed, image="ami-99999999").launch(wide(bed, 1, generation="g4"))
    templates = bed.client.describe_launch_templates()["LaunchTemplates"]
    assert len(templates) == 2
    assert all(t["LaunchTemplateName"].startswith("slurm-elastic-site-pub-") for t in templates)
    tags = {t["Key"]: t["Value"] for t in templates[0]["Tags"]}
    assert tags["slurm-elastic:cluster"] == UUID
    assert bed.calls("CreateLaunchTemplate") == 3


@pytest.mark.release
def test_a_template_that_somebody_deleted_is_made_anew(bed: AwsBed) -> None:
    provider = opened(bed)
    provider.launch(wide(bed, 1))
    for template in bed.client.describe_launch_templates()["LaunchTemplates"]:
        bed.client.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])
    assert len(provider.launch(wide(bed, 1, generation="g2"))) == 1


@pytest.mark.parametrize("named", ["id", "name"])
@pytest.mark.parametrize("kind", [FleetBed, AwsBed])
def test_ours_goes_over_the_sites_own_template(
    ec2: Ec2Control, kind: type[AwsBed], named: str
) -> None:
    bed = kind(ec2)
    made = bed.client.create_launch_template(
        LaunchTemplateName="site", LaunchTemplateData={"ImageId": "ami-old", "KeyName": "admins"}
    )["LaunchTemplate"]
    which = made["LaunchTemplateId"] if named == "id" else "site"
    provider = opened(bed, launch_template=which)
    machine = provider.launch(wide(bed, 1) if kind is FleetBed else spec_for(bed, provider, 1))[0]
    found = bed.client.describe_instances(InstanceIds=[machine.id])["Reservations"][0]["Instances"]
    assert found[0]["ImageId"] == "ami-12345678"
    if kind is FleetBed:
        (ours,) = (
            t for t in bed.client.describe_launch_templates()["LaunchTemplates"]
            if t["LaunchTemplateName"] != "site"
        )  # fmt: skip
        versions = bed.client.describe_launch_template_versions(
            LaunchTemplateId=ours["LaunchTemplateId"]
        )["LaunchTemplateVersions"]
        assert versions[0]["LaunchTemplateData"]["KeyName"] == "admins"
    with pytest.raises(ClientError):
        bed.client.describe_launch_template_versions(LaunchTemplateName="nobody's")


SITE_DATA = {
    "Placement": {"GroupName": "tight"},
    "MetadataOptions": {
        "HttpTokens": "optional", "HttpPutResponseHopLimit": 3, "HttpProtocolIpv6": "enabled",
    },
    "TagSpecifications": [
        {"ResourceType": "instance", "Tags": [{"Key": "cost-centre", "Value": "42"}]},
        {"ResourceType": "spot-instances-request", "Tags": [{"Key": "owner", "Value": "hpc"}]},
    ],
}  # fmt: skip
MERGED = {
    "HttpTokens": "required", "HttpEndpoint": "enabled", "InstanceMetadataTags": "enabled",
    "HttpPutResponseHopLimit": 3, "HttpProtocolIpv6": "enabled",
}  # fmt: skip


def sent(operation: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests of that operation from now on. EC2's answers have fields that no request may."""
    found: list[Any] = []

    def send(real: Callable[[], Any], name: str, request: Any) -> Any:
        answer = real()
        if name == operation:
            found.append(request)
        for version in answer.get("LaunchTemplateVersions", ()):
            data = version["LaunchTemplateData"]
            data.setdefault("MetadataOptions", {})["State"] = "pending"
            data["Operator"] = {"Managed": False, "HiddenByDefault": False}
            for interface in data.get("NetworkInterfaces", ()):
                for address in interface["Ipv6Addresses"]:
                    address["IsPrimaryIpv6"] = True
        return answer

    between(monkeypatch, send)
    return found


@pytest.mark.parametrize(
    ("kind", "operation"), [(FleetBed, "create_launch_template"), (AwsBed, "run_instances")]
)
def test_the_sites_hop_limit_and_placement_group_are_kept_beside_ours(
    ec2: Ec2Control, kind: type[AwsBed], operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 replaces all of a template's parameter by a request's."""
    bed = kind(ec2)
    bed.client.create_placement_group(GroupName="tight", Strategy="cluster")
    bed.client.create_launch_template(LaunchTemplateName="site", LaunchTemplateData=SITE_DATA)
    provider = opened(bed, launch_template="site")
    requested = sent(operation, monkeypatch)
    provider.launch(wide(bed, 1) if kind is FleetBed else spec_for(bed, provider, 1))
    data = requested[0].get("LaunchTemplateData", requested[0])
    assert data["MetadataOptions"] == MERGED
    assert data["Placement"]["GroupName"] == "tight"
    if kind is FleetBed:
        tags = {t["ResourceType"]: {x["Key"] for x in t["Tags"]} for t in data["TagSpecifications"]}
        assert tags["instance"] == {"cost-centre"}
        assert tags["spot-instances-request"] > {"owner", "slurm-elastic:cluster"}
        assert len(tags) == len(data["TagSpecifications"]), "no kind of resource twice"


def test_our_template_repeats_no_field_that_only_answers_have(
    ec2: Ec2Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """botocore refuses to send such a request, and the launch stayed in doubt."""
    bed = FleetBed(ec2)
    interface = {"DeviceIndex": 0, "Ipv6Addresses": [{"Ipv6Address": "fd00::7"}]}
    data = {"KeyName": "admins", "NetworkInterfaces": [interface]}
    bed.client.create_launch_template(LaunchTemplateName="site", LaunchTemplateData=data)
    requested = sent("create_launch_template", monkeypatch)
    assert len(opened(bed, launch_template="site").launch(wide(bed, 1))) == 1
    ours = requested[0]["LaunchTemplateData"]
    assert ours["NetworkInterfaces"] == [interface]
    assert ours["KeyName"] == "admins"
    assert "Operator" not in ours


def test_a_template_that_may_not_be_read_costs_no_launch(
    ec2: Ec2Control, caplog: pytest.LogCaptureFixture
) -> None:
    bed = AwsBed(ec2)
    bed.client.create_launch_template(LaunchTemplateName="site", LaunchTemplateData=SITE_DATA)
    refused = Fault(
        kind=FaultKind.AUTH, action="DescribeLaunchTemplateVersions", code="UnauthorizedOperation"
    )
    bed.control.fail(refused)
    provider = opened(bed, launch_template="site")
    assert len(provider.launch(spec_for(bed, provider, 1))) == 1
    assert "no right to ec2:DescribeLaunchTemplateVersions" in caplog.text


def test_a_new_default_version_of_the_sites_template_is_gone_by(
    ec2: Ec2Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EC2 takes it at once, so what a request repeats of it must not stay an older one's. Where it
    cannot be read any more, what was read last holds.
    """
    now, bed = 0.0, AwsBed(ec2)
    for group in ("tight", "wide"):
        bed.client.create_placement_group(GroupName=group, Strategy="cluster")
    bed.client.create_launch_template(LaunchTemplateName="site", LaunchTemplateData=SITE_DATA)
    settings = bed.settings(launch_template="site")
    provider = AwsProvider(settings, Cluster(name="c", uuid=UUID), monotonic=lambda: now)
    requested = sent("run_instances", monkeypatch)
    for generation, group in enumerate(("tight", "wide", "wide")):
        provider.launch(spec_for(bed, provider, 1, generation=f"g{generation}"))
        assert requested[-1]["Placement"]["GroupName"] == group
        data = {**SITE_DATA, "Placement": {"GroupName": "wide"}}
        made = bed.client.create_launch_template_version(
            LaunchTemplateName="site", LaunchTemplateData=data
        )
        number = str(made["LaunchTemplateVersion"]["VersionNumber"])
        bed.client.modify_launch_template(LaunchTemplateName="site", DefaultVersion=number)
        now += site_template.TEMPLATE_TTL_S
        if group == "wide":
            action = "DescribeLaunchTemplateVersions"
            bed.control.fail(
                Fault(kind=FaultKind.AUTH, action=action, code="UnauthorizedOperation")
            )


def test_spot_requests_of_a_fleet_carry_the_clusters_tags(bed: AwsBed) -> None:
    provider = opened(bed)
    machine = provider.launch(wide(bed, 2))[0]
    bed.control.interrupt([machine.id], notice=60)
    assert [notice.instance for notice in provider.notices()] == [machine.id]


def test_on_demand_machines_come_from_a_fleet_too(bed: AwsBed) -> None:
    machines = opened(bed).launch(wide(bed, 2, market=Market.ON_DEMAND))
    assert {m.market for m in machines} == {Market.ON_DEMAND}
    assert {m.price for m in machines} <= {0.085, 0.096}


def test_user_data_has_no_node_and_so_is_the_same_for_all(bed: AwsBed) -> None:
    machine = opened(bed).launch(wide(bed, 2))[1]
    raw = bed.client.describe_instance_attribute(InstanceId=machine.id, Attribute="userData")
    text = base64.b64decode(raw["UserData"]["Value"])
    text = gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text
    assert b"'pool': 'pub'" in text
    assert b"'nodes': ''" in text
    assert b"generation'" not in text.partition(b"FACTS = ")[2].partition(b"\n")[0]


def request(bed: AwsBed, spec: LaunchSpec, **more: object) -> dict[str, object]:
    settings = bed.settings(types=TYPES, **more)
    return create_fleet(
        settings, Cluster(name="c", uuid=UUID), spec, spec.nodes,
        template="t", number=0, attempt=0,
    )  # fmt: skip


def overrides(asked: dict[str, object]) -> list[dict[str, object]]:
    return asked["LaunchTemplateConfigs"][0]["Overrides"]  # type: ignore[index, no-any-return]


def test_offers_are_overrides_best_first(bed: AwsBed) -> None:
    spec = wide(bed, 2)
    asked = request(bed, spec)
    assert [(o["InstanceType"], o["AvailabilityZone"]) for o in overrides(asked)] == [
        (offer.instance_type, offer.zone) for offer in spec.offers
    ]
    assert asked["SpotOptions"] == {
        "AllocationStrategy": "price-capacity-optimized", "InstanceInterruptionBehavior": "terminate",
    }  # fmt: skip
    assert asked["Type"] == "instant"
    assert asked["ClientToken"] == "7d1f0c52-g1-0"
    on_demand = request(bed, wide(bed, 2, market=Market.ON_DEMAND))
    assert on_demand["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}


def test_our_ranking_can_be_the_order(bed: AwsBed) -> None:
    asked = request(bed, wide(bed, 2), allocation=Allocation.RANK)
    assert asked["SpotOptions"]["AllocationStrategy"] == "capacity-optimized-prioritized"  # type: ignore[index]
    assert [o["Priority"] for o in overrides(asked)] == [0.0, 1.0, 2.0, 3.0]
    on_demand = request(bed, wide(bed, 2, market=Market.ON_DEMAND), allocation=Allocation.RANK)
    assert on_demand["OnDemandOptions"]["AllocationStrategy"] == "prioritized"  # type: ignore[index]


def test_subnets_and_a_bound_below_on_demand_are_each_overrides(bed: AwsBed) -> None:
    spec = wide(bed, 2)
    spec = replace(spec, pool=replace(spec.pool, max_price=0.05))
    asked = request(bed, spec, subnets={"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"})
    for override, offer in zip(overrides(asked), spec.offers, strict=True):
        assert override["SubnetId"] == f"subnet-{offer.zone[-1]}"
        assert "AvailabilityZone" not in override
        assert override["MaxPrice"] == "0.050000"


def test_the_tags_of_the_widest_fleet_fit_into_ec2s_fifty(bed: AwsBed) -> None:
    rng = random.Random(7)
    nodes = tuple(f"a-rather-long-name-{n:05}" for n in rng.sample(range(99999), 900))
    base = wide(bed, 1)
    offers = tuple(
        replace(base.offer, instance_type=f"u7in-24tb.{n}xlarge", zone="ap-northeast-3a")
        for n in range(112, 112 + fleet.ALTERNATIVES)
    )
    pool = Pool(name="p", cloud="aws", nodes=nodes, cpus=1, real_memory=1)
    for part in requests.chunks(nodes, bed.settings()):
        spec = replace(base, pool=pool, nodes=tuple(part), alternatives=offers)
        tags = request(bed, spec)["TagSpecifications"][0]["Tags"]  # type: ignore[index]
        owners = len(OWNER)
        ours = len(tags) + machine_tags.width(1000) + owners
        assert ours + machine_tags.SITE_TAGS <= 50, "with those of the site's own template"


@given(st.sets(st.text("abcdef0123456789", min_size=17, max_size=17), max_size=120), st.randoms())
def test_places_are_one_each_and_the_same_from_any_part(ids: set[str], rng: random.Random) -> None:
    whole, surplus = machine_tags.assigned(ids, {}, 100)
    assert len(surplus) == max(len(ids) - 100, 0)
    assert sorted(whole.values()) == list(range(min(len(ids), 100)))
    taken = {id_: n for id_, n in whole.items() if rng.random() < 0.5}
    more, _ = machine_tags.assigned(ids, taken, 100)
    assert {**taken, **more} == whole


@given(st.integers(1, 1000), st.integers(0, 999))
def test_a_place_is_read_as_it_was_tagged(count: int, place: int) -> None:
    place %= count
    tags = {machine_tags.PLACES: str(machine_tags.width(count))}
    for key, digit, ids in machine_tags.tagging({"i-1": place}, count):
        assert machine_tags.place_of(tags) is None, "while one digit is missing"
        assert ids == ["i-1"]
        tags[key] = digit
    assert machine_tags.place_of(tags) == place


@pytest.mark.parametrize("value", ["", "x", "12", "-1", "²"])
def test_tags_that_somebody_changed_give_no_place(value: str) -> None:
    assert machine_tags.place_of({machine_tags.PLACES: value, "slurm-elastic:place-0": "1"}) is None
    assert machine_tags.place_of({machine_tags.PLACES: "1", "slurm-elastic:place-0": "z"}) is None


def test_a_provider_says_how_many_offers_it_chooses_among(bed: AwsBed, ec2: Ec2Control) -> None:
    assert opened(bed).alternatives == fleet.ALTERNATIVES
    other: Provider = AwsBed(ec2).open()
    assert isinstance(other, AwsProvider)
    assert other.alternatives == 0
