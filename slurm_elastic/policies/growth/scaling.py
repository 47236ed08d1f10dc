"""The decision for a group of pools under one growth policy: grow, release, or nothing, and why.
Pure.

``decide`` is asked by the daemon with what it measured, and what it answers is journalled with that
measurement. Its parts (``spread``, ``excess``, ``shortfall``) are the simulator's, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import GrowthError
from slurm_elastic.base.units import brief
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.stops import BudgetSpent, OutsideTimes
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Bursts,
    Demand,
    GroupBursts,
    Growth,
    OnDemand,
    OwnGrowth,
    Slurm,
    SteadyStream,
    Waiting,
)
from slurm_elastic.policies.growth.guarded import grown, surplus
from slurm_elastic.policies.growth.release import AnyRelease, Flagged, IdleOrder, rank_key
from slurm_elastic.policies.money.bounds import Bounds, Spent, Window, stopped

T = TypeVar("T")


class PendingJob(NamedTuple):
    """A waiting job of ``id``, as ``Waiting``, or ``times`` such (an array); ``pools``: those that
    could hold it. Of their nodes it ``avoids`` some, and ``named`` ones must be among its own
    (hostlists).
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
    """An idle machine: its node, when its billing began, since when it is idle."""

    node: str
    started: int
    since: int


class PoolRules(Struct, frozen=True, kw_only=True):
    """How the machines of one pool come and go. ``release`` None: Slurm's SuspendTime does it.

    ``lease``: seconds that are billed at a time; ``boot``: that a machine takes to be ready;
    ``min_idle``: machines that are kept up without work.
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
    """One pool as measured. ``room``: machines that could be started, were it not for ``stop``,
    which says why none may; ``total_room``: likewise, but over several looks, as the pool's
    ``max_booting`` bounds how many boot at a time (None: as many as ``room``); ``off``: the nodes
    for these (a hostlist; only if a waiting job can use a part of the nodes); ``taken``: nodes with
    jobs that are up and may be flagged; ``promised``: other machines with jobs, and those that
    waiting jobs will get. Among all these none is on its way down. ``running`` counts jobs;
    ``free`` has, where the growth policy asks, when each machine may be free.
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
    """A group of pools as measured, the one to use first first, and the jobs that wait for any of
    them. ``covered``: ids of waiting jobs that a growth was decided for.
    """

    now: int
    growth: AnyGrowth
    pools: tuple[PoolSnapshot, ...]
    queue: tuple[PendingJob, ...] = ()
    covered: tuple[int, ...] = ()
    running: int = 0
    head_start: int | None = None


class ScaleUp(NamedTuple):
    """So many machines more in a pool, and why; on these ``nodes`` (empty: on any)."""

    pool: str
    machines: int
    reason: str
    nodes: tuple[str, ...] = ()


class ScaleDown(NamedTuple):
    """A node that may go (when its jobs have ended), and why."""

    node: str
    reason: str


class ScalingPlan(Struct, frozen=True, kw_only=True):
    """The answer to a ``GroupSnapshot``. ``covered`` as there, for the next time; ``unserved``: why
    a growth that the policy wanted gets no machine, or fewer, or, if ``failed``, how it fails.
    """

    starts: tuple[ScaleUp, ...] = ()
    leaves: tuple[ScaleDown, ...] = ()
    covered: tuple[int, ...] = ()
    unserved: str | None = None
    failed: bool = False


def holds_back(growth: AnyGrowth) -> bool:
    """Whether nodes must be kept from Slurm, which would start them for any waiting job."""
    return not isinstance(growth, Slurm)


def decide(now: GroupSnapshot) -> ScalingPlan:
    """Everything of one moment, of pools that all of its jobs may use: what the growth policy wants
    and what warm pools lack, then what is too much. Where the policy fails, nothing starts and
    nothing ends.
    """
    try:
        return _decided(now)
    except GrowthError as error:
        return without_growth(now, str(error))


def without_growth(now: GroupSnapshot, why: str) -> ScalingPlan:
    """The plan where the growth policy fails, ``why`` says how."""
    return ScalingPlan(covered=_still_waiting(now), unserved=why, failed=True)


def _decided(now: GroupSnapshot) -> ScalingPlan:
    starts, covered, unserved = _growth(now)
    warm = [start for pool in now.pools if (start := _warm(pool, starts)) is not None]
    plan = ScalingPlan(starts=(*starts, *warm), covered=covered, unserved=unserved)
    return plan if plan.starts else _leaving(now, plan)


