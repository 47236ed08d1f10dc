"""The spot price history of EC2: all types and zones of our machines in one paged request for each
cloud and product.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.price_feed import Points, PriceKey
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.images import AwsImages
from slurm_elastic.providers.aws.rate_limit import pace_of
from slurm_elastic.providers.aws.service_client import service_client
from slurm_elastic.providers.aws.settings import AwsCloud

PAGE = 1000
MAX_PAGES = 1000


class HistoryClient(Protocol):
    """The method of boto3's client that we use."""

    def describe_spot_price_history(self, **request: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """Return one page of the prices' history."""
        ...


class PoolSeller(Struct, frozen=True, kw_only=True):
    """The seller of a pool's machines. ``open_client`` is called at the first reading, so that
    starting a service needs no credentials. ``product``: the product description of the pool's
    image, which may change with the image.
    """

    cloud: str
    open_client: Callable[[], HistoryClient]
    product: Callable[[], str]


class Ec2Feed:
    """The prices of pools' machines. ``sellers``: the seller of each pool; a pool without a seller
    has no prices.
    """

    name = "prices of EC2"

    def __init__(
        self, sellers: Mapping[str, PoolSeller], clock: Callable[[], float] = time.time
    ) -> None:
        self._sellers = sellers
        self._clock = clock
        self._clients: dict[str, HistoryClient] = {}

    def read(self, keys: Iterable[PriceKey], since: float) -> Mapping[PriceKey, Points]:
        """The prices for these keys. EC2 lists price changes between two times, and also the price
        that was valid at the first one.
        """
        keys_by_history: defaultdict[tuple[str, str], list[PriceKey]] = defaultdict(list)
        for key in sorted(set(keys)):
            if (seller := self._sellers.get(key[0])) is not None:
                keys_by_history[seller.cloud, seller.product()].append(key)
        points: dict[PriceKey, Points] = {}
        for (_, product), keys_of_history in keys_by_history.items():
            client = self._client(self._sellers[keys_of_history[0][0]])
            try:
                history = self._history(client, product, keys_of_history, since)
            except Exception:
                # An administrator may renew the credentials while we run, but a client keeps the
                # credentials it started with.
                self._clients.clear()
                raise
            points |= {key: history[key[1:]] for key in keys_of_history if key[1:] in history}
        return points

    def _client(self, seller: PoolSeller) -> HistoryClient:
        if seller.cloud not in self._clients:
            self._clients[seller.cloud] = seller.open_client()
        return self._clients[seller.cloud]

    def _history(
        self, client: HistoryClient, product: str, keys: Iterable[PriceKey], since: float
    ) -> Mapping[tuple[str, str], Points]:
        """The prices by type and zone. The answer also has other pairs, because the filters select
        types and zones separately.
        """
        request: dict[str, Any] = {
            "InstanceTypes": sorted({kind for _, kind, _ in keys}),
            "Filters": [
                {"Name": "availability-zone", "Values": sorted({zone for _, _, zone in keys})},
                {"Name": "product-description", "Values": [product]},
            ],
            "StartTime": datetime.fromtimestamp(since, UTC),
            # Our clock may have been set back: EC2 refuses an end before the start.
            "EndTime": datetime.fromtimestamp(max(self._clock(), since), UTC),
            "MaxResults": PAGE,
        }
        points: defaultdict[tuple[str, str], dict[float, float]] = defaultdict(dict)
        for _ in range(MAX_PAGES):
            answer = client.describe_spot_price_history(**request)
            for item in answer["SpotPriceHistory"]:
                price = price_in(item["SpotPrice"])
                if price is not None:
                    type_and_zone = (item["InstanceType"], item["AvailabilityZone"])
                    points[type_and_zone][item["Timestamp"].timestamp()] = price
            token = answer.get("NextToken")
            if not token:
                return {pair: tuple(sorted(prices.items())) for pair, prices in points.items()}
            request["NextToken"] = token
        raise SlurmElasticError(f"{self.name}: no end after {MAX_PAGES} pages")


def spot_prices(cloud: AwsCloud, pools: Sequence[Pool]) -> Ec2Feed:
    """The prices of one cloud's pools."""
    images = AwsImages(AwsApi(cloud, pace_of(cloud)), cloud, time.monotonic)

    def open_client() -> HistoryClient:
        client: HistoryClient = service_client(cloud, "ec2")
        return client

    return Ec2Feed(
        {
            pool.name: PoolSeller(
                cloud=cloud.name, open_client=open_client, product=partial(images.product, pool)
            )
            for pool in pools
        }
    )
