"""The spot price history of EC2: all types and zones of our machines in one paged request."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.base.prices.book import Key, Points

PRODUCT = "Linux/UNIX"
PAGE = 1000
MAX_PAGES = 1000


class HistoryClient(Protocol):
    """The method of boto3's client that we use."""

    def describe_spot_price_history(self, **request: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """One page."""
        ...


class Ec2Feed:
    """``open_client`` is called at the first reading, so that starting a service needs no
    credentials.
    """

    name = "prices of EC2"

    def __init__(
        self, open_client: Callable[[], HistoryClient], clock: Callable[[], float] = time.time
    ) -> None:
        self._open = open_client
        self._clock = clock
        self._client: HistoryClient | None = None

    def read(self, keys: Iterable[Key], since: float) -> Mapping[Key, Points]:
        """The prices for these keys. EC2 lists price changes between two times, and also the price
        that was valid at the first one.
        """
        requested = set(keys)
        if not requested:
            return {}
        self._client = self._client or self._open()
        request: dict[str, Any] = {
            "InstanceTypes": sorted({kind for kind, _ in requested}),
            "Filters": [
                {"Name": "availability-zone", "Values": sorted({zone for _, zone in requested})},
                {"Name": "product-description", "Values": [PRODUCT]},
            ],
            "StartTime": datetime.fromtimestamp(since, UTC),
            # Our clock may have been set back: EC2 refuses an end before the start.
            "EndTime": datetime.fromtimestamp(max(self._clock(), since), UTC),
            "MaxResults": PAGE,
        }
        points: defaultdict[Key, dict[float, float]] = defaultdict(dict)
        for _ in range(MAX_PAGES):
            answer = self._client.describe_spot_price_history(**request)
            for item in answer["SpotPriceHistory"]:
                key = (item["InstanceType"], item["AvailabilityZone"])
                price = price_in(item["SpotPrice"])
                if price is not None:
                    points[key][item["Timestamp"].timestamp()] = price
            token = answer.get("NextToken")
            if not token:
                break
            request["NextToken"] = token
        else:
            raise SlurmElasticError(f"{self.name}: no end after {MAX_PAGES} pages")
        # The filters select types and zones separately, so the answer also has other pairs.
        return {
            key: tuple(sorted(points_of_key.items()))
            for key, points_of_key in points.items()
            if key in requested
        }
