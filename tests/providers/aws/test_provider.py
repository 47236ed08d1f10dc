"""EC2: the contract over the emulated one, and what is EC2's own."""

from __future__ import annotations

import base64
import email
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from patience import patience
from providers.aws.bed import AwsBed, between

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.controller.launching.boot_consoles import read_consoles, record_consoles
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.causes.pool_failures import ConsoleRead
from slurm_elastic.model.cluster import InstanceState, LaunchSpec, Market, NoticeKind, Offer, Pool
from slurm_elastic.model.max_price import MaxPrice
from slurm_elastic.model.protocols import Provider
from slurm_elastic.policies.launch.ranking import mispriced
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws import provider as aws
from slurm_elastic.providers.aws import requests as aws_request
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.state.ledger import Machine
from slurm_elastic.testing.contract import (
    OTHER_UUID,
    UUID,
    BulkContract,
    CrowdedContract,
    DelayedContract,
    FaultContract,
    LateFailureContract,
    LaunchContract,
    OfferContract,
    ProtectedContract,
    ReservedContract,
    ScarceContract,
    spec_for,
)
from slurm_elastic.testing.stop_contract import StopContract, StopFaultContract

pytestmark = pytest.mark.usefixtures("guarded")


class TestAwsLaunches(LaunchContract): ...


class TestAwsScarcity(ScarceContract): ...


class TestAwsOffers(OfferContract): ...


class TestAwsReservations(ReservedContract): ...


class TestAwsCrowd(CrowdedContract): ...


class TestAwsFaults(FaultContract): ...


class TestAwsStops(StopContract): ...


@pytest.mark.release
class TestAwsStopFaults(StopFaultContract): ...


@pytest.mark.release
class TestAwsDelays(DelayedContract): ...


@pytest.mark.release
class TestAwsLateFailures(LateFailureContract): ...


class TestAwsProtection(ProtectedContract): ...


class TestAwsBulk(BulkContract):
    @pytest.mark.release
    def test_a_launch_of_more_than_a_thousand(self, bed: AwsBed) -> None:
        super().test_a_launch_of_more_than_a_thousand(bed)
        assert bed.calls("RunInstances") == 2
        assert bed.calls("TerminateInstances") == 2

    def test_a_second_call_that_is_refused_makes_the_launch_partial(
        self, bed: AwsBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(aws_request, "MAX_PER_CALL", 3)
        bed.limit(3)
        provider = bed.open()
        assert len(provider.launch(spec_for(bed, provider, 7))) == 3
        assert bed.calls("RunInstances") == 2

    def test_a_launch_that_would_be_useless_is_refused_as_a_whole(self, bed: AwsBed) -> None:
        bed.limit(3)
        provider = bed.open()
        spec = replace(spec_for(bed, provider, 4), least=4)
        with pytest.raises(CapacityError):
            provider.launch(spec)
        assert not provider.instances()
        useful = replace(spec_for(bed, provider, 4, generation="g2"), least=3)
        assert len(provider.launch(useful)) == 3

    @pytest.mark.parametrize(("least", "of_size"), [(1, False), (4, True)])
    def test_a_quota_may_have_enough_for_a_smaller_launch(
        self, bed: AwsBed, least: int, of_size: bool
    ) -> None:
        provider = bed.open()
        spec = replace(spec_for(bed, provider, 4), least=least)
        bed.fail(QuotaError)
        with pytest.raises(QuotaError) as refused:
            provider.launch(spec)
        assert refused.value.of_size is of_size

    def test_lists_are_read_page_by_page(
        self, bed: AwsBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(aws_request, "MAX_PER_CALL", 1)
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 12))
        monkeypatch.setattr(client, "PAGE", 5)
        before = bed.calls("DescribeInstances")
        assert len(bed.open().instances()) == 12
        assert bed.calls("DescribeInstances") - before == 3


