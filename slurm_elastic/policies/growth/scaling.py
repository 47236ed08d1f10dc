"""The decision for a group of pools under one growth policy: grow, release, or nothing, and why.
Pure.

The daemon calls ``decide`` with its measurement and records both in the journal. The simulator uses
the parts (``excess``, ``shortfall``), too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import GrowthError, ReleaseError
from slurm_elastic.base.units import brief
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.stops import BudgetSpent, OutsideTimes
from slurm_elastic.policies.growth.allotting import CommonBound, Room, choose, kept_machines
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Demand,
    Growth,
    OwnGrowth,
    Slurm,
    SteadyStream,
    Waiting,
)
from slurm_elastic.policies.growth.counted_once import (
    counts_by_nodes,
    counts_once,
    deal,
    find_fitting,
    free_of,
    served_jobs,
    spare_machines,
    useful_machines,
)
from slurm_elastic.policies.growth.guarded import grown, surplus
from slurm_elastic.policies.growth.release import (
    AnyRelease,
    Flagged,
    IdleOrder,
    rank_key,
)
from slurm_elastic.policies.money.bounds import Bounds, Spent, Window, stopped


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

    ``cloud``: no job gets machines of two clouds (empty: the pool is the only one of its cloud).

    ``room``: how many machines could start if ``stop`` did not forbid it; ``stop``: why none may
    start. ``total_room``: the same over several looks, because ``max_booting`` limits how many boot
    at a time (None: the same as ``room``). ``bound``: why there is not more room. ``off``: the
    nodes for these machines (a hostlist; only if a pending job can use a part of the nodes).
    ``taken``: nodes with jobs that are up and may be flagged. ``promised``: other machines with
    jobs, and machines that pending jobs will get. ``running``: number of jobs. ``free``: when each
    machine may be free (Unix s), if the growth policy asks for it.
    """

    name: str
    rules: PoolRules
    cloud: str = ""
    room: int = 0
    total_room: int | None = None
    stop: AnyCause | None = None
    bound: AnyCause | None = None
    off: str = ""
    idle: tuple[IdleInstance, ...] = ()
    taken: tuple[str, ...] = ()
    booting: int = 0
    promised: int = 0
    running: int = 0
    free: tuple[int, ...] = ()


class SharedRoom(NamedTuple):
    """A bound that several pools share, such as a limit of their cloud. ``left``: the rest of it.
    ``costs``: by pool, how much of it a machine takes. ``is_turn``: it bounds only how many
    machines boot at a time.
    """

    left: float
    costs: Mapping[str, float]
    is_turn: bool = False


class GroupSnapshot(Struct, frozen=True, kw_only=True):
    """A group of pools as measured, in the order in which they are used, and the jobs that wait for
    any of them.

    ``covered``: ids of pending jobs that have enough machines already. ``begun``: ids of pending
    jobs whose machines start in turns. ``shared_rooms``: the bounds of several pools. ``now``,
    ``head_start`` (Unix s).
    """

    now: int
    growth: AnyGrowth
    pools: tuple[PoolSnapshot, ...]
    queue: tuple[PendingJob, ...] = ()
    covered: tuple[int, ...] = ()
    begun: tuple[int, ...] = ()
    shared_rooms: tuple[SharedRoom, ...] = ()
    running: int = 0
    head_start: int | None = None


class ScaleUp(NamedTuple):
    """More machines for a pool on ``nodes`` (empty: any), and why. ``is_warm``: for no job.
    ``least``: fewer of them are of no use to any job.
    """

    pool: str
    machines: int
    reason: str
    nodes: tuple[str, ...] = ()
    is_warm: bool = False
    least: int = 1


class ScaleDown(NamedTuple):
    """A node that may be powered down (after its jobs), and why."""

    node: str
    reason: str


class ScalingPlan(Struct, frozen=True, kw_only=True):
    """The answer to a ``GroupSnapshot``.

    ``covered``, ``begun``: for the next snapshot. ``served``: by job, how many of its tasks have
    all their machines, or get them by this plan. ``kept``: idle nodes whose machines wait for the
    others of their job. ``unserved``: why a growth gets fewer machines than the policy wanted, or,
    if ``failed``, the policy's error.
    """

    starts: tuple[ScaleUp, ...] = ()
    leaves: tuple[ScaleDown, ...] = ()
    covered: tuple[int, ...] = ()
    begun: tuple[int, ...] = ()
    served: tuple[tuple[int, int], ...] = ()
    kept: tuple[str, ...] = ()
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
    plan = _growth(now)
    warm = [start for pool in now.pools if (start := _warm(pool, plan.starts)) is not None]
    plan = replace(plan, starts=(*plan.starts, *warm))
    # Never start and release in one look: the surplus is counted before the starts.
    if plan.starts:
        return plan
    try:
        return _leaving(now, plan)
    except ReleaseError as error:
        return replace(plan, unserved=str(error), failed=True)


