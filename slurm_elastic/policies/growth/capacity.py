"""How many machines more to have. Pure; the same in the daemon and in the simulator.

Growth policies answer ``grow(demand)`` with how many, and why; ``release`` has their counterparts.
``bounded`` is what budgets, windows and caps leave of a growth; ``misfits`` says why a growth and a
release policy make no sense together.

Sources: Elastic Site (CCGrid 2010) for on_demand, steady_stream and bursts; VHEC (2014) for
group_bursts; SEC (SC'13) for semi_elastic; vcluster (2013) for ratio.
The docstrings settle what those papers leave open. Times are integer seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, NamedTuple

from msgspec import Struct

from slurm_elastic.base.units import brief
from slurm_elastic.policies.growth.release import AnyRelease, AtOnce, Delayed, Flagged, Idle
from slurm_elastic.policies.money.bounds import Bounds, Spent, stopped
from slurm_elastic.policies.policy_text import (
    Jobs,
    Machines,
    Makers,
    Policy,
    Whole,
    WholeOver,
    parse_policy,
)


class Waiting(NamedTuple):
    """A job that waits: the ``nodes`` and the ``limit`` (s) it asked for, and since when."""

    nodes: int
    limit: int
    submit: int


class Demand(Struct, frozen=True, kw_only=True):
    """The facts that a growth policy may know of one pool. ``queue``: head first; ``fresh``: those
    of the queue for which no growth was decided yet.

    ``idle``, ``busy`` and ``booting`` count machines that may get work (no flagged ones);
    ``running`` counts jobs. ``head_start``: when the head could start on the machines that are up
    or booting, by the running jobs' limits (None: never).
    """

    now: int
    queue: Sequence[Waiting] = ()
    fresh: Sequence[Waiting] = ()
    running: int = 0
    idle: int = 0
    busy: int = 0
    booting: int = 0
    head_start: int | None = None

    @property
    def up(self) -> int:
        """Machines that are there or coming."""
        return self.idle + self.busy + self.booting

    @property
    def seconds(self) -> int:
        """The sum of the waiting jobs' limits (Elastic Site's Q; its jobs are serial)."""
        return sum(job.limit for job in self.queue)


class Late(NamedTuple):
    """A reason that is put into words where somebody reads it, by ``str``: a simulation asks
    thousands of times, and reads none.
    """

    wait: int
    limit: int

    def __str__(self) -> str:
        return f"the head would have waited {brief(self.wait)}, over {brief(self.limit)}"


class Growth(NamedTuple):
    """So many machines more, and why."""

    machines: int
    reason: str | Late


class Slurm(Policy, frozen=True, tag="slurm"):
    """Slurm's own power saving: a job gets idle nodes and powered-down ones at once, and waits for
    those to boot. Nothing is booted beside that.
    """

    period: WholeOver | None = None

    def grow(self, demand: Demand) -> Growth | None:  # noqa: ARG002
        """None: Slurm resumes nodes itself."""
        return None


class OnDemand(Policy, frozen=True, tag="on_demand"):
    """A machine for each node that newly waiting jobs need, less those idle."""

    period: WholeOver | None = 15

    def grow(self, demand: Demand) -> Growth | None:
        """All that the new jobs lack."""
        wanted = sum(job.nodes for job in demand.fresh)
        reason = f"{len(demand.fresh)} new jobs wait for {wanted} nodes"
        return _for_fresh(wanted, demand, reason)


class SteadyStream(Policy, frozen=True, tag="steady_stream"):
    """One machine always; one more when over ``5 waste`` seconds of work wait and none boots.

    ``waste``: seconds that a machine's boot and shutdown take together.
    """

    waste: WholeOver = 180
    period: WholeOver | None = 15

    def grow(self, demand: Demand) -> Growth | None:
        """One, or none."""
        if demand.up == 0:
            return Growth(1, "one machine is always kept")
        if demand.booting or demand.seconds <= 5 * self.waste:
            return _for_head(demand)
        return Growth(1, f"{brief(demand.seconds)} of work wait, over {brief(5 * self.waste)}")

    def surplus(self, demand: Demand) -> int:
        """Machines to flag: all but one (or what the head needs) when under ``3 waste`` seconds of
        work wait.
        """
        if demand.seconds >= 3 * self.waste:
            return 0
        # The paper's jobs are serial and do not say what a parallel head needs.
        kept = demand.queue[0].nodes if demand.queue else 1
        return max(demand.idle + demand.busy - kept, 0)


class Bursts(Policy, frozen=True, tag="bursts"):
    """A machine for every ``2 waste`` seconds of new work that waits, one at least, less those
    idle.
    """

    waste: WholeOver = 180
    period: WholeOver | None = 15

    def grow(self, demand: Demand) -> Growth | None:
        """As many as the new work is worth."""
        # New jobs only: the paper does not say so, but counted again its twenty jobs would not have
        # got the six machines that it reports.
        seconds = sum(job.limit for job in demand.fresh)
        wanted = max(seconds // (2 * self.waste), 1) if seconds else 0
        return _for_fresh(
            wanted, demand, f"{brief(seconds)} of new work, {brief(2 * self.waste)} a machine"
        )


class GroupBursts(Policy, frozen=True, tag="group_bursts"):
    """``group`` machines for every newly waiting job, less those idle."""

    group: Machines = 2
    period: WholeOver | None = 10

    def grow(self, demand: Demand) -> Growth | None:
        """The group times the number of new jobs."""
        wanted = self.group * len(demand.fresh)
        reason = f"{len(demand.fresh)} new jobs, {self.group} machines each"
        return _for_fresh(wanted, demand, reason)


class Ratio(Policy, frozen=True, tag="ratio"):
    """Machines for the waiting jobs beyond the number of running ones, ``slots`` jobs a machine."""

    slots: Jobs = 1
    period: WholeOver | None = 30

    def grow(self, demand: Demand) -> Growth | None:
        """Enough that as many run as wait."""
        waiting, running = len(demand.queue), max(demand.running, 1)
        # This is ceil(v (k - 1)) with k = waiting / running, so written that it also grows from
        # none.
        over = waiting - running if demand.up else waiting
        wanted = -(-max(over, 0) // self.slots) - demand.booting
        if wanted > 0:
            return Growth(wanted, f"{waiting} jobs wait, {running} run")
        return _for_head(demand)


class Size(StrEnum):
    """How many machines ``SemiElastic`` asks for."""

    FIRST = "first"
    SUM = "sum"
    BEST = "best"


_FIRST, _SUM = Size.FIRST, Size.SUM


class SemiElastic(Policy, frozen=True, tag="semi_elastic"):
    """Grow when the head is larger than all machines, or would wait longer than ``wait_limit``.

    Its wait is counted from its submission to its predicted start. ``size``: nodes of the head
    (first), of all waiting jobs (sum), or of those that asked for more than ``short`` seconds and
    of the first that asked for less (best). Asked only when a job arrives or ends.
    """

    wait_limit: Whole = 300
    size: Size = Size.BEST
    short: Whole = 3600
    period: WholeOver | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in tuple(Size):
            raise ValueError(f"size is {self.size!r}, expected one of {', '.join(Size)}")

    def grow(self, demand: Demand) -> Growth | None:
        """The chosen size, less machines idle and booting."""
        why = self._too_long(demand) if demand.queue else None
        if why is None:
            return None
        count = self.wanted(demand.queue) - demand.idle - demand.booting
        return Growth(count, why) if count > 0 else None

    def wanted(self, queue: Sequence[Waiting]) -> int:
        """The nodes that the queue is worth by ``size``."""
        if self.size == _FIRST:
            return queue[0].nodes
        if self.size == _SUM:
            return sum(job.nodes for job in queue)
        long, first, most = 0, None, self.short
        for nodes, limit, _ in queue:
            if limit > most:
                long += nodes
            elif first is None:
                first = nodes
        return long + (first or 0)

    def _too_long(self, demand: Demand) -> str | Late | None:
        nodes, _, submit = demand.queue[0]
        up = demand.idle + demand.busy + demand.booting
        if nodes > up:
            return f"the head needs {nodes} nodes, {up} are there"
        start, now = demand.head_start, demand.now
        if start is None:
            return "the head would never start"
        wait = (start if start > now else now) - submit
        return Late(wait, self.wait_limit) if wait > self.wait_limit else None


class OwnGrowth(Policy, frozen=True, tag="own"):
    """What a growth policy of another package derives from, with the ``tag`` that is its name.

    Its fields are what the text may give (``weekend(most=4)``): numbers and texts, each with a
    default. ``period``: seconds between two looks in the simulator (None: whenever a job arrives or
    ends); the daemon looks every ``policies.look`` seconds. ``once``: a waiting job counts for one
    growth only, then it is in ``Demand.fresh`` no more.

    Both methods are pure and quick: no clock but ``demand.now`` (Unix time, s), no file, no random
    number. If one raises, or its answer makes no sense, nothing is started and nothing is ended,
    and the reason is told (GrowthError).
    """

    period: ClassVar[int | None] = 15
    once: ClassVar[bool] = False

    def grow(self, demand: Demand) -> Growth | None:
        """So many machines more (0 or more) and why, in words; None: no more are wanted. Budgets,
        caps and the nodes that are left bound it afterwards.
        """
        raise NotImplementedError

    def surplus(self, demand: Demand) -> int:
        """Machines to flag, idle ones or others, for ``release: flagged``."""
        return 0 if demand.queue else demand.idle


AnyGrowth = Slurm | OnDemand | SteadyStream | Bursts | GroupBursts | Ratio | SemiElastic | OwnGrowth


def _for_fresh(wanted: int, demand: Demand, reason: str) -> Growth | None:
    """The machines that new jobs need beyond the idle machines."""
    # Less the idle ones alone: those that boot belong to older jobs.
    count = wanted - demand.idle
    return Growth(count, reason) if count > 0 else _for_head(demand)


def _for_head(demand: Demand) -> Growth | None:
    """A parallel job for which nothing will ever be free must not wait for ever."""
    if not demand.queue or demand.running or demand.booting:
        return None
    count = demand.queue[0].nodes - demand.idle
    return Growth(count, "nothing runs, and the head needs more") if count > 0 else None


def bounded(growth: Growth, demand: Demand, bounds: Bounds, spent: Spent) -> Growth:
    """The ``growth`` that the bounds leave; a count of 0 carries the bound that stopped it."""
    stop = stopped(demand.now, bounds, spent)
    if stop is not None:
        return Growth(0, str(stop))
    count, reason = growth
    if bounds.booting is not None and demand.booting + count > bounds.booting:
        count = max(bounds.booting - demand.booting, 0)
        reason = f"{growth.reason}; at most {bounds.booting} machines boot at a time"
    if bounds.machines is not None and demand.up + count > bounds.machines:
        count = max(bounds.machines - demand.up, 0)
        reason = f"{growth.reason}; at most {bounds.machines} machines"
    return Growth(count, reason)


def misfits(
    growth: AnyGrowth, release: AnyRelease | None, lease: int, boot: int = 0, min_idle: int = 0
) -> list[str]:
    """Why these make no sense together, one sentence each; empty if they do. No ``release``: by
    Slurm's SuspendTime.

    ``lease``: seconds that are paid at a time (1: by the second); ``boot``: seconds of a boot;
    ``min_idle``: machines that are kept up without work.
    """
    found = []
    if isinstance(growth, Bursts | GroupBursts) and isinstance(release, AtOnce):
        found.append("bursts start machines ahead of need, which on_demand would release at once")
    if isinstance(growth, SteadyStream) and not isinstance(release, Flagged):
        found.append("steady_stream keeps one machine, only flagged release knows which")
    if isinstance(release, Delayed) and 1 < lease <= release.before_end:
        found.append(
            f"delayed waits until {brief(release.before_end)} before the end of leases of"
            f" {brief(lease)}"
        )
    if isinstance(release, Idle) and isinstance(growth, Slurm) and release.seconds < 1 and boot:
        found.append("idle(0) releases machines before the job that they were booted for")
    if isinstance(release, Flagged) and min_idle:
        found.append("flagged release lets go of machines that min_idle would start again")
    return found


GROWTH: Mapping[str, type] = {
    "slurm": Slurm,
    "on_demand": OnDemand,
    "steady_stream": SteadyStream,
    "bursts": Bursts,
    "group_bursts": GroupBursts,
    "ratio": Ratio,
    "semi_elastic": SemiElastic,
}


def parse_growth(text: str, makers: Makers = GROWTH) -> AnyGrowth:
    """``bursts(waste=180)``; ValueError with one sentence where there is no such policy."""
    policy: AnyGrowth = parse_policy(text, makers)
    return policy