def test_spot_and_on_demand_are_offered_in_every_zone_at_their_prices(bed: AwsBed) -> None:
    bed.control.price("c5.large", "us-east-1a", 0.02)
    bed.control.price("c5.large", "us-east-1b", 0.03)
    offers = bed.open().offers(bed.pool)
    assert {(o.zone, o.market, o.price, o.on_demand_price) for o in offers} == {
        ("us-east-1a", Market.SPOT, 0.02, 0.085),
        ("us-east-1b", Market.SPOT, 0.03, 0.085),
        ("us-east-1a", Market.ON_DEMAND, 0.085, 0.085),
        ("us-east-1b", Market.ON_DEMAND, 0.085, 0.085),
    }


def test_what_has_no_spot_price_is_not_offered_on_spot(bed: AwsBed) -> None:
    types = {"x9.huge": InstanceType(cpus=96, memory=999999, price=9.0)}
    pool = Pool(
        name="p", cloud="aws", nodes=("p1",), cpus=1, real_memory=1,
        instance_types=("x9.huge", "of-another-cloud"), markets=(Market.SPOT, Market.ON_DEMAND),
    )  # fmt: skip
    offers = bed.open(types=types, zones=("us-east-1a",)).offers(pool)
    assert [(o.instance_type, o.market) for o in offers] == [("x9.huge", Market.ON_DEMAND)]


def test_every_offer_has_the_dearest_spot_price_of_its_type_beside_the_typed_one(
    bed: AwsBed,
) -> None:
    bed.control.price("c5.large", "us-east-1a", 0.02)
    bed.control.price("c5.large", "us-east-1c", 11.2)  # none of the pool's zones
    for markets in (bed.pool.markets, (Market.ON_DEMAND,)):
        offers = bed.open().offers(replace(bed.pool, markets=markets))
        assert {o.market for o in offers} == set(markets)
        assert {(o.reference_price, o.reference) for o in offers} == {
            (11.2, "spot in us-east-1c, which is never dearer than on-demand")
        }
        assert all(o.worst_price == 11.2 and mispriced(o) for o in offers)


def test_a_local_zone_which_has_prices_of_its_own_says_nothing_of_the_regions(bed: AwsBed) -> None:
    bed.control.price("c5.large", "us-east-1a", 0.05)
    bed.control.price("c5.large", "us-east-1-bos-1a", 11.2)
    offers = bed.open(zones=("us-east-1a",)).offers(bed.pool)
    assert {(o.reference_price, o.reference) for o in offers} == {
        (0.05, "spot in us-east-1a, which is never dearer than on-demand")
    }
    offers = bed.open(zones=("us-east-1a", "us-east-1-bos-1a")).offers(bed.pool)
    assert {o.reference_price for o in offers} == {11.2}, "it is used, at the one typed price"


def test_without_the_right_to_read_spot_prices_on_demand_is_still_offered(bed: AwsBed) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="DescribeSpotPriceHistory"))
    for markets in ((Market.ON_DEMAND,), (Market.SPOT, Market.ON_DEMAND)):
        offers = bed.open().offers(replace(bed.pool, markets=markets))
        assert {(o.market, o.reference_price) for o in offers} == {(Market.ON_DEMAND, None)}
    with pytest.raises(AuthError):
        bed.open().offers(replace(bed.pool, markets=(Market.SPOT,)))


def test_while_spot_prices_cannot_be_asked_those_of_the_last_hour_hold(
    bed: AwsBed, caplog: pytest.LogCaptureFixture
) -> None:
    """One throttled call must not have on demand bought at three times the price."""
    now = 1000.0
    provider = aws.AwsProvider(bed.settings(), Cluster(name="c", uuid=UUID), monotonic=lambda: now)
    before = provider.offers(bed.pool)
    assert {o.market for o in before} == {Market.SPOT, Market.ON_DEMAND}
    bed.control.fail(Fault(kind=FaultKind.THROTTLE, action="DescribeSpotPriceHistory"))
    for passed in (61, 61, 3400):
        now += passed
        assert provider.offers(bed.pool) == before
    assert caplog.text.count("no spot prices") == 1
    now += 100
    assert {o.market for o in provider.offers(bed.pool)} == {Market.ON_DEMAND}
    bed.heal()
    assert len(provider.offers(bed.pool)) == len(before)


