"""Azure's published prices: which meters count, and what follows from answers that must not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from providers.azure.bed import SIZE, AzureBed

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import SpotType
from slurm_elastic.config.sections.discounts import Discount
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.policies.launch.ranking import mispriced
from slurm_elastic.providers.azure import retail_prices
from slurm_elastic.providers.azure.provider import AzureProvider
from slurm_elastic.providers.base import published
from slurm_elastic.sandbox.azure import retail, serve
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import UUID

SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND
OTHER = "Standard_D4s_v5"
CONFIGURED = {SPOT: 0.02, ON_DEMAND: 0.1}
Meter = dict[str, Any]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(bed: AzureBed, clock: Clock | None = None, **more: object) -> AzureProvider:
    values: dict[str, object] = {"price_endpoint": bed.emulator.url, "api_timeout": 10.0, **more}
    settings = bed.settings(**values)
    return AzureProvider(settings, Cluster(name="site", uuid=UUID), monotonic=clock or Clock())


def meter(word: str = "", **changes: object) -> Meter:
    usual = {
        "currencyCode": "USD", "retailPrice": 0.03 if word else 0.09, "armRegionName": "westeurope",
        "meterName": f"D2s v5{word}", "skuName": f"D2s v5{word}", "armSkuName": SIZE,
        "productName": "Virtual Machines Dsv5 Series", "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour", "type": "Consumption",
    }  # fmt: skip
    return {**usual, **changes}


def prices_of(bed: AzureBed, provider: AzureProvider, size: str = SIZE) -> dict[Market, float]:
    return {o.market: o.price for o in provider.offers(bed.pool) if o.instance_type == size}


def read_times(bed: AzureBed) -> int:
    return sum(request.endswith(retail.PATH) for request in bed.emulator.requests)


def test_without_the_key_nobody_is_asked(bed: AzureBed) -> None:
    provider = bed.open()
    assert prices_of(bed, provider) == CONFIGURED
    assert {o.reference_price for o in provider.offers(bed.pool)} == {None}
    assert not read_times(bed)
    assert not any(f.subject == "published prices" for f in provider.examine([bed.pool]))


def test_spot_costs_what_azure_publishes_and_its_list_price_checks_the_configured_one(
    bed: AzureBed,
) -> None:
    """The emulator also has meters of Windows, Low Priority and Dev/Test, which do not count."""
    provider = opened(bed)
    offers = provider.offers(bed.pool)
    assert {o.market: o.price for o in offers} == {SPOT: 0.018, ON_DEMAND: 0.1}
    assert {(o.reference_price, o.reference) for o in offers} == {(0.09, retail_prices.ON_DEMAND)}
    bed.world.meters = [meter(" Spot"), meter(retailPrice=0.2)]
    offers = opened(bed).offers(bed.pool)
    assert {o.market: o.price for o in offers} == {SPOT: 0.03, ON_DEMAND: 0.1}
    assert "asks $0.20/h (Azure's list price on demand)" in str(mispriced(offers[0]))
    assert provider.trouble == ""


def test_published_prices_are_prices_before_discounts(bed: AzureBed) -> None:
    bed.world.meters = [meter(" Spot"), meter(retailPrice=0.1)]
    discounts = (Discount(discount=0.5),)
    offers = opened(bed, discounts=discounts).offers(bed.pool)
    assert {o.market: o.price for o in offers} == pytest.approx({SPOT: 0.015, ON_DEMAND: 0.05})
    assert [mispriced(offer) for offer in offers] == [None, None]


def test_a_size_with_a_published_spot_price_needs_no_configured_one(bed: AzureBed) -> None:
    types = {SIZE: SpotType(cpus=2, memory=4096, price=0.1)}
    bed.world.meters = [meter(), meter(" Spot")]
    assert prices_of(bed, opened(bed, types=types)) == {SPOT: 0.03, ON_DEMAND: 0.1}
    bed.world.meters = [meter()]
    provider = opened(bed, types=types)
    assert prices_of(bed, provider) == {ON_DEMAND: 0.1}
    assert provider.trouble == "", "Azure may not sell each size as spot"


@pytest.mark.parametrize(
    ("meters", "market", "cause"),
    [
        ([meter(), meter(" Spot", currencyCode="EUR")], SPOT, "its currency is EUR"),
        ([meter(currencyCode="EUR"), meter(" Spot")], ON_DEMAND, "its currency is EUR"),
        ([meter(), meter(" Spot", unitOfMeasure="100 Hours")], SPOT, "its unit is 100 Hours"),
        ([meter(), meter(" Spot", unitOfMeasure=None)], SPOT, "its unit is None"),
        ([meter(), meter(" Spot", retailPrice=0.0)], SPOT, "its price is 0.0"),
        ([meter(), meter(" Spot", retailPrice=-0.1)], SPOT, "its price is -0.1"),
        ([meter(), meter(" Spot", retailPrice="0.01")], SPOT, "its price is 0.01"),
        ([meter(), meter(" Spot", retailPrice=True)], SPOT, "its price is True"),
        ([meter(), meter(" Spot", retailPrice=float("nan"))], SPOT, "its price is nan"),
        ([meter(), meter(" Spot", retailPrice=1e9)], SPOT, "its price is 1000000000.0"),
        ([meter(), meter(" Spot"), meter(" Spot", retailPrice=0.001)], SPOT,
         "its meters differ: 0.001, 0.03"),
        ([meter(), meter(" Spot"), meter(" Spot", currencyCode="INR")], SPOT,
         "its currency is INR"),
        ([meter()], SPOT, "it is not in the list"),
        ([meter(" Spot")], ON_DEMAND, "it is not in the list"),
    ],
)  # fmt: skip
def test_a_price_that_may_be_wrong_is_refused_and_named(
    bed: AzureBed, caplog: pytest.LogCaptureFixture, meters: list[Meter], market: Market, cause: str
) -> None:
    bed.world.meters = meters
    provider = opened(bed)
    with caplog.at_level(logging.WARNING):
        offers = provider.offers(bed.pool)
        provider.offers(bed.pool)
    text = (
        f"only configured prices count, because {bed.emulator.url} has none for"
        f" {SIZE} ({market}): {cause}"
    )
    assert provider.trouble == text
    assert [record.message.startswith(text) for record in caplog.records] == [True], "once"
    prices = {o.market: o.price for o in offers}
    assert prices == {SPOT: CONFIGURED[SPOT] if market is SPOT else 0.03, ON_DEMAND: 0.1}
    assert {o.reference_price for o in offers} == {0.09 if market is SPOT else None}
    (finding,) = [f for f in provider.examine([bed.pool]) if f.subject == "published prices"]
    assert (finding.level, finding.observed) == (FindingLevel.NOTE, text)


@pytest.mark.parametrize(
    "others",
    [
        [meter(productName="Virtual Machines Dsv5 Series Windows", retailPrice=0.001)],
        [meter(productName="Dsv5 Series Cloud Services", retailPrice=0.001)],
        [meter(" Low Priority", retailPrice=0.001)],
        [meter(type="DevTestConsumption", retailPrice=0.001)],
        [meter(type="Reservation", retailPrice=900.0)],
        [meter(armSkuName=OTHER, retailPrice=0.001), meter(armRegionName="eastus")],
        [meter(serviceName="Virtual Machines Licenses", retailPrice=0.001)],
        [meter(isPrimaryMeterRegion=False), meter(" Spot", isPrimaryMeterRegion=False)],
    ],
)
def test_meters_that_count_for_none_of_our_machines_are_left_out(
    bed: AzureBed, monkeypatch: pytest.MonkeyPatch, others: list[Meter]
) -> None:
    """Also if the filter is ignored."""
    monkeypatch.setattr(retail, "_terms", lambda _: {})
    bed.world.meters = [*others, meter(), meter(" Spot"), *others]
    provider = opened(bed)
    offers = provider.offers(bed.pool)
    assert {o.market: (o.price, o.reference_price) for o in offers} == {
        SPOT: (0.03, 0.09), ON_DEMAND: (0.1, 0.09),
    }  # fmt: skip
    assert provider.trouble == ""


def test_all_pages_count(bed: AzureBed) -> None:
    """Azure writes its port into the links, which the key lacks."""
    bed.world.price_page = 1
    bed.world.meters = [meter(), meter(" Spot")]
    assert prices_of(bed, opened(bed)) == {SPOT: 0.03, ON_DEMAND: 0.1}
    assert read_times(bed) == 2


def loop(page: Meter, url: str) -> object:
    return {**page, "NextPageLink": f"{url}{retail.PATH}?$skip=0"}


def elsewhere(page: Meter, url: str) -> object:
    del url
    return {**page, "NextPageLink": "http://prices.example.org/api/retail/prices"}


def half(page: Meter, url: str) -> object:
    del url
    return {**page, "Items": page["Items"][:1]}


HOSTILE: Mapping[str, tuple[Callable[[Meter, str], object], str]] = {
    "a loop of pages": (loop, "BadAnswer: the list does not end"),
    "another host": (elsewhere, "BadAnswer: the answer leads to another host"),
    "half a page": (half, "BadAnswer: the page is not complete"),
    "a list": (lambda *_: [], "BadAnswer: the answer makes no sense: TypeError"),
    "no items": (lambda *_: {}, "BadAnswer: the answer makes no sense: KeyError: 'Items'"),
    "items of text": (lambda *_: {"Items": "ab"}, "BadAnswer: the answer makes no sense"),
    "items without keys": (lambda *_: {"Items": [{}]}, "BadAnswer: the answer makes no sense"),
    "null": (lambda *_: None, "BadAnswer: the answer makes no sense"),
    "a link that is none": (lambda page, _: {**page, "NextPageLink": 7},
                            "BadAnswer: the answer leads to another host"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "cause"), HOSTILE.values(), ids=HOSTILE)
def test_an_answer_that_makes_no_sense_counts_for_nothing(
    bed: AzureBed,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Meter, str], object],
    cause: str,
) -> None:
    usual = serve._Handler._prices

    def changed(*arguments: Any) -> Any:
        reply = usual(*arguments)
        reply.content = change(reply.content, bed.emulator.url)
        return reply

    monkeypatch.setattr(serve._Handler, "_prices", changed)
    provider = opened(bed)
    offers = provider.offers(bed.pool)
    assert {o.market: o.price for o in offers} == CONFIGURED
    assert {o.reference_price for o in offers} == {None}
    assert f"has none for {SIZE}: {cause}" in provider.trouble
    assert read_times(bed) <= 20


def test_json_of_many_brackets_is_an_answer_that_makes_no_sense(
    bed: AzureBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "PAGE", b"[" * 200_000)
    bed.emulator.faults.add(Fault(kind=FaultKind.GARBAGE, action="prices"))
    provider = opened(bed)
    assert prices_of(bed, provider) == CONFIGURED
    assert "RecursionError" in provider.trouble


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (FaultKind.GARBAGE, "BadAnswer"), (FaultKind.INTERNAL, "HTTP500"),
        (FaultKind.THROTTLE, "HTTP429"), (FaultKind.RESET_BEFORE, "ConnectionError"),
        (FaultKind.RESET_AFTER, "ConnectionError"), (FaultKind.TIMEOUT_BEFORE, "ReadTimeout"),
    ],
)  # fmt: skip
def test_a_failed_reading_is_named_and_not_repeated_at_each_look(
    bed: AzureBed, kind: FaultKind, cause: str
) -> None:
    clock = Clock()
    types = {
        size: SpotType(cpus=2, memory=4096, price=0.1, spot_price=0.02) for size in (SIZE, OTHER)
    }
    bed.emulator.faults.add(Fault(kind=kind, action="prices", seconds=20))
    provider = opened(bed, clock, types=types, api_timeout=0.5)
    assert prices_of(bed, provider) == CONFIGURED
    assert f"has none for {SIZE}, {OTHER}: {cause}" in provider.trouble
    clock.now = published.RETRY_S - 1
    read = read_times(bed)
    assert prices_of(bed, provider) == CONFIGURED
    assert read_times(bed) == read
    bed.heal()
    bed.world.meters = [meter(), meter(" Spot"), *(m | {"armSkuName": OTHER} for m in
                        (meter(), meter(" Spot")))]  # fmt: skip
    clock.now = published.RETRY_S
    assert prices_of(bed, provider)[SPOT] == 0.03
    assert provider.trouble == ""


def test_a_failed_size_takes_no_price_from_another(
    bed: AzureBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = serve._Handler._prices

    def changed(handler: Any, query: Mapping[str, str]) -> Any:
        reply = usual(handler, query)
        if OTHER in query["$filter"]:
            reply.content = []
        return reply

    monkeypatch.setattr(serve._Handler, "_prices", changed)
    bed.world.meters = [meter(), meter(" Spot")]
    types = {
        size: SpotType(cpus=2, memory=4096, price=0.1, spot_price=0.02) for size in (SIZE, OTHER)
    }
    provider = opened(bed, types=types)
    assert prices_of(bed, provider)[SPOT] == 0.03
    assert f"has none for {OTHER}: " in provider.trouble


def test_the_last_answer_counts_for_six_hours(bed: AzureBed) -> None:
    clock = Clock()
    bed.world.meters = [meter(), meter(" Spot")]
    provider = opened(bed, clock)
    assert prices_of(bed, provider)[SPOT] == 0.03
    clock.now = published.FRESH_S - 1
    bed.world.meters = [meter(), meter(" Spot", retailPrice=0.04)]
    assert prices_of(bed, provider)[SPOT] == 0.03
    clock.now = published.FRESH_S
    assert prices_of(bed, provider)[SPOT] == 0.04
    bed.emulator.faults.add(Fault(kind=FaultKind.INTERNAL, action="prices"))
    clock.now = published.FRESH_S + published.KEPT_S - 1
    assert prices_of(bed, provider)[SPOT] == 0.04
    assert provider.trouble == ""
    clock.now += 1
    assert prices_of(bed, provider) == CONFIGURED
    assert provider.trouble.endswith(f"has none for {SIZE}: HTTP500")
    bed.heal()
    clock.now += published.RETRY_S
    assert prices_of(bed, provider)[SPOT] == 0.04


def test_prices_that_nobody_has_looked_at_are_no_trouble(bed: AzureBed) -> None:
    clock = Clock()
    provider = opened(bed, clock)
    provider.offers(bed.pool)
    clock.now = 2 * published.KEPT_S
    assert provider.trouble == ""


def test_names_cannot_change_the_filter(bed: AzureBed) -> None:
    name = "x' or armSkuName eq 'y"
    provider = opened(bed, types={name: SpotType(cpus=2, memory=4096, price=0.1)})
    provider.offers(bed.pool)
    assert provider.trouble.endswith(f"has none for {name} (on-demand): it is not in the list")


def test_no_login_is_sent_with_the_question(
    bed: AzureBed, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login us password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    seen: list[str | None] = []
    handler = bed.emulator._server.RequestHandlerClass
    usual = handler._answer

    def watched(self: Any, body: bytes) -> None:
        seen.append(self.headers.get("Authorization"))
        usual(self, body)

    monkeypatch.setattr(handler, "_answer", watched)
    opened(bed).offers(bed.pool)
    assert seen == [None]
