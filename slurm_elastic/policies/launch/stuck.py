"""Pending jobs that cannot start without a change, and the change that helps. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words.rows import Actor, Fate
from slurm_elastic.policies.launch.verdict import Asker, PoolCase, Verdict, verdicts
from slurm_elastic.policies.launch.waiting import sentence

_MISFITS = {
    "time": "scontrol update jobid={job} timelimit={minutes}",
    "size": "scontrol update jobid={job} numnodes={nodes}",
    "features": "scontrol update jobid={job} features=FEATURE",
    "gres": "submit again with other --gres, after scancel {job}",
    "cpus": "submit again with fewer CPUs a node, after scancel {job}",
    "memory": "scontrol update jobid={job} minmemorynode=MIB",
}
"""Verdicts that hold until the job or the pool changes, and the change of the job."""


class Wait(Struct, frozen=True, kw_only=True):
    """The fate of a pending job if no person acts, the reason, who must act, and the command that
    helps. ``is_meant``: a person holds the job on purpose.
    """

    fate: Fate
    text: str
    actor: Actor
    command: str = ""
    is_meant: bool = False


def wait_of(job: SlurmJob, label: str, cases: Sequence[PoolCase], now: float) -> Wait:
    """Judge why the job waits. ``cases``: the pools of all clouds. ``label``: the job's name in
    commands.
    """
    row, text = job.wait_reason.row, sentence(job)
    command = row.advice.replace("{job}", label)
    if job.is_held:
        return Wait(
            fate=Fate.HELD, text=text, actor=row.actor,
            is_meant=row.is_persons and not job.is_held_by_slurm,
            command=command or f"scontrol release {label}",
        )  # fmt: skip
    misfit = _misfit(job, label, cases, now)
    text, command = misfit or (text, command)
    if row.may_fit_elsewhere:
        text, command = _elsewhere(job, label, cases, now, (text, command))
    # Slurm gives the reason of a single partition, and another partition may start the job.
    if row.fate is Fate.NEVER and (len(job.partitions) == 1 or not row.is_of_partition):
        return Wait(fate=Fate.NEVER, text=text, command=command, actor=row.actor)
    if misfit:
        return Wait(fate=Fate.NEVER, text=text, command=command, actor=Actor.USER)
    return Wait(fate=Fate.STARTS, text=text, command=command, actor=row.actor)


def _misfit(
    job: SlurmJob, label: str, cases: Sequence[PoolCase], now: float
) -> tuple[str, str] | None:
    """Why no pool of the job's partitions can ever serve it, and the command that helps; None if a
    pool can, or if a partition is the site's own.
    """
    # A partition without a case is the site's own; we cannot judge it.
    listed = [case for case in cases if case.partition in job.partitions]
    if {case.partition for case in listed} != set(job.partitions):
        return None
    judged = verdicts(Asker(job=job, now=now), listed)
    if not judged or any(verdict.predicate not in _MISFITS for verdict in judged):
        return None
    largest = max(judged, key=lambda verdict: _capacity(verdict, listed))
    case = next(case for case in listed if case.pool.name == largest.pool)
    command = _MISFITS[largest.predicate].format(
        job=label, minutes=int((case.max_time or 0) // 60), nodes=_capacity(largest, listed)
    )
    return largest.reason, command


def _elsewhere(
    job: SlurmJob, label: str, cases: Sequence[PoolCase], now: float, reason: tuple[str, str]
) -> tuple[str, str]:
    """Add to a reason which of our other partitions can hold the job, or that none can.

    ``reason``: the sentence and its remedy. The remedy stays if no partition of ours can hold the
    job.
    """
    text, command = reason
    other_cases = [case for case in cases if case.partition not in job.partitions]
    admitting = [case for case in other_cases if _admits(case, job)]
    if not other_cases:
        return reason
    if not admitting:
        return f"{text}; no other cloud's allow list names its account and QOS", command
    # A job that names another partition would be rejected for its choice, not for its size.
    judged = {
        name: verdicts(
            Asker(job=replace(job, partitions=(name,)), now=now),
            [case for case in admitting if case.partition == name],
        )
        for name in dict.fromkeys(case.partition for case in admitting)
    }
    holders = [
        name
        for name, rows in judged.items()
        if any(verdict.predicate not in _MISFITS for verdict in rows)
    ]
    if holders:
        noun = "partition" if len(holders) == 1 else "partitions"
        names = ",".join(holders)
        command = f"scontrol update jobid={label} partition={names}"
        return f"{text}; {noun} {names} can hold it", command
    misfits = [verdict for rows in judged.values() for verdict in rows]
    largest = max(misfits, key=lambda verdict: _capacity(verdict, admitting))
    return f"{text}; no other cloud can hold it ({largest.cloud}: {largest.reason})", command


def _admits(case: PoolCase, job: SlurmJob) -> bool:
    """Whether Slurm would take the job into the partition, so that the command does not fail."""
    pairs = ((case.accounts, job.account), (case.qos, job.qos))
    return all(
        not allowed or value.lower() in {name.lower() for name in allowed}
        for allowed, value in pairs
    )


def _capacity(verdict: Verdict, cases: Sequence[PoolCase]) -> int:
    """How many nodes of the verdict's cloud may be up together."""
    of_cloud = [case for case in cases if case.pool.cloud == verdict.cloud]
    max_nodes = sum(case.most for case in of_cloud)
    limits = [case.cloud_most for case in of_cloud if case.cloud_most is not None]
    return min([max_nodes, *limits])
