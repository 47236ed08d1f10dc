"""The guard against useless purchases: jobs that still wait although machines came up for them.
Pure; slurm-elasticd and the simulator decide by it.

Slurm may keep a job pending for a reason that we do not know, and a growth policy would buy for it
forever. Each purchase is therefore watched until all its machines were used, given back or idle for
long. If a job still waits that could have started on the unused machines, growth policies stop
counting it. It counts again when its wishes change, after ``slurm-elastic clear``, or after a pause
that doubles with each such purchase.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.age import known_age_s
from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words import pending_reasons

IDLE_PROOF_S = 60
"""Seconds after which an idle machine is proof, because slurmctld has looked at its whole queue
(sched_interval is 60 s, bf_interval 30 s by default).
"""
LOST_BOOT_S = 120
"""Seconds after which a node counts as lost if Slurm did not even start to power it up."""
MOST_JOBS = 1000
"""The maximum of jobs of a purchase that are watched: the first ones."""


class NodeUse(StrEnum):
    """The state of a purchase's machine. TAKEN: its node is in service for no job, because it is
    down, or because another one than our release drained it.
    """

    BOOTING = "booting"
    IDLE = "idle"
    LONG_IDLE = "long idle"
    BUSY = "busy"
    OFF = "off"
    TAKEN = "taken"


class WatchedJob(NamedTuple):
    """A pending job. ``asks``: its wishes as one text; ``reason``: Slurm's reason. ``is_kept``: a
    hold or another job keeps it, so that no machine could have helped it.
    """

    asks: str
    reason: str
    is_kept: bool = False


def watched_job(job: SlurmJob, shown_limits: Mapping[str, float | None]) -> WatchedJob:
    """The job as the guard sees it. ``shown_limits``: by partition, its MaxTime."""
    is_kept = job.is_held or pending_reasons.reason_of(job.reason).is_for_jobs
    return WatchedJob(wishes(job, shown_limits), job.reason, is_kept)


def is_long_idle(since: float, now: float) -> bool:
    """Whether a machine that is idle since then is proof. A time ahead of ``now`` is from before
    the clock was set back. It counts as long ago, or the machine would be no proof for as long as
    the step.
    """
    idle_s = known_age_s(since, now, inf)
    return idle_s is None or idle_s >= IDLE_PROOF_S


def idle_use(idle_s: float) -> NodeUse:
    """The state of a machine that is up and had no job for ``idle_s`` seconds."""
    return NodeUse.LONG_IDLE if idle_s >= IDLE_PROOF_S else NodeUse.IDLE


def watched(purchase: Purchase, use: Mapping[str, NodeUse], now: float) -> Purchase:
    """The purchase after one more look at its nodes."""
    still_open, came_up, unused = set(purchase.open), dict(purchase.came_up), set(purchase.unused)
    for node in purchase.open:
        state = use.get(node, NodeUse.OFF)
        if state is NodeUse.IDLE:
            came_up.setdefault(node, now)
        # A used machine proves nothing against the jobs. Nor does a machine that never came up, or
        # that its cloud or an operator took away before slurmctld had looked at its whole queue.
        elif state is NodeUse.BUSY or _is_lost(purchase, node, state, now):
            still_open.discard(node)
        elif state is NodeUse.LONG_IDLE or (state is NodeUse.OFF and node in came_up):
            still_open.discard(node)
            unused.add(node)
    return replace(
        purchase,
        open=frozenset(still_open),
        came_up={node: came_up_at for node, came_up_at in came_up.items() if node in still_open},
        unused=frozenset(unused),
    )


def _is_lost(purchase: Purchase, node: str, state: NodeUse, now: float) -> bool:
    """Whether the machine never came up, or was taken away since. Failed boots have their own
    breaker.
    """
    if node in purchase.came_up:
        return state is NodeUse.TAKEN
    return state in (NodeUse.OFF, NodeUse.TAKEN) and now - purchase.at >= LOST_BOOT_S


def unhelped(
    purchase: Purchase,
    waiting: Mapping[int, WatchedJob],
    sufficed: Callable[[Purchase], Collection[int]],
    before: Mapping[int, UnhelpedJob],
    now: float,
) -> tuple[UnhelpedJob, ...]:
    """Return the jobs that the machines of a finished purchase did not help: they still wait with
    the same wishes, and the unused machines were enough for each of them (``sufficed``).
    """
    # Not before all machines are judged: the last one may be the one that the job needs.
    if purchase.open or not purchase.unused or waiting.keys().isdisjoint(purchase.jobs):
        return ()
    nodes = tuple(sorted(purchase.unused))
    enough = sufficed(purchase)
    rows = []
    for number, asked in purchase.jobs.items():
        job = waiting.get(number)
        if job is None or number not in enough or job.asks != asked:
            continue
        strikes = before[number].strikes + 1 if number in before else 1
        rows.append(
            UnhelpedJob(
                job=number, asks=asked, since=now, nodes=nodes, reason=job.reason, strikes=strikes
            )
        )
    return tuple(rows)


def suffice(needed_nodes: int, unused_by_cloud: Iterable[int]) -> bool:
    """Whether one cloud had enough unused machines for the job, which never spans clouds."""
    return any(unused >= needed_nodes for unused in unused_by_cloud)


def to_count_again(
    rows: Iterable[UnhelpedJob], waiting: Mapping[int, WatchedJob]
) -> tuple[int, ...]:
    """Return the jobs whose verdict no longer holds, or that are gone."""
    return tuple(
        row.job
        for row in rows
        if row.job not in waiting or not still_unhelped(row, waiting[row.job])
    )


def not_counted(rows: Iterable[UnhelpedJob], now: float) -> frozenset[int]:
    """Return the jobs that growth policies must not count now."""
    return frozenset(row.job for row in rows if row.is_paused(now))


def still_unhelped(row: UnhelpedJob, job: WatchedJob) -> bool:
    """Whether growth policies still must not count the job.

    A job behind others (reason Priority), or one at which slurmctld has not looked, may suffer from
    the cause that keeps the first job. So it gets a second chance when it comes first. The end of a
    hold or of a dependency changes its wishes.
    """
    reason = pending_reasons.reason_of(job.reason)
    if row.asks != job.asks or job.is_kept:
        return False
    was_behind = pending_reasons.reason_of(row.reason).is_for_turn
    has_come_first = was_behind and reason.is_for_nodes
    return not (has_come_first and row.strikes == 1)


def wishes(job: SlurmJob, shown_limits: Mapping[str, float | None]) -> str:
    """Return all wishes of the job that decide where it may start, as one text."""
    # Slurm shows MaxTime of the partition that it tried last for a job without a limit.
    is_shown = any(shown_limits.get(name, -1) == job.limit for name in job.partitions)
    wish_values: Iterable[object] = (
        job.node_count, job.cpus, job.node_cpus, job.node_memory, job.cpu_memory, job.gres,
        job.job_gres, job.gres_cpus, job.gres_memory, job.features,
        ",".join(sorted(job.partitions)), job.reservation,
        job.licenses, "" if is_shown else job.limit, ",".join(job.required),
        ",".join(job.excluded), job.qos, job.account, job.restarts,
    )  # fmt: skip
    return "|".join(str(value) for value in wish_values)
