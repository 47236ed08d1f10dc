"""Sentences of ``status``, ``doctor`` and ``explain`` about nodes and partitions that take no jobs,
and about jobs that do not start by themselves. Pure, but for the head's time zone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.model.slurm_words import partition_states
from slurm_elastic.model.slurm_words.rows import Fate
from slurm_elastic.policies.launch.stuck import Wait, wait_of
from slurm_elastic.policies.launch.verdict import PoolCase, ReservedNodes
from slurm_elastic.policies.nodes.kept_nodes import Keep, KeptNode, kept_node, remedy, sentence
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.slurm.hooks import submit_filter
from slurm_elastic.watch.view.rows import Facts, KeptView

REPLACED = "replaced"
"""The kind of nodes that get other machines without a person's help."""
GIVEN_UP = "given-up"
"""The kind of nodes whose machines do not answer: slurm-elasticd returns them, too."""
_KINDS = {Keep.REPLACED: REPLACED, Keep.GIVEN_UP: GIVEN_UP}
_NAMED = 5
"""Jobs that are named for one cause."""
_DAY = 86400.0
_JOB = "JOBID"


def kept_views(config: Config, facts: Facts) -> tuple[KeptView, ...]:
    """Everything of ours that is kept. Rows that no person meant come first."""
    nodes = facts.nodes or {}
    ours = [name for pool in domain_pools(config, expand) for name in pool.nodes if name in nodes]
    rows = [
        *stuck_jobs(config, facts.jobs, facts.now),
        *kept_partitions(config, facts),
        *kept_nodes(config, [nodes[name] for name in ours], facts.now),
        *kept_by_reservations(facts.reservations, ours, facts.now),
        *never_suspended(config, facts),
    ]
    return tuple(sorted(rows, key=lambda row: not row.stuck))


def stuck_jobs(config: Config, jobs: Iterable[SlurmJob], now: float) -> Iterator[KeptView]:
    """Pending jobs that do not start by themselves, by cause."""
    waits = Waits(config, now)
    groups: defaultdict[Wait, list[SlurmJob]] = defaultdict(list)
    for job in jobs:
        if "PENDING" in job.states and (wait := waits.of_any(job)).fate is not Fate.STARTS:
            groups[wait].append(job)
    for wait, members in groups.items():
        yield _of_jobs(wait, members)


class Waits:
    """What pending jobs wait for; jobs that ask for the same are judged once."""

    def __init__(self, config: Config, now: float) -> None:
        self._cases, self._now = pool_cases(config), now
        self._judged: dict[SlurmJob, Wait] = {}

    def of(self, job: SlurmJob) -> Wait:
        """With the command for this job."""
        wait = self.of_any(job)
        return replace(wait, command=wait.command.replace(_JOB, job.label))

    def of_any(self, job: SlurmJob) -> Wait:
        """With a command in which JOBID stands for the job."""
        # Tens of thousands of jobs have few requests; the other fields bear on no verdict.
        request = SlurmJob(
            id=0, states=job.states, reason=job.reason, description=job.description,
            partitions=job.partitions, node_count=job.node_count, cpus=job.cpus, limit=job.limit,
            gres=job.gres, job_gres=job.job_gres, features=job.features, node_cpus=job.node_cpus,
            node_memory=job.node_memory, cpu_memory=job.cpu_memory, exit_code=job.exit_code,
        )  # fmt: skip
        if request not in self._judged:
            self._judged[request] = wait_of(request, _JOB, self._cases, self._now)
        return self._judged[request]


def _of_jobs(cause: Wait, jobs: Sequence[SlurmJob]) -> KeptView:
    count = sum(job.tasks for job in jobs)
    labels = ", ".join(job.label for job in jobs[:_NAMED])
    if len(jobs) > _NAMED:
        labels += f" and {len(jobs) - _NAMED} more"
    tasks = f"{count} tasks of " if count > len(jobs) else ""
    many = f"{tasks}{'job' if len(jobs) == 1 else 'jobs'} "
    held = "is held" if count == 1 else "are held"
    text = f"{many}{labels} {held if cause.fate is Fate.HELD else 'can never start'}: {cause.text}"
    # Slurm's commands take several jobs with commas.
    named = ",".join(job.label for job in jobs)
    command = cause.command.replace(_JOB, named) if len(jobs) <= _NAMED else cause.command
    return KeptView(
        kind="job", names=labels, count=count, text=text, do=command, stuck=not cause.is_meant
    )


def kept_partitions(config: Config, facts: Facts) -> Iterator[KeptView]:
    """Our partitions that start no jobs, though the configuration lets them."""
    blocked = blocked_clouds(config)
    for cloud in config.clouds:
        state = facts.partition_states.get(cloud.partition_name, "UP")
        if cloud.name not in blocked and (kept := kept_partition(cloud.partition_name, state)):
            yield kept


def kept_partition(name: str, state: str) -> KeptView | None:
    """The partition in that state; None if it takes jobs and starts them."""
    row = partition_states.row_of(state)
    if row is None or not (row.keeps_jobs or row.refuses):
        return None
    text = f"partition {name} is {row.name}: {row.meaning}; Slurm does not record who set that"
    return KeptView(
        kind="partition", names=name, count=1, text=text, stuck=row.keeps_jobs,
        do=f"scontrol update partitionname={name} state=up",
    )  # fmt: skip


