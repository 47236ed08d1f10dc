"""The emulated EC2 does what moto does not, as Amazon's does it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError
from emulated import running_ec2
from patience import eventually, patience

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.ckptman.event_bridge import SqsQueue
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.events import QUEUE
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind

pytestmark = pytest.mark.usefixtures("guarded")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Control]:
    with running_ec2(tmp_path_factory.mktemp("ec2")) as control:
        yield control


@pytest.fixture
def control(server: Ec2Control) -> Ec2Control:
    server.reset()
    return server


@pytest.fixture
def client(control: Ec2Control) -> Any:
    once = Config(retries={"total_max_attempts": 1}, read_timeout=20)
    return boto3.client("ec2", region_name="us-east-1", endpoint_url=control.url, config=once)


Run = Callable[..., list[str]]


@pytest.fixture
def run(client: Any) -> Run:
    def start(
        most: int, least: int = 1, *, market: str = "spot", type_: str = "c5.large",
        zone: str = "us-east-1a", max_price: str | None = None, **more: object,
    ) -> list[str]:  # fmt: skip
        if market == "spot":
            options = {"MaxPrice": max_price} if max_price else {}
            more["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        answer = client.run_instances(
            ImageId="ami-1", InstanceType=type_, MinCount=least, MaxCount=most,
            Placement={"AvailabilityZone": zone}, **more,
        )  # fmt: skip
        return [i["InstanceId"] for i in answer["Instances"]]

    return start


def code_of(call: Callable[[], object]) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call()
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def states(control: Ec2Control) -> dict[str, str]:
    return {m.id: m.state for m in control.state().machines}


def test_what_is_stopped_has_no_host_and_needs_one_to_start(
    control: Ec2Control, client: Any, run: Run
) -> None:
    control.stock("c5.large/*/*", 1)
    (first,) = run(1, market="on-demand")
    client.stop_instances(InstanceIds=[first])
    (second,) = run(1, market="on-demand")
    refused = code_of(lambda: client.start_instances(InstanceIds=[first]))
    assert refused == ("InsufficientInstanceCapacity", 500)
    assert states(control) == {first: "stopped", second: "running"}
    client.terminate_instances(InstanceIds=[second])
    client.start_instances(InstanceIds=[first])
    assert states(control)[first] == "running"


def listed(client: Any) -> set[str]:
    answer = client.describe_instances()
    return {i["InstanceId"] for r in answer["Reservations"] for i in r["Instances"]}


def test_a_launch_is_as_large_as_asked(run: Run, client: Any) -> None:
    assert len(run(5)) == 5
    indexes = [
        i["AmiLaunchIndex"]
        for r in client.describe_instances()["Reservations"]
        for i in r["Instances"]
    ]
    assert sorted(indexes) == [0, 1, 2, 3, 4]


def test_stock_makes_a_launch_partial_or_refuses_it(control: Ec2Control, run: Run) -> None:
    control.stock("c5.large/us-east-1a/spot", 3)
    assert len(run(5)) == 3
    assert code_of(lambda: run(1)) == ("InsufficientInstanceCapacity", 500)
    assert len(run(2, market="on-demand")) == 2
    assert len(run(2, zone="us-east-1b")) == 2
    control.stock("c5.large/us-east-1a/spot", 4)
    assert code_of(lambda: run(3, 2)) == ("InsufficientInstanceCapacity", 500)
    control.stock("c5.large/us-east-1a/spot", None)
    assert len(run(3, 2)) == 3


def test_the_narrowest_stock_counts_and_what_ends_comes_back(
    control: Ec2Control, run: Run, client: Any
) -> None:
    control.stock("*/*/spot", 5)
    control.stock("c5.*/*/*", 2)
    first = run(9)
    assert len(first) == 2
    client.terminate_instances(InstanceIds=first[:1])
    assert len(run(9)) == 1


def test_a_token_gives_the_same_machines_in_their_state_of_now(
    control: Ec2Control, run: Run, client: Any
) -> None:
    first = run(3, ClientToken="t")
    client.terminate_instances(InstanceIds=first[:1])
    control.stock("*/*/*", 0)
    assert run(3, ClientToken="t") == first
    again = client.run_instances(
        ImageId="ami-1", InstanceType="c5.large", MinCount=1, MaxCount=3, ClientToken="t",
        Placement={"AvailabilityZone": "us-east-1a"},
        InstanceMarketOptions={"MarketType": "spot", "SpotOptions": {}},
    )  # fmt: skip
    now = [i["State"]["Name"] for i in again["Instances"]]
    assert now == ["terminated", "running", "running"]
    assert len(states(control)) == 3


def test_a_token_with_other_parameters_is_refused(run: Run) -> None:
    run(2, ClientToken="t")
    assert code_of(lambda: run(3, ClientToken="t")) == ("IdempotentParameterMismatch", 400)


def test_a_refused_launch_uses_no_token_up(control: Ec2Control, run: Run) -> None:
    control.fail(Fault(kind=FaultKind.CAPACITY, count=1))
    code_of(lambda: run(1, ClientToken="t"))
    assert len(run(1, ClientToken="t")) == 1


@pytest.mark.parametrize(
    ("kind", "market", "code"),
    [
        (FaultKind.CAPACITY, "spot", ("InsufficientInstanceCapacity", 500)),
        (FaultKind.QUOTA, "spot", ("MaxSpotInstanceCountExceeded", 400)),
        (FaultKind.QUOTA, "on-demand", ("VcpuLimitExceeded", 400)),
        (FaultKind.AUTH, "spot", ("AuthFailure", 401)),
        (FaultKind.THROTTLE, "spot", ("RequestLimitExceeded", 503)),
        (FaultKind.INTERNAL, "spot", ("InternalError", 500)),
    ],
)
def test_faults_are_answered_as_ec2_does_and_start_nothing(
    control: Ec2Control, run: Run, kind: FaultKind, market: str, code: tuple[str, int]
) -> None:
    control.fail(Fault(kind=kind, count=1))
    assert code_of(lambda: run(1, market=market)) == code
    assert states(control) == {}
    assert len(run(1, market=market)) == 1


@pytest.mark.parametrize("kind", [FaultKind.RESET_BEFORE, FaultKind.TIMEOUT_BEFORE])
def test_a_connection_lost_before_the_effect(
    control: Ec2Control, run: Run, kind: FaultKind
) -> None:
    control.fail(Fault(kind=kind, count=1, seconds=0.2))
    with pytest.raises(ConnectionClosedError):
        run(2, ClientToken="t")
    assert states(control) == {}


@pytest.mark.parametrize("kind", [FaultKind.RESET_AFTER, FaultKind.TIMEOUT_AFTER])
def test_a_connection_lost_after_the_effect(control: Ec2Control, run: Run, kind: FaultKind) -> None:
    control.fail(Fault(kind=kind, count=1, seconds=0.2))
    with pytest.raises(ConnectionClosedError):
        run(2, ClientToken="t")
    started = set(states(control))
    assert len(started) == 2
    assert set(run(2, ClientToken="t")) == started


def test_a_fault_strikes_what_it_is_for_as_often_as_it_says(
    control: Ec2Control, run: Run, client: Any
) -> None:
    control.fail(
        Fault(
            kind=FaultKind.CAPACITY, action="Run*", market="spot", type="c5.*",
            zone="us-east-1a", count=2,
        )
    )  # fmt: skip
    assert run(1, market="on-demand")
    assert run(1, type_="m5.large")
    assert run(1, zone="us-east-1b")
    client.describe_instances()
    for _ in range(2):
        code_of(lambda: run(1))
    assert run(1)
    assert control.state().faults == ()


def test_another_code_can_be_asked_for_and_faults_be_healed(control: Ec2Control, run: Run) -> None:
    control.fail(Fault(kind=FaultKind.CAPACITY, code="InsufficientHostCapacity"))
    assert code_of(lambda: run(1))[0] == "InsufficientHostCapacity"
    control.heal()
    assert run(1)


def test_fresh_machines_are_not_listed_for_a_while(
    control: Ec2Control, run: Run, client: Any
) -> None:
    old = set(run(1))
    control.hide_fresh(3600)
    fresh = set(run(2))
    assert listed(client) == old
    assert set(states(control)) == old | fresh
    control.hide_fresh(0.5)
    soon = set(run(1))
    eventually(lambda: listed(client) == old | soon)


def test_a_machine_is_listed_for_a_while_after_its_end(
    control: Ec2Control, client: Any, run: Run
) -> None:
    ended, living = run(2)
    client.terminate_instances(InstanceIds=[ended])

    assert listed(client) == {ended, living}
    control.forget_ended(0.0)
    eventually(lambda: listed(client) == {living})
    assert states(control) == {living: "running"}
    requests = client.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert [r["InstanceId"] for r in requests] == [living]
    client.terminate_instances(InstanceIds=[living])
    eventually(lambda: not listed(client))


def test_prices_set_by_hand_are_answered(control: Ec2Control, client: Any) -> None:
    control.price("c5.large", "us-east-1a", 0.0123)
    control.price("x9.new", "us-east-1b", 1.5)
    now = datetime.now(UTC)
    history = client.describe_spot_price_history(
        InstanceTypes=["c5.large", "x9.new"], StartTime=now, EndTime=now
    )
    prices = {
        (p["InstanceType"], p["AvailabilityZone"]): float(p["SpotPrice"])
        for p in history["SpotPriceHistory"]
    }
    assert prices["c5.large", "us-east-1a"] == 0.0123
    assert prices["x9.new", "us-east-1b"] == 1.5
    assert set(prices) == {
        ("x9.new", "us-east-1b"),
        *(("c5.large", f"us-east-1{z}") for z in "abc"),
    }


def test_the_price_history_has_what_held_at_its_start_and_all_changes(
    control: Ec2Control, client: Any
) -> None:
    control.price("c5.large", "us-east-1a", 0.02)
    began = datetime.now(UTC) + timedelta(seconds=1)
    # EC2's times are whole seconds: the next price is of a later one.
    eventually(lambda: datetime.now(UTC) > began + timedelta(seconds=1))
    control.price("c5.large", "us-east-1a", 0.075)

    def told(**period: datetime) -> list[float]:
        zone = {"Name": "availability-zone", "Values": ["us-east-1a"]}
        answer = client.describe_spot_price_history(
            InstanceTypes=["c5.large"], Filters=[zone], **period
        )
        return [float(point["SpotPrice"]) for point in answer["SpotPriceHistory"]]

    assert told(StartTime=began, EndTime=datetime.now(UTC)) == [0.075, 0.02]
    assert told(StartTime=began, EndTime=began) == [0.02]
    assert told(StartTime=began) == [0.075]
    assert told()[:2] == [0.075, 0.02]


def test_a_trace_is_replayed(control: Ec2Control, client: Any, tmp_path: Path) -> None:
    path = tmp_path / "t9.tiny_us-east-1a.csv"
    path.write_text("timestamp,price\n0,0.1\n3600,0.2\n7200,0.3\n")
    control.replay(path, speed=3600)

    def price() -> float:
        history = client.describe_spot_price_history(InstanceTypes=["t9.tiny"])
        return float(history["SpotPriceHistory"][0]["SpotPrice"])

    eventually(lambda: price() == 0.2)
    eventually(lambda: price() == 0.1)


def test_a_bid_below_the_price_is_refused(control: Ec2Control, run: Run) -> None:
    control.price("c5.large", "us-east-1a", 0.05)
    assert code_of(lambda: run(1, max_price="0.04"))[0] == "SpotMaxPriceTooLow"
    assert run(1, max_price="0.06")


def test_a_spot_machine_is_announced_and_then_taken(
    control: Ec2Control, run: Run, client: Any
) -> None:
    taken, kept = run(2)
    (pet,) = run(1, market="on-demand")
    control.interrupt([taken], notice=3600.0)
    view = next(m for m in control.state().machines if m.id == taken)
    assert view.interruption is not None
    assert view.interruption.deadline - view.interruption.announced == 3600.0

    def codes(*wanted: str) -> dict[str, str]:
        filters = [{"Name": "status-code", "Values": list(wanted)}] if wanted else []
        answer = client.describe_spot_instance_requests(Filters=filters)
        return {r["InstanceId"]: r["Status"]["Code"] for r in answer["SpotInstanceRequests"]}

    assert codes() == {taken: "marked-for-termination", kept: "fulfilled"}
    assert set(codes("marked-for-termination")) == {taken}
    control.interrupt([taken], notice=0.0)
    eventually(lambda: states(control)[taken] == "terminated")
    assert states(control)[kept] == states(control)[pet] == "running"
    assert codes()[taken] == "instance-terminated-no-capacity"
    gone = client.describe_instances(InstanceIds=[taken])["Reservations"][0]["Instances"][0]
    assert gone["StateReason"]["Code"] == "Server.SpotInstanceTermination"


def test_an_interruption_is_told_in_the_queue_once_or_when_it_comes_sooner(
    control: Ec2Control, run: Run
) -> None:
    first, second = run(2)
    control.interrupt([first], notice=60.0)
    control.interrupt([first, second], notice=300.0)
    sqs = boto3.client("sqs", region_name="us-east-1", endpoint_url=control.url)
    url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
    source = SqsQueue(url, lambda: sqs)
    told = source.read(5.0)
    deadlines = {t.notice.instance: t.notice.deadline for t in told if t.notice is not None}
    assert len(told) == 2
    for machine in control.state().machines:
        assert machine.interruption is not None
        assert 0 <= machine.interruption.deadline - (deadlines[machine.id] or 0.0) < 1.0
    source.done([t.handle for t in told])
    control.interrupt([first], notice=20.0)
    (again,) = source.read(5.0)
    assert again.notice is not None
    assert again.notice.instance == first
    assert (again.notice.deadline or 0.0) < (deadlines[first] or 0.0)
    source.done([again.handle])
    control.reset()
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    assert {int(left[name]) for name in names} == {0}


def test_only_running_spot_machines_can_be_interrupted(control: Ec2Control, run: Run) -> None:
    (pet,) = run(1, market="on-demand")
    with pytest.raises(SandboxError, match="is not a spot machine"):
        control.interrupt([pet])
    with pytest.raises(SandboxError, match="no running machine 'i-1'"):
        control.interrupt(["i-1"])
    with pytest.raises(SandboxError, match="cannot be -1"):
        control.interrupt([], notice=-1)


def test_a_machine_that_powers_itself_off_ends_or_stops_as_its_launch_said(
    control: Ec2Control, client: Any
) -> None:
    ids = []
    for behaviour in ("terminate", "stop"):
        answer = client.run_instances(
            ImageId="ami-1", InstanceType="c5.large", MinCount=1, MaxCount=1,
            InstanceInitiatedShutdownBehavior=behaviour,
        )  # fmt: skip
        ids.append(answer["Instances"][0]["InstanceId"])
    control.shut_down([*ids, "i-unknown"])
    states = {m.id: m.state for m in control.state().machines}
    assert [states[i] for i in ids] == ["terminated", "stopped"]


def test_a_console_shows_what_it_is_said_to_show(
    control: Ec2Control, run: Run, client: Any
) -> None:
    told, other = run(2, market="on-demand")
    control.console(told, "[ 1.0] <ok>\r\nlogin: ")
    assert client.get_console_output(InstanceId=told)["Output"] == "[ 1.0] <ok>\r\nlogin: "
    assert "ok" not in client.get_console_output(InstanceId=other)["Output"].split()[:3]
    with pytest.raises(SandboxError, match="no machine 'i-1'"):
        control.console("i-1", "")
    control.reset()
    with pytest.raises(SandboxError, match="no machine"):
        control.console(told, "")


def test_calls_and_access_keys_are_counted_until_the_reset(
    control: Ec2Control, run: Run, client: Any
) -> None:
    run(1)
    client.describe_instances()
    client.describe_instances()
    seen = control.state()
    assert seen.calls == {"RunInstances": 1, "DescribeInstances": 2}
    assert seen.access_keys == ("sandbox-emulator-key",)
    control.reset()
    after = control.state()
    assert (after.machines, after.calls, after.faults, after.stock) == ((), {}, (), {})
    assert listed(client) == set()


def test_machines_show_the_node_that_their_tags_name(control: Ec2Control, run: Run) -> None:
    tags = [{"Key": "slurm-elastic:nodes", "Value": "pub[3-4]"}]
    run(2, TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])
    assert [m.node for m in control.state().machines] == ["pub3", "pub4"]


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("faults", b'{"fault": {"kind": "flood"}}', "Invalid enum value 'flood'"),
        ("faults", b'{"fault": {"kind": "capacity", "count": 0}}', "cannot strike 0 times"),
        ("faults", b'{"fault": {"kind": "capacity", "zones": "x"}}', "unknown field `zones`"),
        ("faults", b"{", "faults: "),
        ("stock", b'{"pattern": "c5", "count": 1}', "not of the form type/zone/market"),
        ("stock", b'{"pattern": "*/*/*", "count": -1}', "cannot be -1"),
        ("prices", b'{"type": "t", "zone": "z", "price": -1}', "-1.0 is not a price"),
        ("replay", b'{"trace": "/nowhere.csv"}', "cannot be read"),
        ("replay", b'{"trace": "%s", "speed": -1}', "at speed -1"),
        ("settings", b'{"colour": "red"}', "unknown field `colour`"),
        ("nothing", b"{}", "no POST 'nothing'"),
    ],
)
def test_wrong_orders_are_said_in_a_sentence(
    control: Ec2Control, name: str, body: bytes, message: str, tmp_path: Path
) -> None:
    trace = tmp_path / "t9.tiny_us-east-1a.csv"
    trace.write_text("timestamp,price\n0,0.1\n")
    if b"%s" in body:
        body %= str(trace).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{control.url}/_sandbox/{name}", body)
    assert caught.value.code == 400
    assert message in caught.value.read().decode()
    with pytest.raises(SandboxError, match="cannot strike"):
        control.fail(Fault(kind=FaultKind.AUTH, count=0))


def test_a_front_that_is_not_there_is_a_sandbox_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(SandboxError, match="does not answer"):
        Ec2Control(f"http://127.0.0.1:{port}").wait_ready(0.2)


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "slurm_elastic.sandbox.ec2.serve", *arguments],
        capture_output=True, text=True, timeout=patience(120), check=False,
    )  # fmt: skip


def test_it_says_why_it_cannot_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = program("--dir", str(tmp_path), "--port", str(port))
    assert ended.returncode == 2
    assert f"port {port} on 127.0.0.1 is not available" in ended.stderr
    assert "Traceback" not in ended.stderr
    ended = program("--dir", str(tmp_path), "--prices", "/nowhere.csv")
    assert ended.returncode == 2
    assert "price trace /nowhere.csv cannot be read" in ended.stderr
    assert not (tmp_path / "ec2" / "ready").exists()


def test_it_ends_on_a_signal_even_while_it_is_silent(tmp_path: Path) -> None:
    with running_ec2(tmp_path, "--speed", "0") as control:
        control.fail(Fault(kind=FaultKind.TIMEOUT_BEFORE, seconds=600))
        port = int(control.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as caller:
            body = b"Action=DescribeInstances&Version=2016-11-15"
            caller.sendall(
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded"
                b"\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            eventually(lambda: control.state().calls == {"DescribeInstances": 1})
            pid = int((tmp_path / "ec2" / "ready").read_bytes().split(b'"pid":')[1].rstrip(b"}"))
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: caller.recv(100) == b"")
