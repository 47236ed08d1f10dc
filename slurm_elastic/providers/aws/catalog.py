"""EC2's offers. Types and on-demand prices come from the settings, spot prices from EC2's price
history. The spot prices also serve to check the on-demand prices in the settings.
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
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.efa import EfaTypes
from slurm_elastic.providers.aws.images import AwsImages
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.offers import paid_offer, reserved_offers, typed_offer

log = logging.getLogger(__name__)

PRICES_TTL_S = 60.0
"""For so long one answer of the spot price history serves all pools."""
PRICES_STALE_S = 3600.0
"""For so long an old answer serves if EC2 gives no new one: spot prices change slowly, and
on-demand machines cost more.
"""
_PROOF = ", which is never dearer than on-demand"


class AwsOffers:
    """The types and prices of one cloud. ``clock`` is Unix time; ``monotonic`` measures the age of
    prices. ``trouble``: why the last reading of spot prices failed, or None. Thread-safe.
    """

    def __init__(
        self,
        api: AwsApi,
        settings: AwsCloud,
        images: AwsImages,
        efa: EfaTypes,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.trouble: ProviderError | None = None
        self._api = api
        self._settings = settings
        self._images = images
        self._efa = efa
        self._clock = clock
        self._cache = TtlCache[str, Mapping[tuple[str, str], float]](monotonic)
        self._zones: tuple[str, ...] = ()

    def of(self, pool: Pool) -> Sequence[Offer]:
        """The offers for a pool. If spot prices cannot be read, a pool gets only its on-demand
        offers; ProviderError if it buys no on-demand machines.
        """
        types = self._types(pool)
        usable = self._usable_zones()
        zones = self._zones_of(pool)
        spot = self._spot_prices(pool)
        priced = (
            (name, zone, market, spot.get((name, zone)) if market is Market.SPOT else shape.price)
            for name, shape in types.items()
            for zone in zones
            for market in pool.markets
            if market is not Market.RESERVED
        )
        comparable_prices = {
            k: p for k, p in spot.items() if k[1] in usable or self._has_region_prices(k[1])
        }
        highest_spot = _highest_spot(comparable_prices)
        sold = (
            self._offer(pool, name, types[name], zone, market, price, highest_spot.get(name))
            for name, zone, market, price in priced
            if price is not None
        )
        reserved = reserved_offers(self._settings, pool, zones)
        return (*(offer for offer in reserved if offer.instance_type in types), *sold)

    def samples(self, pool: Pool) -> Iterator[Offer]:
        """An offer for each market of the pool, whatever EC2 reports about prices. Only dry runs
        use it; nothing is bought.
        """
        types, zones = self._types(pool), self._zones_of(pool)
        for name, zone in ((n, z) for n in list(types)[:1] for z in zones[:1]):
            for market in (m for m in pool.markets if m is not Market.RESERVED):
                yield self._offer(pool, name, types[name], zone, market, types[name].price, None)

    def _types(self, pool: Pool) -> Mapping[str, InstanceType]:
        types = self._settings.types
        named = {n: types[n] for n in pool.instance_types or types if n in types}
        if not pool.machine.rdma:
            return named
        with_efa = self._efa.interfaces(named)
        return {name: shape for name, shape in named.items() if name in with_efa}

    def _offer(
        self,
        pool: Pool,
        name: str,
        shape: InstanceType,
        zone: str,
        market: Market,
        price: float,
        highest_spot: tuple[float, str] | None,
    ) -> Offer:
        reference_price, reference_zone = highest_spot or (None, "")
        rates = self._settings.interruption_rates
        place = (self._settings.name, self._settings.location)
        offer = replace(
            typed_offer(place, name, shape, zone, market),
            price=price,
            interruption_rate=rates.get(name, 0.0) if market is Market.SPOT else 0.0,
            reference_price=reference_price,
            reference=f"spot in {reference_zone}{_PROOF}" if reference_zone else "",
        )
        return paid_offer(offer, self._settings, pool)

    def _has_region_prices(self, zone: str) -> bool:
        """Whether the zone has the region's on-demand prices. Local and Wavelength Zones do not;
        their names are longer (``us-west-2-lax-1a``).
        """
        return zone[:-1] == self._settings.region

    def _zones_of(self, pool: Pool) -> Sequence[str]:
        """The zones in which the pool's machines may be."""
        usable = tuple(pool.machine.subnets) or self._usable_zones()
        return [zone for zone in usable if not pool.zones or zone in pool.zones]

    def _usable_zones(self) -> tuple[str, ...]:
        """The zones of the settings, or of the subnets, or else of the region (read once)."""
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
        """Spot prices by type and zone. If EC2 does not answer, the last prices are used for a
        while. After that there are none, so only on-demand machines are bought.
        """
        product = self._images.product(pool)
        prices: Mapping[tuple[str, str], float] | None
        try:
            prices = self._cache.get(
                product, lambda: self._read_spot_prices(product), ttl_s=PRICES_TTL_S
            )
        except ProviderError as error:
            self._report_trouble(error)
            prices = self._cache.last(product, PRICES_STALE_S)
            if prices is not None:
                return prices
            if Market.SPOT in pool.markets and Market.ON_DEMAND not in pool.markets:
                raise
            return {}
        self.trouble = None
        return prices

    def _report_trouble(self, error: ProviderError) -> None:
        """Log a new trouble once, because it makes us pay on-demand prices."""
        last_trouble, self.trouble = self.trouble, error
        # Compared by code, because the text of one trouble may differ each time.
        if last_trouble is None or last_trouble.code != error.code:
            log.warning(
                "no spot prices: spot machines are bought at the last known prices, or not at all "
                "cloud=%s error=%s",
                self._settings.name, error,
            )  # fmt: skip

    def _read_spot_prices(self, product: str) -> Mapping[tuple[str, str], float]:
        """The newest spot price of each (type, zone), read in one paged request."""
        now = self._clock()
        request = {
            "InstanceTypes": sorted(self._settings.types),
            "ProductDescriptions": [product],
            # EC2 returns the prices valid at the start, and no later ones, if start and end are the
            # same time.
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


def _highest_spot(spot: Mapping[tuple[str, str], float]) -> dict[str, tuple[float, str]]:
    """The highest current spot price of each type, and its zone."""
    highest: dict[str, tuple[float, str]] = {}
    for (name, zone), price in spot.items():
        highest[name] = max(highest.get(name, (0.0, "")), (price, zone))
    return highest
