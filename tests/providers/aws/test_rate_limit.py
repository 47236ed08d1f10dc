"""Calls wait for EC2's tokens, by the buckets that EC2 publishes; time is virtual."""

from __future__ import annotations

import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from providers.aws.bed import AwsBed

from benchmarks.ec2_buckets import run
from slurm_elastic.base.errors import TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.launch.next_launch import WORTH_A_CALL
from slurm_elastic.providers.aws.provider import AwsProvider
from slurm_elastic.providers.aws.rate_limit import LAUNCHES, Busy, RateLimits, pace_of
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.token_bucket import Bucket, Rate
from slurm_elastic.sandbox.ec2.api import Ec2Call
from slurm_elastic.sandbox.ec2.buckets import Buckets
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import UUID, spec_for

pytestmark = pytest.mark.usefixtures("guarded")

FOREVER = 1e9


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def paced(**more: Rate) -> tuple[RateLimits, Clock]:
    clock = Clock()
    return RateLimits(clock=lambda: clock.now, sleep=clock.sleep, **more), clock


def test_a_full_bucket_lets_a_burst_through_and_then_its_refill() -> None:
    pace, clock = paced()
    for _ in range(5):
        pace.take("run_instances", 1, 0)
    with pytest.raises(Busy, match="limit of run_instances calls is used up") as busy:
        pace.take("run_instances", 1, 0)
    assert busy.value.seconds == pytest.approx(0.5)
    for _ in range(10):
        pace.take("run_instances", 1, FOREVER)
    assert clock.now == pytest.approx(5.0)


def test_machines_have_their_own_bucket_and_actions_theirs() -> None:
    pace, clock = paced()
    pace.take("run_instances", 1000, 0)
    with pytest.raises(Busy, match="machines started"):
        pace.take("create_fleet", 1, 0)
    pace.take("terminate_instances", 1000, 0)
    for _ in range(100):
        pace.take("describe_instances", 1, 0)
    assert clock.now == 0
    assert pace.startable() == pace.endable() == 0
    clock.now += 31
    assert pace.startable() == 60
    assert pace.startable(max_wait_s=10) == 80
    assert pace.endable() == 600


def test_what_nobody_waits_for_is_not_taken() -> None:
    pace, clock = paced()
    pace.take("run_instances", 990, 0)
    with pytest.raises(Busy):
        pace.take("run_instances", 500, 10)
    clock.now += 500
    assert pace.startable() == 1000


def test_more_than_a_full_bucket_waits_for_a_full_one() -> None:
    pace, clock = paced(launches=Rate(100, 2))
    pace.take("run_instances", 250, 0)
    pace.take("run_instances", 100, FOREVER)
    assert clock.now == pytest.approx(125)


def test_rejections_halve_the_refill_and_successes_bring_it_back() -> None:
    pace, clock = paced()
    pace.take("run_instances", 100, 0)
    pace.rejected("run_instances", 100, lacks_resources=True)
    assert pace.startable() == 0
    clock.now += 101
    assert pace.startable() == 99  # a token a second, less the margin of the last one
    for _ in range(10):
        pace.accepted("run_instances")
    level = pace.startable()
    clock.now += 10
    assert pace.startable() == level + 20


def test_a_rejected_request_gives_the_machines_tokens_back() -> None:
    pace, _ = paced()
    pace.take("run_instances", 1000, 0)
    pace.rejected("run_instances", 1000, lacks_resources=False)
    assert pace.startable() == 1000
    with pytest.raises(Busy, match="run_instances calls"):
        pace.take("run_instances", 1000, 0)


def test_threads_share_the_tokens() -> None:
    pace = RateLimits(launches=Rate(201, 1), clock=lambda: 0.0, sleep=lambda _: None)
    done: list[bool] = []

    def work() -> None:
        for _ in range(40):
            try:
                pace.take("create_fleet", 10, 0)
                done.append(True)
            except Busy:
                done.append(False)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done.count(True) == 20


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 400)), min_size=1, max_size=60))
def test_a_bucket_that_fills_once_a_second_rejects_none_of_the_machines(
    calls: list[tuple[float, int]],
) -> None:
    """Whatever is asked for and when, between the seconds too."""
    clock = Clock()
    bucket, theirs = Bucket(LAUNCHES, 0.0, margin=True), Buckets()
    theirs.begin(frozen=True)
    clock.now = 0.37  # EC2's seconds are not ours
    theirs.advance(0.37)
    bucket.level(clock.now)
    for pause, count in calls:
        wait = bucket.wait(count, clock.now + pause)
        clock.now += pause + wait
        theirs.advance(pause + wait)
        bucket.take(count, clock.now)
        call = Ec2Call(action="RunInstances", params={"MaxCount": str(count)})
        refused = theirs.refuse(call)
        assert refused is None or "request rate" in refused.message


