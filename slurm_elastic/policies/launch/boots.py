"""Machines that boot: how many at once, how long they may wait for it, when given up. Pure.

A node is given up a little before slurmctld would do it, at ResumeTimeout: that one fails the jobs
that must not be requeued, and has the others wait for 121 s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from slurm_elastic.model.causes.limits import BootsLimited
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.memory import Launch, Machine

WAIT_SHARE = 0.5
"""Which part of ResumeTimeout a node may wait for its turn: the rest is what its machine has to
boot in, and one that is started later would only be given up half-way.
"""
MARGIN_SHARE, MARGIN_LEAST, MARGIN_MOST = 0.1, 10.0, 30.0
"""Which part of ResumeTimeout is left when a node is given up, and its bounds (s): time enough to
read Slurm and to change it, some six commands, while both are busy.
"""


def given_up_after(resume_timeout: float) -> float:
    """Seconds after which a node that Slurm asked for and that has not registered is given up."""
    margin = min(max(MARGIN_SHARE * resume_timeout, MARGIN_LEAST), MARGIN_MOST)
    return resume_timeout - min(margin, resume_timeout / 2)


def turn(caps: Iterable[tuple[str, int]], booting: Mapping[str, int]) -> tuple[int, BootsLimited]:
    """How many more machines may boot now under these caps (by scope), and the tightest.

    ``booting`` has the counts by scope.
    """
    left = [
        (max(cap - booting.get(scope, 0), 0), BootsLimited(scope=scope, limit=cap))
        for scope, cap in caps
    ]
    return min(left, key=lambda one: one[0])


def may_wait(asked: float | None, now: float, resume_timeout: float) -> bool:
    """Whether a node that was asked for at ``asked`` may wait longer for its turn. Where nobody
    knows when that was, Slurm's own ResumeTimeout ends it.
    """
    return asked is None or now < asked + longest_wait(resume_timeout)


def longest_wait(resume_timeout: float) -> float:
    """Seconds that a node may wait for its turn to boot."""
    return WAIT_SHARE * resume_timeout


# giving up


class UnderWay(Struct, frozen=True, kw_only=True):
    """One cloud's machines that boot, and its launches that have no answer yet."""

    boots: tuple[Machine, ...]
    opened: tuple[Launch, ...]


class TimedOut(Struct, frozen=True, kw_only=True):
    """Overdue nodes of one cloud: with a machine, and those whose launch never got an answer."""

    cloud: str
    machines: tuple[Machine, ...]
    doubtful: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*(m.instance.node for m in self.machines), *self.doubtful)))

    def among(self, nodes: Iterable[str]) -> TimedOut:
        """The part of it that is about these nodes."""
        wanted = set(nodes)
        return TimedOut(
            cloud=self.cloud,
            machines=tuple(m for m in self.machines if m.instance.node in wanted),
            doubtful=tuple(n for n in self.doubtful if n in wanted),
        )


def booting(
    machines: Iterable[Machine], cloud: str, pool_of: Mapping[str, Pool]
) -> tuple[Machine, ...]:
    """The machines of a cloud that boot, of the configuration as it is: others' nodes nobody gives
    up.
    """
    return tuple(
        m
        for m in machines
        if m.instance.cloud == cloud
        and m.boots
        and m.instance.node in pool_of
        and pool_of[m.instance.node].cloud == cloud
    )


def under_way(
    machines: Collection[Machine],
    launches: Iterable[Launch],
    clouds: Iterable[str],
    pool_of: Mapping[str, Pool],
) -> dict[str, UnderWay]:
    """The machines that boot and the open launches, by cloud; of clouds that have some."""
    boots = [m for m in machines if m.boots]
    if not boots and not launches:
        return {}
    found = {
        cloud: UnderWay(
            boots=booting(boots, cloud, pool_of),
            opened=tuple(row for row in launches if row.cloud == cloud),
        )
        for cloud in clouds
    }
    return {cloud: some for cloud, some in found.items() if some.boots or some.opened}


def timed_out(
    cloud: str,
    some: UnderWay,
    late: Collection[str],
    machines: Iterable[Machine],
    pool_of: Mapping[str, Pool],
) -> TimedOut:
    """The nodes of a cloud that are overdue by the ledger: Slurm may have them up by now, or not
    want them any more. ``late`` are the generations of ``some`` that have had their time;
    ``machines`` are all that live.
    """
    doubtful = [n for row in some.opened if row.generation in late for n in row.nodes]
    served = {m.instance.node for m in machines if m.is_wanted} if doubtful else set()
    return TimedOut(
        cloud=cloud,
        machines=tuple(m for m in some.boots if m.instance.generation in late),
        doubtful=tuple(n for n in doubtful if n not in served and n in pool_of),
    )
