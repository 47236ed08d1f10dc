"""A source of spot prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

PriceKey = tuple[str, str, str]
"""Pool, instance type and zone. Pools differ in their images, whose licences have prices."""
Points = tuple[tuple[float, float], ...]
"""(time from which the price holds, $/h), ascending."""


class PriceFeed(Protocol):
    """A source of prices. Any exception means that it cannot be read now."""

    name: str

    def read(self, keys: Iterable[PriceKey], since: float) -> Mapping[PriceKey, Points]:
        """The prices for these keys since ``since`` (Unix time), including the price that was valid
        then. Keys of pools that the source does not know are left out.
        """
        ...
