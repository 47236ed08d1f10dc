"""The emulated EC2 counts its reservations, ends the machines of a block, and bills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from emulated import running_ec2
from patience import eventually

from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.reservations import (
    BLOCK_LEAD_S,
    EmulatedReservation,
    Reservations,
    ReservationView,
)

pytestmark = pytest.mark.usefixtures("guarded")
HOUR = 3600.0
NOW = 1_800_000_000.0
BLOCK = EmulatedReservation(
    id="cr-1", kind="capacity-block", type="c5.large", zone="us-east-1a", count=2,
    begins_at=NOW, ends_at=NOW + 10 * HOUR, upfront=8.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Control]:
    with running_ec2(tmp_path_factory.mktemp("ec2")) as control:
        yield control


@pytest.fixture
def control(server: Ec2Control) -> Ec2Control:
    server.reset()
    return server


def run(control: Ec2Control, count: int, target: str = "cr-1", **more: Any) -> list[str]:
    once = Config(retries={"total_max_attempts": 1}, read_timeout=20)
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=control.url, config=once)
    more.setdefault("InstanceMarketOptions", {"MarketType": "capacity-block"})
    answer = client.run_instances(
        ImageId="ami-1", InstanceType=more.pop("InstanceType", "c5.large"), MinCount=1,
        MaxCount=count, Placement={"AvailabilityZone": "us-east-1a"},
        CapacityReservationSpecification={
            "CapacityReservationTarget": {"CapacityReservationId": target}
        },
        **{key: value for key, value in more.items() if value is not None},
    )  # fmt: skip
    found = client.describe_instances(InstanceIds=[i["InstanceId"] for i in answer["Instances"]])
    machines = [i for r in found["Reservations"] for i in r["Instances"]]
    if more["InstanceMarketOptions"]:
        assert {i.get("InstanceLifecycle") for i in machines} == {"capacity-block"}
    return [i["InstanceId"] for i in machines]


def reserve(control: Ec2Control, seconds: float = 10 * HOUR, **changes: Any) -> None:
    now = time.time()
    fields = {"begins_at": now - HOUR, "ends_at": now + BLOCK_LEAD_S + seconds} | changes
    control.reserve(EmulatedReservation(**{
        "id": "cr-1", "kind": "capacity-block", "type": "c5.large", "zone": "us-east-1a",
        "count": 2, "upfront": 8.0, **fields,
    }))  # fmt: skip


def code(control: Ec2Control, *words: Any, **more: Any) -> str:
    with pytest.raises(ClientError) as caught:
        run(control, *words, **more)
    return str(caught.value.response["Error"]["Code"])


def test_it_counts_its_machines_and_refuses_more(control: Ec2Control) -> None:
    reserve(control)
    control.stock("*/*/*", 0)  # a reservation has hosts of its own
    first = run(control, 1)
    assert len(run(control, 5)) == 1, "there was one left"
    assert code(control, 1) == "ReservationCapacityExceeded"
    control.shut_down(first)
    assert run(control, 1)
    (view,) = control.state().reservations
    assert (view.used, view.count) == (2, 2)


def test_a_launch_that_does_not_fit_is_refused_as_ec2_does(control: Ec2Control) -> None:
    reserve(control)
    assert code(control, 1, "cr-9") == "InvalidCapacityReservationId.NotFound"
    assert code(control, 1, InstanceType="m5.large") == "InvalidParameterCombination"
    assert code(control, 1, InstanceMarketOptions=None) == "InvalidParameterCombination"
    reserve(control, begins_at=time.time() + HOUR)
    assert code(control, 1) == "InsufficientInstanceCapacity"
    reserve(control, kind="capacity-reservation")
    assert run(control, 1, InstanceMarketOptions=None)
    assert control.state().machines[0].reservation == "cr-1"


def test_the_machines_of_a_block_end_half_an_hour_before_it(control: Ec2Control) -> None:
    reserve(control, 2.0)
    (machine,) = run(control, 1)
    eventually(
        lambda: {m.id: m.state for m in control.state().machines}[machine] == "terminated",
    )
    assert code(control, 1) == "InsufficientInstanceCapacity"


def test_it_bills_its_whole_price_evenly_over_the_term() -> None:
    held = Reservations()
    held.add(BLOCK)
    bills = [held.views((), NOW + hours * HOUR)[0].micro_dollars for hours in (-1, 0, 5, 10, 99)]
    assert bills == [0, 0, 4_000_000, 8_000_000, 8_000_000]
    assert held.views((), NOW) == (
        ReservationView(id="cr-1", kind="capacity-block", count=2, used=0, micro_dollars=0),
    )


def test_machines_go_half_an_hour_before_the_end(tmp_path: Path) -> None:
    held = Reservations()
    held.add(BLOCK)
    assert BLOCK_LEAD_S == 1800
    assert held.over(BLOCK.ends_at - 1800) == set()