def demand_of(now: GroupSnapshot) -> Demand:
    """The facts that the growth policy may know."""
    known = frozenset(now.covered)
    waiting = _waiting(now.queue)
    fresh = _waiting(job for job in now.queue if job.id not in known)
    return Demand(
        now=now.now,
        queue=waiting,
        fresh=fresh if counts_once(now.growth) else waiting,
        running=now.running,
        idle=sum(len(pool.idle) for pool in now.pools),
        busy=sum(len(pool.taken) + pool.promised for pool in now.pools),
        booting=sum(pool.booting for pool in now.pools),
        head_start=now.head_start,
    )


def _waiting(queue: Iterable[PendingJob]) -> tuple[Waiting, ...]:
    return tuple(
        one
        for job in queue
        for one in (Waiting(job.nodes, job.limit, job.submit),) * max(job.times, 1)
    )


def counts_once(growth: AnyGrowth) -> bool:
    """Whether a waiting job counts for one growth only."""
    own = isinstance(growth, OwnGrowth) and growth.once
    return own or isinstance(growth, OnDemand | Bursts | GroupBursts)


def covers(growth: AnyGrowth, answer: Growth | None) -> bool:
    """Whether this growth covers the jobs that wait now, so that they are not counted again. It
    does not where a bound stopped all of it.
    """
    return counts_once(growth) and (answer is None or answer.machines > 0)


