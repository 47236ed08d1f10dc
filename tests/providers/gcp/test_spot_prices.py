"""Google's published spot prices, and what follows from answers that must not count."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from emulated import GceControl
from providers.gcp.bed import GcpBed, world

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import SpotType
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.providers.base import published
from slurm_elastic.providers.gcp.errors import translated
from slurm_elastic.providers.gcp.provider import GcpProvider
from slurm_elastic.providers.gcp.spot_prices import STALE_S, spot_price
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.gce.world import GceType
from slurm_elastic.testing.contract import UUID

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
ASKED = "advice.capacityHistory"
NOW = 1_796_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def priced(bed: GcpBed, **small: Any) -> None:
    bed.control.reset(world(types={"small": GceType(cpus=2, memory=4096, **small)}))


def opened(bed: GcpBed, clock: Clock | None = None, **more: object) -> GcpProvider:
    settings = bed.settings(**{"published_prices": True, "api_timeout": 10.0, **more})
    return GcpProvider(settings, Cluster(name="site", uuid=UUID), monotonic=clock or Clock())


def prices_of(bed: GcpBed, provider: GcpProvider) -> dict[Market, float]:
    return {o.market: o.price for o in provider.offers(bed.pool)}


def test_without_the_key_google_is_not_asked(bed: GcpBed) -> None:
    priced(bed, spot_price=0.05)
    provider = opened(bed, published_prices=False)
    assert prices_of(bed, provider) == {SPOT: 0.03, ON_DEMAND: 0.1}
    assert not bed.calls(ASKED)
    assert not any(f.subject == "published prices" for f in provider.examine([bed.pool]))


def test_spot_costs_what_google_publishes_for_now(bed: GcpBed) -> None:
    priced(bed, spot_price=1.05)
    provider = opened(bed)
    assert prices_of(bed, provider) == {SPOT: 1.05, ON_DEMAND: 0.1}
    assert {o.reference_price for o in provider.offers(bed.pool)} == {None}
    assert provider.trouble == ""
    assert bed.calls(ASKED) == 1, "for both zones, and both looks"
    (finding,) = [f for f in provider.examine([bed.pool]) if f.subject == "published prices"]
    assert (finding.level, finding.observed) == (FindingLevel.OK, "1 price")
    bed.require_valid()


def test_a_type_with_a_published_spot_price_needs_no_configured_one(bed: GcpBed) -> None:
    types = {"small": SpotType(cpus=2, memory=4096, price=0.1)}
    priced(bed, spot_price=0.05)
    assert prices_of(bed, opened(bed, types=types)) == {SPOT: 0.05, ON_DEMAND: 0.1}
    priced(bed)
    provider = opened(bed, types=types)
    assert prices_of(bed, provider) == {ON_DEMAND: 0.1}
    assert provider.trouble == ""


@pytest.mark.parametrize(
    ("small", "cause"),
    [
        ({}, "it is not in the list"),
        ({"spot_price": 0.05, "currency": "EUR"}, "its currency is EUR"),
    ],
)
def test_a_price_that_cannot_be_used_is_named(
    bed: GcpBed, small: dict[str, Any], cause: str
) -> None:
    priced(bed, **small)
    provider = opened(bed)
    assert prices_of(bed, provider)[SPOT] == 0.03
    text = f"only configured prices count, because Google has none for small (spot): {cause}"
    assert provider.trouble == text
    (finding,) = [f for f in provider.examine([bed.pool]) if f.subject == "published prices"]
    assert (finding.level, finding.observed) == (FindingLevel.NOTE, text)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (FaultKind.AUTH, "forbidden"), (FaultKind.THROTTLE, "rateLimitExceeded"),
        (FaultKind.GARBAGE, "JSONDecodeError"), (FaultKind.RESET_AFTER, "ConnectionError"),
    ],
)  # fmt: skip
def test_the_last_answer_counts_for_six_hours_and_a_failure_is_named(
    bed: GcpBed, kind: FaultKind, cause: str
) -> None:
    clock = Clock()
    priced(bed, spot_price=0.05)
    provider = opened(bed, clock)
    assert prices_of(bed, provider)[SPOT] == 0.05
    bed.control.fail(Fault(kind=kind, action=ASKED))
    clock.now = published.KEPT_S - 1
    assert prices_of(bed, provider)[SPOT] == 0.05
    assert provider.trouble == ""
    clock.now += published.RETRY_S
    assert prices_of(bed, provider)[SPOT] == 0.03
    assert f"Google has none for small: {cause}" in provider.trouble
    bed.heal()
    clock.now += published.RETRY_S
    assert prices_of(bed, provider)[SPOT] == 0.05


def record(start: float, price: float, end: float | None = None, **money: object) -> dict[str, Any]:
    interval = {"startTime": datetime.fromtimestamp(NOW + start, UTC).isoformat()}
    if end is not None:
        interval["endTime"] = datetime.fromtimestamp(NOW + end, UTC).isoformat()
    usual = {"currencyCode": "USD", "nanos": round(price * 1e9)}
    return {"interval": interval, "listPrice": {**usual, **money}}


@pytest.mark.parametrize(
    ("history", "price", "cause"),
    [
        ([record(-9, 0.2), record(-5, 0.1), record(-7, 0.3)], 0.1, ""),
        ([record(-9, 0.2), record(5, 0.1)], 0.2, ""),
        ([record(-9, 0.25, units="3")], 3.25, ""),
        ([record(-2 * STALE_S, 0.2, end=-STALE_S)], None, ""),
        ([record(-2 * STALE_S, 0.2, end=1 - STALE_S)], 0.2, ""),
        ([], None, ""),
        ([record(-5, 0.1), record(-5, 0.1)], 0.1, ""),
        ([record(-5, 0.1), record(-5, 0.2)], None, "its prices of now differ"),
        ([record(-5, 0.1), record(-5, 0.1, currencyCode="EUR")], None, "its prices of now differ"),
        ([record(-5, 0.0)], None, "its price is 0.0"),
        ([record(-5, -0.1)], None, "its price is -0.1"),
        ([record(-5, 0.1, units="99999")], None, "its price is 99999.1"),
        ([record(-5, 0.1, currencyCode="INR")], None, "its currency is INR"),
    ],
)  # fmt: skip
def test_the_price_of_now_counts(history: list[Any], price: float | None, cause: str) -> None:
    answer = spot_price({"machineType": "small", "priceHistory": history}, "small", NOW)
    assert answer.prices == ({} if price is None else {SPOT: price})
    assert answer.refused == ({SPOT: cause} if cause else {})


@pytest.mark.parametrize(
    "answer",
    [
        {}, [], None, {"machineType": "big", "priceHistory": []},
        {"machineType": "small", "priceHistory": [{}]},
        {"machineType": "small", "priceHistory": 7},
        {"machineType": "small", "priceHistory": [record(-5, 0.1) | {"listPrice": {}}]},
        {"machineType": "small", "priceHistory": [record(-5, 0.1, units="many")]},
        {"machineType": "small", "priceHistory": [record(-5, 0.1, units=float("inf"))]},
        {"machineType": "small", "priceHistory": [record(-5, 0.1) | {"interval": {"startTime": "x"}}]},
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_an_error(answer: Any) -> None:
    with pytest.raises(TransientError, match="makes no sense"), translated("google"):
        spot_price(answer, "small", NOW)


def test_googles_own_client_reads_the_emulators_prices(control: GceControl) -> None:
    compute = pytest.importorskip(
        "google.cloud.compute_v1", reason="google-cloud-compute is not here"
    )
    history = compute.CapacityHistoryResponse
    bed_world = world(
        types={"small": GceType(cpus=2, memory=4096, spot_price=1.05)}, anonymous=True
    )
    control.reset(bed_world)
    from google.auth.credentials import AnonymousCredentials

    transport = compute.services.advice.transports.AdviceRestTransport(
        host=control.url.removeprefix("http://"), url_scheme="http",
        credentials=AnonymousCredentials(),
    )  # fmt: skip
    client = compute.AdviceClient(transport=transport)
    answer = client.capacity_history(
        project=bed_world.project,
        region=bed_world.region,
        capacity_history_request_resource=compute.CapacityHistoryRequest(
            types=["PRICE"],
            instance_properties=compute.CapacityHistoryRequestInstanceProperties(
                machine_type="small",
                scheduling=compute.CapacityHistoryRequestInstancePropertiesScheduling(
                    provisioning_model="SPOT"
                ),
            ),
        ),
    )
    assert isinstance(answer, history)
    money = [record.list_price for record in answer.price_history]
    assert [(m.currency_code, m.units, m.nanos) for m in money] == [
        ("USD", 2, 100_000_000), ("USD", 1, 50_000_000),
    ]  # fmt: skip
    assert control.state().violations == ()
