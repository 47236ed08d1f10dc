"""EC2's offers: shapes and on-demand prices from the settings, spot prices from its history, which
the typed on-demand prices are checked by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Market, Offer, Pool
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.images import Images
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.offers import typed_offer

log = logging.getLogger(__name__)

PRICES_FRESH = 60.0
"""Seconds for which one answer of the spot price history serves all pools."""
PRICES_STALE = 3600.0
"""And for how long while there is no other one: they change slowly, and on demand costs more."""


class Offers:
    """The prices and types of one cloud. ``clock`` is Unix time, ``monotonic`` ages the prices.
    ``trouble``: why the spot prices could not be asked for the last time. Thread-safe.
    """

    def __init__(
        self,
        api: Api,
        settings: AwsCloud,
        images: Images,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.trouble: ProviderError | None = None
        self._api = api
        self._settings = settings
        self._images = images
        self._clock = clock
        self._cache = TtlCache[str, Mapping[tuple[str, str], float]](monotonic)
        self._zones: tuple[str, ...] = ()

    def of(self, pool: Pool) -> Sequence[Offer]:
        """Shape and on-demand price from the settings, spot prices from the price history. Without
        those a pool has its offers on demand; ProviderError where it buys none.
        """
        types = self._types(pool)
        usable = self._usable_zones()
        zones = _zones(pool, usable)
        spot = self._spot_prices(pool)
        priced = (
            (name, zone, market, spot.get((name, zone)) if market is Market.SPOT else shape.price)
            for name, shape in types.items()
            for zone in zones
            for market in pool.markets
            if market is not Market.RESERVED
        )
        known = {k: p for k, p in spot.items() if k[1] in usable or self._is_own(k[1])}
        dearest = _dearest(known)
        return tuple(
            self._offer(name, types[name], zone, market, price, dearest.get(name))
            for name, zone, market, price in priced
            if price is not None
        )

    def samples(self, pool: Pool) -> Iterator[Offer]:
        """An offer for each market of the pool, whatever EC2 says of prices: rights are tried by
        it, and nothing is bought.
        """
        types, zones = self._types(pool), _zones(pool, self._usable_zones())
        for name, zone in ((n, z) for n in list(types)[:1] for z in zones[:1]):
            for market in pool.markets:
                yield self._offer(name, types[name], zone, market, types[name].price, None)

    def _types(self, pool: Pool) -> Mapping[str, InstanceType]:
        known = self._settings.types
        return {n: known[n] for n in pool.instance_types or known if n in known}

    def _offer(
        self,
        name: str,
        shape: InstanceType,
        zone: str,
        market: Market,
        price: float,
        dearest: tuple[float, str] | None,
    ) -> Offer:
        told, where = dearest or (None, "")
        rates = self._settings.interruption_rates
        place = (self._settings.name, self._settings.location)
        return replace(
            typed_offer(place, name, shape, zone, market),
            price=price,
            interruption_rate=rates.get(name, 0.0) if market is Market.SPOT else 0.0,
            reference_price=told,
            reference=f"spot in {where}" if where else "",
        )

    def _is_own(self, zone: str) -> bool:
        """Whether it has the region's on-demand prices: no Local or Wavelength Zone, whose names go
        on after the region's (``us-west-2-lax-1a``).
        """
        return zone[:-1] == self._settings.region

    def _usable_zones(self) -> tuple[str, ...]:
        """The settings' zones, or the subnets', or (asked once) the region's."""
        subnets = self._settings.subnets
        zones = self._settings.zones or tuple(subnets)
        if zones:
            return tuple(z for z in zones if not subnets or z in subnets)
        if not self._zones:
            filters = [
                {"Name": "zone-type", "Values": ["availability-zone"]},
                {"Name": "state", "Values": ["available"]},
            ]
            answer = self._api.send("describe_availability_zones", {"Filters": filters})
            self._zones = tuple(sorted(z["ZoneName"] for z in answer["AvailabilityZones"]))
        return self._zones

    def _spot_prices(self, pool: Pool) -> Mapping[tuple[str, str], float]:
        """By type and zone. Where EC2 does not tell, what it told lately, or else none: on demand
        is bought then, for which they are only to check typed prices by.
        """
        product = self._images.product(pool)
        prices: Mapping[tuple[str, str], float] | None
        try:
            prices = self._cache.get(product, lambda: self._spot(product), ttl_s=PRICES_FRESH)
        except ProviderError as error:
            self._say(error)
            prices = self._cache.last(product, PRICES_STALE)
            if prices is not None:
                return prices
            if Market.SPOT in pool.markets and Market.ON_DEMAND not in pool.markets:
                raise
            return {}
        self.trouble = None
        return prices

    def _say(self, error: ProviderError) -> None:
        """Once for each trouble: it costs the price of on demand."""
        known, self.trouble = self.trouble, error
        if known is None or known.code != error.code:
            log.warning("no spot prices, spot is bought by those of before or not at all "
                        "cloud=%s error=%s", self._settings.name, error)  # fmt: skip

    def _spot(self, product: str) -> Mapping[tuple[str, str], float]:
        """The spot price of each (type, zone): the newest of each, one call for all."""
        now = self._clock()
        request = {
            "InstanceTypes": sorted(self._settings.types),
            "ProductDescriptions": [product],
            # With both EC2 tells what is in force at the start, too; and nothing is after it.
            "StartTime": now,
            "EndTime": now,
            "MaxResults": client.PAGE,
        }
        newest: dict[tuple[str, str], tuple[Any, float]] = {}
        for point in self._api.pages("describe_spot_price_history", "SpotPriceHistory", request):
            key = point["InstanceType"], point["AvailabilityZone"]
            price = price_in(point["SpotPrice"])
            if price is not None and (key not in newest or point["Timestamp"] > newest[key][0]):
                newest[key] = point["Timestamp"], price
        return {key: price for key, (_, price) in newest.items()}


def _zones(pool: Pool, usable: Sequence[str]) -> Sequence[str]:
    return [zone for zone in usable if not pool.zones or zone in pool.zones]


def _dearest(spot: Mapping[tuple[str, str], float]) -> dict[str, tuple[float, str]]:
    """By type, its highest spot price of now, and the zone."""
    found: dict[str, tuple[float, str]] = {}
    for (name, zone), price in spot.items():
        found[name] = max(found.get(name, (0.0, "")), (price, zone))
    return found
