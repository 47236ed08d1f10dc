"""Whether oned's scheduler still works on the line in which a machine waits for a place.

The scheduler places a few machines a cycle (6.x by default: 30 in all and one on each host, every
15 s) and gives all others the same message as where there is no room: "Not enough capacity in Host
or System DS, dispatch limit reached, ...". So the message alone tells nothing. A machine is given
up only when the scheduler has placed none of its launch, and none that was ahead of it, for a time.
The more machines a launch has, the longer its last ones may so wait.

A list of machines does not tell when each got its place (pyone passes over the times of a pool's
history), so what counts is when it was first seen there: late, never too early.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.opennebula.convert import Vm

CYCLES = 2.0
"""How many of the longest pauses between two placements of a launch a further one may take."""


class Waiting(Struct, frozen=True):
    """A machine without a place: since when nothing has moved before it (Unix time), whether the
    scheduler has placed any of its line since its launch began, and its launch's longest pause (s).
    """

    vm: Vm
    since: float
    moving: bool
    pause: float


class Placements:
    """Remembers when each machine was first seen to have a place. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_seen")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, float] = {}

    def dated(self, machines: Sequence[Vm], now: float) -> Sequence[Vm]:
        """All machines of the account, as listed now, with their ``placed``."""
        with self._lock:
            self._seen = {v.id: self._seen.get(v.id, now) for v in machines if v.host is not None}
            return [replace(v, placed=self._seen.get(v.id)) for v in machines]


def waiting(machines: Sequence[Vm]) -> Iterator[Waiting]:
    """The machines of the account that the scheduler has found no place for yet."""
    launches: dict[str, list[Vm]] = {}
    for one in machines:
        launches.setdefault(one.generation, []).append(one)
    latest = {name: max(_placed(some), default=0.0) for name, some in launches.items()}
    pauses = {name: _longest_pause(some) for name, some in launches.items()}
    # A launch of many takes a while: the first may have their place before the last are ordered.
    began = {name: min(v.started for v in some) for name, some in launches.items()}
    ahead = 0.0
    for one in sorted(machines, key=lambda v: v.id):
        if one.waits:
            moved = max(ahead, latest[one.generation])
            since = max(one.started, moved)
            yield Waiting(one, since, moved >= began[one.generation], pauses[one.generation])
        ahead = max(ahead, one.placed or 0.0)


def given_up(machines: Sequence[Vm], now: float, limit: float) -> Mapping[int, Vm]:
    """By number, the machines with a message in whose line nothing has moved for ``limit`` seconds;
    for longer where the scheduler itself was slower than that with their launch.
    """
    return {
        w.vm.id: w.vm
        for w in waiting(machines)
        if w.vm.trouble and now - w.since > max(limit, CYCLES * w.pause)
    }


def in_line(machines: Sequence[Vm]) -> frozenset[int]:
    """The numbers of those whose message says nothing, also where it is yet to come: the scheduler
    works on their line.
    """
    return frozenset(w.vm.id for w in waiting(machines) if w.moving)


def _placed(machines: Iterable[Vm]) -> list[float]:
    return sorted(v.placed for v in machines if v.placed is not None)


def _longest_pause(machines: Sequence[Vm]) -> float:
    times = [min(v.started for v in machines), *_placed(machines)]
    return max((b - a for a, b in pairwise(times)), default=0.0)
