"""Spot prices of the emulated EC2: a trace replayed at a chosen speed, and prices set by hand."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.providers.base.prices.trace import PriceTrace, load_trace

SHIPPED = Path(__file__).with_name("prices.csv")


class Quote(Struct, frozen=True):
    """The price of a type in a zone, in $/h, ``since`` Unix time."""

    type: str
    zone: str
    price: float
    since: float


class SpotPrices:
    """The trace begins again when it ends. A price set by hand holds until it is taken back."""

    def __init__(self, trace: PriceTrace, speed: float, now: float) -> None:
        self._fixed: dict[tuple[str, str], Quote] = {}
        self.replay(trace, speed, now)

    def replay(self, trace: PriceTrace, speed: float, now: float) -> None:
        """Play ``trace`` from its beginning, ``speed`` of its seconds in each second."""
        if not 0 <= speed < float("inf"):
            raise SandboxError(f"a trace cannot be replayed at speed {speed}")
        self._trace, self._speed, self._started = trace, speed, now

    def fix(self, type_: str, zone: str, price: float | None, now: float) -> None:
        """Set the price of the offers that the shell patterns fit; None gives them back."""
        if price is not None and not 0 <= price < float("inf"):
            raise SandboxError(f"{price} is not a price")
        known = {*self._trace.series, *self._fixed, (type_, zone)}
        for key in known:
            fits = fnmatchcase(key[0], type_) and fnmatchcase(key[1], zone)
            # What was asked for is among them: a pattern is no offer.
            if not fits or set("*?[") & set("".join(key)):
                continue
            if price is None:
                self._fixed.pop(key, None)
            else:
                self._fixed[key] = Quote(*key, price, now)

    def quote(self, type_: str, zone: str, now: float) -> Quote | None:
        """The price of now; None of what is not sold."""
        fixed = self._fixed.get((type_, zone))
        series = self._trace.series.get((type_, zone))
        if fixed or series is None:
            return fixed
        when = self._trace_time(now)
        price, since = series.at(when)
        age = max(when - since, 0.0) / self._speed if self._speed else now - self._started
        return Quote(type_, zone, price, now - age)

    def quotes(self, now: float) -> Iterator[Quote]:
        """The price of everything that is sold now."""
        for key in sorted({*self._trace.series, *self._fixed}):
            quote = self.quote(*key, now)
            if quote:
                yield quote

    def _trace_time(self, now: float) -> float:
        span = self._trace.end - self._trace.start
        played = (now - self._started) * self._speed
        return self._trace.start + (played % span if span else 0.0)


def shipped(speed: float, now: float) -> SpotPrices:
    """The day of synthetic prices that comes with the package."""
    return SpotPrices(load_trace(SHIPPED), speed, now)
