"""Decides whether oned's scheduler is still making progress for a machine that waits for a place.

The scheduler places a few machines per cycle (6.x by default: 30 in total and one on each host,
every 15 s). All others get the same message as if there were no room: "Not enough capacity in Host
or System DS, dispatch limit reached, ...". So the message alone decides nothing. A machine is given
up only if the scheduler has recently placed no machine of its launch and no machine ahead of it.
The last machines of a large launch may therefore wait longer.

A listing does not say when each machine got its place (pyone omits the times of a pool's history).
We use the time when we first saw it on a host, which is never too early.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.opennebula.convert import VmFields

MAX_PAUSES = 2.0
"""A further placement of a launch may take so many times its longest pause between two
placements.
"""


class WaitingMachine(Struct, frozen=True):
    """A machine without a place.

    ``since``: when the scheduler last placed a machine of its line (Unix time). ``moving``: whether
    the scheduler has placed any machine of its line since its launch began. ``pause``: the launch's
    longest pause (s).
    """

    vm: VmFields
    since: float
    moving: bool
    pause: float


class Placements:
    """Remembers when each machine was first seen on a host. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_placed_at")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._placed_at: dict[int, float] = {}

    def dated(self, machines: Sequence[VmFields], now: float) -> Sequence[VmFields]:
        """The machines with their ``placed``. Must be called with all machines of the account."""
        with self._lock:
            self._placed_at = {
                v.id: self._placed_at.get(v.id, now) for v in machines if v.host is not None
            }
            return [replace(v, placed=self._placed_at.get(v.id)) for v in machines]


def waiting(machines: Sequence[VmFields]) -> Iterator[WaitingMachine]:
    """The machines of the account for which the scheduler has found no place yet."""
    launches: dict[str, list[VmFields]] = {}
    for machine in machines:
        launches.setdefault(machine.generation, []).append(machine)
    latest = {
        name: max(_placed(launch_machines), default=0.0)
        for name, launch_machines in launches.items()
    }
    pauses = {name: _longest_pause(launch_machines) for name, launch_machines in launches.items()}
    # Ordering a large launch takes a while, so its first machines may have a place before its last
    # ones are ordered.
    began = {
        name: min(v.started for v in launch_machines) for name, launch_machines in launches.items()
    }
    ahead = 0.0
    for machine in sorted(machines, key=lambda v: v.id):
        if machine.waits:
            moved = max(ahead, latest[machine.generation])
            since = max(machine.started, moved)
            yield WaitingMachine(
                machine, since, moved >= began[machine.generation], pauses[machine.generation]
            )
        ahead = max(ahead, machine.placed or 0.0)


def given_up(machines: Sequence[VmFields], now: float, limit: float) -> Mapping[int, VmFields]:
    """By number, the machines with a message in whose line nothing has moved for ``limit`` seconds,
    or for longer if the scheduler took longer pauses with their launch.
    """
    return {
        w.vm.id: w.vm
        for w in waiting(machines)
        if w.vm.trouble and now - w.since > max(limit, MAX_PAUSES * w.pause)
    }


def in_line(machines: Sequence[VmFields]) -> frozenset[int]:
    """The numbers of machines whose message means nothing, or is still missing: the scheduler is
    working on their line.
    """
    return frozenset(w.vm.id for w in waiting(machines) if w.moving)


def _placed(machines: Iterable[VmFields]) -> list[float]:
    return sorted(v.placed for v in machines if v.placed is not None)


def _longest_pause(machines: Sequence[VmFields]) -> float:
    times = [min(v.started for v in machines), *_placed(machines)]
    return max((b - a for a, b in pairwise(times)), default=0.0)
