"""How many more machines to start. Pure; shared by the daemon and the simulator.

Each growth policy's ``grow(demand)`` returns how many machines, and why; ``release`` has the
counterparts. ``bounded`` applies budgets, windows and caps to a growth. ``misfits`` explains why a
growth and a release policy do not work together.

Sources: Elastic Site (CCGrid 2010) for on_demand, steady_stream and bursts; VHEC (2014) for
group_bursts; SEC (SC'13) for semi_elastic; vcluster (2013) for ratio. The docstrings decide what
those papers leave open. Times are integer seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct

from slurm_elastic.base.units import brief
from slurm_elastic.policies.growth.release import AnyRelease, AtOnce, Delayed, Flagged, Idle
from slurm_elastic.policies.money.bounds import Bounds, Spent, stopped
from slurm_elastic.policies.policy_text import (
    Factor,
    Jobs,
    Machines,
    Makers,
    Policy,
    Whole,
    WholeOver,
    parse_policy,
)


class Waiting(NamedTuple):
    """A pending job: the ``nodes`` and the time ``limit`` (s) that it asks for, and when it was
    submitted (Unix s).
    """

    nodes: int
    limit: int
    submit: int


class Demand(Struct, frozen=True, kw_only=True):
    """The facts that a growth policy may know about one pool.

    ``queue``: pending jobs, head first; ``fresh``: jobs of the queue for which too few machines
    were started yet. ``idle``, ``busy`` and ``booting`` count machines that may get work (no
    flagged ones). ``spare``: idle and booting machines beyond those that the other jobs of the
    queue need. ``running`` counts jobs. ``head_start``: when the head could start on machines that
    are up or booting, by the running jobs' limits (Unix s; None: never).
    """

    now: int
    queue: Sequence[Waiting] = ()
    fresh: Sequence[Waiting] = ()
    running: int = 0
    idle: int = 0
    busy: int = 0
    booting: int = 0
    spare: int = 0
    head_start: int | None = None

    @property
    def up(self) -> int:
        """Machines up or booting."""
        return self.idle + self.busy + self.booting

    @property
    def seconds(self) -> int:
        """The sum of the waiting jobs' limits (Elastic Site's Q; its jobs are serial)."""
        return sum(job.limit for job in self.queue)


class Late(NamedTuple):
    """A reason that becomes text only in ``str``: a simulation produces thousands and
    reads none.
    """

    wait: int
    limit: int

    def __str__(self) -> str:
        return f"the head would have waited {brief(self.wait)}, over {brief(self.limit)}"


class Growth(NamedTuple):
    """A number of machines to add, and why."""

    machines: int
    reason: str | Late


class Slurm(Policy, frozen=True, tag="slurm"):
    """Slurm's own power saving: a job gets idle and powered-down nodes at once, and waits for the
    boot. Nothing else is started.
    """

    period: WholeOver | None = None

    def grow(self, demand: Demand) -> Growth | None:  # noqa: ARG002
        """Start no machines: Slurm resumes nodes itself."""
        return None


class OnDemand(Policy, frozen=True, tag="on_demand"):
    """Start a machine for each node that new pending jobs need, minus the idle machines."""

    period: WholeOver | None = 15

    def grow(self, demand: Demand) -> Growth | None:
        """Return all machines that the new jobs lack."""
        needed_nodes = _nodes(demand.fresh)
        reason = f"{len(demand.fresh)} new jobs wait for {needed_nodes} nodes"
        return _for_fresh(needed_nodes, demand, reason)


AUTO = "auto"
DEFAULT_WASTE_S = 180
Waste = Annotated[int, Meta(gt=0, description="whole seconds over 0, or auto")] | Literal["auto"]


def _seconds(waste: Waste) -> int:
    """The waste in seconds. ``policies.growth.waste`` replaces AUTO before a policy decides."""
    return waste if isinstance(waste, int) else DEFAULT_WASTE_S


class SteadyStream(Policy, frozen=True, tag="steady_stream"):
    """Keep one machine up. Start one more if more work waits than ``more_over`` times the waste,
    and no machine boots. Flag machines if less work waits than ``fewer_under`` times the waste.

    ``waste``: the duration of a machine's boot and shutdown together (s); auto: as measured.
    """

    waste: Waste = DEFAULT_WASTE_S
    period: WholeOver | None = 15
    more_over: Factor = 5
    fewer_under: Factor = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fewer_under > self.more_over:
            raise ValueError(
                f"fewer_under is {self.fewer_under}, expected at most more_over, {self.more_over}"
            )

    def grow(self, demand: Demand) -> Growth | None:
        """Return one machine if none is up, or if more work waits than ``more_over`` allows and no
        machine boots.
        """
        if demand.up == 0:
            return Growth(1, "one machine is always kept")
        # One boot at a time: the machine that boots may be enough for the work that waits.
        limit = self.most_work
        if demand.booting or demand.seconds <= limit:
            return _for_head(demand)
        return Growth(1, f"{brief(demand.seconds)} of work wait, over {brief(limit)}")

    @property
    def most_work(self) -> float:
        """The seconds of waiting work beyond which one more machine starts."""
        return self.more_over * _seconds(self.waste)

    @property
    def least_work(self) -> float:
        """The seconds of waiting work below which machines are flagged."""
        return self.fewer_under * _seconds(self.waste)

    def surplus(self, demand: Demand) -> int:
        """Flag all machines but one (or as many as the head needs) if too little work waits."""
        if demand.seconds >= self.least_work:
            return 0
        # The paper's jobs are serial, so it does not say how many machines a parallel head needs.
        kept = demand.queue[0].nodes if demand.queue else 1
        return max(demand.idle + demand.busy - kept, 0)


class Bursts(Policy, frozen=True, tag="bursts"):
    """Start one machine per ``per_machine`` times the waste of new waiting work, at least one,
    minus the idle machines.
    """

    waste: Waste = DEFAULT_WASTE_S
    period: WholeOver | None = 15
    per_machine: Factor = 2

    def grow(self, demand: Demand) -> Growth | None:
        """Return as many machines as the new work is worth."""
        # Only new jobs count. The paper does not say so, but if its twenty jobs counted again, they
        # would not have got the six machines that it reports.
        seconds = sum(job.limit for job in demand.fresh)
        reason = f"{brief(seconds)} of new work, {brief(self.work_per_machine)} a machine"
        return _for_fresh(self.machines_for(demand.fresh), demand, reason)

    def machines_for(self, jobs: Sequence[Waiting]) -> int:
        """Return how many machines the work of these jobs is worth."""
        seconds = sum(job.limit for job in jobs)
        return max(int(seconds // self.work_per_machine), 1) if seconds else 0

    @property
    def work_per_machine(self) -> float:
        """The seconds of work that justify a machine."""
        return self.per_machine * _seconds(self.waste)


class GroupBursts(Policy, frozen=True, tag="group_bursts"):
    """Start ``group`` machines for every new pending job, minus the idle machines."""

    group: Machines = 2
    period: WholeOver | None = 10

    def grow(self, demand: Demand) -> Growth | None:
        """Return the group times the number of new jobs."""
        reason = f"{len(demand.fresh)} new jobs, {self.group} machines each"
        return _for_fresh(self.machines_for(demand.fresh), demand, reason)

    def machines_for(self, jobs: Sequence[Waiting]) -> int:
        """Return the group times the number of these jobs."""
        return self.group * len(jobs)


class Ratio(Policy, frozen=True, tag="ratio"):
    """Start machines for the pending jobs in excess of the running jobs, with ``slots`` jobs per
    machine.
    """

    slots: Jobs = 1
    period: WholeOver | None = 30

    def grow(self, demand: Demand) -> Growth | None:
        """Start enough machines that as many jobs run as wait."""
        waiting, running = len(demand.queue), max(demand.running, 1)
        # This is ceil(v (k - 1)) with k = waiting / running, in a form that also grows from none.
        over = waiting - running if demand.up else waiting
        missing = -(-max(over, 0) // self.slots) - demand.booting
        if missing > 0:
            return Growth(missing, f"{waiting} jobs wait, {running} run")
        return _for_head(demand)


class Size(StrEnum):
    """How many machines ``SemiElastic`` asks for."""

    FIRST = "first"
    SUM = "sum"
    BEST = "best"


_FIRST, _SUM = Size.FIRST, Size.SUM


class SemiElastic(Policy, frozen=True, tag="semi_elastic"):
    """Grow if the head needs more machines than there are, or would wait longer than ``wait_limit``
    (s).

    The head's wait counts from its submission to its predicted start. ``size``: the nodes of the
    head (first), of all pending jobs (sum), or of all jobs over ``short`` seconds and the first
    shorter one (best). Called only when a job arrives or ends.
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
        """Return the chosen size, minus idle and booting machines."""
        reason = self._too_long(demand) if demand.queue else None
        if reason is None:
            return None
        # Booting machines count here: the whole queue is sized at each call, not only new jobs.
        count = self.wanted(demand.queue) - demand.idle - demand.booting
        return Growth(count, reason) if count > 0 else None

    def wanted(self, queue: Sequence[Waiting]) -> int:
        """Return the nodes that the queue is worth according to ``size``."""
        if self.size == _FIRST:
            return queue[0].nodes
        if self.size == _SUM:
            return sum(job.nodes for job in queue)
        long, first_short, short = 0, None, self.short
        for nodes, limit, _ in queue:
            if limit > short:
                long += nodes
            elif first_short is None:
                first_short = nodes
        return long + (first_short or 0)

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
    """The base class for a growth policy of another package; its ``tag`` is the policy's name.

    Its fields are the parameters in the text (``weekend(most=4)``): numbers and texts, each with a
    default. ``period``: seconds between two looks in the simulator (None: when a job arrives or
    ends); the daemon looks every ``policies.poll_interval``. ``once``: a pending job counts until
    machines were started for it and then leaves ``Demand.fresh``. If fewer machines start than
    ``grow`` returned, only the first jobs leave it, as many as have a machine for each of their
    nodes.

    Both methods must be pure and quick: no clock but ``demand.now`` (Unix s), no file, no random
    number. If one raises, or returns nonsense, nothing starts and nothing ends, and the error is
    reported (GrowthError).
    """

    period: ClassVar[int | None] = 15
    once: ClassVar[bool] = False

    def grow(self, demand: Demand) -> Growth | None:
        """Return how many more machines (0 or more) and why, as text; None: no more. Budgets, caps
        and the available nodes limit the answer afterwards.
        """
        raise NotImplementedError

    def surplus(self, demand: Demand) -> int:
        """Return how many machines to flag, idle or not, for ``release: flagged``."""
        return 0 if demand.queue else demand.idle


