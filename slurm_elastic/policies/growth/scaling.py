"""The decision for a group of pools under one growth policy: grow, release, or nothing, and why.
Pure.

The daemon calls ``decide`` with its measurement and records both in the journal. The simulator uses
the parts (``spread``, ``excess``, ``shortfall``), too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import GrowthError, ReleaseError
from slurm_elastic.base.units import brief
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.stops import BudgetSpent, OutsideTimes
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Demand,
    Growth,
    OwnGrowth,
    Slurm,
    SteadyStream,
    Waiting,
)
from slurm_elastic.policies.growth.counted_once import counts_once, served_jobs, spare_machines
from slurm_elastic.policies.growth.guarded import grown, surplus
from slurm_elastic.policies.growth.release import (
    AnyRelease,
    Flagged,
    IdleOrder,
    rank_key,
)
from slurm_elastic.policies.money.bounds import Bounds, Spent, Window, stopped

T = TypeVar("T")


class PendingJob(NamedTuple):
    """A pending job ``id`` with the fields of ``Waiting``, or ``times`` such jobs (an array).

    ``pools``: the pools that could hold it. ``avoids``: nodes of these that it must not get;
    ``named``: nodes that it must get (hostlists).
    """

    id: int
    nodes: int
    limit: int
    submit: int
    pools: tuple[str, ...] = ()
    times: int = 1
    avoids: str = ""
    named: str = ""


class IdleInstance(NamedTuple):
    """An idle machine: its node, when its billing began, since when it is idle (Unix s), and how
    many machines its host has (0: its host is not known).
    """

    node: str
    started: int
    since: int
    on_host: int = 0


class PoolRules(Struct, frozen=True, kw_only=True):
    """The rules by which machines of one pool come and go. ``release`` None: Slurm's SuspendTime
    decides.

    ``lease``: how many seconds are billed at a time; ``boot``: how long a machine takes to be ready
    (s); ``min_idle``: how many machines are kept up without work.
    """

    growth: AnyGrowth
    release: AnyRelease | None = None
    order: IdleOrder | None = None
    lease: int = 1
    boot: int = 120
    windows: tuple[Window, ...] = ()
    min_idle: int = 0
    public: bool = True


class PoolSnapshot(Struct, frozen=True, kw_only=True):
    """One pool as measured. None of the counted machines is powering down.

    ``room``: how many machines could start if ``stop`` did not forbid it; ``stop``: why none may
    start. ``total_room``: the same over several looks, because ``max_booting`` limits how many boot
    at a time (None: the same as ``room``). ``off``: the nodes for these machines (a hostlist; only
    if a pending job can use a part of the nodes). ``taken``: nodes with jobs that are up and may be
    flagged. ``promised``: other machines with jobs, and machines that pending jobs will get.
    ``running``: number of jobs. ``free``: when each machine may be free (Unix s), if the growth
    policy asks for it.
    """

    name: str
    rules: PoolRules
    room: int = 0
    total_room: int | None = None
    stop: AnyCause | None = None
    off: str = ""
    idle: tuple[IdleInstance, ...] = ()
    taken: tuple[str, ...] = ()
    booting: int = 0
    promised: int = 0
    running: int = 0
    free: tuple[int, ...] = ()


class GroupSnapshot(Struct, frozen=True, kw_only=True):
    """A group of pools as measured, in the order in which they are used, and the jobs that wait for
    any of them.

    ``covered``: ids of pending jobs that have enough machines already. ``now``, ``head_start``
    (Unix s).
    """

    now: int
    growth: AnyGrowth
    pools: tuple[PoolSnapshot, ...]
    queue: tuple[PendingJob, ...] = ()
    covered: tuple[int, ...] = ()
    running: int = 0
    head_start: int | None = None


class ScaleUp(NamedTuple):
    """More machines for a pool on ``nodes`` (empty: any), and why. ``is_warm``: for no job."""

    pool: str
    machines: int
    reason: str
    nodes: tuple[str, ...] = ()
    is_warm: bool = False


class ScaleDown(NamedTuple):
    """A node that may be powered down (after its jobs), and why."""

    node: str
    reason: str


class ScalingPlan(Struct, frozen=True, kw_only=True):
    """The answer to a ``GroupSnapshot``.

    ``covered``: for the next snapshot. ``unserved``: why a growth gets fewer machines than the
    policy wanted, or, if ``failed``, the policy's error.
    """

    starts: tuple[ScaleUp, ...] = ()
    leaves: tuple[ScaleDown, ...] = ()
    covered: tuple[int, ...] = ()
    unserved: str | None = None
    failed: bool = False


def holds_back(growth: AnyGrowth) -> bool:
    """Whether nodes must be held back from Slurm, which would start them for any pending job."""
    return not isinstance(growth, Slurm)


def decide(now: GroupSnapshot) -> ScalingPlan:
    """Decide for pools that all jobs of the snapshot may use: first the growth and the missing warm
    machines, then the surplus.

    If the policy fails, nothing starts and nothing ends.
    """
    try:
        return _decided(now)
    except GrowthError as error:
        return without_growth(now, str(error))


def without_growth(now: GroupSnapshot, error_text: str) -> ScalingPlan:
    """Return the plan after the growth policy failed with ``error_text``."""
    return ScalingPlan(covered=_still_waiting(now), unserved=error_text, failed=True)


def _decided(now: GroupSnapshot) -> ScalingPlan:
    # The growth first: the warm machines only fill the room that it leaves.
    starts, covered, unserved = _growth(now)
    warm = [start for pool in now.pools if (start := _warm(pool, starts)) is not None]
    plan = ScalingPlan(starts=(*starts, *warm), covered=covered, unserved=unserved)
    # Never start and release in one look: the surplus is counted before the starts.
    if plan.starts:
        return plan
    try:
        return _leaving(now, plan)
    except ReleaseError as error:
        return replace(plan, unserved=str(error), failed=True)


def demand_of(now: GroupSnapshot) -> Demand:
    """Return the facts that the growth policy may use."""
    covered_ids = frozenset(now.covered)
    waiting = _waiting(now.queue)
    # A job that a growth covers must not be bought for again while its machines boot.
    is_once = counts_once(now.growth)
    fresh = _waiting(job for job in now.queue if job.id not in covered_ids) if is_once else waiting
    covered = _waiting(job for job in now.queue if is_once and job.id in covered_ids)
    idle = sum(len(pool.idle) for pool in now.pools)
    booting = sum(pool.booting for pool in now.pools)
    return Demand(
        now=now.now,
        queue=waiting,
        fresh=fresh,
        running=now.running,
        idle=idle,
        busy=sum(len(pool.taken) + pool.promised for pool in now.pools),
        booting=booting,
        spare=spare_machines(now.growth, covered, idle + booting),
        head_start=now.head_start,
    )


def _waiting(queue: Iterable[PendingJob]) -> tuple[Waiting, ...]:
    return tuple(
        entry
        for job in queue
        for entry in (Waiting(job.nodes, job.limit, job.submit),) * max(job.times, 1)
    )


def spread(count: int, rooms: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
    """Distribute ``count`` machines over the pools in order, each up to its room."""
    shares = []
    for pool, room in rooms:  # the simulator is slower with ``min``
        share = count if count < room else room
        if share > 0:
            shares.append((pool, share))
            count -= share
    return shares


class HeadRoom(NamedTuple, Generic[T]):
    """One pool's machines for the first job, which ``needs`` so many. ``idle`` are up, ``room``
    more may start now, ``total_room`` more may start one after the other.
    """

    pool: T
    needs: int
    idle: int
    room: int
    total_room: int


def head_deficit(pools: Iterable[HeadRoom[T]]) -> tuple[T, int] | None:
    """Return the first pool that could ever hold the first job, and how many machines to start
    there now; None if nothing must start. To be called when nothing runs or boots.

    A job runs within one pool. If a growth is spread over several pools, or if bounds cut it, no
    pool has enough machines, and without this function the job would wait forever.
    """
    rows = list(pools)
    if any(row.idle >= row.needs for row in rows):
        return None
    # The pool's max_booting may admit fewer machines at a time than the job lacks. The next looks
    # start the others; a pool whose total room is too small would be asked forever.
    lacks = ((row, row.needs - row.idle) for row in rows if row.room > 0)
    fitting = ((row.pool, min(lack, row.room)) for row, lack in lacks if lack <= row.total_room)
    return next(fitting, None)


def excess(growth: AnyGrowth, demand: Demand) -> int:
    """Return how many machines to flag. A growth policy without its own rule flags all idle
    machines once the queue is empty.
    """
    if isinstance(growth, SteadyStream | OwnGrowth):
        return surplus(growth, demand)
    return 0 if demand.queue else demand.idle


def stops(
    now: int, bounds: Iterable[tuple[str, Bounds, Spent]]
) -> BudgetSpent | OutsideTimes | None:
    """Return why no machine may start: the first of the bounds (owner, bound, spent) that forbids
    it; None if all allow it.
    """
    for whose, bound, spent in bounds:
        cause = stopped(now, bound, spent)
        if cause is not None:
            return replace(cause, owner=whose)
    return None


def head_start(nodes: int, now: int, free: Iterable[int]) -> int | None:
    """Return when ``nodes`` machines could be free (Unix s). ``free``: when each machine is free
    (None: never).
    """
    times = sorted(max(when, now) for when in free)
    return times[nodes - 1] if 0 < nodes <= len(times) else None


def shortfall(min_idle: int, idle: int, coming: int, room: int) -> int:
    """Return how many machines a pool needs now to keep ``min_idle`` warm, within ``room``."""
    return max(min(min_idle - idle - coming, room), 0)


def spare(idle: int, min_idle: int) -> int:
    """Return how many of the idle machines may go: those beyond the warm machines."""
    return max(idle - min_idle, 0)


def kept_warm(min_idle: int) -> str:
    """Return why a warm pool gets machines."""
    return f"{min_idle} machines are kept idle"


def weights(
    rules: PoolRules, idle: Iterable[IdleInstance], now: int, base: int, levels: int = 9
) -> dict[str, int]:
    """Return a Slurm weight, from ``base`` on, for each idle node. Slurm gives jobs to the smallest
    weights first.
    """
    if rules.order is None:
        return {}
    order = rules.order
    keys = {
        machine.node: rank_key(
            order, machine.started, machine.since, now, max(rules.lease, 1), machine.on_host
        )
        for machine in idle
    }
    rank = {key: place for place, key in enumerate(sorted(set(keys.values())))}
    step = max(len(rank), 1)
    return {node: base + rank[key] * min(levels, step) // step for node, key in keys.items()}


def _still_waiting(now: GroupSnapshot) -> tuple[int, ...]:
    """Return the covered jobs that still wait."""
    return tuple(sorted({job.id for job in now.queue}.intersection(now.covered)))


def _growth(now: GroupSnapshot) -> tuple[tuple[ScaleUp, ...], tuple[int, ...], str | None]:
    demand = demand_of(now)
    answer = grown(now.growth, demand)
    rooms = _rooms(now) if answer else []
    shares = spread(answer.machines if answer else 0, rooms)
    started = sum(count for _, count in shares)
    covered = _covered_now(now, demand, answer, started)
    if answer is None:
        return _head_start(now), covered, None
    starts = tuple(ScaleUp(name, count, str(answer.reason)) for name, count in shares)
    missing = answer.machines - started
    return starts, covered, _unserved(now, answer, missing) if missing > 0 else None


def _covered_now(
    now: GroupSnapshot, demand: Demand, answer: Growth | None, started: int
) -> tuple[int, ...]:
    """Return the jobs that do not count at the next look."""
    covered = set(_still_waiting(now))
    if counts_once(now.growth):
        fresh = ((job.id, max(job.times, 1)) for job in now.queue if job.id not in covered)
        covered.update(served_jobs(now.growth, fresh, demand, answer, started))
    return tuple(sorted(covered))


def _head_start(now: GroupSnapshot) -> tuple[ScaleUp, ...]:
    """Start machines for the first job if the policy believes that idle machines of several pools
    serve it.
    """
    # Without a hold Slurm itself powers up the nodes of the first job.
    needs_help = holds_back(now.growth) and not any(pool.booting for pool in now.pools)
    if not needs_help or not now.queue or now.running:
        return ()
    needs = now.queue[0].nodes
    head = head_deficit(_head_room(pool, needs) for pool in now.pools)
    if head is None:
        return ()
    return (ScaleUp(*head, f"nothing runs, and the head needs {needs} machines of one pool"),)


def _head_room(pool: PoolSnapshot, needs: int) -> HeadRoom[str]:
    room = 0 if pool.stop else pool.room
    total = room if pool.stop or pool.total_room is None else pool.total_room
    return HeadRoom(pool.name, needs, len(pool.idle), room, total)


def _rooms(now: GroupSnapshot) -> list[tuple[str, int]]:
    return [(pool.name, pool.room) for pool in now.pools if pool.stop is None]


def _unserved(now: GroupSnapshot, answer: Growth, missing: int) -> str:
    causes = dict.fromkeys(pool.stop for pool in now.pools if pool.stop is not None)
    reasons = "; ".join(map(str, causes)) or "no node is left that could be started"
    return f"{missing} of {answer.machines} machines are not started: {reasons} ({answer.reason})"


def _warm(pool: PoolSnapshot, starts: Sequence[ScaleUp]) -> ScaleUp | None:
    """Return the start of missing warm machines, within the room that the growth leaves."""
    coming = sum(start.machines for start in starts if start.pool == pool.name)
    min_idle = pool.rules.min_idle
    count = shortfall(min_idle, len(pool.idle), pool.booting + coming, pool.room - coming)
    if pool.stop or not count:
        return None
    return ScaleUp(pool.name, count, kept_warm(min_idle), is_warm=True)


def _leaving(now: GroupSnapshot, plan: ScalingPlan) -> ScalingPlan:
    # The idle time ends a machine only while no job waits; a flagged machine goes in any case.
    pools = () if now.queue else now.pools
    idle_too_long = [leave for pool in pools for leave in _idle_too_long(pool, now.now)]
    return ScalingPlan(
        leaves=(*_flagged(now), *idle_too_long), covered=plan.covered, unserved=plan.unserved
    )


def _idle_too_long(pool: PoolSnapshot, now: int) -> list[ScaleDown]:
    """Return the idle machines whose time is over by the release policy, except the warm ones."""
    rules, release = pool.rules, pool.rules.release
    if release is None or isinstance(release, Flagged):
        return []
    due_machines = [
        machine
        for machine in pool.idle
        if release.due(machine.started, machine.since, now, rules.lease, public=rules.public) <= now
    ]
    # Hosts with few machines get empty first, and can be switched off.
    due_machines.sort(key=lambda machine: machine.on_host)
    # Count all idle machines, not only due ones: the warm machines must stay as well.
    limit = spare(len(pool.idle), rules.min_idle)
    return [ScaleDown(machine.node, _idle_reason(machine, now)) for machine in due_machines[:limit]]


def _idle_reason(machine: IdleInstance, now: int) -> str:
    idle, age = brief(now - machine.since), brief(now - machine.started)
    return f"idle for {idle}, {age} after its start, and nothing waits"


def _flagged(now: GroupSnapshot) -> list[ScaleDown]:
    """Flag machines of the last pool first. Idle machines go now, busy ones after their jobs."""
    pools = [pool for pool in now.pools if isinstance(pool.rules.release, Flagged)]
    count = excess(now.growth, demand_of(now)) if pools else 0
    leaves: list[ScaleDown] = []
    # The pools come in the order in which they are used, so the last pool's machines matter least.
    for pool in reversed(pools):
        idle_limit = spare(len(pool.idle), pool.rules.min_idle)
        idle = sorted(pool.idle, key=lambda machine: machine.on_host)
        nodes = [machine.node for machine in idle][:idle_limit] + list(pool.taken)
        flagged_nodes = nodes[: max(count - len(leaves), 0)]
        leaves += [
            ScaleDown(node, "flagged: more machines than the work needs") for node in flagged_nodes
        ]
    return leaves
