"""The prices that Azure publishes for the sizes of a cloud: the Retail Prices interface, which
needs no login. One size has many meters there: of Linux and Windows, on demand and spot, and of
offers that nobody here can buy.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import requests
from msgspec import Struct

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.base.units import counted
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.repair.list_plausibility import is_price, shown
from slurm_elastic.providers.azure.client import is_below
from slurm_elastic.providers.azure.errors import BAD_ANSWER, ArmRefused, translated
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.bounded_http import BoundedSession
from slurm_elastic.providers.base.offers import UNPUBLISHED, PublishedPrices
from slurm_elastic.providers.base.parallel import each

log = logging.getLogger(__name__)

PATH = "/api/retail/prices"
SOURCE = "Azure's list price on demand"
FRESH_S = 3600.0
"""Prices are read again after this time. Spot prices change slowly."""
KEPT_S = 6 * 3600.0
"""For so long the last answer about a size counts if Azure gives no new one."""
RETRY_S = 600.0
"""The pause after a failed reading. Without it, each look at the offers would wait for a time-out
if the head has no way to the endpoint.
"""
_MAX_PAGES = 20
"""More than the meters of one size fill. A page has a hundred at least."""
_CURRENCY, _UNIT = "USD", "1 Hour"
_NOT_LINUX = ("windows", "cloud services")
"""In the names of products whose meters have the size's name, but count for no machine of ours."""
_LOW_PRIORITY, _SPOT = "low priority", " spot"
_MAX_NAMED = 3
_ALL_SIZES = "all sizes"
"""The only key of the cache and of the reports."""

Meter = Mapping[str, Any]


class SizePrices(Struct, frozen=True, kw_only=True):
    """The prices ($/h) of a size. ``refused``: why a market has no usable price."""

    at: float
    prices: Mapping[Market, float]
    refused: Mapping[Market, str]


class PriceList(Struct, frozen=True, kw_only=True):
    """The last answers by size, and the errors of the last reading."""

    sizes: Mapping[str, SizePrices] = {}
    errors: Mapping[str, ProviderError] = {}


