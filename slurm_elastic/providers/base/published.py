"""The prices that a cloud publishes for the types of a configuration: read now and then, kept for
some hours, and named if they cannot be used.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.base.units import counted
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.repair.list_plausibility import is_price, shown
from slurm_elastic.providers.base.offers import UNPUBLISHED, PublishedPrices
from slurm_elastic.providers.base.parallel import each

log = logging.getLogger(__name__)

BAD_ANSWER = "BadAnswer"
"""The code of an answer that makes no sense. Its message is the cause."""
FRESH_S = 3600.0
"""Prices are read again after this time. Spot prices change slowly."""
KEPT_S = 6 * 3600.0
"""For so long the last answer about a type counts if the cloud gives no new one."""
RETRY_S = 600.0
"""The pause after a failed reading. Without it, each look at the offers would wait for a time-out
if the head has no way to the prices.
"""
THREADS = 8
"""Types that are read at the same time."""
CURRENCY = "USD"
_MAX_NAMED = 3
_ALL_TYPES = "all types"
"""The only key of the cache and of the reports."""


class TypePrices(Struct, frozen=True, kw_only=True):
    """The published prices ($/h) of a type. ``refused``: why a market has no usable price."""

    prices: Mapping[Market, float] = {}
    refused: Mapping[Market, str] = {}


class PriceSource(Struct, frozen=True, kw_only=True):
    """The source of a cloud's prices, as ``place`` in a sentence about it. ``on_demand``: its
    price on demand, as it follows a price in a sentence. ``markets``: the markets that it has.
    ``read``: asks for the prices of a type, until a time of ``time.monotonic``; may raise any
    ProviderError.
    """

    place: str
    markets: Sequence[Market]
    read: Callable[[str, float], TypePrices]
    on_demand: str = ""


class PriceList(Struct, frozen=True, kw_only=True):
    """The last answers by type, each with its time, and the errors of the last reading."""

    types: Mapping[str, tuple[float, TypePrices]] = {}
    errors: Mapping[str, ProviderError] = {}


class PublishedFeed:
    """The published prices of one cloud. Thread-safe. Without a source there are none."""

    def __init__(
        self,
        settings: CloudSettings,
        source: PriceSource | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._source = source
        self._clock = monotonic
        self._cache = TtlCache[str, PriceList](monotonic)
        self._reports = ReportOnce[str]()

    def published(self) -> PublishedPrices:
        """The prices of now. A price that cannot be read is missing, with a warning in the log."""
        source = self._source
        if source is None:
            return UNPUBLISHED
        last = self._cache.last(_ALL_TYPES)
        ttl_s = RETRY_S if last is not None and last.errors else FRESH_S
        price_list = self._cache.get(_ALL_TYPES, lambda: self._read(source), ttl_s=ttl_s)
        self._report(price_list)
        prices = {
            (name, market): price
            for name, answer in self._valid(price_list)
            for market, price in answer.prices.items()
        }
        return PublishedPrices(prices=prices, source=source.on_demand)

    @property
    def trouble(self) -> str:
        """The types without a published price, each with the cause, as one sentence; "" if there
        are none. It reads no prices.
        """
        price_list = self._cache.last(_ALL_TYPES)
        if price_list is None or self._source is None:
            return ""
        valid = dict(self._valid(price_list))
        named: defaultdict[str, list[str]] = defaultdict(list)
        for name in self._settings.shapes:
            # An answer may also be too old because nobody has looked at the offers since.
            if name not in valid and name in price_list.errors:
                named[_cause_of(price_list.errors[name])].append(name)
            refused = valid[name].refused if name in valid else {}
            for market, cause in refused.items():
                named[cause].append(f"{name} ({market})")
        if not named:
            return ""
        causes = "; ".join(f"{_shortened(names)}: {cause}" for cause, names in named.items())
        return f"only configured prices count, because {self._source.place} has none for {causes}"

    def examine(self) -> Iterator[Finding]:
        """The finding of ``doctor``, after a reading if one is due."""
        if self._source is None:
            return
        subject, prices = "published prices", self.published().prices
        if trouble := self.trouble:
            expected = "a price in USD for an hour of each type and market"
            advice = "look at rights, the way there (proxy, firewall), and the types' names"
            yield Finding.note(subject, trouble, expected, advice)
        else:
            yield Finding.ok(subject, counted(len(prices), "price"))

    def _valid(self, price_list: PriceList) -> Iterator[tuple[str, TypePrices]]:
        """The answers that are not too old."""
        now = self._clock()
        for name, (at, answer) in price_list.types.items():
            if now - at < KEPT_S:
                yield name, answer

    def _report(self, price_list: PriceList) -> None:
        trouble = self.trouble
        if not trouble:
            self._reports.clear(_ALL_TYPES)
        elif self._reports.is_news(_ALL_TYPES, trouble):
            error = next(iter(price_list.errors.values()), None)
            log.warning("%s cloud=%s error=%s", trouble, self._settings.name, error)

    def _read(self, source: PriceSource) -> PriceList:
        """Read the prices of all types; no reading begins after ``api_timeout``. An older answer
        stays if there is no new one.
        """
        names, now = list(self._settings.shapes), self._clock()
        give_up_at = time.monotonic() + self._settings.api_timeout
        read = partial(self._read_type, source, give_up_at)
        results = [result.result() for result in each(names, read, THREADS)]
        last = self._cache.last(_ALL_TYPES) or PriceList()
        answers, errors = dict(last.types), dict[str, ProviderError]()
        for name, result in zip(names, results, strict=True):
            if isinstance(result, TypePrices):
                answers[name] = now, self._with_missing(source, name, result)
            else:
                errors[name] = result
        return PriceList(types=answers, errors=errors)

    def _read_type(
        self, source: PriceSource, give_up_at: float, name: str
    ) -> TypePrices | ProviderError:
        if time.monotonic() >= give_up_at:
            return TransientError(self._settings.name, "ReadTimeout", "no time was left to ask")
        try:
            return source.read(name, give_up_at)
        except ProviderError as error:
            return error

    def _with_missing(self, source: PriceSource, name: str, answer: TypePrices) -> TypePrices:
        """The answer that also refuses the markets without any price. A type that is not configured
        as spot may be unsold there.
        """
        kind = self._settings.shapes[name]
        missing = {
            market: "it is not in the list"
            for market in source.markets
            if market not in answer.prices and kind.price_on(market) is not None
        }
        return TypePrices(prices=answer.prices, refused={**missing, **answer.refused})


def flaw_of(currency: object, price: Any) -> str:  # noqa: ANN401 - a stranger's JSON
    """Why a published price cannot be used; "" if it can."""
    if currency != CURRENCY:
        return f"its currency is {shown(str(currency))}"
    is_number = isinstance(price, int | float) and not isinstance(price, bool)
    # Nothing is free: a price of 0 would pass each cap.
    if not is_number or not is_price(price) or price <= 0:
        return f"its price is {shown(str(price))}"
    return ""


def _cause_of(error: ProviderError) -> str:
    """The cause of a failed reading. Messages about connections have the URL of one type."""
    return error.refusal if error.code == BAD_ANSWER else error.code


def _shortened(names: list[str]) -> str:
    """The first names, and how many there are besides."""
    more = len(names) - _MAX_NAMED
    text = ", ".join(names[:_MAX_NAMED])
    return f"{text} and {more} more" if more > 0 else text
