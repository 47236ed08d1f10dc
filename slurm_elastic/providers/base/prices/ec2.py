"""EC2's spot price history: all types and zones of our machines in one paged call."""

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
MOST_PAGES = 1000


class HistoryClient(Protocol):
    """The part of boto3's client that is used."""

    def describe_spot_price_history(self, **request: Any) -> Mapping[str, Any]:  # noqa: ANN401
        """One page."""
        ...


class Ec2Feed:
    """``open_client`` is called with the first reading, so that a start needs no credentials."""

    name = "prices of EC2"

    def __init__(
        self, open_client: Callable[[], HistoryClient], clock: Callable[[], float] = time.time
    ) -> None:
        self._open = open_client
        self._clock = clock
        self._client: HistoryClient | None = None

    def read(self, keys: Iterable[Key], since: float) -> Mapping[Key, Points]:
        """EC2 tells changes only: between two times also the price that held at the first."""
        wanted = set(keys)
        if not wanted:
            return {}
        self._client = self._client or self._open()
        request: dict[str, Any] = {
            "InstanceTypes": sorted({kind for kind, _ in wanted}),
            "Filters": [
                {"Name": "availability-zone", "Values": sorted({zone for _, zone in wanted})},
                {"Name": "product-description", "Values": [PRODUCT]},
            ],
            "StartTime": datetime.fromtimestamp(since, UTC),
            "EndTime": datetime.fromtimestamp(max(self._clock(), since), UTC),
            "MaxResults": PAGE,
        }
        points: defaultdict[Key, dict[float, float]] = defaultdict(dict)
        for _ in range(MOST_PAGES):
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
            raise SlurmElasticError(f"{self.name}: no end after {MOST_PAGES} pages")
        return {key: tuple(sorted(p.items())) for key, p in points.items() if key in wanted}
