"""The guard against useless purchases: jobs that still wait although machines came up for them.
Pure.

Slurm may keep a job pending for a reason that we do not know, and a growth policy would buy for it
forever. Each purchase is therefore watched until all its machines were used, given back or idle for
long. If a job still waits that could have started on the unused machines, growth policies stop
counting it. It counts again when its wishes change, after ``slurm-elastic clear``, or after a pause
that doubles with each such purchase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from msgspec.structs import replace

from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob

IDLE_PROOF_S = 60
"""Seconds after which an idle machine is proof, because slurmctld has looked at its whole queue
(sched_interval is 60 s, bf_interval 30 s by default).
"""
LOST_BOOT_S = 120
"""Seconds after which a node counts as lost if Slurm did not even start to power it up."""
MOST_JOBS = 1000
"""The maximum of jobs of a purchase that are watched: the first ones."""


_BEHIND = frozenset({"Priority", "None", ""})
"""Slurm's reasons of jobs that may only wait for their turn."""


class NodeUse(StrEnum):
    """The state of a purchase's machine."""

    BOOTING = "booting"
    IDLE = "idle"
    LONG_IDLE = "long idle"
    BUSY = "busy"
    OFF = "off"


def watched(purchase: Purchase, use: Mapping[str, NodeUse], now: float) -> Purchase:
    """The purchase after one more look at its nodes."""
    still_open, came_up, unused = set(purchase.open), dict(purchase.came_up), set(purchase.unused)
    for node in purchase.open:
        state = use.get(node, NodeUse.OFF)
        if state is NodeUse.IDLE:
            came_up.setdefault(node, now)
        # Neither a used machine nor a machine that never came up proves anything against the jobs.
        elif state is NodeUse.BUSY or (state is NodeUse.OFF and _is_lost(purchase, node, now)):
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


def _is_lost(purchase: Purchase, node: str, now: float) -> bool:
    """Whether the machine never came up. Failed boots have their own breaker."""
    return node not in purchase.came_up and now - purchase.at >= LOST_BOOT_S


def unhelped(
    purchase: Purchase,
    waiting: Mapping[int, SlurmJob],
    enough: Collection[int],
    shown_limits: Mapping[str, float | None],
    before: Mapping[int, UnhelpedJob],
    now: float,
) -> tuple[UnhelpedJob, ...]:
    """Return the jobs that the machines of a finished purchase did not help: they still wait with
    the same wishes, and the unused machines were ``enough`` for each of them.
    """
    # Not before all machines are judged: the last one may be the one that the job needs.
    if purchase.open or not purchase.unused:
        return ()
    nodes = tuple(sorted(purchase.unused))
    rows = []
    for number, asked in purchase.jobs.items():
        job = waiting.get(number)
        if job is None or number not in enough or wishes(job, shown_limits) != asked:
            continue
        strikes = before[number].strikes + 1 if number in before else 1
        rows.append(
            UnhelpedJob(
                job=number, asks=asked, since=now, nodes=nodes, reason=job.reason, strikes=strikes
            )
        )
    return tuple(rows)


def still_unhelped(
    row: UnhelpedJob, job: SlurmJob, shown_limits: Mapping[str, float | None]
) -> bool:
    """Whether growth policies still must not count the job.

    A job behind others (reason Priority), or one at which slurmctld has not looked, may suffer from
    the cause that keeps the first job. So it gets a second chance when it comes first. The end of a
    hold or of a dependency changes its wishes.
    """
    if row.asks != wishes(job, shown_limits) or job.is_held or job.reason.startswith("Dependency"):
        return False
    has_come_first = row.reason in _BEHIND and job.reason == "Resources"
    return not (has_come_first and row.strikes == 1)


def wishes(job: SlurmJob, shown_limits: Mapping[str, float | None]) -> str:
    """Return all wishes of the job that decide where it may start, as one text."""
    # Slurm shows MaxTime of the partition that it tried last for a job without a limit.
    is_shown = any(shown_limits.get(name, -1) == job.limit for name in job.partitions)
    wish_values: Iterable[object] = (
        job.node_count, job.cpus, job.node_cpus, job.node_memory, job.cpu_memory, job.gres,
        job.job_gres, job.features, ",".join(sorted(job.partitions)), job.reservation,
        job.licenses, "" if is_shown else job.limit, ",".join(job.required),
        ",".join(job.excluded), job.qos, job.account, job.restarts,
    )  # fmt: skip
    return "|".join(str(value) for value in wish_values)
