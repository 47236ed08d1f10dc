"""The file in which slurm-elasticd publishes the terms of all pools for the submit filter, and for
the commands that compare clouds.

Plain lines, because the filter has no parser for JSON; ``slurm/hooks/job_order.lua`` reads them::

    slurm-elastic-order 1
    at UNIX_TIME
    keys KEY ...
    pool NAME PARTITION BOOT_S ON_DEMAND KEY=NUMBER ...
    cloud NAME CAUSE
    traffic PRICE_IN PRICE_OUT BANDWIDTH
    offer ROOM MARKET PRICE LOST_SHARE MAX_RUN_S
    end

The ``cloud``, ``traffic`` and ``offer`` lines belong to the ``pool`` line before them, best offer
first. Names contain no space (``config/check.py``). ON_DEMAND, BANDWIDTH and MAX_RUN_S are ``-`` if
they are infinite. The ``traffic`` line is missing if traffic is not counted. CAUSE says in JSON why
the cloud cannot sell now, or is ``-``; the filter skips the ``cloud`` lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.causes import decoded, encoded
from slurm_elastic.model.cluster import Market
from slurm_elastic.policies.launch.pool_order import (
    AVAILABLE,
    FREE_TRAFFIC,
    PoolTerms,
    PricedRoom,
    TrafficTerms,
    keys_of,
)

FILE = "pool-order"
"""The file's name in the state directory."""
MAX_AGE_S = 300
"""Seconds after which the filter ignores the file, because its prices say too little about the
present.
"""
_TITLE = "slurm-elastic-order 1"
_FUTURE_S = 60
"""A clock that was set back by less does not matter (as in ``slurm/hooks/job_order.lua``)."""
_WHOLE = re.compile(rf"{_TITLE}\nat (\d+)\nkeys ([^\n]+)\n(.*)end\n", re.DOTALL)


class Published(Struct, frozen=True, kw_only=True):
    """The content of the file. ``at``: Unix time of the prices. ``ranking``: the site's keys."""

    at: int
    ranking: tuple[str, ...]
    table: tuple[PoolTerms, ...]


def read(path: Path, now: float) -> Published | None:
    """Return the published terms; None if there is no complete, new enough file."""
    try:
        return parse(path.read_text(), now)
    except (OSError, UnicodeDecodeError):
        return None


def parse(text: str, now: float) -> Published | None:
    """The inverse of ``text_of``; None if the text is incomplete or too old at ``now``."""
    whole = _WHOLE.fullmatch(text)
    if whole is None or not -_FUTURE_S <= now - int(whole[1]) <= MAX_AGE_S:
        return None
    ranking = tuple(name for name in whole[2].split() if name != AVAILABLE)
    try:
        table = _table(whole[3])
    except (LookupError, ValueError):  # a file of another release; msgspec's errors are ValueErrors
        return None
    return Published(at=int(whole[1]), ranking=ranking, table=table)


def text_of(table: Sequence[PoolTerms], ranking: Sequence[str], now: float) -> str:
    """Return the file's text. ``now``: Unix time of the prices."""
    return "\n".join((_TITLE, f"at {int(now)}", f"keys {' '.join(keys_of(ranking))}",
                      *(line for terms in table for line in _lines(terms)), "end", ""))  # fmt: skip


def _lines(terms: PoolTerms) -> Iterator[str]:
    numbers = {**terms.keys, AVAILABLE: 0.0 if terms.unavailable is None else 1.0}
    pairs = " ".join(f"{name}={float(value)!r}" for name, value in numbers.items())
    prices = f"{_number(terms.boot_s)} {_number(terms.on_demand)}"
    yield f"pool {terms.pool} {terms.partition} {prices} {pairs}"
    cause = "-" if terms.unavailable is None else encoded(terms.unavailable)
    yield f"cloud {terms.cloud} {cause}"
    if terms.lease_s > 1:
        yield f"lease {_number(terms.lease_s)}"
    if (traffic := terms.traffic) != FREE_TRAFFIC:
        traffic_numbers = (traffic.price_in, traffic.price_out, traffic.bandwidth)
        yield f"traffic {' '.join(map(_number, traffic_numbers))}"
    for offer in terms.offers:
        numbers_text = " ".join(map(_number, (offer.price, offer.lost_share, offer.max_run_s)))
        yield f"offer {offer.room} {offer.market} {numbers_text}"


def _number(value: float) -> str:
    return "-" if value == math.inf else repr(float(value))


def _value(text: str) -> float:
    return math.inf if text == "-" else float(text)


def _table(lines: str) -> tuple[PoolTerms, ...]:
    """Return the terms in the lines. LookupError or ValueError if a line is not as ``_lines``
    writes it.
    """
    table: list[PoolTerms] = []
    for line in lines.removesuffix("\n").split("\n") if lines else ():
        kind, rest = line.split(" ", 1)
        if kind == "pool":
            table.append(_pool(rest))
        else:
            table[-1] = _completed(table[-1], kind, rest)
    return tuple(table)


def _completed(terms: PoolTerms, kind: str, text: str) -> PoolTerms:
    """Return the pool's terms with those of one more line."""
    if kind == "cloud":
        cloud, cause = text.split(" ", 1)
        unavailable = None if cause == "-" else decoded(cause)
        return replace(terms, cloud=cloud, unavailable=unavailable)
    if kind == "lease":
        return replace(terms, lease_s=float(text))
    if kind == "traffic":
        price_in, price_out, bandwidth = map(_value, text.split())
        traffic = TrafficTerms(price_in=price_in, price_out=price_out, bandwidth=bandwidth)
        return replace(terms, traffic=traffic)
    if kind == "offer":
        return replace(terms, offers=(*terms.offers, _offer(text)))
    raise ValueError(kind)


def _pool(text: str) -> PoolTerms:
    name, partition, boot, on_demand, *pairs = text.split()
    numbers = {key: float(number) for key, number in (pair.split("=") for pair in pairs)}
    return PoolTerms(
        pool=name,
        # The ``cloud`` line that follows names it.
        cloud="",
        partition=partition,
        boot_s=float(boot),
        on_demand=_value(on_demand),
        keys={key: number for key, number in numbers.items() if key != AVAILABLE},
    )


def _offer(text: str) -> PricedRoom:
    room, market, price, lost, max_run = text.split()
    return PricedRoom(
        room=int(room),
        market=Market(market),
        price=float(price),
        lost_share=float(lost),
        max_run_s=_value(max_run),
    )