def kept_nodes(config: Config, nodes: Iterable[SlurmNode], now: float) -> Iterator[KeptView]:
    """Nodes that take no jobs, those together that one order or cause keeps."""
    groups: defaultdict[KeptNode, list[str]] = defaultdict(list)
    for node in nodes:
        kept = kept_node(node, config.slurm.drain_terms)
        if kept is not None:
            # Nodes of one command have the same second.
            groups[_alike(kept)].append(node.name)
    for kept, names in groups.items():
        listed = compress(names)
        text = sentence(kept, listed, len(names), when(kept.since, now))
        do = remedy(kept, listed)
        kind = _KINDS.get(kept.how, "node")
        yield KeptView(kind=kind, names=listed, count=len(names), text=text, do=do)


def _alike(kept: KeptNode) -> KeptNode:
    return KeptNode(
        node="", how=kept.how, who=kept.who, since=kept.since // 60 * 60, reason=kept.reason,
        actor=kept.actor, is_off=kept.is_off,
    )  # fmt: skip


def kept_by_reservations(
    reservations: Iterable[Reservation], nodes: Sequence[str], now: float
) -> Iterator[KeptView]:
    """Reservations that have some of the ``nodes`` now or will have them."""
    for one in reserved_nodes(reservations, nodes, now):
        yield KeptView(
            kind="reservation", names=one.name, count=len(one.nodes), text=one.text,
            do=f"nothing, or scontrol delete reservationname={one.name}",
        )  # fmt: skip


def reservation_sentence(one: Reservation, nodes: Sequence[str], now: float) -> str:
    """Whose reservation has which of our nodes, from when until when."""
    whose = [*one.owners, *(["maintenance"] if "MAINT" in one.flags else [])]
    of = f" ({', '.join(whose)})" if whose else ""
    has = "has" if one.start <= now else "will have"
    times = f"from {when(one.start, now)} to {when(one.end, now)}"
    return f"reservation {one.name}{of} {has} {compress(nodes)} {times}"


def reserved_nodes(
    reservations: Iterable[Reservation], nodes: Sequence[str], now: float
) -> tuple[ReservedNodes, ...]:
    """The reservations that have some of the ``nodes`` now or will have them."""
    return tuple(
        ReservedNodes(
            name=one.name, nodes=frozenset(mine), start=one.start, end=one.end,
            text=reservation_sentence(one, mine, now),
        )
        for one in reservations
        if (mine := [name for name in nodes if name in one.nodes]) and one.end > now
    )  # fmt: skip


def never_suspended(config: Config, facts: Facts) -> Iterator[KeptView]:
    """Nodes of ours with a machine that slurm.conf keeps from being powered down."""
    keys = suspend_keys(config, facts)
    by_key: defaultdict[str, list[str]] = defaultdict(list)
    for name, key in keys.items():
        by_key[key].append(name)
    for key, names in by_key.items():
        paid = [n for n in names if n in (facts.nodes or {}) and _is_up((facts.nodes or {})[n])]
        now = f"; {compress(paid)} stay paid" if paid else ""
        yield KeptView(
            kind="suspend", names=compress(names), count=len(names),
            text=f"{key} in slurm.conf keeps the machines of {compress(names)} for ever{now}",
            do=f"take these nodes out of {key}, then scontrol reconfigure",
        )  # fmt: skip


def suspend_keys(config: Config, facts: Facts) -> dict[str, str]:
    """By node of ours that slurm.conf keeps from being powered down, the option that does so."""
    keys: dict[str, str] = {}
    for pool in domain_pools(config, expand):
        partition = config.cloud(pool.cloud).partition_name
        for name in pool.nodes:
            if key := _suspend_key(facts, name, partition):
                keys[name] = key
    return keys


def _suspend_key(facts: Facts, name: str, partition: str) -> str:
    """The option that keeps this node from being powered down; "" if none does."""
    excluded, node = facts.suspend_exclusions, (facts.nodes or {}).get(name)
    if name in excluded.nodes:
        return "SuspendExcNodes"
    if partition in excluded.partitions:
        return "SuspendExcParts"
    if node is not None and node.states & set(excluded.states):
        return "SuspendExcStates"
    return ""


def _is_up(node: SlurmNode) -> bool:
    return phase(node) is Phase.UP


def when(at: float, now: float) -> str:
    """A time of the head's day with its zone, or with the date; "" for 0, which is unknown."""
    if not at:
        return ""
    form = "%H:%M %Z" if abs(at - now) < _DAY / 2 else "%Y-%m-%d %H:%M %Z"
    return time.strftime(form, time.localtime(at))


def pool_cases(config: Config) -> tuple[PoolCase, ...]:
    """All pools, with what a job must fit in."""
    return tuple(_cases(config))


def _cases(config: Config) -> Iterator[PoolCase]:
    most = cache(lambda cloud: submit_filter.most_of_cloud(config, config.cloud(cloud)))
    for pool in domain_pools(config, expand):
        cloud = config.cloud(pool.cloud)
        yield PoolCase(
            pool=pool,
            partition=cloud.partition_name,
            max_time=config.who_of(cloud).max_time,
            interactive=True,
            most=submit_filter.most_of(config, pool),
            cloud_most=most(pool.cloud),
        )
