"""The file in which slurm-elasticd publishes the terms of all pools for the submit filter.

Plain lines, because the filter has no parser for JSON; ``job_order.lua`` reads them::

    slurm-elastic-order 1
    at UNIX_TIME
    keys KEY ...
    pool NAME PARTITION BOOT_S ON_DEMAND KEY=NUMBER ...
    offer ROOM MARKET PRICE LOST_SHARE MAX_RUN_S
    end

The ``offer`` lines belong to the ``pool`` line before them, best offer first. Names of pools and
partitions contain no space (``config/check.py``). ON_DEMAND and MAX_RUN_S are ``-`` if they
are infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from slurm_elastic.policies.launch.pool_order import AVAILABLE, PoolTerms, keys_of

FILE = "pool-order"
"""The file's name in the state directory."""
MAX_AGE_S = 300
"""The filter ignores an older file: its prices say too little about now."""
_TITLE = "slurm-elastic-order 1"


def text_of(table: Sequence[PoolTerms], ranking: Sequence[str], now: float) -> str:
    """Return the file's text. ``now``: Unix time of the prices."""
    return "\n".join((_TITLE, f"at {int(now)}", f"keys {' '.join(keys_of(ranking))}",
                      *(line for terms in table for line in _lines(terms)), "end", ""))  # fmt: skip


def _lines(terms: PoolTerms) -> Iterator[str]:
    on_demand = _number(terms.on_demand)
    numbers = {**terms.keys, AVAILABLE: 0.0 if terms.unavailable is None else 1.0}
    pairs = " ".join(f"{name}={float(value)!r}" for name, value in numbers.items())
    boot = repr(float(terms.boot_s))
    yield f"pool {terms.pool} {terms.partition} {boot} {on_demand} {pairs}"
    for offer in terms.offers:
        price, lost = repr(float(offer.price)), repr(float(offer.lost_share))
        yield f"offer {offer.room} {offer.market} {price} {lost} {_number(offer.max_run_s)}"


def _number(value: float) -> str:
    return "-" if value == math.inf else repr(float(value))
