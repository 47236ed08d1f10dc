"""Computes a waiting job's list of partitions, begin time and hold from its own values and all
wishes, and learns what a person has changed. Pure.

The values follow from the job's own values and the present wishes alone. Earlier wishes have no
effect, so wishes may begin and end in any order, and a job without wishes has its own values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from slurm_elastic.model.changed_jobs import (
    Barred,
    ChangedJob,
    Delayed,
    Held,
    JobValues,
    Misfit,
    Redirected,
    Wish,
)
from slurm_elastic.model.slurm import SlurmJob

BEGIN_TOLERANCE_S = 60.0
"""Seconds by which a begin time may differ from the time that we set."""

IsRefused = Callable[[tuple[str, ...]], bool]
"""Whether Slurm has refused this list for the job (EnforcePartLimits)."""


def is_waiting(job: SlurmJob) -> bool:
    """Whether the job waits and its values can be changed."""
    # A requeued job is PENDING and COMPLETING until its last run has left the nodes.
    return "PENDING" in job.states and "COMPLETING" not in job.states


def request_of(job: SlurmJob) -> tuple[int, ...]:
    """Return what decides how many nodes the job needs and for how long."""
    size = (job.node_count, job.cpus, job.node_cpus, job.node_memory, job.cpu_memory)
    return (*size, int(job.limit or 0))


def own_order(partitions: Sequence[str], noted: Sequence[str]) -> tuple[str, ...]:
    """Return the partitions in the order that the submit filter has ``noted`` on the job; unchanged
    if there is no such note. slurmctld shows the partition that it tried last at the front.
    """
    if not noted or not {*noted} <= {*partitions}:
        return tuple(partitions)
    return (*(p for p in partitions if p not in noted), *noted)


def new_record(job: SlurmJob, noted: Sequence[str], now: float) -> ChangedJob:
    """Return the record of a job that still has its own values. ``noted``: see ``own_order``."""
    # Slurm itself sets a begin time on a requeued job. To restore it would delay the job for
    # nothing.
    is_own_begin = job.begin > now and not job.is_requeue_hold(now)
    own = JobValues(
        partitions=own_order(job.partitions, noted), begin=job.begin if is_own_begin else 0.0
    )
    return ChangedJob(key=job.key, own=own, latest=own)


def record_of_task(array: ChangedJob, task: SlurmJob) -> ChangedJob | None:
    """Return the record of a task that has left its array, None if its values never changed.

    slurmctld gives a task a job id of its own when it starts. The id of the array stays with the
    tasks that still wait, so the task has the array's values, and nothing else shows its own list.
    """
    if is_waiting(task) and {*task.partitions} != {*array.latest.partitions}:
        return None
    # The task may have started before its array was changed, so it may also show its own values.
    return replace(array, key=task.key, before=array.own, is_answered=False)


def learn(record: ChangedJob, job: SlurmJob, now: float) -> ChangedJob:
    """Return the record after a look at the waiting ``job``: a value that differs from what we set
    is a person's, and is the job's own value from now on.
    """
    # The change may not have been carried out: Slurm gave no answer, or the job was just starting.
    # Slurm then still shows the values from before it.
    is_open = record.before is not None and (
        not record.is_answered or job.restarts > record.key.attempt
    )
    before = record.before if is_open and record.before else record.latest
    latest, own, wishes, overruled = record.latest, record.own, record.wishes, record.overruled
    is_confirmed = {*job.partitions} == {*latest.partitions}
    if not is_confirmed and {*job.partitions} == {*before.partitions}:
        latest = replace(latest, partitions=before.partitions)
    elif not is_confirmed:
        own, latest = (replace(values, partitions=job.partitions) for values in (own, latest))
        orders = (wish.number for wish in wishes if isinstance(wish, Redirected))
        overruled = tuple(sorted({*overruled, *orders}))
        wishes = without(wishes, Redirected, Misfit, Delayed)
    if job.is_held:
        # Slurm does not show the begin time of a held job.
        latest = replace(latest, is_held=latest.is_held or before.is_held)
    else:
        if latest.is_held and before.is_held:
            wishes = without(wishes, Misfit, Held)  # a person has released the job
        latest = replace(latest, is_held=False)
        begin = job.begin
        if job.is_requeue_hold(now) or is_same_begin(begin, latest.begin, now):
            pass
        elif is_same_begin(begin, before.begin, now):
            latest = replace(latest, begin=before.begin)
        else:
            begin = begin if begin > now else 0.0
            own, latest = (replace(values, begin=begin) for values in (own, latest))
            wishes = without(wishes, Delayed)
    wishes = tuple(
        w for w in wishes if not isinstance(w, Misfit | Delayed) or w.request == request_of(job)
    )
    return replace(
        record, own=own, latest=latest, before=None, is_answered=False, wishes=wishes,
        overruled=overruled,
    )  # fmt: skip


def without(wishes: Sequence[Wish], *kinds: type[Wish]) -> tuple[Wish, ...]:
    """Return the wishes of other kinds."""
    return tuple(wish for wish in wishes if not isinstance(wish, kinds))


def is_needed(record: ChangedJob, job: SlurmJob) -> bool:
    """Whether the record still says something that Slurm does not."""
    if record.overruled or record.latest.partitions != record.own.partitions:
        return True
    # A verdict is given once. Without it an order would send the job there once more.
    if any(isinstance(wish, Misfit) for wish in record.wishes):
        return True
    # A started job has neither a begin time nor a hold.
    return is_waiting(job) and (record.before is not None or record.latest != record.own)


def is_same_begin(begin: float, other: float, now: float) -> bool:
    """Whether the job may begin at about the same time. A past time counts as now."""
    return abs(max(begin, now) - max(other, now)) <= BEGIN_TOLERANCE_S


def values_of(
    own: JobValues,
    wishes: Sequence[Wish],
    public: Collection[str],
    *,
    is_bound: bool,
    is_refused: IsRefused,
    now: float,
) -> JobValues:
    """Return the values that the job gets.

    ``public``: the partitions of public clouds. ``is_bound``: the job requires nodes of a public
    cloud, so no other partition has its nodes.
    """
    names = _redirected(own.partitions, wishes, public)
    values = _bounded(replace(own, partitions=names), wishes, public, is_bound, is_refused, now)
    if names != own.partitions and is_refused(values.partitions):
        values = _bounded(own, wishes, public, is_bound, is_refused, now)
    return values


def _redirected(
    names: tuple[str, ...], wishes: Sequence[Wish], public: Collection[str]
) -> tuple[str, ...]:
    """Return the list as orders change it, the earliest order first. No order sends a job to a
    partition in which the job must not or can never start.
    """
    shut = {wish.partition for wish in wishes if isinstance(wish, Misfit)}
    if any(isinstance(wish, Barred) for wish in wishes):
        shut.update(public)
    orders = [wish for wish in wishes if isinstance(wish, Redirected) and wish.target not in shut]
    for order in sorted(orders, key=lambda wish: wish.number):
        names = _sent(names, order)
    return names


def _sent(names: tuple[str, ...], order: Redirected) -> tuple[str, ...]:
    if order.source not in names:
        return names
    if order.is_whole:
        # No job can start in the source, so the target takes its place. The partitions before it
        # stay first: a job that can have one of the site's own nodes must not buy a machine.
        taken = (order.target if name == order.source else name for name in names)
        return tuple(dict.fromkeys(taken))
    if order.target in names:
        return names
    place = names.index(order.source) + 1
    return (*names[:place], order.target, *names[place:])


def _bounded(
    values: JobValues,
    wishes: Sequence[Wish],
    public: Collection[str],
    is_bound: bool,
    is_refused: IsRefused,
    now: float,
) -> JobValues:
    """Return the values without the partitions in which the job must not, can never or cannot yet
    start. If no partition is left, or Slurm refuses the list, the job waits instead.
    """
    never = {wish.partition for wish in wishes if isinstance(wish, Misfit)}
    names, is_held = values.partitions, any(isinstance(wish, Held) for wish in wishes)
    if not never.isdisjoint(names):
        others = tuple(name for name in names if name not in never)
        if others and not is_refused(others):
            names = others
        else:
            is_held = True
    begin = values.begin
    until = max((wish.until for wish in wishes if isinstance(wish, Barred)), default=0.0)
    if until and not {*public}.isdisjoint(names):
        others = tuple(name for name in names if name not in public)
        is_late = begin > now and begin >= until - BEGIN_TOLERANCE_S
        if is_late:
            pass  # its own begin time is after the end of the budget's period
        elif others and not is_bound and not is_refused(others):
            names = others
        else:
            begin = max(begin, until)
    delays = {w.partition: w.begins_at for w in wishes if isinstance(w, Delayed)}
    later = {name: delays[name] for name in names if delays.get(name, 0.0) > now}
    if later:
        others = tuple(name for name in names if name not in later)
        if others and not is_bound and not is_refused(others):
            names = others
        else:
            begin = max(begin, *later.values())
    return JobValues(partitions=names, begin=begin, is_held=is_held)
