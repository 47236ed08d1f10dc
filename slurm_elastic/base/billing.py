"""The cost of a machine over time: the one rule for budgets, ``cost``, the order of the clouds,
forecasts and simulations. Pure.

A cloud bills each begun increment in full. If it bills by the second, it bills a minimum (EC2's
billing of Linux since 2017-10). The sums of the ledger (``state.ledger.books``) and the submit
filter (``slurm/hooks/job_order.lua``) have the same rule in their own languages.
"""

from __future__ import annotations

HOUR_S = 3600
MINIMUM_S = 60.0
"""The least number of billed seconds where the second is the increment."""


def paid_seconds(seconds: float, increment_s: float, minimum_s: float = MINIMUM_S) -> float:
    """Return the billed seconds of a machine that runs so many seconds."""
    seconds = max(seconds, 0)
    if increment_s <= 1:
        return max(seconds, minimum_s)
    # ``//`` and no ``ceil``: whole seconds must stay whole numbers in a simulation.
    return max(-(-seconds // increment_s), 1) * increment_s


def paid_until(begin: float, end: float, increment_s: float) -> float:
    """Return the end of the billed time of a machine that runs from ``begin`` to ``end`` (s)."""
    return begin + paid_seconds(end - begin, increment_s)


def billed_dollars(price: float, seconds: float) -> float:
    """Return the dollars for so many billed seconds at ``price`` ($/h)."""
    return seconds / HOUR_S * price