class RetailPrices:
    """The published prices of one cloud. Thread-safe. Without ``price_endpoint`` there are none."""

    def __init__(
        self, settings: AzureCloud, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = monotonic
        self._root = (settings.price_endpoint or "").rstrip("/")
        self._http = BoundedSession()
        self._cache = TtlCache[str, PriceList](monotonic)
        self._reports = ReportOnce[str]()

    def published(self) -> PublishedPrices:
        """The prices of now. A price that cannot be read is missing, with a warning in the log."""
        if not self._root:
            return UNPUBLISHED
        last = self._cache.last(_ALL_SIZES)
        ttl_s = RETRY_S if last is not None and last.errors else FRESH_S
        price_list = self._cache.get(_ALL_SIZES, self._read, ttl_s=ttl_s)
        self._report(price_list)
        prices = {
            (size, market): price
            for size, answer in self._valid(price_list)
            for market, price in answer.prices.items()
        }
        return PublishedPrices(prices=prices, source=SOURCE)

    @property
    def trouble(self) -> str:
        """The sizes without a published price, each with the cause, as one sentence; "" if there
        are none. It reads no prices.
        """
        price_list = self._cache.last(_ALL_SIZES)
        if price_list is None:
            return ""
        valid = dict(self._valid(price_list))
        named: defaultdict[str, list[str]] = defaultdict(list)
        for size in self._settings.types:
            # An answer may also be too old because nobody has looked at the offers since.
            if size not in valid and size in price_list.errors:
                named[_cause_of(price_list.errors[size])].append(size)
            refused = valid[size].refused if size in valid else {}
            for market, cause in refused.items():
                named[cause].append(f"{size} ({market})")
        if not named:
            return ""
        causes = "; ".join(f"{_shortened(names)}: {cause}" for cause, names in named.items())
        return f"only configured prices count, because {self._root} has none for {causes}"

    def examine(self) -> Iterator[Finding]:
        """The finding of ``doctor``, after a reading if one is due."""
        if not self._root:
            return
        subject, prices = "published prices", self.published().prices
        if trouble := self.trouble:
            expected = "a price in USD for 1 Hour of each size and market"
            advice = "look at the way to the endpoint (proxy, firewall), and at the sizes' names"
            yield Finding.note(subject, trouble, expected, advice)
        else:
            yield Finding.ok(subject, counted(len(prices), "price"))

    def _valid(self, price_list: PriceList) -> Iterator[tuple[str, SizePrices]]:
        """The answers that are not too old."""
        now = self._clock()
        for size, answer in price_list.sizes.items():
            if now - answer.at < KEPT_S:
                yield size, answer

    def _report(self, price_list: PriceList) -> None:
        trouble = self.trouble
        if not trouble:
            self._reports.clear(_ALL_SIZES)
        elif self._reports.is_news(_ALL_SIZES, trouble):
            error = next(iter(price_list.errors.values()), None)
            log.warning("%s cloud=%s error=%s", trouble, self._settings.name, error)

    # reading

    def _read(self) -> PriceList:
        """Read the prices of all sizes, within ``api_timeout`` in total. An older answer stays if
        there is no new one.
        """
        sizes, now = list(self._settings.types), self._clock()
        give_up_at = time.monotonic() + self._settings.api_timeout
        read = partial(self._read_size, now=now, give_up_at=give_up_at)
        results = [r.result() for r in each(sizes, read, self._settings.threads)]
        last = self._cache.last(_ALL_SIZES) or PriceList()
        answers = dict(last.sizes)
        errors: dict[str, ProviderError] = {}
        for size, result in zip(sizes, results, strict=True):
            if isinstance(result, SizePrices):
                answers[size] = result
            else:
                errors[size] = result
        return PriceList(sizes=answers, errors=errors)

    def _read_size(self, size: str, now: float, give_up_at: float) -> SizePrices | ProviderError:
        try:
            # A page that fails makes the whole answer fail: half of the meters may have only a
            # wrong one for a market.
            with translated(self._settings.name, "GET", PATH):
                meters = list(self._meters(size, give_up_at))
                return size_prices(meters, self._wanted(size), now)
        except ProviderError as error:
            return error

    def _wanted(self, size: str) -> Sequence[Market]:
        """The markets on which the size must have a price. A size that is not configured as spot
        may be unsold there.
        """
        is_spot = self._settings.types[size].spot_price is not None
        return (Market.ON_DEMAND, Market.SPOT) if is_spot else (Market.ON_DEMAND,)

    def _meters(self, size: str, give_up_at: float) -> Iterator[Meter]:
        """The meters of the size in the region, of all pages."""
        terms = {
            "serviceName": "Virtual Machines", "armRegionName": self._settings.region,
            "armSkuName": size, "priceType": "Consumption",
        }  # fmt: skip
        text = " and ".join(f"{key} eq '{_quoted(value)}'" for key, value in terms.items())
        url, query = f"{self._root}{PATH}", {"$filter": text}
        for _ in range(_MAX_PAGES):
            content = self._page(url, query, give_up_at)
            items = list(content["Items"])
            if content.get("Count", len(items)) != len(items):
                raise self._bad_answer("the page is not complete")
            # Filters that a proxy or a later version ignores must not give us another size's price.
            yield from (item for item in items if _is_of(item, size, self._settings.region))
            url, query = str(content.get("NextPageLink") or ""), {}
            if not url:
                return
            if not is_below(url, self._root):
                raise self._bad_answer("the answer leads to another host")
        raise self._bad_answer("the list does not end")

    def _bad_answer(self, text: str) -> ProviderError:
        return TransientError(self._settings.name, BAD_ANSWER, text)

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


def size_prices(meters: list[Meter], wanted: Sequence[Market], now: float) -> SizePrices:
    """The prices of a size by its meters. A market whose meters differ has no price: nobody knows
    which of them Azure would bill.
    """
    found: defaultdict[Market, set[float]] = defaultdict(set)
    refused: dict[Market, str] = dict.fromkeys(wanted, "there is no such meter")
    flaws: dict[Market, str] = {}
    for meter in meters:
        market = _market_of(meter)
        if market is None:
            continue
        if flaw := _flaw_of(meter):
            flaws[market] = flaw
        else:
            found[market].add(float(meter["retailPrice"]))
    for market, prices in found.items():
        refused.pop(market, None)
        if len(prices) > 1:
            flaws[market] = f"its meters differ: {', '.join(f'{p:g}' for p in sorted(prices))}"
    refused |= flaws
    usable = {market: min(prices) for market, prices in found.items() if market not in refused}
    return SizePrices(at=now, prices=usable, refused=refused)


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
    currency, unit, price = meter["currencyCode"], meter["unitOfMeasure"], meter["retailPrice"]
    if currency != _CURRENCY:
        return f"its currency is {shown(str(currency))}"
    if unit != _UNIT:
        return f"its unit is {shown(str(unit))}"
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    # Nothing is free: a price of 0 would pass each cap.
    if not is_number or not is_price(price) or price <= 0:
        return f"its price is {shown(str(price))}"
    return ""


def _quoted(text: str) -> str:
    """The text inside the quotes of a filter."""
    return text.replace("'", "''")


def _cause_of(error: ProviderError) -> str:
    """The cause of a failed reading. Messages about connections have the URL of one size."""
    return error.refusal if error.code == BAD_ANSWER else error.code


def _shortened(names: list[str]) -> str:
    """The first names, and how many there are besides."""
    more = len(names) - _MAX_NAMED
    text = ", ".join(names[:_MAX_NAMED])
    return f"{text} and {more} more" if more > 0 else text