@pytest.mark.parametrize(
    ("details", "fee"),
    [
        ("Linux/UNIX", 0.0),
        ("Red Hat BYOL Linux", 0.0),
        ("Red Hat Enterprise Linux", 0.026),
        ("Red Hat Enterprise Linux with HA", 0.026),
        ("SUSE Linux", 0.05),
    ],
)
def test_spot_prices_are_those_of_what_the_image_is_sold_as(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch, details: str, fee: float
) -> None:
    provider = bed.open()
    asked: list[object] = []

    def send(real: Callable[[], object], operation: str, request: object) -> object:
        if operation == "describe_images":
            asked.append(request)
            return {"Images": [{"ImageId": "ami-12345678", "PlatformDetails": details}]}
        return real()

    between(monkeypatch, send)
    bed.control.price("c5.large", "us-east-1a", 0.02)
    pool = replace(bed.pool, zones=("us-east-1a",), markets=(Market.SPOT,))
    assert [o.price for o in provider.offers(pool)] == [pytest.approx(0.02 + fee)]
    provider.offers(pool)
    assert asked == [{"ImageIds": ["ami-12345678"]}], "once for many offers"


def test_what_an_image_is_sold_as_is_asked_until_it_is_told_and_never_again(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    provider = aws.AwsProvider(
        bed.settings(), Cluster(name="c", uuid=UUID), time.time, monotonic=lambda: now
    )
    answers = [[], [{"ImageId": "ami-12345678", "PlatformDetails": "SUSE Linux"}]]
    products: list[object] = []

    def send(real: Callable[[], object], operation: str, request: Mapping[str, object]) -> object:
        if operation == "describe_images":
            found = answers.pop(0)
            if not found:
                raise ProviderError("aws", "InternalError", "try again")
            return {"Images": found}
        if operation == "describe_spot_price_history":
            products.append(request["ProductDescriptions"])
        return real()

    between(monkeypatch, send)
    provider.offers(bed.pool)
    now += 200
    provider.offers(bed.pool)
    for _ in range(3):
        now += 400
        provider.offers(bed.pool)
    assert products == [["Linux/UNIX"]] * 2 + [["SUSE Linux"]] * 3
    assert answers == []


def test_the_price_in_force_is_asked_as_ec2_promises_to_tell_it(bed: AwsBed) -> None:
    """A price that has held for weeks is told with both times only."""
    bed.control.price("c5.large", "us-east-1a", 0.02)
    later = time.time() + 3600
    provider = aws.AwsProvider(bed.settings(), Cluster(name="c", uuid=UUID), lambda: later)
    assert (Market.SPOT, 0.02) in {(o.market, o.price) for o in provider.offers(bed.pool)}


def test_spot_prices_are_asked_once_a_minute(bed: AwsBed) -> None:
    now, wall = 1000.0, time.time() + 90_000
    provider = aws.AwsProvider(
        bed.settings(), Cluster(name="c", uuid=UUID), lambda: wall, monotonic=lambda: now
    )
    on_demand = Pool(
        name="p", cloud="aws", nodes=("p1",), cpus=1, real_memory=1, markets=(Market.ON_DEMAND,)
    )
    provider.offers(on_demand)
    assert bed.calls("DescribeSpotPriceHistory") == 1
    provider.offers(bed.pool)
    bed.control.price("c5.large", "us-east-1a", 0.5)
    now += 30
    assert provider.offers(bed.pool)[0].price < 0.5
    assert bed.calls("DescribeSpotPriceHistory") == 1
    now += 31
    wall -= 86_400  # somebody sets the clock
    assert provider.offers(bed.pool)[0].price == 0.5


def test_spot_prices_come_in_pages(bed: AwsBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAGE", 2)
    assert len(bed.open(zones=("us-east-1a", "us-east-1b", "us-east-1c")).offers(bed.pool)) == 6


def test_zones_are_those_of_the_subnets_or_of_the_region(bed: AwsBed) -> None:
    subnets = {"us-east-1b": "subnet-1"}
    one = bed.open(zones=(), subnets=subnets).offers(bed.pool)
    assert {o.zone for o in one} == {"us-east-1b"}
    provider = bed.open(zones=())
    zones = {o.zone for o in provider.offers(bed.pool) if o.market is Market.ON_DEMAND}
    assert len(zones) > 2
    provider.offers(bed.pool)
    assert bed.calls("DescribeAvailabilityZones") == 1


def test_machines_and_their_spot_requests_carry_the_tags_from_the_start(bed: AwsBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 3)
    machine = provider.launch(spec)[0]
    wanted = {
        "slurm-elastic:cluster": UUID,
        "slurm-elastic:cluster-name": "site",
        "slurm-elastic:cloud": "aws",
        "slurm-elastic:pool": "pub",
        "slurm-elastic:generation": "g1",
        "slurm-elastic:nodes": "pub[1-3]",
        "slurm-elastic:jobs": "7,8",
        "slurm-elastic:account": "physics",
        "slurm-elastic:user": "ann",
        "slurm-elastic:price": f"{spec.offer.price:g}",
        "Name": "site pub",
    }
    view = next(m for m in bed.control.state().machines if m.id == machine.id)
    assert view.tags == wanted
    assert (view.node, view.market) == ("pub1", "spot")
    requests = bed.client.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert len(requests) == 3
    assert {t["Key"]: t["Value"] for t in requests[0]["Tags"]} == wanted
    volumes = bed.client.describe_volumes()["Volumes"]
    assert {t["Key"] for t in volumes[0]["Tags"]} == set(wanted)
    assert bed.calls("CreateTags") == 0


def two_clouds(bed: AwsBed) -> Config:
    """Two in one account and region: one for spot and one on demand, say."""
    one = bed.settings()
    pools = [
        PoolSettings(name=name, cloud=cloud, nodes=f"{name}[1-9]", cpus=2, memory=4096)
        for name, cloud in (("pub", "aws"), ("other", "second"))
    ]
    return Config(
        cluster=Cluster(name="site", uuid=UUID),
        clouds=(one, replace(one, name="second")),
        pools=tuple(pools),
    )


def started(bed: AwsBed, **tags: str) -> str:
    """A machine with just these tags, as an earlier version or another hand started it."""
    given = [{"Key": f"slurm-elastic:{key}", "Value": value} for key, value in tags.items()]
    answer = bed.client.run_instances(
        ImageId="ami-1", InstanceType="c5.large", MinCount=1, MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": given}],
    )  # fmt: skip
    return answer["Instances"][0]["InstanceId"]


def listed(provider: Provider) -> set[str]:
    return {machine.id for machine in provider.instances()}


@pytest.mark.parametrize("price", ["nan", "inf", "-3", "1e300", "cheap", ""])
def test_a_poisoned_price_tag_leaves_the_price_to_the_configuration(
    bed: AwsBed, price: str
) -> None:
    provider = bed.open()
    machines = provider.launch(spec_for(bed, provider, 3))
    tag = {"Key": "slurm-elastic:price", "Value": price}
    bed.client.create_tags(Resources=[machines[1].id], Tags=[tag])
    prices = {m.id: m.price if m.is_price_known else None for m in bed.open().instances()}
    assert prices == {m.id: m.price for m in machines} | {machines[1].id: None}


def test_two_clouds_of_one_account_leave_each_others_machines_alone(bed: AwsBed) -> None:
    config = two_clouds(bed)
    first, second = (open_provider(c, config.cluster, config) for c in config.clouds)
    a = first.launch(spec_for(bed, first, 1))[0]
    b = second.launch(spec_for(bed, second, 1, generation="g2"))[0]
    assert (listed(first), listed(second)) == ({a.id}, {b.id})
    assert {machine.cloud for machine in second.instances()} == {"second"}
    bed.control.interrupt([b.id], notice=60)
    assert [notice.instance for notice in second.notices()] == [b.id]
    assert list(first.notices()) == []
    first.terminate([b.id])
    assert bed.alive() == {a.id, b.id}


def test_machines_without_the_tag_of_a_cloud_are_found_by_the_only_cloud_there(bed: AwsBed) -> None:
    old = started(bed, cluster=UUID, pool="pub", nodes="pub1", generation="g0")
    renamed = started(bed, cluster=UUID, pool="pub", nodes="pub2", cloud="its-former-name")
    started(bed, cluster=OTHER_UUID, pool="pub", nodes="pub3", cloud="aws")
    elsewhere = replace(bed.settings(), name="far", region="eu-west-1")
    config = replace(two_clouds(bed), clouds=(bed.settings(), elsewhere))
    provider = open_provider(config.clouds[0], config.cluster, config)
    assert {(m.id, m.node) for m in provider.instances()} == {(old, "pub1"), (renamed, "pub2")}


def test_of_two_clouds_machines_without_the_tag_are_those_of_their_pools(
    bed: AwsBed, caplog: pytest.LogCaptureFixture
) -> None:
    config = two_clouds(bed)
    first, second = (open_provider(c, config.cluster, config) for c in config.clouds)
    a = started(bed, cluster=UUID, pool="pub", nodes="pub1")
    b = started(bed, cluster=UUID, pool="other", nodes="other1")
    unclear = started(bed, cluster=UUID, pool="of-old", nodes="x1")
    assert (listed(first), listed(second)) == ({a}, {b})
    first.instances()
    told = [record.getMessage() for record in caplog.records if unclear in record.getMessage()]
    assert len(told) == 2, "each cloud says it once"
    assert "tag them slurm-elastic:cloud=NAME" in told[0]
    first.terminate([unclear, b])
    assert bed.alive() == {a, b}


def test_an_interruption_is_a_notice_with_its_deadline_until_the_machine_is_gone(
    bed: AwsBed,
) -> None:
    provider = bed.open()
    machine = provider.launch(spec_for(bed, provider, 2))[0]
    began = time.time()
    bed.control.interrupt([machine.id], notice=3600)
    marked = time.time()
    (notice,) = provider.notices()
    assert (notice.instance, notice.kind) == (machine.id, NoticeKind.INTERRUPTION)
    assert notice.deadline is not None
    # EC2 tells when it marked the machine, in whole seconds; the end is 120 s later.
    assert began - 1 <= notice.deadline - 120 <= marked
    bed.control.interrupt([machine.id], notice=0)
    deadline = time.monotonic() + patience(30)
    while machine.id in bed.alive():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert list(provider.notices()) == []
    states = {m.id: m.state for m in provider.instances()}
    assert states[machine.id] is InstanceState.TERMINATED, "its loss is told at once"
    assert machine.id not in {m.id for m in provider.instances()}, "and once"


def test_maintenance_is_a_notice_when_it_is_near(bed: AwsBed) -> None:
    provider = bed.open()
    machines = provider.launch(spec_for(bed, provider, 5))
    near, far, over, minor = (m.id for m in machines[:4])
    (foreign,) = bed.add_foreign()
    bed.control.schedule([near, foreign], "instance-retirement", 900)
    bed.control.schedule([far], "instance-stop", 7 * 86400)
    bed.control.schedule([over], "system-reboot", 900, description="[Completed] rebooted")
    bed.control.schedule([minor], "of-another-kind", 900)
    fresh = bed.open()  # one that has never listed its machines
    (notice,) = fresh.notices()
    assert (notice.instance, notice.kind) == (near, NoticeKind.INTERRUPTION)
    assert notice.reason.startswith("instance-retirement: ")
    assert notice.deadline is not None
    assert 700 < notice.deadline - time.time() <= 901
    assert [n.instance for n in fresh.notices()] == [near]
    assert bed.calls("DescribeInstanceStatus") == 1, "it is asked once a minute"


def test_without_the_right_to_read_maintenance_spot_notices_come(
    bed: AwsBed, caplog: pytest.LogCaptureFixture
) -> None:
    provider = bed.open()
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    bed.control.fail(
        Fault(kind=FaultKind.AUTH, action="DescribeInstanceStatus", code="UnauthorizedOperation")
    )
    bed.control.interrupt([machine.id], notice=60)
    assert [n.instance for n in provider.notices()] == [machine.id]
    assert "scheduled events cannot be read" in caplog.text


def test_one_that_somebody_stopped_is_told_as_such_and_can_be_ended(bed: AwsBed) -> None:
    provider = bed.open()
    offer = next(o for o in provider.offers(bed.pool) if o.market is Market.ON_DEMAND)
    spec = LaunchSpec(generation="g", pool=bed.pool, nodes=("pub1",), offer=offer)
    machine = provider.launch(spec)[0]
    bed.client.stop_instances(InstanceIds=[machine.id])
    assert [m.state for m in provider.instances()] == [InstanceState.STOPPED]
    provider.terminate([machine.id])
    assert bed.alive() == set()


def test_a_capacity_error_costs_one_request(bed: AwsBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    bed.fail(CapacityError)
    with pytest.raises(CapacityError) as caught:
        provider.launch(spec)
    assert caught.value.code == "InsufficientInstanceCapacity"
    assert bed.calls("RunInstances") == 1


def test_a_throttle_that_passes_is_not_noticed(bed: AwsBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    bed.control.fail(Fault(kind=FaultKind.THROTTLE, count=2))
    assert len(provider.launch(spec)) == 1
    bed.control.fail(Fault(kind=FaultKind.RESET_AFTER, action="RunInstances", count=1))
    assert len(provider.launch(spec_for(bed, provider, 1, generation="g2"))) == 1
    assert len(bed.alive()) == 2


def test_where_an_organisation_denies_spot_on_demand_is_started(bed: AwsBed) -> None:
    denied = Fault(
        kind=FaultKind.AUTH, action="RunInstances", market="spot", code="UnauthorizedOperation"
    )
    bed.control.fail(denied)
    provider = bed.open()
    offers = {offer.market: offer for offer in provider.offers(bed.pool)}
    spec = spec_for(bed, provider, 1)
    with pytest.raises(DeniedError, match="no right to ec2:RunInstances"):
        provider.launch(replace(spec, offer=offers[Market.SPOT]))
    on_demand = replace(spec, generation="g2", offer=offers[Market.ON_DEMAND])
    assert [m.market for m in provider.launch(on_demand)] == [Market.ON_DEMAND]


def test_a_refusal_of_another_kind_says_that_nothing_was_started(bed: AwsBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    bed.control.fail(Fault(kind=FaultKind.QUOTA, code="InvalidAMIID.NotFound"))
    with pytest.raises(ProviderError, match="InvalidAMIID") as caught:
        provider.launch(spec)
    assert type(caught.value) is ProviderError


def test_settings_changed_between_a_launch_and_its_repetition_start_nothing_twice(
    bed: AwsBed,
) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    first = provider.launch(spec)
    changed = bed.open(security_groups=(), instance_profile="nodes-of-another-name")
    assert {m.id for m in changed.launch(spec)} == {m.id for m in first}
    assert len(bed.alive()) == 2


def test_an_id_that_ec2_does_not_know_does_not_keep_the_others(bed: AwsBed) -> None:
    provider = bed.open()
    machines = provider.launch(spec_for(bed, provider, 3))
    assert isinstance(provider, aws.AwsProvider)
    # As after a restart of the cloud's own records: once ours, now unknown.
    provider._machines.ours.remember(["i-0123456789abcdef0"])
    provider.terminate([machines[0].id, "i-0123456789abcdef0", machines[1].id])
    assert bed.alive() == {machines[2].id}


def test_nobody_at_the_endpoint_is_transient(bed: AwsBed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    provider = open_provider(
        _at(bed, f"http://127.0.0.1:{port}", 2.0), Cluster(name="c", uuid=UUID)
    )
    with pytest.raises(TransientError):
        provider.instances()


def test_no_credentials_is_an_auth_error_until_there_are_some(
    bed: AwsBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = bed.open()
    with monkeypatch.context() as without:
        without.delenv("AWS_ACCESS_KEY_ID")
        without.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(AuthError, match="NoCredentialsError"):
            provider.check()
    provider.check()
    with pytest.raises(AuthError, match="ProfileNotFound"):
        bed.open(profile="nobody").check()


def test_machines_know_their_nodes_and_then_run_the_sites_user_data(
    bed: AwsBed, tmp_path: Path
) -> None:
    own = tmp_path / "user-data"
    own.write_text("#cloud-config\nruncmd: [echo ä]\n")
    provider = bed.open(user_data=str(own))
    machine = provider.launch(spec_for(bed, provider, 3))[0]
    raw = bed.client.describe_instance_attribute(InstanceId=machine.id, Attribute="userData")
    document = email.message_from_bytes(base64.b64decode(raw["UserData"]["Value"]))
    hook, site = document.get_payload()
    assert hook.get_content_type() == "text/cloud-boothook"
    assert "'nodes': 'pub[1-3]'" in hook.get_payload()
    assert "'generation': 'g1'" in hook.get_payload()
    assert site.get_content_type() == "text/cloud-config"
    assert "runcmd: [echo ä]" in site.get_payload(decode=True).decode()


def test_a_cluster_without_uuid_opens_nothing(bed: AwsBed) -> None:
    with pytest.raises(ConfigError, match="conf install"):
        open_provider(bed.settings(), Cluster(name="c"))


def test_it_asks_for_what_the_settings_say(bed: AwsBed) -> None:
    settings = bed.settings(
        subnets={"z": "subnet-1"}, security_groups=("sg-1",), key_name="k",
        instance_profile="arn:aws:iam::1:instance-profile/node",
    )  # fmt: skip
    request = aws_request.run_instances(
        settings, Cluster(name="c", uuid=UUID), _spec("z", None), ("a",),
        number=0, parts=(),
    )  # fmt: skip
    assert request["SubnetId"] == "subnet-1"
    assert "Placement" not in request
    assert request["SecurityGroupIds"] == ["sg-1"]
    assert request["KeyName"] == "k"
    assert request["IamInstanceProfile"] == {"Arn": "arn:aws:iam::1:instance-profile/node"}
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert request["MetadataOptions"] == {
        "HttpTokens": "required", "HttpEndpoint": "enabled", "InstanceMetadataTags": "enabled",
    }  # fmt: skip
    assert request["ClientToken"] == "7d1f0c52-g-0"


@pytest.mark.parametrize(
    ("bound", "asked"),
    [
        (None, None),
        (0.2, None),
        (0.1, None),
        (0.05, "0.050000"),
        (0.0011, "0.001100"),
        (0.001, None),
        (0.0000004, None),
        (MaxPrice(spot=0.06), "0.060000"),
        (MaxPrice(spot=0.06, types={"t": 0.04}), "0.040000"),
        (MaxPrice(of_on_demand=0.5), "0.050000"),
        (MaxPrice(of_on_demand=1.0), None),
    ],  # EC2 refuses a bound of $0.001 and less
)
def test_a_spot_bound_is_set_only_where_the_pools_is_below_on_demand(
    bed: AwsBed, bound: float | MaxPrice | None, asked: str | None
) -> None:
    request = aws_request.run_instances(
        bed.settings(), Cluster(name="c", uuid=UUID), _spec("z", bound), ("a",),
        number=0, parts=(),
    )  # fmt: skip
    options = request["InstanceMarketOptions"]["SpotOptions"]
    assert options.get("MaxPrice") == asked
    assert options["SpotInstanceType"] == "one-time"


def test_client_tokens_fit_and_differ_by_cluster_generation_and_call() -> None:
    a, b = Cluster(name="a", uuid=UUID), Cluster(name="a", uuid="b" * 36)
    tokens = {
        aws_request.client_token(cluster, generation, number)
        for cluster in (a, b)
        for generation in ("g", "g" * 70, "g" * 71, "gé")
        for number in (0, 1)
    }
    assert len(tokens) == 16
    assert all(len(t) <= 64 and t.isascii() for t in tokens)


def _spec(zone: str, bound: float | MaxPrice | None) -> LaunchSpec:
    pool = Pool(name="p", cloud="aws", nodes=("a",), cpus=1, real_memory=1, max_price=bound)
    offer = Offer(
        cloud="aws", location="public", instance_type="t", zone=zone, market=Market.SPOT,
        price=0.03, cpus=1, memory=1, on_demand_price=0.1,
    )  # fmt: skip
    return LaunchSpec(generation="g", pool=pool, nodes=("a",), offer=offer)


def _at(bed: AwsBed, endpoint: str, timeout: float) -> AwsCloud:
    return replace(bed.settings(), endpoint=endpoint, api_timeout=timeout)


def test_a_machines_console_is_shown(bed: AwsBed) -> None:
    provider = bed.open()
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    assert isinstance(provider, aws.AwsProvider)
    assert provider.console(machine.id).startswith("Linux version")
    with pytest.raises(InstanceNotFound):
        provider.console("i-0123456789abcdef0")


def test_the_console_of_a_failed_boot_is_recorded(bed: AwsBed) -> None:
    provider = bed.open()
    started = provider.launch(spec_for(bed, provider, 1))[0]
    bed.control.console(started.id, "[ 1.0] up\r\n\x1b[31mslurmd: fatal: no munge key\x1b[0m\r\n")
    site, machine = Mock(providers={"aws": provider}), Machine(instance=started, pool="pub")
    record_consoles(site, read_consoles(site, "aws", [machine]), [machine], "boots")
    lines = ("[ 1.0] up", "slurmd: fatal: no munge key")
    cause = ConsoleRead(machine=started.id, lines=lines)
    site.record.assert_called_once_with("boots", "console", [started.node, "pool:pub"], cause)


def _own_image(bed: AwsBed, name: str, **tags: str) -> str:
    image = bed.client.register_image(Name=name, RootDeviceName="/dev/sda1")["ImageId"]
    bed.client.create_tags(
        Resources=[image],
        Tags=[{"Key": f"slurm-elastic:{key}", "Value": value} for key, value in tags.items()],
    )
    return image


def _image_of(bed: AwsBed, provider: Provider, choice: ImageChoice) -> str:
    spec = spec_for(bed, provider, 1, generation=f"g-{choice.name}-{choice.os}-{choice.version}")
    (machine,) = provider.launch(replace(spec, pool=replace(spec.pool, image=choice)))
    answer = bed.client.describe_instances(InstanceIds=[machine.id])
    return answer["Reservations"][0]["Instances"][0]["ImageId"]


@pytest.mark.parametrize("strategy", ["run", "fleet"])
def test_a_pools_image_is_looked_up_by_name_or_tags(bed: AwsBed, strategy: str) -> None:
    first = _own_image(bed, f"node-{strategy}-1", os="debian", version="12", software="slurm-22.05")
    _own_image(bed, f"other-{strategy}", os="debian", version="11")
    provider = bed.open(strategy=aws.Strategy(strategy))
    assert _image_of(bed, provider, ImageChoice(name=f"node-{strategy}-*")) == first
    wanted = ImageChoice(os="debian", version="12", software=("slurm-22.05",))
    assert _image_of(bed, provider, ImageChoice(id=first)) == first
    found = _image_of(bed, provider, wanted)
    images = bed.client.describe_images(ImageIds=[found])["Images"]
    assert {t["Value"] for t in images[0]["Tags"]} == {"debian", "12", "slurm-22.05"}


def test_where_no_image_fits_the_launch_is_refused_with_the_nearest(bed: AwsBed) -> None:
    _own_image(bed, "near-1", os="debian", version="12")
    provider = bed.open()
    choice = ImageChoice(os="debian", version="99")
    with pytest.raises(ProviderError, match=r"no image has os debian, version 99; looked at .*"):
        _image_of(bed, provider, choice)
    assert bed.alive() == set()
    # Only images of these owners count.
    near = ImageChoice(name="near-*")
    with pytest.raises(ProviderError, match="looked at 0 of amazon"):
        _image_of(bed, bed.open(image_owners=("amazon",)), near)
    assert _image_of(bed, bed.open(image_owners=("123456789012",)), near).startswith("ami-")


def test_an_image_is_looked_up_once_for_many_launches(bed: AwsBed) -> None:
    _own_image(bed, "kept-1")
    provider = bed.open()
    provider.offers(bed.pool)
    before = bed.calls("DescribeImages")
    for version in ("1", "2", "3"):
        spec = spec_for(bed, provider, 1, generation=f"g-kept-{version}")
        provider.launch(replace(spec, pool=replace(spec.pool, image=ImageChoice(name="kept-*"))))
    assert bed.calls("DescribeImages") - before == 1
