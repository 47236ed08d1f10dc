"""Sentences about nodes and partitions that take no jobs, and jobs that do not start by themselves.

``status``, ``doctor`` and ``explain`` show them. Pure, except for the head's time zone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from msgspec.structs import replace

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.config.node_limits import max_cloud_nodes, max_pool_nodes
from slurm_elastic.features.pool_cases import shut_partition
from slurm_elastic.features.reserved_nodes import reserved_nodes, when
from slurm_elastic.model.job_holds import JobHold, cause_of_hold
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.model.slurm_words.rows import Fate
from slurm_elastic.policies.launch.stuck import Wait, wait_of
from slurm_elastic.policies.launch.verdict import PoolCase
from slurm_elastic.policies.nodes.kept_nodes import Keep, KeptNode, kept_node, remedy, sentence
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.watch.view.rows import Facts, KeptView

NODE = "node"
"""The kind of nodes that a person keeps from jobs and must return."""
REPLACED = "replaced"
"""The kind of nodes that get new machines without a person's help."""
GIVEN_UP = "given-up"
"""The kind of nodes whose machines do not answer; slurm-elasticd returns these, too."""
_KINDS = {Keep.REPLACED: REPLACED, Keep.GIVEN_UP: GIVEN_UP}
_MAX_NAMES = 5  # jobs that a row names
_NO_HOLDS: Mapping[int, JobHold] = {}
_JOB = "JOBID"  # stands for the job in the command of a shared verdict


def kept_views(config: Config, facts: Facts, waits: Waits | None = None) -> tuple[KeptView, ...]:
    """Return a row for each node, partition and job of ours that Slurm or a person keeps from
    running. Rows about mistakes come first.

    ``waits``: has judged the jobs of these facts already.
    """
    nodes = facts.nodes or {}
    own_nodes = [
        name for pool in domain_pools(config, expand) for name in pool.nodes if name in nodes
    ]
    rows = [
        *stuck_jobs(facts.jobs, waits or Waits(config, facts.now, facts.job_holds)),
        *kept_partitions(config, facts),
        *kept_nodes(config, [nodes[name] for name in own_nodes], facts.now),
        *kept_by_reservations(facts.reservations, own_nodes, facts.now),
        *never_suspended(config, facts),
    ]
    return tuple(sorted(rows, key=lambda row: not row.stuck))


def stuck_jobs(jobs: Iterable[SlurmJob], waits: Waits) -> Iterator[KeptView]:
    """Yield a row for each cause that keeps pending jobs from ever starting by themselves."""
    groups: defaultdict[Wait, list[SlurmJob]] = defaultdict(list)
    for job in jobs:
        if "PENDING" in job.states and (wait := waits.of_any(job)).fate is not Fate.STARTS:
            groups[wait].append(job)
    for wait, members in groups.items():
        yield _jobs_view(wait, members)


class Waits:
    """Judges why pending jobs wait. Jobs with the same request are judged once. ``holds``: why
    slurm-elasticd held jobs.
    """

    def __init__(
        self, config: Config, now: float, holds: Mapping[int, JobHold] = _NO_HOLDS
    ) -> None:
        self._cases, self._now, self._holds = pool_cases(config), now, holds
        self._judged: dict[SlurmJob, Wait] = {}

    def of(self, job: SlurmJob) -> Wait:
        """Return why the job waits, with the command for this job."""
        wait = self.of_any(job)
        return replace(wait, command=wait.command.replace(_JOB, job.shell_label))

    def of_any(self, job: SlurmJob) -> Wait:
        """Return why the job waits, with JOBID in place of the job in the command."""
        # Tens of thousands of jobs have few different requests. The fields that no verdict reads
        # are left out, so that equal requests are equal keys.
        request = SlurmJob(
            id=0, states=job.states, reason=job.reason, description=job.description,
            partitions=job.partitions, node_count=job.node_count, cpus=job.cpus, limit=job.limit,
            gres=job.gres, job_gres=job.job_gres, features=job.features, node_cpus=job.node_cpus,
            node_memory=job.node_memory, cpu_memory=job.cpu_memory, exit_code=job.exit_code,
            gres_cpus=job.gres_cpus, gres_memory=job.gres_memory,
        )  # fmt: skip
        if job.wait_reason.row.may_fit_elsewhere:
            request = replace(request, account=job.account, qos=job.qos)
        if request not in self._judged:
            self._judged[request] = wait_of(request, _JOB, self._cases, self._now)
        wait, cause = self._judged[request], cause_of_hold(job, self._holds)
        # Slurm would name the job's user, who does not know of the hold.
        return wait if cause is None else replace(wait, text=str(cause), is_meant=False)


