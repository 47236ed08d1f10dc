"""Booting machines: how many at once, how long nodes wait for their turn, when a boot is given up.
Pure.

slurm-elastic gives a node up shortly before slurmctld would, at ResumeTimeout. slurmctld would fail
the jobs that must not be requeued, and hold the others for 121 s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from slurm_elastic.model.causes.limits import BootsLimited
from slurm_elastic.model.causes.machine_ends import EndedInCloud, NotListed
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.machine_states import Lost
from slurm_elastic.model.memory import Launch, Machine, decided_at

WAIT_SHARE = 0.5
"""The share of ResumeTimeout for which a node may wait for its turn. Its machine needs the
remaining time to boot; a later start would only be given up half-way.
"""
SOON_S, SPOT_SOON_S = 600.0, 120.0
"""Seconds after its launch in which the end of a machine by others counts as a failure."""
MARGIN_SHARE, MIN_MARGIN_S, MAX_MARGIN_S = 0.1, 10.0, 30.0
"""The share of ResumeTimeout left when a node is given up, and its bounds (s): enough time to read
Slurm and to change it, about six commands, while both are busy.
"""


def given_up_after(resume_timeout: float) -> float:
    """Return after how many seconds a requested node is given up if it has not registered."""
    margin = min(max(MARGIN_SHARE * resume_timeout, MIN_MARGIN_S), MAX_MARGIN_S)
    # A short ResumeTimeout must leave the machine at least half of it.
    return resume_timeout - min(margin, resume_timeout / 2)


def turn(caps: Iterable[tuple[str, int]], booting: Mapping[str, int]) -> tuple[int, BootsLimited]:
    """Return how many more machines may boot now under ``caps`` (by scope), and the cap that allows
    the fewest. ``booting``: the machines that boot now, by scope.
    """
    rooms = [
        (max(cap - booting.get(scope, 0), 0), BootsLimited(scope=scope, limit=cap))
        for scope, cap in caps
    ]
    return min(rooms, key=lambda room: room[0])


def may_wait(asked: float | None, now: float, resume_timeout: float) -> bool:
    """Whether a node that Slurm requested at ``asked`` (Unix s) may wait longer for its turn. If
    that time is unknown, Slurm's own ResumeTimeout ends the wait.
    """
    # Not longer: a machine that starts late would be given up before it has booted.
    return asked is None or now < asked + longest_wait(resume_timeout)


def longest_wait(resume_timeout: float) -> float:
    """Return for how many seconds a node may wait for its turn to boot."""
    return WAIT_SHARE * resume_timeout


def ended_by_others_soon(machine: Machine) -> bool:
    """Whether the machine ended in its cloud soon after its start, without a decision of ours: by
    the account's clean-up script, a policy or a colleague.

    A spot machine counts only if it was ended sooner than any cloud reclaims it: the notice alone
    takes two minutes.
    """
    if not isinstance(machine.life, Lost) or not isinstance(
        machine.cause, EndedInCloud | NotListed
    ):
        return False
    bound_s = SPOT_SOON_S if machine.instance.market is Market.SPOT else SOON_S
    return 0 <= machine.life.ended_at - decided_at(machine.instance) < bound_s


# giving up


class UnderWay(Struct, frozen=True, kw_only=True):
    """One cloud's booting machines, and its launches without an answer."""

    boots: tuple[Machine, ...]
    opened: tuple[Launch, ...]


class TimedOut(Struct, frozen=True, kw_only=True):
    """Overdue nodes of one cloud: with a machine, or with a launch that was never answered."""

    cloud: str
    machines: tuple[Machine, ...]
    doubtful: tuple[str, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all overdue nodes, each once."""
        return tuple(dict.fromkeys((*(m.instance.node for m in self.machines), *self.doubtful)))

    def among(self, nodes: Iterable[str]) -> TimedOut:
        """Return the overdue nodes among ``nodes``."""
        names = set(nodes)
        return TimedOut(
            cloud=self.cloud,
            machines=tuple(m for m in self.machines if m.instance.node in names),
            doubtful=tuple(n for n in self.doubtful if n in names),
        )


def booting(
    machines: Iterable[Machine], cloud: str, pool_of: Mapping[str, Pool]
) -> tuple[Machine, ...]:
    """Return a cloud's booting machines whose nodes the present configuration still gives to that
    cloud. We must not give up a node that no longer belongs to us.
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
    """Return the booting machines and the open launches by cloud."""
    boots = [m for m in machines if m.boots]
    if not boots and not launches:
        return {}
    under_way_by_cloud = {
        cloud: UnderWay(
            boots=booting(boots, cloud, pool_of),
            opened=tuple(row for row in launches if row.cloud == cloud),
        )
        for cloud in clouds
    }
    return {
        cloud: cloud_part
        for cloud, cloud_part in under_way_by_cloud.items()
        if cloud_part.boots or cloud_part.opened
    }


def timed_out(
    cloud: str,
    cloud_part: UnderWay,
    late: Collection[str],
    machines: Iterable[Machine],
    pool_of: Mapping[str, Pool],
) -> TimedOut:
    """Return the overdue nodes of a cloud according to the ledger. Slurm may have them up already,
    or may not want them any longer.

    ``late``: generations in ``cloud_part`` whose time is over; ``machines``: all live machines.
    """
    doubtful = [n for row in cloud_part.opened if row.generation in late for n in row.nodes]
    # If another machine serves the node, the node is not overdue.
    served = {m.instance.node for m in machines if m.is_wanted} if doubtful else set()
    return TimedOut(
        cloud=cloud,
        machines=tuple(m for m in cloud_part.boots if m.instance.generation in late),
        doubtful=tuple(n for n in doubtful if n not in served and n in pool_of),
    )
