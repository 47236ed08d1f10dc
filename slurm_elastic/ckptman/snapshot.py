"""The facts of each running job and its machines, gathered for ``decide``. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from slurm_elastic.ckptman.decide import JobFacts, estimate
from slurm_elastic.ckptman.job_settings import CheckpointPlan
from slurm_elastic.ckptman.node_notices import NodeThreat
from slurm_elastic.ledger.rows import Machine
from slurm_elastic.model import Image, JobRun, Notice, NoticeKind
from slurm_elastic.model_slurm import SlurmJob
from slurm_elastic.policies.checkpoint import (
    DEFAULT_MTTI,
    Situation,
    joint_mtti,
    observed_mtti,
)

Prices = Mapping[tuple[str, str], tuple[tuple[float, float], ...]]
"""By instance type and zone: (since, $/h), ascending."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """One look. ``machines``: live ones by id; ``machine_of``: the one of each node; ``mtti``: mean
    seconds to an interruption of one machine by Offer.key; ``leases``: seconds paid at a time by
    node.
    """

    now: float
    jobs: Mapping[int, SlurmJob]
    machines: Mapping[str, Machine]
    machine_of: Mapping[str, Machine]
    threats: Mapping[str, NodeThreat]
    images: Mapping[int, Sequence[Image]]
    prices: Prices = field(default_factory=dict)
    mtti: Mapping[str, float] = field(default_factory=dict)
    expected: float = 60.0
    bid: float | None = None
    leases: Mapping[str, float] = field(default_factory=dict)


def runs(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Jobs that are at work on their nodes."""
    return [
        j for j in jobs if "RUNNING" in j.states and not j.states & {"CONFIGURING", "COMPLETING"}
    ]


def gather(
    world: Snapshot, ours: Callable[[str], bool], choose: Callable[[SlurmJob], CheckpointPlan]
) -> list[JobFacts]:
    """The facts of jobs on nodes of ours and of those on any node that is threatened."""
    return [
        _facts(world, job, choose(job))
        for job in runs(world.jobs.values())
        if any(node in world.threats or ours(node) for node in job.nodes)
    ]


def _facts(world: Snapshot, job: SlurmJob, choice: CheckpointPlan) -> JobFacts:
    standing = [world.threats[n] for n in job.nodes if n in world.threats]
    leaving = [t for t in standing if t.leaving]
    deadlines = [t.deadline for t in leaving if t.deadline is not None]
    return JobFacts(
        run=run_of(job, choice),
        choice=choice,
        situations=tuple(_situations(world, job, choice)),
        threatened=tuple(t.node for t in leaving),
        deadline=min(deadlines, default=None),
        reason=leaving[0].reason if leaving else "",
        can_move=job.batch,
    )


def run_of(job: SlurmJob, choice: CheckpointPlan) -> JobRun:
    """The run of a job, as a checkpoint method wants it."""
    return JobRun(
        job=job.id,
        label=job.label,
        attempt=job.restarts,
        user=job.user,
        uid=job.uid,
        gid=job.gid,
        nodes=job.nodes,
        partition=job.partitions[0] if job.partitions else "",
        started=job.start,
        options=choice.options,
        directory=job.directory,
    )


def dump_seconds(world: Snapshot, job: int) -> float:
    """The seconds that a save of this job may take, by its last ones."""
    return estimate([i.seconds for i in world.images.get(job, ())], world.expected)


def _situations(world: Snapshot, job: SlurmJob, choice: CheckpointPlan) -> Iterable[Situation]:
    """One for each of its machines that differs from the others in what a policy looks at."""
    own = [i for i in world.images.get(job.id, ()) if i.attempt == job.restarts]
    last = max(own, key=lambda image: image.taken, default=None)
    mtti = _mtti(world, job)
    seen = set()
    for node in job.nodes:
        machine = world.machine_of.get(node)
        threat = world.threats.get(node)
        lease = world.leases.get(node, 1.0)
        key = machine and (machine.instance.launched, machine.instance.offer_key, lease)
        if threat is None and key in seen:
            continue
        seen.add(key)
        launched = machine.instance.launched if machine else job.start
        offer = (machine.instance.instance_type, machine.instance.zone) if machine else ("", "")
        yield Situation(
            job=str(job.id),
            now=world.now,
            launched=launched,
            started=job.start,
            last=last.taken if last else None,
            cost=last.seconds if last else 0.0,
            dump=dump_seconds(world, job.id),
            prices=world.prices.get(offer, ()),
            bid=world.bid,
            notices=_notices(threat, world.now) if threat else (),
            mtti=mtti,
            lease=lease,
            blocking=choice.blocking,
        )


def _mtti(world: Snapshot, job: SlurmJob) -> float | None:
    """The mean time of the job, which is interrupted with the first of its machines that is taken.
    A machine of which nothing is known counts as the policy has it.
    """
    machines = [world.machine_of.get(node) for node in job.nodes]
    offers = [machine.instance.offer_key if machine else "" for machine in machines]
    return joint_mtti(world.mtti.get(offer, DEFAULT_MTTI) for offer in offers) if offers else None


def _notices(threat: NodeThreat, now: float) -> tuple[Notice, ...]:
    """A notice that takes the machine away is seen now, whenever it came: a job that is to be moved
    is saved for that, though a periodic save may have come in between.
    """
    gone = NoticeKind.INTERRUPTION
    return tuple(replace(n, seen=now) if n.kind is gone else n for n in threat.notices)


def mean_times(
    machines: Iterable[Machine], interruptions: Mapping[str, int], now: float
) -> Mapping[str, float]:
    """Mean seconds to an interruption of one machine by offer: machine-seconds that were seen for
    each machine that was taken.
    """
    uptime: defaultdict[str, float] = defaultdict(float)
    for machine in machines:
        end = now if machine.ended is None else machine.ended
        uptime[machine.instance.offer_key] += max(end - machine.instance.launched, 0.0)
    return {
        offer: observed_mtti(seconds, interruptions.get(offer, 0))
        for offer, seconds in uptime.items()
    }
