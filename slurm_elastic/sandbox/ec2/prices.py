"""Spot prices of the emulated EC2: a trace, replayed at a chosen speed, and prices set by hand."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from fnmatch import fnmatchcase
from math import inf
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.providers.base.prices.trace import PriceTrace, load_trace

SHIPPED = Path(__file__).with_name("prices.csv")
MOST_BY_HAND = 1000
"""Prices set by hand that are kept of an offer."""


class Quote(Struct, frozen=True):
    """The price of a type in a zone in $/h, unchanged ``since`` (Unix time)."""

    type: str
    zone: str
    price: float
    since: float


class SpotPrices:
    """The spot prices, now and before. The trace restarts when it ends. A price set by
    hand holds until it is removed.
    """

    def __init__(self, trace: PriceTrace, speed: float, now: float) -> None:
        self._by_hand: dict[tuple[str, str], deque[tuple[float, float | None]]] = {}
        """When each price was set. None: the trace's price was in force again."""
        self.replay(trace, speed, now)

    def replay(self, trace: PriceTrace, speed: float, now: float) -> None:
        """Replay ``trace`` from its beginning, ``speed`` of its seconds per second. Raises
        SandboxError.
        """
        if not 0 <= speed < float("inf"):
            raise SandboxError(f"a trace cannot be replayed at speed {speed}")
        self._trace, self._speed, self._started = trace, speed, now
        for key in [k for k in self._by_hand if k not in trace.series]:
            if self._by_hand[key][-1][1] is None:  # the offer went with the former trace
                del self._by_hand[key]

    def fix(self, type_: str, zone: str, price: float | None, now: float) -> None:
        """Set the price of the offers that match the shell patterns; None returns to the trace's
        prices. Raises SandboxError.
        """
        if price is not None and not 0 <= price < float("inf"):
            raise SandboxError(f"{price} is not a price")
        for key in {*self._trace.series, *self._by_hand, (type_, zone)}:
            is_match = fnmatchcase(key[0], type_) and fnmatchcase(key[1], zone)
            # The set contains the arguments themselves, so that a new offer can be set. Skip them
            # if they are a pattern.
            if is_match and not set("*?[") & set("".join(key)):
                self._set(key, price, now)

    def _set(self, key: tuple[str, str], price: float | None, now: float) -> None:
        if price is None and key not in self._trace.series:
            self._by_hand.pop(key, None)  # nobody sells it any more
        elif price is not None or key in self._by_hand:
            self._by_hand.setdefault(key, deque(maxlen=MOST_BY_HAND)).append((now, price))

    def quote(self, type_: str, zone: str, now: float) -> Quote | None:
        """Return the present price; None if the type is not sold in the zone."""
        return next(self.history(type_, zone, now), None)

    def quotes(self, now: float) -> Iterator[Quote]:
        """Yield the present prices of all offers."""
        for key in self.offers():
            quote = self.quote(*key, now)
            if quote:
                yield quote

    def offers(self) -> list[tuple[str, str]]:
        """Return type and zone of all offers."""
        return sorted({*self._trace.series, *self._by_hand})

    def history(self, type_: str, zone: str, now: float) -> Iterator[Quote]:
        """Yield the prices of an offer, the newest first, back to the start of this pass of the
        trace, and all that were set by hand.
        """
        key = type_, zone
        end = now
        for since, price in reversed([(-inf, None), *self._by_hand.get(key, ())]):
            if since > now:
                continue
            if price is not None:
                yield Quote(*key, price, since)
            elif key in self._trace.series:
                yield from self._replayed(key, since, end)
            end = since

    def _replayed(self, key: tuple[str, str], begin: float, end: float) -> Iterator[Quote]:
        """Yield the trace's prices between two times, the newest first."""
        series, when = self._trace.series[key], self._trace_time(end)
        newest = max(bisect_right(series.times, when) - 1, 0)
        for index in range(newest, -1, -1):
            age = max(when - series.times[index], 0.0) / self._speed if self._speed else inf
            since = max(end - age, begin, self._started)
            yield Quote(*key, series.prices[index], since)
            if since in (begin, self._started):
                return

    def _trace_time(self, now: float) -> float:
        span = self._trace.end - self._trace.start
        played = (now - self._started) * self._speed
        return self._trace.start + (played % span if span else 0.0)


def shipped(speed: float, now: float) -> SpotPrices:
    """Return the synthetic prices of one day that come with the package."""
    return SpotPrices(load_trace(SHIPPED), speed, now)
