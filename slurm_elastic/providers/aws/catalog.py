"""EC2's offers: shapes and on-demand prices from the settings, spot prices from its history, which
the typed on-demand prices are checked by.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.errors import ProviderError
from slurm_elastic.model import Market, Offer, Pool
from slurm_elastic.policies.sound import price_in
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.settings import AwsCloud

log = logging.getLogger(__name__)

PRICES_FRESH = 60.0
"""Seconds for which one answer of the spot price history serves all pools."""


class Offers:
    """The prices and types of one cloud. ``clock`` is Unix time, ``monotonic`` ages the prices.
    Thread-safe.
    """

    def __init__(
        self,
        api: Api,
        settings: AwsCloud,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._zones: tuple[str, ...] = ()
        self._spot_prices: dict[tuple[str, str], float] = {}
        self._priced = float("-inf")

    def of(self, pool: Pool) -> Sequence[Offer]:
        """Shape and on-demand price from the settings, spot prices from the price history."""
        types = {
            name: self._settings.types[name]
            for name in pool.instance_types or self._settings.types
            if name in self._settings.types
        }
        usable = self._usable_zones()
        zones = [z for z in usable if not pool.zones or z in pool.zones]
        spot = self._spot() if Market.SPOT in pool.markets else self._spot_if_told()
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
        return Offer(
            cloud=self._settings.name,
            location=self._settings.location,
            instance_type=name,
            zone=zone,
            market=market,
            price=price,
            cpus=shape.cpus,
            memory=shape.memory,
            gres=shape.gres,
            on_demand_price=shape.price,
            interruption_rate=self._rate(name, market),
            reference_price=told,
            reference=f"spot in {where}" if where else "",
        )

    def _is_own(self, zone: str) -> bool:
        """Whether it has the region's on-demand prices: no Local or Wavelength Zone, whose names go
        on after the region's (``us-west-2-lax-1a``).
        """
        return zone[:-1] == self._settings.region

    def _rate(self, name: str, market: Market) -> float:
        return self._settings.interruption_rates.get(name, 0.0) if market is Market.SPOT else 0.0

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

    def _spot_if_told(self) -> Mapping[tuple[str, str], float]:
        """For a pool that buys nothing there: only to check typed prices by."""
        try:
            return self._spot()
        except ProviderError as error:
            log.info("typed prices are not checked cloud=%s error=%s", self._settings.name, error)
            return {}

    def _spot(self) -> Mapping[tuple[str, str], float]:
        """The spot price of each (type, zone): the newest of each, one call for all."""
        with self._lock:
            if self._monotonic() - self._priced < PRICES_FRESH:
                return self._spot_prices
        request = {
            "InstanceTypes": sorted(self._settings.types),
            "ProductDescriptions": ["Linux/UNIX"],
            # From now on: that is the price in force and nothing older.
            "StartTime": self._clock(),
            "MaxResults": client.PAGE,
        }
        newest: dict[tuple[str, str], tuple[Any, float]] = {}
        for point in self._api.pages("describe_spot_price_history", "SpotPriceHistory", request):
            key = point["InstanceType"], point["AvailabilityZone"]
            price = price_in(point["SpotPrice"])
            if price is not None and (key not in newest or point["Timestamp"] > newest[key][0]):
                newest[key] = point["Timestamp"], price
        with self._lock:
            self._spot_prices = {key: price for key, (_, price) in newest.items()}
            self._priced = self._monotonic()
            return self._spot_prices


def _dearest(spot: Mapping[tuple[str, str], float]) -> dict[str, tuple[float, str]]:
    """By type, its highest spot price of now, and the zone."""
    found: dict[str, tuple[float, str]] = {}
    for (name, zone), price in spot.items():
        found[name] = max(found.get(name, (0.0, "")), (price, zone))
    return found