def _jobs_view(wait: Wait, jobs: Sequence[SlurmJob]) -> KeptView:
    count = sum(job.tasks for job in jobs)
    labels = ", ".join(job.label for job in jobs[:_MAX_NAMES])
    if len(jobs) > _MAX_NAMES:
        labels += f" and {len(jobs) - _MAX_NAMES} more"
    tasks = f"{count} tasks of " if count > len(jobs) else ""
    subject = f"{tasks}{'job' if len(jobs) == 1 else 'jobs'} "
    held = "is held" if count == 1 else "are held"
    text = f"{subject}{labels} {held if wait.fate is Fate.HELD else 'can never start'}: {wait.text}"
    command = wait.command
    if len(jobs) <= _MAX_NAMES:
        # scancel refuses "12_[3-6],15" (22.05, measured). The other commands need commas.
        job_names = [job.shell_label for job in jobs]
        command = command.replace(f"scancel {_JOB}", f"scancel {' '.join(job_names)}")
        command = command.replace(_JOB, ",".join(job_names))
    return KeptView(
        kind="job", names=labels, count=count, text=text, do=command, stuck=not wait.is_meant
    )


def kept_partitions(config: Config, facts: Facts) -> Iterator[KeptView]:
    """Yield our partitions that start no jobs although the configuration allows it."""
    blocked = blocked_clouds(config)
    for cloud in config.clouds:
        state = facts.partition_states.get(cloud.partition_name, "UP")
        if cloud.name not in blocked and (kept := kept_partition(cloud.partition_name, state)):
            yield kept


def kept_partition(name: str, state: str) -> KeptView | None:
    """Return the row of a partition in that state; None if it takes jobs and starts them."""
    shut = shut_partition(name, state)
    if shut is None:
        return None
    return KeptView(
        kind="partition", names=name, count=1, text=shut.text, do=shut.do, stuck=shut.keeps_jobs
    )


def kept_nodes(config: Config, nodes: Iterable[SlurmNode], now: float) -> Iterator[KeptView]:
    """Yield nodes that take no jobs; nodes with one order or cause share a row."""
    groups: defaultdict[KeptNode, list[str]] = defaultdict(list)
    for node in nodes:
        kept = kept_node(node, config.slurm.drain_terms)
        if kept is not None:
            groups[_group_key(kept)].append(node.name)
    for kept, names in groups.items():
        listed = compress(names)
        text = sentence(kept, listed, len(names), when(kept.since, now))
        do = remedy(kept, listed)
        kind = _KINDS.get(kept.how, NODE)
        yield KeptView(kind=kind, names=listed, count=len(names), text=text, do=do)


def _group_key(kept: KeptNode) -> KeptNode:
    # The time is cut to the minute, which the sentence shows, so that nodes of one command share a
    # row.
    return KeptNode(
        node="", how=kept.how, who=kept.who, since=kept.since // 60 * 60, reason=kept.reason,
        actor=kept.actor, is_off=kept.is_off,
    )  # fmt: skip


def kept_by_reservations(
    reservations: Iterable[Reservation], nodes: Sequence[str], now: float
) -> Iterator[KeptView]:
    """Yield the reservations, present or future, over some of the ``nodes``."""
    for reserved in reserved_nodes(reservations, nodes, now):
        yield KeptView(
            kind="reservation", names=reserved.name, count=len(reserved.nodes), text=reserved.text,
            do=f"nothing, or scontrol delete reservationname={reserved.name}",
        )  # fmt: skip


def never_suspended(config: Config, facts: Facts) -> Iterator[KeptView]:
    """Yield our nodes that slurm.conf keeps from being powered down, by option."""
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
    """Return by node the option of slurm.conf that keeps it from being powered down."""
    keys: dict[str, str] = {}
    for pool in domain_pools(config, expand):
        partition = config.cloud(pool.cloud).partition_name
        for name in pool.nodes:
            if key := _suspend_key(facts, name, partition):
                keys[name] = key
    return keys


def _suspend_key(facts: Facts, name: str, partition: str) -> str:
    """Return the option that keeps this node from being powered down; "" if none does."""
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


def pool_cases(config: Config) -> tuple[PoolCase, ...]:
    """Return all pools, each with the bounds that a job must fit."""
    return tuple(_cases(config))


def _cases(config: Config) -> Iterator[PoolCase]:
    cloud_max = cache(lambda cloud: max_cloud_nodes(config, config.cloud(cloud)))
    for pool in domain_pools(config, expand):
        cloud = config.cloud(pool.cloud)
        access = config.who_of(cloud)
        yield PoolCase(
            pool=pool,
            partition=cloud.partition_name,
            accounts=access.accounts,
            qos=access.qos,
            max_time=access.max_time,
            interactive=True,
            most=max_pool_nodes(config, pool),
            cloud_most=cloud_max(pool.cloud),
        )
