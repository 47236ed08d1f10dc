"""The spot prices that Google publishes for a machine type: ``advice.capacityHistory`` of Compute
Engine. They are of the whole region. Google has none for custom types and for N1 with GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from slurm_elastic.model.cluster import Market
from slurm_elastic.providers.base.published import PriceSource, TypePrices, flaw_of
from slurm_elastic.providers.gcp.client import Project
from slurm_elastic.providers.gcp.convert import last_part, time_of
from slurm_elastic.providers.gcp.errors import translated
from slurm_elastic.providers.gcp.settings import GcpCloud

PLACE = "Google"
STALE_S = 2 * 86400.0
"""A price that ended longer ago is not the price of now. Google's days end at midnight in
California, and it leaves gaps where it has no data.
"""
_NANO = 1e-9


def price_source(
    settings: GcpCloud, project: Project, clock: Callable[[], float] = time.time
) -> PriceSource | None:
    """The source of the cloud's spot prices. None without ``published_prices``."""
    if not settings.published_prices:
        return None
    path = f"regions/{quote(settings.region)}/advice/capacityHistory"

    def read(name: str, give_up_at: float) -> TypePrices:
        del give_up_at  # one call, which ends after ``api_timeout``
        body = {
            "types": ["PRICE"],
            "instanceProperties": {
                "machineType": name,
                "scheduling": {"provisioningModel": "SPOT"},
            },
        }
        answer = project.call("POST", path, body)
        with translated(project.name):
            return spot_price(answer, name, clock())

    return PriceSource(place=PLACE, markets=(Market.SPOT,), read=read)


def spot_price(answer: Mapping[str, Any], name: str, now: float) -> TypePrices:
    """The spot price of a type by its price history. Exceptions of ``_BAD_ANSWER``."""
    if last_part(answer["machineType"]) != name:
        raise ValueError("the answer is about another machine type")
    newest = list(_newest(answer.get("priceHistory") or (), now))
    if not newest:
        return TypePrices()
    money = [record["listPrice"] for record in newest]
    if len({(m["currencyCode"], _amount(m)) for m in money}) > 1:
        return TypePrices(refused={Market.SPOT: "its prices of now differ"})
    currency, price = money[0]["currencyCode"], _amount(money[0])
    if flaw := flaw_of(currency, price):
        return TypePrices(refused={Market.SPOT: flaw})
    return TypePrices(prices={Market.SPOT: price})


def _newest(records: Sequence[Mapping[str, Any]], now: float) -> Iterator[Mapping[str, Any]]:
    """The records that began last, unless they ended long ago. A price of the future does not count
    yet.
    """
    begun = [(time_of(r["interval"]["startTime"]), r) for r in records]
    last = max((start for start, _ in begun if start <= now), default=None)
    for start, record in begun:
        end = record["interval"].get("endTime")
        if start == last and (end is None or time_of(end) > now - STALE_S):
            yield record


def _amount(money: Mapping[str, Any]) -> float:
    """The amount of Google's ``Money``, whose fields are left out if they are 0."""
    return round(int(money.get("units", 0)) + int(money.get("nanos", 0)) * _NANO, 9)
