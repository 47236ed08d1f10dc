"""The always-on cluster that a span of costs is compared with. Pure.

It has the machines of the span's busiest moment, when the running machines together had the highest
on-demand price per hour. An always-on cluster of that size would have served
every job as soon as ours did, and would have been paid for the whole span. Points in time are
milliseconds of Unix time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from slurm_elastic.policies.money.cost_split import HOUR


class RunningSpan(NamedTuple):
    """A machine ran from ``begin`` to ``end``. ``micro_per_hour``: its on-demand price in
    micro-dollars per hour.
    """

    begin: int
    end: int
    micro_per_hour: int


class Fleet(Struct, frozen=True, kw_only=True):
    """The machines of the busiest moment, ``at`` (Unix time): their number and their on-demand
    price, in micro-dollars per hour.
    """

    at: float
    machines: int
    micro_per_hour: int

    def micro(self, since: float, until: float) -> int:
        """Return the micro-dollars for all machines from ``since`` until ``until``, rounded half
        up.
        """
        paid_ms = max(round(until * 1000) - round(since * 1000), 0)
        return (2 * self.micro_per_hour * paid_ms + HOUR) // (2 * HOUR)


def busiest_fleet(spans: Iterable[RunningSpan], since: int, until: int) -> Fleet | None:
    """Return the fleet of the busiest moment between ``since`` and ``until``, the first if several
    cost the same. None if no machine ran that costs money.
    """
    changes: list[tuple[int, int, int]] = []
    for span in spans:
        begin, end = max(span.begin, since), min(span.end, until)
        if begin < end and span.micro_per_hour:
            changes.append((begin, 1, span.micro_per_hour))
            changes.append((end, -1, -span.micro_per_hour))
    busiest: Fleet | None = None
    machines = micro_per_hour = 0
    # Ends sort before begins of the same moment: a machine and its successor never count together.
    for moment, count, micro in sorted(changes):
        machines += count
        micro_per_hour += micro
        if micro_per_hour > (busiest.micro_per_hour if busiest else 0):
            busiest = Fleet(at=moment / 1000, machines=machines, micro_per_hour=micro_per_hour)
    return busiest