class Dealt:
    """The machines of the snapshot, dealt to its jobs. ``jobs``: the waiting jobs, a task of an
    array each. ``dealing``, ``shares``, ``fresh``, ``sure``: see ``Dealing``. ``rooms``,
    ``bounds``: what is left.
    """

    def __init__(self, now: GroupSnapshot) -> None:
        self.jobs = [job for job in now.queue for _ in range(max(job.times, 1))]
        self.waiting = [Waiting(job.nodes, job.limit, job.submit) for job in self.jobs]
        self.rooms = [[*map(_room_of, pools)] for pools in by_cloud(now.pools)]
        self.bounds = [
            CommonBound(bound.left, bound.costs, is_turn=bound.is_turn)
            for bound in now.shared_rooms
        ]
        covered, begun = frozenset(now.covered), frozenset(now.begun)
        self.needs = [job.nodes for job in self.jobs]
        self.dealing = deal(
            now.growth,
            [self.needs] * len(self.rooms),
            self.rooms,
            self.bounds,
            [job.id in covered for job in self.jobs],
            [job.id in begun for job in self.jobs],
            is_stuck=not now.running and not any(pool.booting for pool in now.pools),
        )
        self.shares, self.fresh, self.sure = self.dealing


def by_cloud(pools: Iterable[PoolSnapshot]) -> list[list[PoolSnapshot]]:
    """Return the pools of each cloud."""
    clouds: dict[str, list[PoolSnapshot]] = {}
    for pool in pools:
        clouds.setdefault(pool.cloud or f"pool {pool.name}", []).append(pool)
    return [*clouds.values()]


def _room_of(pool: PoolSnapshot) -> Room[str]:
    free = len(pool.idle) + pool.booting
    if pool.stop:
        return Room(pool.name, free, 0)
    return Room(pool.name, free, pool.room, pool.total_room)


def demand_of(now: GroupSnapshot, dealt: Dealt | None = None) -> Demand:
    """Return the facts that the growth policy may use."""
    dealt = dealt or Dealt(now)
    waiting = tuple(dealt.waiting)
    is_once = counts_once(now.growth)
    # A job that a growth covers must not be bought for again while its machines boot.
    fresh = tuple(waiting[number] for number in dealt.fresh) if is_once else waiting
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
        spare=_spare(now, dealt, idle + booting),
        head_start=now.head_start,
    )


def _spare(now: GroupSnapshot, dealt: Dealt, machines: int) -> int:
    """Return how many of the idle and booting ``machines`` the fresh jobs may use."""
    if counts_by_nodes(now.growth):
        # Machines of a cloud without room for the rest of a job are of no use to the job.
        return free_of(dealt.shares[number] for number in dealt.fresh)
    is_once, fresh = counts_once(now.growth), frozenset(dealt.fresh)
    covered = [job for number, job in enumerate(dealt.waiting) if number not in fresh]
    return spare_machines(now.growth, covered if is_once else (), machines)


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


def head_start(nodes: int, now: int, clouds: Iterable[Iterable[int]]) -> int | None:
    """Return when ``nodes`` machines of one cloud could be free (Unix s); None: never. ``clouds``:
    by cloud, when each machine is free.
    """
    sorted_times = (sorted(max(when, now) for when in free) for free in clouds)
    starts = [times[nodes - 1] for times in sorted_times if 0 < nodes <= len(times)]
    return min(starts, default=None)


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


