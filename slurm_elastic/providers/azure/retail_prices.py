"""The prices that Azure publishes for a size: the Retail Prices interface, which needs no login.
One size has many meters there: of Linux and Windows, on demand and spot, and of offers that we
cannot buy.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import requests

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.repair.list_plausibility import shown
from slurm_elastic.providers.azure.client import is_below
from slurm_elastic.providers.azure.errors import ArmRefused, translated
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.base.published import BAD_ANSWER, PriceSource, TypePrices, flaw_of

PATH = "/api/retail/prices"
ON_DEMAND = "Azure's list price on demand"
_MAX_PAGES = 20
"""More than the meters of one size fill. A page has a hundred at least."""
_UNIT = "1 Hour"
_NOT_LINUX = ("windows", "cloud services")
"""In the names of products whose meters have the size's name, but count for no machine of ours."""
_LOW_PRIORITY, _SPOT = "low priority", " spot"

Meter = Mapping[str, Any]


def price_source(settings: AzureCloud) -> PriceSource | None:
    """The source of the cloud's prices. None without ``price_endpoint``."""
    if settings.price_endpoint is None:
        return None
    prices = RetailPrices(settings, settings.price_endpoint.rstrip("/"))
    markets = (Market.ON_DEMAND, Market.SPOT)
    return PriceSource(place=prices.root, markets=markets, read=prices.read, on_demand=ON_DEMAND)


class RetailPrices:
    """The price endpoint ``root`` for one region. Thread-safe."""

    def __init__(self, settings: AzureCloud, root: str) -> None:
        self.root = root
        self._cloud, self._region = settings.name, settings.region
        self._http = BoundedSession()

    def read(self, size: str, give_up_at: float) -> TypePrices:
        """The prices of a size. A page that fails makes the whole answer fail, because half of the
        meters may have only a wrong one for a market. See ``PriceSource``.
        """
        with translated(self._cloud, "GET", PATH):
            return size_prices(self._meters(size, give_up_at))

    def _meters(self, size: str, give_up_at: float) -> Iterator[Meter]:
        """The meters of the size in the region, of all pages."""
        terms = {
            "serviceName": "Virtual Machines", "armRegionName": self._region,
            "armSkuName": size, "priceType": "Consumption",
        }  # fmt: skip
        text = " and ".join(f"{key} eq '{_quoted(value)}'" for key, value in terms.items())
        url, query = f"{self.root}{PATH}", {"$filter": text}
        for _ in range(_MAX_PAGES):
            content = self._page(url, query, give_up_at)
            items = list(content["Items"])
            if content.get("Count", len(items)) != len(items):
                raise self._bad_answer("the page is not complete")
            # Filters that a proxy or a later version ignores must not give us another size's price.
            yield from (item for item in items if _is_of(item, size, self._region))
            url, query = str(content.get("NextPageLink") or ""), {}
            if not url:
                return
            if not is_below(url, self.root):
                raise self._bad_answer("the answer leads to another host")
        raise self._bad_answer("the list does not end")

    def _bad_answer(self, text: str) -> ProviderError:
        return TransientError(self._cloud, BAD_ANSWER, text)

    def _page(self, url: str, query: Mapping[str, str], give_up_at: float) -> Mapping[str, Any]:
        with self._http.within(max(give_up_at - time.monotonic(), 0.0)):
            # Requests would send a login from ~/.netrc without ``auth``.
            answer = self._http.get(
                url, params=query, auth=lambda request: request, allow_redirects=False
            )
        if answer.status_code != requests.codes.ok:
            raise ArmRefused(answer.status_code, "", answer.text)
        content: Mapping[str, Any] = answer.json()
        return content


def size_prices(meters: Iterable[Meter]) -> TypePrices:
    """The prices of a size by its meters. A market whose meters differ has no price, because we do
    not know which meter Azure would bill.
    """
    found: defaultdict[Market, set[float]] = defaultdict(set)
    refused: dict[Market, str] = {}
    for meter in meters:
        market = _market_of(meter)
        if market is None:
            continue
        if flaw := _flaw_of(meter):
            refused[market] = flaw
        else:
            found[market].add(float(meter["retailPrice"]))
    for market, prices in found.items():
        if len(prices) > 1:
            refused[market] = f"its meters differ: {', '.join(f'{p:g}' for p in sorted(prices))}"
    usable = {market: min(prices) for market, prices in found.items() if market not in refused}
    return TypePrices(prices=usable, refused=refused)


def _is_of(meter: Meter, size: str, region: str) -> bool:
    """Whether the meter is of this size in the region, for machines that are paid as they run."""
    return (
        str(meter["armSkuName"]).lower() == size.lower()
        and str(meter["armRegionName"]).lower() == region
        and meter["serviceName"] == "Virtual Machines"
        # Others: DevTestConsumption, Reservation.
        and meter["type"] == "Consumption"
    )


def _market_of(meter: Meter) -> Market | None:
    """The market of a meter; None if it counts for no machine of ours."""
    names = [str(meter["skuName"]).lower(), str(meter["meterName"]).lower()]
    if any(word in str(meter["productName"]).lower() for word in _NOT_LINUX):
        return None
    if any(_LOW_PRIORITY in name for name in names):
        return None
    return Market.SPOT if any(name.endswith(_SPOT) for name in names) else Market.ON_DEMAND


def _flaw_of(meter: Meter) -> str:
    """Why the meter's price cannot be used; "" if it can."""
    unit = meter["unitOfMeasure"]
    if unit != _UNIT:
        return f"its unit is {shown(str(unit))}"
    return flaw_of(meter["currencyCode"], meter["retailPrice"])


def _quoted(text: str) -> str:
    """The text inside the quotes of a filter."""
    return text.replace("'", "''")
