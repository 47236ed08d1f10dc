"""Spot prices for policies: feeds, what is kept, and what stays when a feed fails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.providers.aws.spot_prices import Ec2Feed, PoolSeller
from slurm_elastic.providers.base.prices.book import (
    HISTORY_S,
    FileFeed,
    Points,
    PriceBook,
    PriceKey,
    cut,
)

pytestmark = pytest.mark.usefixtures("guarded")

T0 = 1_800_000_000.0
A, B = ("p", "c5.large", "us-east-1a"), ("p", "m5.large", "us-east-1b")


class Pages:
    """EC2's price history in pages, as boto3 gives it."""

    def __init__(self, *pages: list[dict[str, Any]]) -> None:
        self.pages = pages
        self.asked: list[dict[str, Any]] = []

    def describe_spot_price_history(self, **request: Any) -> Mapping[str, Any]:
        self.asked.append(dict(request))
        number = int(request.get("NextToken", "0"))
        more = str(number + 1) if number + 1 < len(self.pages) else ""
        return {"SpotPriceHistory": self.pages[number], "NextToken": more}


def item(key: PriceKey, when: float, price: str) -> dict[str, Any]:
    return {
        "InstanceType": key[1], "AvailabilityZone": key[2], "SpotPrice": price,
        "Timestamp": datetime.fromtimestamp(when, UTC), "ProductDescription": "Linux/UNIX",
    }  # fmt: skip


def feed_of(client: Pages, now: float = T0) -> Ec2Feed:
    """A feed for pool p, whose cloud answers with that client."""
    return Ec2Feed({"p": seller(client)}, lambda: now)


def seller(client: Pages, cloud: str = "aws", product: str = "Linux/UNIX") -> PoolSeller:
    return PoolSeller(cloud=cloud, open_client=lambda: client, product=lambda: product)


def test_all_types_and_zones_are_one_paged_call() -> None:
    other = ("p", "c5.large", "us-east-1b")
    client = Pages(
        [item(A, T0 + 60, "0.04"), item(A, T0, "0.03")], [item(B, T0, "0.05"), item(other, T0, "9")]
    )
    found = feed_of(client, T0 + 90).read([A, B], T0 - 60)
    assert found == {A: ((T0, 0.03), (T0 + 60, 0.04)), B: ((T0, 0.05),)}
    assert len(client.asked) == 2
    first = client.asked[0]
    assert first["InstanceTypes"] == ["c5.large", "m5.large"]
    assert first["Filters"][0]["Values"] == ["us-east-1a", "us-east-1b"]
    assert first["StartTime"].timestamp() == T0 - 60
    assert first["EndTime"].timestamp() == T0 + 90, "without it what held at the start is not told"


def test_a_history_without_an_end_is_none_and_prices_that_are_none_are_left_out() -> None:
    class Endless(Pages):
        def describe_spot_price_history(self, **request: Any) -> Mapping[str, Any]:
            return {**super().describe_spot_price_history(NextToken="0"), "NextToken": "more"}

    with pytest.raises(SlurmElasticError, match="no end after 1000 pages"):
        feed_of(Endless([])).read([A], T0)
    odd = [item(A, T0 + n, price) for n, price in enumerate(("nan", "-1", "0.04", "inf"))]
    assert feed_of(Pages(odd)).read([A], T0) == {A: ((T0 + 2, 0.04),)}


def test_a_client_is_opened_anew_after_an_error() -> None:
    """It keeps the credentials that it started with, and they may have been renewed."""

    class Expired(Pages):
        def describe_spot_price_history(self, **request: Any) -> Mapping[str, Any]:
            raise PermissionError("ExpiredToken")

    clients = [Pages([item(A, T0, "0.03")]), Expired()]
    sellers = {"p": PoolSeller(cloud="aws", open_client=clients.pop, product=lambda: "Linux/UNIX")}
    feed = Ec2Feed(sellers, lambda: T0)
    with pytest.raises(PermissionError):
        feed.read([A], T0)
    assert feed.read([A], T0) == {A: ((T0, 0.03),)}


def test_without_machines_nothing_is_asked() -> None:
    def never() -> Pages:
        raise AssertionError

    feed = Ec2Feed({"p": PoolSeller(cloud="aws", open_client=never, product=lambda: "Linux/UNIX")})
    assert feed.read([], T0) == {}
    assert feed.read([("other", "c5.large", "us-east-1a")], T0) == {}, "no pool of EC2"


