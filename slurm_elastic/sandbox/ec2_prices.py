"""Spot prices of the emulated EC2: a trace, replayed at a chosen speed, and prices set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.providers.base.prices.trace import PriceTrace, load_trace

SHIPPED = Path(__file__).with_name("prices.csv")


class Quote(Struct, frozen=True):
    """The price of a type in a zone in $/h, unchanged ``since`` (Unix time)."""

    type: str
    zone: str
    price: float
    since: float


class SpotPrices:
    """The spot prices of now. The trace restarts when it ends. A price set by hand holds until it
    is removed.
    """

    def __init__(self, trace: PriceTrace, speed: float, now: float) -> None:
        self._fixed: dict[tuple[str, str], Quote] = {}
        self.replay(trace, speed, now)

    def replay(self, trace: PriceTrace, speed: float, now: float) -> None:
        """Replay ``trace`` from its beginning, ``speed`` of its seconds per second. Raises
        SandboxError.
        """
        if not 0 <= speed < float("inf"):
            raise SandboxError(f"a trace cannot be replayed at speed {speed}")
        self._trace, self._speed, self._started = trace, speed, now

    def fix(self, type_: str, zone: str, price: float | None, now: float) -> None:
        """Set the price of the offers that match the shell patterns; None returns to the trace's
        prices. Raises SandboxError.
        """
        if price is not None and not 0 <= price < float("inf"):
            raise SandboxError(f"{price} is not a price")
        offers = {*self._trace.series, *self._fixed, (type_, zone)}
        for key in offers:
            is_match = fnmatchcase(key[0], type_) and fnmatchcase(key[1], zone)
            # The set contains the arguments themselves, so that a new offer can be set. Skip them
            # if they are a pattern.
            if not is_match or set("*?[") & set("".join(key)):
                continue
            if price is None:
                self._fixed.pop(key, None)
            else:
                self._fixed[key] = Quote(*key, price, now)

    def quote(self, type_: str, zone: str, now: float) -> Quote | None:
        """Return the present price; None if the type is not sold in the zone."""
        fixed = self._fixed.get((type_, zone))
        series = self._trace.series.get((type_, zone))
        if fixed or series is None:
            return fixed
        when = self._trace_time(now)
        price, since = series.at(when)
        age = max(when - since, 0.0) / self._speed if self._speed else now - self._started
        return Quote(type_, zone, price, now - age)

    def quotes(self, now: float) -> Iterator[Quote]:
        """Yield the present prices of all offers."""
        for key in sorted({*self._trace.series, *self._fixed}):
            quote = self.quote(*key, now)
            if quote:
                yield quote

    def _trace_time(self, now: float) -> float:
        span = self._trace.end - self._trace.start
        played = (now - self._started) * self._speed
        return self._trace.start + (played % span if span else 0.0)


def shipped(speed: float, now: float) -> SpotPrices:
    """Return the synthetic prices of one day that come with the package."""
    return SpotPrices(load_trace(SHIPPED), speed, now)
