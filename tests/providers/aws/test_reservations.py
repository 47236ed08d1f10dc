"""Launches on reservations: the request names them, and machines are known by their tag."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from msgspec.structs import replace
from providers.aws.bed import AwsBed, FleetBed, between

from slurm_elastic.base.errors import CapacityError
from slurm_elastic.config import Cluster
from slurm_elastic.config.grants import GrantUse, Holder
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.model.reserved import ReservationKind
from slurm_elastic.providers.aws import CLOUD, requests
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.reservations import EmulatedReservation
from slurm_elastic.testing.contract import UUID

HOUR = 3600.0
ALL = (Market.RESERVED, Market.SPOT, Market.ON_DEMAND)


def reservation(**changes: Any) -> Reservation:
    now = float(round(time.time()))
    fields = {
        "name": "block", "kind": ReservationKind.BLOCK, "id": "cr-1", "type": "c5.large",
        "zone": "us-east-1a", "count": 2, "upfront": 8.0, "begins_at": now - HOUR,
        "ends_at": now + 9 * HOUR,
    }  # fmt: skip
    return Reservation(**(fields | changes))


YEAR = reservation(
    name="year", kind=ReservationKind.INSTANCES, id=None, zone=None, upfront=0.0, price=0.05
)


def spec_for(pool: Pool, offer: Offer, nodes: tuple[str, ...]) -> LaunchSpec:
    return LaunchSpec(generation=f"g-{nodes[0]}", pool=pool, nodes=nodes, offer=offer)


def buy(control: Ec2Control, bought: Reservation) -> None:
    control.reserve(EmulatedReservation(
        id=bought.id or bought.name, kind=str(bought.kind), type=bought.type or "",
        zone=bought.zone or "", count=bought.count or 0, begins_at=bought.begins_at,
        ends_at=bought.ends_at, upfront=bought.upfront, price=bought.price,
    ))  # fmt: skip


@pytest.mark.parametrize("kind", [AwsBed, FleetBed])
def test_a_block_is_launched_into_by_its_id_and_never_over_its_count(
    ec2: Ec2Control, kind: type[AwsBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, block = kind(ec2), reservation()
    buy(bed.control, block)
    provider = bed.open(reservations=(block, YEAR))
    pool = replace(bed.pool, markets=ALL)
    offers = [o for o in provider.offers(pool) if o.market is Market.RESERVED]
    assert [(o.held.name, o.zone) for o in offers if o.held] == [
        ("block", "us-east-1a"), ("year", "us-east-1a"), ("year", "us-east-1b"),
    ]  # fmt: skip
    assert offers[0].price == pytest.approx(8 / 10 / 2)
    sent: list[dict[str, Any]] = []

    def keep(real: Any, action: str, request: Any) -> Any:
        if action == "run_instances":
            sent.append(request)
        return real()

    between(monkeypatch, keep)
    spec = spec_for(pool, offers[0], ("pub1", "pub2", "pub3"))
    machines = provider.launch(spec)
    assert len(machines) == 2, "the third does not fit"
    assert sent[0]["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert sent[0]["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
    }
    for machine in (*machines, *bed.open(reservations=(block,)).instances()):
        assert (machine.market, machine.reservation) == (Market.RESERVED, "block")
        assert machine.price == pytest.approx(0.4)
    with pytest.raises(CapacityError):
        provider.launch(spec_for(pool, offers[0], ("pub4",)))


def test_reserved_instances_are_launched_as_on_demand(bed: AwsBed) -> None:
    provider = bed.open(reservations=(YEAR,))
    pool = replace(bed.pool, markets=ALL)
    offer = next(o for o in provider.offers(pool) if o.held)
    spec = spec_for(pool, offer, ("pub1",))
    request = requests.run_instances(
        bed.settings(), Cluster(name="site", uuid=UUID), spec, ["pub1"], number=0, parts=()
    )
    assert not request.keys() & {"InstanceMarketOptions", "CapacityReservationSpecification"}
    (machine,) = provider.launch(spec)
    assert (machine.market, machine.reservation) == (Market.RESERVED, "year")
    # A tag of a reservation that has nothing for this type may be anybody's.
    of_another_type = reservation(
        name="year", kind=ReservationKind.INSTANCES, id=None, zone=None, type="c5.xlarge"
    )
    for held in ((), (of_another_type,)):
        (adopted,) = bed.open(reservations=held).instances()
        assert (adopted.market, adopted.reservation) == (Market.ON_DEMAND, "")


def test_a_pool_without_the_market_gets_no_such_offer(bed: AwsBed) -> None:
    assert not [o for o in bed.open(reservations=(YEAR,)).offers(bed.pool) if o.held]


def test_the_right_to_launch_into_a_reservation_is_granted(bed: AwsBed) -> None:
    settings = replace(bed.settings(reservations=(reservation(), YEAR)), endpoint=None)
    assert settings.location is Location.PUBLIC
    use = GrantUse(cluster=Cluster(name="site", uuid=UUID), pools=(bed.pool,), console=True)
    statements = json.loads(CLOUD.grant(settings, use, Holder.SERVICES).text)["Statement"]
    (into,) = (s for s in statements if s["Sid"] == "LaunchInto")
    assert [r for r in into["Resource"] if "capacity-reservation" in r] == [
        "arn:aws:ec2:us-east-1:*:capacity-reservation/cr-1"
    ]