AnyGrowth = Slurm | OnDemand | SteadyStream | Bursts | GroupBursts | Ratio | SemiElastic | OwnGrowth


def _nodes(jobs: Sequence[Waiting]) -> int:
    return sum([job.nodes for job in jobs])


def _for_fresh(machines: int, demand: Demand, reason: str) -> Growth | None:
    """Return the machines that new jobs need beyond the spare machines."""
    # The other idle and booting machines are for jobs that were new earlier.
    count = machines - demand.spare
    return Growth(count, reason) if count > 0 else _for_head(demand)


def _for_head(demand: Demand) -> Growth | None:
    """Return the missing machines for a first job that would wait forever, because nothing runs or
    boots. None otherwise.
    """
    if not demand.queue or demand.running or demand.booting:
        return None
    count = demand.queue[0].nodes - demand.idle
    return Growth(count, "nothing runs, and the head needs more") if count > 0 else None


def bounded(growth: Growth, demand: Demand, bounds: Bounds, spent: Spent) -> Growth:
    """Return the ``growth`` that the bounds allow; a count of 0 carries the forbidding bound."""
    # A spent budget or a closed window forbids the whole growth; the caps below only reduce it.
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
    """Return why these policies do not work together, one sentence each; empty if they do.
    ``release`` None: Slurm's SuspendTime.

    ``lease``: how many seconds are paid at a time (1: by the second); ``boot``: the duration of a
    boot (s); ``min_idle``: machines kept up without work.
    """
    reasons = []
    if isinstance(growth, Bursts | GroupBursts) and isinstance(release, AtOnce):
        reasons.append("bursts start machines ahead of need, which on_demand would release at once")
    if isinstance(growth, SteadyStream) and not isinstance(release, Flagged):
        reasons.append("steady_stream keeps one machine, only flagged release knows which")
    if isinstance(release, Delayed) and 1 < lease <= release.before_end:
        reasons.append(
            f"delayed waits until {brief(release.before_end)} before the end of leases of"
            f" {brief(lease)}"
        )
    if isinstance(release, Idle) and isinstance(growth, Slurm) and release.seconds < 1 and boot:
        reasons.append("idle(0) releases machines before the job that they were booted for")
    if isinstance(release, Flagged) and min_idle:
        reasons.append(
            "flagged release lets go of machines that min_idle_machines would start again"
        )
    return reasons


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
    """Parse a text such as ``bursts(waste=180)``. Raises ValueError with one sentence if there is
    no such policy.
    """
    policy: AnyGrowth = parse_policy(text, makers)
    return policy