def test_each_cloud_and_each_product_is_asked_by_itself() -> None:
    """A machine of Red Hat costs its licence, too, and another region has other zones."""
    linux, far = Pages([item(A, T0, "0.03")]), Pages([item(A, T0, "0.07")])
    pools = {
        "p": seller(linux), "also": seller(linux), "far": seller(far, "far"),
        "licensed": seller(linux, product="Red Hat Enterprise Linux"),
    }  # fmt: skip
    keys = [(pool, *A[1:]) for pool in pools]
    found = Ec2Feed(pools, lambda: T0).read(keys, T0)
    assert found == {key: ((T0, 0.07 if key[0] == "far" else 0.03),) for key in keys}
    products = [asked["Filters"][1]["Values"] for asked in linux.asked]
    assert sorted(products) == [["Linux/UNIX"], ["Red Hat Enterprise Linux"]]
    assert len(far.asked) == 1


class Feed:
    name = "feed"

    def __init__(self) -> None:
        self.points: Mapping[PriceKey, Points] = {}
        self.broken: Exception | None = None

    def read(self, keys: Iterable[PriceKey], since: float) -> Mapping[PriceKey, Points]:
        if self.broken:
            raise self.broken
        return {k: p for k, p in self.points.items() if k in set(keys)}


def test_what_is_known_stays_when_the_feed_is_throttled() -> None:
    feed, now = Feed(), T0
    book = PriceBook([feed], lambda: now)
    feed.points = {A: ((T0 - 100, 0.03),)}
    book.refresh([A])
    feed.broken = RuntimeError("RequestLimitExceeded")
    with pytest.raises(RuntimeError):
        book.refresh([A])
    assert book.prices() == {A: ((T0 - 100, 0.03),)}


def test_each_feed_that_cannot_be_read_is_named() -> None:
    feeds = Feed(), Feed(), Feed()
    for feed, name in zip(feeds, ("far", "file", "near"), strict=True):
        feed.name = name
    feeds[0].broken = RuntimeError("RequestLimitExceeded")
    feeds[1].broken = FileNotFoundError("prices.csv")
    feeds[2].points = {A: ((T0, 0.03),)}
    book = PriceBook(feeds, lambda: T0)
    with pytest.raises(SlurmElasticError, match=r"far: RequestLimitExceeded; file: prices\.csv"):
        book.refresh([A])
    assert book.prices() == {A: ((T0, 0.03),)}


def test_old_points_go_but_for_the_one_that_still_held() -> None:
    feed = Feed()
    clock = [T0]
    book = PriceBook([feed], lambda: clock[0])
    feed.points = {A: ((T0 - 500, 0.03), (T0 - 400, 0.04), (T0, 0.05))}
    book.refresh([A])
    clock[0] = T0 + HISTORY_S - 200
    feed.points = {A: ((T0 + 50, 0.06),)}
    book.refresh([A])
    assert book.prices()[A] == ((T0 - 400, 0.04), (T0, 0.05), (T0 + 50, 0.06))


def test_cut_keeps_the_price_that_held() -> None:
    points = ((1.0, 0.1), (2.0, 0.2), (3.0, 0.3))
    assert cut(points, 2.5) == points[1:]
    assert cut(points, 0.5) == points
    assert cut((), 1.0) == ()


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(f"timestamp,type,zone,price\n{T0},c5.large,us-east-1a,0.03\n")
    feed = FileFeed(path)
    assert feed.read([A, B], T0)[A] == ((T0, 0.03),)
    path.write_text(f"timestamp,type,zone,price\n{T0},c5.large,us-east-1a,0.09\n")
    os.utime(path, ns=(1, 1))
    assert feed.read([A], T0)[A] == ((T0, 0.09),)
    path.write_text("rubbish")
    with pytest.raises(ConfigError):
        feed.read([A], T0)


@pytest.mark.parametrize(("feeds", "pauses"), [(1, None), (2, [60.0, 60.0])])
def test_a_feed_that_fails_does_not_make_the_prices_of_others_old(
    feeds: int, pauses: list[float] | None
) -> None:
    retry = PriceBook([SimpleNamespace(name="a")] * feeds, lambda: 0.0).retry(60.0)  # type: ignore[list-item]
    assert (retry and [retry.after(1), retry.after(9)]) == pauses
