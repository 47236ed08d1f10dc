"""Sentences about nodes and partitions that take no jobs, and jobs that do not start by themselves.

``status``, ``doctor`` and ``explain`` show them. Pure, except for the head's time zone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.config import Config, blocked_clouds, domain_pools
from slurm_elastic.features.growth.reserved_nodes import reserved_nodes, when
from slurm_elastic.features.waits.wait_situation import WaitFacts, shut_partition, situation_of
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode
from slurm_elastic.model.slurm_words.rows import Fate
from slurm_elastic.policies.launch.waiting import fixed_arrays
from slurm_elastic.policies.nodes.kept_nodes import Keep, KeptNode, kept_node, remedy, sentence
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.policies.waits.situation import NODES
from slurm_elastic.policies.waits.wait import Wait, Waits, named, named_command
from slurm_elastic.watch.view.rows import Facts, KeptView

NODE = "node"
"""The kind of nodes that a person keeps from jobs and must return."""
REPLACED = "replaced"
"""The kind of nodes that get new machines without a person's help."""
GIVEN_UP = "given-up"
"""The kind of nodes whose machines do not answer; slurm-elasticd returns these, too."""
_KINDS = {Keep.REPLACED: REPLACED, Keep.GIVEN_UP: GIVEN_UP}
_MAX_NAMES = 5  # jobs that a row names


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
        *stuck_jobs(facts.jobs, waits or waits_of(config, facts)),
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
        if "PENDING" in job.states and (wait := waits.shared(job)).is_stuck:
            # Jobs with one cause share a row, also if their pools differ.
            cause = Wait(
                fate=wait.fate, text=wait.text, actor=wait.actor, command=wait.command,
                is_meant=wait.is_meant,
            )  # fmt: skip
            groups[cause].append(job)
    for cause, members in groups.items():
        yield _jobs_view(cause, members)


def waits_of(config: Config, facts: Facts, arrays: frozenset[int] | None = None) -> Waits:
    """Return the answers why jobs wait. ``config``: without the limits that operators' orders
    change. ``arrays``: the arrays of which a task has started, if ``facts`` lack some jobs.
    """
    wait_facts = WaitFacts(
        now=facts.now,
        obstacles=facts.obstacles,
        nodes=facts.nodes,
        partition_states=facts.partition_states,
        max_times=facts.max_times,
        reservations=facts.reservations,
        hides_nodes=NODES in facts.private,
        fixed_arrays=fixed_arrays(facts.jobs) if arrays is None else arrays,
    )
    return Waits(situation_of(config, wait_facts))


def _jobs_view(wait: Wait, jobs: Sequence[SlurmJob]) -> KeptView:
    count = sum(job.tasks for job in jobs)
    labels = ", ".join(job.label for job in jobs[:_MAX_NAMES])
    if len(jobs) > _MAX_NAMES:
        labels += f" and {len(jobs) - _MAX_NAMES} more"
    tasks = f"{count} tasks of " if count > len(jobs) else ""
    subject = f"{tasks}{'job' if len(jobs) == 1 else 'jobs'} "
    held = "is held" if count == 1 else "are held"
    reason = named(wait, jobs[0].shell_label if len(jobs) == 1 else "JOBID").text
    text = f"{subject}{labels} {held if wait.fate is Fate.HELD else 'can never start'}: {reason}"
    job_names = [job.shell_label for job in jobs] if len(jobs) <= _MAX_NAMES else ["JOBID"]
    command = named_command(wait, job_names)
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
            # Not `scontrol reconfigure`: it ends 22.05's slurmctld while an install that changed
            # the nodes waits for the restart.
            do=f"take these nodes out of {key}, then {service_remedies.restart('slurmctld')}",
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
