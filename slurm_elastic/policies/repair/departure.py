"""The next step of machines that an operator wants to leave. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.directive import Departure
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import ON_NODES, SlurmJob, SlurmNode
from slurm_elastic.policies.growth.stopped import born
from slurm_elastic.policies.launch.verdict import could_run
from slurm_elastic.policies.nodes.node_reasons import has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_drained, phase

OURS = "slurm-elastic:"
"""The beginning of the reasons that we give nodes."""


class NextStep(Struct, frozen=True, kw_only=True):
    """``leave``: nodes that get no new job and are powered down after theirs; ``press``: leaving
    ones with jobs that are to be moved; ``give_up``: ones that boot, whose jobs lose nothing by
    starting elsewhere. ``kept``: drained by a person, who decides. ``left``: how many are there.
    """

    leave: tuple[str, ...]
    press: tuple[str, ...]
    give_up: tuple[str, ...]
    kept: tuple[str, ...]
    left: int


def next_step(word: Departure, nodes: Sequence[SlurmNode]) -> NextStep:
    """By the nodes of the machines that are to leave and have not yet."""
    leaving = [n for n in nodes if is_leaving(n)]
    kept = [n for n in nodes if is_persons(n)]
    up = [n for n in nodes if phase(n) is Phase.UP and not is_leaving(n) and not is_persons(n)]
    up.sort(key=lambda n: is_busy(n))  # what is idle costs nothing to give up
    room = len(nodes) if word.unavailable is None else max(word.unavailable - len(leaving), 0)
    chosen = up[:room]
    boots = [n for n in nodes if phase(n) is Phase.POWERING_UP] if word.aggressive else []
    return NextStep(
        leave=tuple(n.name for n in chosen),
        press=tuple(n.name for n in (*leaving, *chosen) if is_busy(n)) if word.aggressive else (),
        give_up=tuple(n.name for n in boots[: max(room - len(chosen), 0)]),
        kept=tuple(n.name for n in kept),
        left=len(nodes),
    )


def concerned(machines: Iterable[Machine], word: Departure, starts: float) -> list[Machine]:
    """The machines that are to leave. On nodes that may start again only those from before
    ``starts``; where an image is named, only those from it.
    """
    nodes = set(word.nodes)
    mine = [m for m in machines if m.instance.node in nodes]
    return [m for m in mine if word.closes or born(m) <= starts]


def is_leaving(node: SlurmNode) -> bool:
    """It gets no new job, and goes when it has none."""
    return bool(node.states & {"POWER_DOWN", "POWERING_DOWN"})


def is_persons(node: SlurmNode) -> bool:
    """A person has drained it, and decides."""
    return is_drained(node) and not is_leaving(node) and not has_mark(node, OURS)


def jobs_on(jobs: Iterable[SlurmJob], nodes: Iterable[str]) -> list[SlurmJob]:
    """The jobs that have some of these nodes."""
    mine = set(nodes)
    return [job for job in jobs if job.states & ON_NODES and not mine.isdisjoint(job.nodes)]


def redirected(
    jobs: Iterable[SlurmJob], source: str, target: str, pools: Sequence[Pool]
) -> Mapping[tuple[str, ...], list[int]]:
    """The waiting jobs that may start in partition ``source``, by the list of partitions that they
    are to have instead: ``target`` first. Jobs that no pool of it (``pools``) could run stay.
    """
    found: dict[tuple[str, ...], list[int]] = {}
    for job in jobs:
        waits = "PENDING" in job.states and "COMPLETING" not in job.states
        if waits and source in job.partitions and any(could_run(job, pool) for pool in pools):
            others = (p for p in job.partitions if p not in (source, target))
            found.setdefault((target, *others), []).append(job.id)
    return found