def spread(count: int, rooms: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
    """``count`` machines over pools in order, each up to its room."""
    parts = []
    for pool, room in rooms:
        part = count if count < room else room
        if part > 0:
            parts.append((pool, part))
            count -= part
    return parts


class HeadRoom(NamedTuple, Generic[T]):
    """The machines of one pool for the first job. The job ``needs`` so many of them. ``idle`` ones
    are up, ``room`` more may start now, and ``total_room`` more may start one after the other.
    """

    pool: T
    needs: int
    idle: int
    room: int
    total_room: int


def head_deficit(pools: Iterable[HeadRoom[T]]) -> tuple[T, int] | None:
    """The machines to start now for the first job, in the first pool that could ever hold it, asked
    when nothing runs or boots.

    A job runs within one pool. If a growth is shared out over several pools, or if bounds cut it,
    no pool has enough machines for the job. Without this function the job would wait for ever.
    """
    rows = list(pools)
    if any(row.idle >= row.needs for row in rows):
        return None
    # The pool's max_booting may admit fewer machines at a time than the job lacks. The next looks
    # start the others. To ask for all of them at once would ask for ever.
    lacks = ((row, row.needs - row.idle) for row in rows if row.room > 0)
    fitting = ((row.pool, min(lack, row.room)) for row, lack in lacks if lack <= row.total_room)
    return next(fitting, None)


def excess(growth: AnyGrowth, demand: Demand) -> int:
    """Machines to flag; a growth policy without a rule of its own flags all idle ones once the
    queue is empty.
    """
    if isinstance(growth, SteadyStream | OwnGrowth):
        return surplus(growth, demand)
    return 0 if demand.queue else demand.idle


def stops(
    now: int, bounds: Iterable[tuple[str, Bounds, Spent]]
) -> BudgetSpent | OutsideTimes | None:
    """Why no machine may be started: the first of these (whose, bound, spent) that stops it."""
    for whose, bound, spent in bounds:
        why = stopped(now, bound, spent)
        if why is not None:
            return replace(why, whose=whose)
    return None


def head_start(nodes: int, now: int, free: Iterable[int]) -> int | None:
    """When ``nodes`` machines could be free: ``free`` has for each when it is (None: never)."""
    times = sorted(max(when, now) for when in free)
    return times[nodes - 1] if 0 < nodes <= len(times) else None


def shortfall(min_idle: int, idle: int, coming: int, room: int) -> int:
    """Machines that a pool of which ``min_idle`` are kept warm is to get now."""
    return max(min(min_idle - idle - coming, room), 0)


def spare(idle: int, min_idle: int) -> int:
    """How many of the idle machines may go: those beyond the warm ones."""
    return max(idle - min_idle, 0)


def kept_warm(min_idle: int) -> str:
    """Why a warm pool gets machines."""
    return f"{min_idle} machines are kept idle"


def weights(
    rules: PoolRules, idle: Iterable[IdleInstance], now: int, base: int, levels: int = 9
) -> dict[str, int]:
    """By idle node, a Slurm weight from ``base`` on: smaller ones get jobs first."""
    if rules.order is None:
        return {}
    order = rules.order
    keys = {
        one.node: rank_key(order, one.started, one.since, now, max(rules.lease, 1)) for one in idle
    }
    rank = {key: place for place, key in enumerate(sorted(set(keys.values())))}
    step = max(len(rank), 1)
    return {node: base + rank[key] * min(levels, step) // step for node, key in keys.items()}


def _still_waiting(now: GroupSnapshot) -> tuple[int, ...]:
    """The covered jobs that wait still."""
    return tuple(sorted({job.id for job in now.queue}.intersection(now.covered)))


def _growth(now: GroupSnapshot) -> tuple[tuple[ScaleUp, ...], tuple[int, ...], str | None]:
    covered = _still_waiting(now)
    answer = grown(now.growth, demand_of(now))
    rooms = _rooms(now) if answer else []
    parts = spread(answer.machines if answer else 0, rooms)
    if counts_once(now.growth) and (answer is None or parts):
        covered = tuple(sorted({job.id for job in now.queue}))
    if answer is None:
        return _head_start(now), covered, None
    starts = tuple(ScaleUp(name, count, str(answer.reason)) for name, count in parts)
    missing = answer.machines - sum(count for _, count in parts)
    return starts, covered, _unserved(now, answer, missing) if missing > 0 else None


def _head_start(now: GroupSnapshot) -> tuple[ScaleUp, ...]:
    """For the first job, which the policy takes to be served by idle machines of several pools."""
    idles = holds_back(now.growth) and not any(pool.booting for pool in now.pools)
    if not idles or not now.queue or now.running:
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
    why = "; ".join(map(str, causes)) or "no node is left that could be started"
    return f"{missing} of {answer.machines} machines are not started: {why} ({answer.reason})"


def _warm(pool: PoolSnapshot, starts: Sequence[ScaleUp]) -> ScaleUp | None:
    """The machines that the pool's warm ones lack, in what the growth leaves of its room."""
    coming = sum(start.machines for start in starts if start.pool == pool.name)
    least = pool.rules.min_idle
    count = shortfall(least, len(pool.idle), pool.booting + coming, pool.room - coming)
    if pool.stop or not count:
        return None
    return ScaleUp(pool.name, count, kept_warm(least))


def _leaving(now: GroupSnapshot, plan: ScalingPlan) -> ScalingPlan:
    # By its idle time a machine goes only while no job waits; a flagged one goes in any case.
    pools = () if now.queue else now.pools
    due = [leave for pool in pools for leave in _due(pool, now.now)]
    return ScalingPlan(leaves=(*_flagged(now), *due), covered=plan.covered, unserved=plan.unserved)


def _due(pool: PoolSnapshot, now: int) -> list[ScaleDown]:
    """Idle machines whose time has come by the release policy, but for those kept warm."""
    rules, release = pool.rules, pool.rules.release
    if release is None or isinstance(release, Flagged):
        return []
    due = [
        one
        for one in pool.idle
        if release.due(one.started, one.since, now, rules.lease, public=rules.public) <= now
    ]
    most = spare(len(pool.idle), rules.min_idle)
    return [ScaleDown(one.node, _why(one, now)) for one in due[:most]]


def _why(one: IdleInstance, now: int) -> str:
    idle, age = brief(now - one.since), brief(now - one.started)
    return f"idle for {idle}, {age} after its start, and nothing waits"


def _flagged(now: GroupSnapshot) -> list[ScaleDown]:
    """The last pool's first; idle machines go now, busy ones when their jobs end."""
    pools = [pool for pool in now.pools if isinstance(pool.rules.release, Flagged)]
    count = excess(now.growth, demand_of(now)) if pools else 0
    leaves: list[ScaleDown] = []
    # The pools come in the order in which they are used: the last one is missed least.
    for pool in reversed(pools):
        most = spare(len(pool.idle), pool.rules.min_idle)
        nodes = [one.node for one in pool.idle][:most] + list(pool.taken)
        part = nodes[: max(count - len(leaves), 0)]
        leaves += [ScaleDown(node, "flagged: more machines than the work needs") for node in part]
    return leaves