def settings(**more: object) -> AwsCloud:
    cloud = AwsCloud(
        name="aws", location=Location.PUBLIC, region="eu-west-1", image="ami-1",
        types={"t": InstanceType(cpus=1, memory=1, price=1.0)},
    )  # fmt: skip
    return replace(cloud, **more)


def test_clouds_of_one_account_and_region_share_their_pace() -> None:
    ours = pace_of(settings())
    assert ours is not None
    assert pace_of(settings(name="other", image="ami-2")) is ours
    assert pace_of(settings(region="eu-west-2")) is not ours
    assert pace_of(settings(profile="another-account")) is not ours


def test_an_own_endpoint_has_limits_only_where_they_are_stated() -> None:
    assert pace_of(settings(endpoint="http://127.0.0.1:1")) is None
    stated = pace_of(settings(endpoint="http://127.0.0.1:1", launch_rate=7.0))
    assert stated is not None
    assert stated.launches == Rate(1000, 7.0)


def test_launches_under_ec2s_limits_reach_the_floor_without_a_rejection(ec2: Ec2Control) -> None:
    count = 1200
    launched, ended = run(ec2, count)
    assert launched.rejected == ended.rejected == 0
    # The floor is 100 s and 10 s; a round of the daemon may come half a minute later.
    assert 100 <= launched.seconds <= 100 + 31
    assert 10 <= ended.seconds <= 10 + 31
    assert launched.calls <= 6


def test_what_ec2_would_not_start_yet_is_not_asked_for(ec2: Ec2Control) -> None:
    bed = AwsBed(ec2)
    pace, clock = paced()
    provider = AwsProvider(bed.settings(), Cluster(name="c", uuid=UUID), pace=pace)
    pace.take("run_instances", 1000, 0)
    clock.now += 3
    assert provider.startable() == 4
    spec = spec_for(bed, provider, 100)
    with pytest.raises(TransientError, match="Paced: EC2's limit of machines started is used up"):
        provider.launch(spec)
    assert bed.calls("RunInstances") == 0
    clock.now += 100
    assert len(provider.launch(spec)) == 100


def test_a_rejection_makes_the_next_calls_wait(ec2: Ec2Control) -> None:
    bed = AwsBed(ec2)
    pace, clock = paced()
    provider = AwsProvider(bed.settings(), Cluster(name="c", uuid=UUID), pace=pace)
    provider.check()
    assert clock.now == 0
    bed.control.fail(Fault(kind=FaultKind.THROTTLE, count=1))
    provider.check()
    # A twentieth of a second for a token at full refill; half of it is ours now.
    assert clock.now >= 0.1
    assert bed.calls("DescribeInstances") == 3


def test_the_emulated_limits_are_those_of_the_guide(ec2: Ec2Control) -> None:
    buckets = Buckets()
    buckets.begin(frozen=True)

    def refused(action: str, **params: str) -> str:
        error = buckets.refuse(Ec2Call(action=action, params=params))
        return error.message if error else ""

    assert [refused("RunInstances", MaxCount="200") for _ in range(5)] == [""] * 5
    assert "request rate" in refused("RunInstances", MaxCount="1")
    buckets.advance(2)
    assert "resource rate" in refused("RunInstances", MaxCount="5")
    assert not refused("RunInstances", MaxCount="4")
    assert [bool(refused("DescribeInstances")) for _ in range(101)] == [False] * 100 + [True]
    assert [bool(refused("CreateTags")) for _ in range(101)] == [False] * 100 + [True]


@pytest.mark.parametrize(("burst", "good"), [(WORTH_A_CALL, True), (WORTH_A_CALL - 1, False)])
def test_a_burst_is_worth_a_call_or_a_mistake_of_the_configuration(burst: int, good: bool) -> None:
    """A request for more machines than that would wait for such a call for ever."""
    raw = msgspec.to_builtins(settings()) | {"launch_burst": burst}
    if good:
        assert msgspec.convert(raw, AwsCloud).launch_burst == burst
    else:
        with pytest.raises(msgspec.ValidationError, match="launch_burst"):
            msgspec.convert(raw, AwsCloud)
