"""The decision chain of a node or a job, followed between nodes and jobs, and a job's machines.
The only effects are the reads of the ledger by the functions ``read``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from slurm_elastic.base.hostlist import expand
from slurm_elastic.state.ledger import Decision, Machine

FOLLOWED = 16
"""Maximum number of a job's nodes to follow. Large requests name hundreds, too many to read."""
AFTERMATH = 60.0
"""Seconds after a node's last mention of a job in which decisions on the job alone belong to the
node, too.
"""
_JOB = "job:"
_POOL = "pool:"
_IMAGE = "image:"

Read = Callable[[str], Sequence[Decision]]


def job_subject(job: int) -> str:
    """The subject of decisions about a job."""
    return f"{_JOB}{job}"


def pool_subject(pool: str) -> str:
    """The subject of decisions about a pool."""
    return f"{_POOL}{pool}"


def image_subject(pool: str) -> str:
    """The subject of decisions about the image of a pool."""
    return f"{_IMAGE}{pool}"


def list_subject(cloud: str) -> str:
    """The subject of decisions about a cloud's list."""
    return f"list:{cloud}"


def jobs_of(decision: Decision) -> list[int]:
    """The jobs a decision is about."""
    return [int(s[len(_JOB) :]) for s in decision.subjects if s.startswith(_JOB)]


def nodes_of(decision: Decision) -> list[str]:
    """The nodes a decision is about. Other subjects have a kind before a colon; offers have the
    slashes of their keys. Slurm allows neither in the name of a node.
    """
    return [s for s in decision.subjects if ":" not in s and "/" not in s]


def tell_job(job: int, read: Read, held_now: Iterable[str] = ()) -> list[Decision]:
    """Return all decisions about a job, and the decisions about its nodes, from the job's first
    decision until another job got the node. ``held_now``: the job's nodes according to Slurm. If
    ``held_now`` is empty, the recorded rankings say for which nodes of its request it waited. A job
    of more than FOLLOWED nodes is not followed.
    """
    own = list(read(job_subject(job)))
    if not own:
        return []
    nodes = list(dict.fromkeys(held_now)) or _waited_for(job, own)
    nodes = nodes or list(dict.fromkeys(node for d in own for node in nodes_of(d)))
    if len(nodes) > FOLLOWED:
        nodes = []
    chain = own + [d for node in nodes for d in _while_held(job, own, read(node))]
    return _in_order(chain)


def tell_node(node: str, read: Read) -> list[Decision]:
    """Return all decisions about a node, and the decisions about only its jobs (requeued,
    restarted) at that time.
    """
    own = list(read(node))
    chain = list(own)
    for job in dict.fromkeys(j for d in own for j in jobs_of(d)):
        mentions = [d.at for d in own if job in jobs_of(d)]
        chain += [
            d
            for d in read(job_subject(job))
            # A decision that names this node was read above; one that names others is not ours.
            if not nodes_of(d) and min(mentions) <= d.at <= max(mentions) + AFTERMATH
        ]
    return _in_order(chain)


class Stay(NamedTuple):
    """A job had these nodes from ``begin`` to ``end`` (Unix time; None: it still has)."""

    nodes: tuple[str, ...]
    begin: float
    end: float | None = None


def machines_of(stays: Iterable[Stay], machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """The machines that were the job's nodes during its stays, in the order of the stays."""
    by_node: dict[str, list[Machine]] = {}
    for machine in sorted(machines, key=lambda m: m.instance.launched):
        by_node.setdefault(machine.instance.node, []).append(machine)
    machine_by_key: dict[tuple[str, str], Machine] = {}
    for stay in sorted(stays, key=lambda stay: stay.begin):
        for node in stay.nodes:
            candidates = (m for m in by_node.get(node, ()) if _meet(m, stay))
            # Only the first machine: a later machine of that node was launched after the job left.
            for machine in list(candidates)[:1]:
                machine_by_key.setdefault((machine.instance.cloud, machine.instance.id), machine)
    return tuple(machine_by_key.values())


def _meet(machine: Machine, stay: Stay) -> bool:
    begun = stay.end is None or machine.instance.launched < stay.end
    return begun and (machine.ended_at is None or machine.ended_at > stay.begin)


def _waited_for(job: int, decisions: Iterable[Decision]) -> list[str]:
    """The job's own share of its requests' nodes, from the recorded rankings."""
    names: dict[str, None] = {}
    for decision in decisions:
        shares = (decision.detail or {}).get("jobs")
        if isinstance(shares, dict) and str(job) in shares:
            names.update(dict.fromkeys(expand(str(shares[str(job)]))))
    return list(names)


def _while_held(
    job: int, own: Sequence[Decision], of_node: Sequence[Decision]
) -> Iterable[Decision]:
    first_at, last_at = own[0].at, own[-1].at
    for decision in of_node:
        if decision.at < first_at:
            continue
        jobs = jobs_of(decision)
        if decision.at > last_at and jobs and job not in jobs:
            return
        yield decision


def _in_order(decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions by time, each once. Decisions of the same time keep the order of the reads."""
    kept: list[Decision] = []
    seen_keys: set[tuple[object, ...]] = set()
    for d in decisions:
        # A decision is read once for each of its subjects.
        key = (d.at, d.correlation, d.kind, d.subjects, d.cause)
        if key not in seen_keys:
            seen_keys.add(key)
            kept.append(d)
    return sorted(kept, key=lambda d: d.at)
