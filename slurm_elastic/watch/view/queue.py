"""The rows about Slurm's queue and about the site's own nodes. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct, field

from slurm_elastic.base.hostlist import compress
from slurm_elastic.model.slurm import BOOTS, ON_NODES, SlurmJob, SlurmNode
from slurm_elastic.model.slurm_words.rows import Actor, Fate
from slurm_elastic.policies.launch.waiting import is_counted
from slurm_elastic.policies.waits.wait import Wait, Waits
from slurm_elastic.watch.view.next_action import BOOTING, DOWN, HELD, IDLE, IN_USE, node_states

MAX_WAITING_ROWS = 200  # rows of waiting jobs; a page has no room for more
FREE_NODES, NEVER = "for free nodes", "can never start"
_SITE_NODES = "for own nodes (no machine can start now)"
_BUSY_NODES = "for busy nodes (no machine can start now)"
_HELD, _NO_MACHINE, _OTHER = "held", "for machines that cannot start now", "for other reasons"
_LIMITS = "for a limit of the account or QOS"
USUAL_STATES = (IN_USE, IDLE, BOOTING, HELD, DOWN)


class WaitingView(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"age": "age_s", "why": "pool_reason", "wait": "reason_text"},
):
    """A waiting job, or ``tasks`` tasks of an array.

    ``age``: seconds that it has waited (None: unknown). ``nodes``: nodes for each task. ``why``:
    why pools of its partitions start no machine for it ("": not for a reason of ours). ``label``:
    its name in Slurm's commands. ``wait``: Slurm's reason in a sentence. ``stuck``: it does not
    start by itself.
    """

    id: int
    name: str
    user: str
    account: str
    partitions: tuple[str, ...]
    tasks: int
    nodes: int
    cpus: int
    reason: str
    age: float | None
    why: str = ""
    label: str = ""
    wait: str = ""
    stuck: bool = False


class QueueView(Struct, frozen=True, kw_only=True, rename={"oldest": "oldest_s"}):
    """Slurm's queue.

    ``running`` and ``waiting`` count jobs (each task of an array is one); of the running jobs, the
    nodes of ``booting`` jobs are not up yet. ``oldest``: seconds that the oldest waiting job has
    waited. ``reasons``: how many wait for each of Slurm's reasons. ``waits_for``: the same by the
    phrases of the line of jobs. ``waits_for_pool``: the same by each pool that fits the jobs and
    starts no machine for them. ``jobs``: those that have waited longest, at most MAX_WAITING_ROWS.
    """

    running: int
    waiting: int
    oldest: float | None
    reasons: dict[str, int]
    jobs: tuple[WaitingView, ...] = ()
    waits_for: dict[str, int] = field(default_factory=dict)
    waits_for_pool: dict[str, int] = field(default_factory=dict)
    booting: int = 0


class SiteNodesView(Struct, frozen=True, kw_only=True):
    """The site's own nodes, which are in no pool. ``states`` counts them by state."""

    nodes: str
    count: int
    states: dict[str, int]


def queue_view(jobs: Sequence[SlurmJob], now: float, waits: Waits) -> QueueView:
    """Make the view of the queue from ``jobs``, whose submissions are since when they wait."""
    waiting = [job for job in jobs if "PENDING" in job.states]
    reasons: Counter[str] = Counter()
    waits_for: Counter[str] = Counter()
    waits_for_pool: Counter[str] = Counter()
    for job in waiting:
        reasons[job.reason or "None"] += job.tasks
        wait = waits.shared(job)
        waits_for[_phrase(job, now, wait)] += job.tasks
        for pool in {name for obstacle in wait.obstacles for name in obstacle.pools}:
            waits_for_pool[pool] += job.tasks
    since = min((job.submit for job in waiting if job.submit), default=None)
    longest_first = sorted(waiting, key=lambda job: (job.submit or now, job.id))
    return QueueView(
        running=sum(not job.states.isdisjoint(ON_NODES) for job in jobs),
        waiting=sum(job.tasks for job in waiting),
        oldest=None if since is None else max(now - since, 0.0),
        reasons=dict(reasons.most_common()),
        jobs=tuple(_waiting(job, now, waits.of(job)) for job in longest_first[:MAX_WAITING_ROWS]),
        waits_for=dict(waits_for.most_common()),
        waits_for_pool=dict(waits_for_pool),
        booting=sum(BOOTS in job.states for job in jobs),
    )


def _phrase(job: SlurmJob, now: float, wait: Wait) -> str:
    """The reason why the job waits, in a few words."""
    if wait.is_stuck:
        return NEVER if wait.fate is Fate.NEVER else _HELD
    if wait.waits_for_us_alone and wait.is_ours_only:
        return _NO_MACHINE
    if wait.waits_for_us_alone and not wait.is_busy:
        return _SITE_NODES
    if wait.obstacles:
        return _BUSY_NODES
    if is_counted(job, now):
        return FREE_NODES
    if job.wait_reason.row.actor is Actor.SITE:
        return _LIMITS
    return job.wait_reason.row.waits_for or _OTHER


def _waiting(job: SlurmJob, now: float, wait: Wait) -> WaitingView:
    return WaitingView(
        id=job.id, name=job.name, user=job.user, account=job.account, partitions=job.partitions,
        tasks=job.tasks, nodes=job.node_count, cpus=job.cpus, reason=job.reason,
        age=max(now - job.submit, 0.0) if job.submit else None,
        why="; ".join(filter(None, (wait.obstacle_text, wait.other_nodes))),
        label=job.label, wait=wait.text, stuck=wait.is_stuck,
    )  # fmt: skip


def site_nodes(
    nodes: Mapping[str, SlurmNode] | None, of_pools: Collection[str]
) -> SiteNodesView | None:
    """Slurm's ``nodes`` outside all pools; None if there are none, or if they are not known."""
    names = [name for name in nodes or {} if name not in of_pools]
    if not names:
        return None
    # A node of the site is a physical machine, so it never counts as "no machine".
    states = Counter(node_states(names, nodes, {}, frozenset(names)).values())
    return SiteNodesView(nodes=compress(names), count=len(names), states=in_order(states))


def in_order(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts by state: the usual states first, others by name."""
    order = [state for state in USUAL_STATES if state in counts]
    return {state: counts[state] for state in [*order, *sorted(counts.keys() - set(order))]}