def _growth(now: GroupSnapshot) -> ScalingPlan:
    dealt = Dealt(now)
    demand = demand_of(now, dealt)
    answer = grown(now.growth, demand)
    wanted = answer.machines if answer is not None else 0
    rooms = [room for cloud in dealt.rooms for room in cloud]
    useful = useful_machines(now.growth, partial(grown, now.growth), demand, dealt.dealing, wanted)
    chosen = choose(useful, dealt.shares, dealt.fresh, dealt.sure, dealt.needs, rooms, dealt.bounds)
    reason = str(answer.reason) if answer is not None else _reason_of_sure(dealt)
    starts = tuple(
        ScaleUp(pool.name, chosen.starts[pool.name], reason, least=chosen.least[pool.name])
        for pool in now.pools
        if pool.name in chosen.starts
    )
    # The jobs without room count again, and keep no other job from being covered.
    possible = answer and answer._replace(machines=wanted - chosen.without_room)
    missing = wanted - chosen.counted
    return ScalingPlan(
        starts=starts,
        covered=_covered_now(now, dealt, demand, possible, chosen.counted),
        begun=_begun(now, dealt, chosen.places),
        served=_served(now, dealt, chosen.places, is_enough=missing <= 0),
        kept=_kept(now, dealt),
        unserved=_unserved(now, answer, missing) if answer is not None and missing > 0 else None,
    )


def _begun(now: GroupSnapshot, dealt: Dealt, places: Iterable[int]) -> tuple[int, ...]:
    # A policy that counts by nodes finds the machines that these jobs lack at each look.
    if counts_by_nodes(now.growth):
        return ()
    in_turns = (p for p in places if (share := dealt.shares[p]) is not None and share.later)
    return tuple(sorted({dealt.jobs[place].id for place in in_turns}))


def _served(
    now: GroupSnapshot, dealt: Dealt, places: Iterable[int], *, is_enough: bool
) -> tuple[tuple[int, int], ...]:
    """Return by job how many of its tasks have machines. ``is_enough``: all machines that the
    policy wants are there.
    """
    places = {*places, *(p for p, share in enumerate(dealt.shares) if share and not share.lack)}
    comes = any(pool.booting for pool in now.pools) or bool(places)
    if is_enough and comes and not counts_by_nodes(now.growth) and holds_back(now.growth):
        # These policies want fewer machines than jobs: the machines that come serve all of them.
        places = {*places, *find_fitting(range(len(dealt.jobs)), dealt.shares, dealt.needs)}
    count = Counter(dealt.jobs[place].id for place in places)
    return tuple(sorted(count.items()))


def _reason_of_sure(dealt: Dealt) -> str:
    if not dealt.sure:
        return ""
    needs = dealt.needs[dealt.sure[0]]
    return f"a job needs {needs} machines of one cloud at once"


def _covered_now(
    now: GroupSnapshot, dealt: Dealt, demand: Demand, answer: Growth | None, started: int
) -> tuple[int, ...]:
    """Return the jobs that do not count at the next look."""
    if counts_by_nodes(now.growth):
        return _with_machines(dealt)
    covered = set(_still_waiting(now)) - _lost(now, dealt)
    if counts_once(now.growth):
        fitting = find_fitting(dealt.fresh, dealt.shares, dealt.needs)
        demand = replace(demand, fresh=[dealt.waiting[place] for place in fitting])
        tasks = Counter(dealt.jobs[place].id for place in fitting)
        covered.update(served_jobs(now.growth, tasks.items(), demand, answer, started))
        # An array is served with its last task.
        covered -= {dealt.jobs[place].id for place in set(dealt.fresh).difference(fitting)}
    return tuple(sorted(covered))


def _lost(now: GroupSnapshot, dealt: Dealt) -> set[int]:
    """Return the jobs whose machines start in turns and have no more room. They count again."""
    pairs = zip(dealt.jobs, dealt.shares, strict=True)
    return {job.id for job, share in pairs if share is None}.intersection(now.begun)


def _with_machines(dealt: Dealt) -> tuple[int, ...]:
    """Return the jobs whose machines all idle or boot after the starts of this look."""
    pairs = [*zip(dealt.jobs, dealt.shares, strict=True)]
    lacking = {job.id for job, share in pairs if share is None or share.later}
    return tuple(sorted({job.id for job, _ in pairs} - lacking))


def _kept(now: GroupSnapshot, dealt: Dealt) -> tuple[str, ...]:
    """Return the idle nodes that must not be suspended (``kept_machines``)."""
    idle = {pool.name: pool.idle for pool in now.pools}
    kept = kept_machines(dealt.shares, {name: len(machines) for name, machines in idle.items()})
    return tuple(idle[pool][place].node for pool, places in kept for place in places)


def _unserved(now: GroupSnapshot, answer: Growth, missing: int) -> str:
    causes = [pool.stop or pool.bound for pool in now.pools]
    reasons = "; ".join(dict.fromkeys(str(cause) for cause in causes if cause is not None))
    reasons = reasons or "no node is left that could be started"
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
    return replace(plan, leaves=(*_flagged(now), *idle_too_long))


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
