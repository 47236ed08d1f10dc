"""The next step for machines that an operator wants to remove. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from slurm_elastic.model.directive import Departure
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import ON_NODES, SlurmJob, SlurmNode
from slurm_elastic.policies.growth.stopped import born
from slurm_elastic.policies.nodes.node_reasons import OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_drained, is_leaving, phase


class NextStep(Struct, frozen=True, kw_only=True):
    """The next step of a departure, as node names.

    ``power_down``: power these down after their jobs; Slurm starts no new job there. ``hurry``:
    leaving nodes whose jobs must be moved. ``give_up``: nodes that boot; their jobs lose nothing by
    starting elsewhere. ``kept``: nodes that a person drained, who decides about them.
    ``remaining_count``: how many nodes have not left yet.
    """

    power_down: tuple[str, ...]
    hurry: tuple[str, ...]
    give_up: tuple[str, ...]
    kept: tuple[str, ...]
    remaining_count: int


def next_step(departure: Departure, nodes: Sequence[SlurmNode]) -> NextStep:
    """Return the next step by the ``nodes`` of the machines that must leave and have not left
    yet.
    """
    leaving = [n for n in nodes if is_leaving(n)]
    drained_by_person = [n for n in nodes if is_persons(n)]
    candidates = [
        n for n in nodes if phase(n) is Phase.UP and not is_leaving(n) and not is_persons(n)
    ]
    candidates.sort(key=lambda n: is_busy(n))  # idle nodes first: no job is lost with them
    room = (
        len(nodes)
        if departure.unavailable is None
        # Nodes that leave already count, or each round would start further ones.
        else max(departure.unavailable - len(leaving), 0)
    )
    chosen = candidates[:room]
    boots = [n for n in nodes if phase(n) is Phase.POWERING_UP] if departure.aggressive else []
    return NextStep(
        power_down=tuple(n.name for n in chosen),
        hurry=tuple(n.name for n in (*leaving, *chosen) if is_busy(n))
        if departure.aggressive
        else (),
        give_up=tuple(n.name for n in boots[: max(room - len(chosen), 0)]),
        kept=tuple(n.name for n in drained_by_person),
        remaining_count=len(nodes),
    )


def concerned(machines: Iterable[Machine], departure: Departure, starts: float) -> list[Machine]:
    """Return the machines that must leave: on nodes that may start again, only machines from before
    ``starts`` (Unix s).
    """
    nodes = set(departure.nodes)
    machines_there = [m for m in machines if m.instance.node in nodes]
    # "replace" leaves its nodes open, so a machine from after the order is the replacement.
    return [m for m in machines_there if departure.blocks_starts or born(m) <= starts]


def is_persons(node: SlurmNode) -> bool:
    """Whether a person has drained the node; we leave it to that person."""
    # Slurm drains a node that it powers down, too, so such a drain is no person's.
    return is_drained(node) and not is_leaving(node) and not has_mark(node, OUR_MARK)


def jobs_on(jobs: Iterable[SlurmJob], nodes: Iterable[str]) -> list[SlurmJob]:
    """Return the jobs that run on any of these nodes."""
    names = set(nodes)
    return [job for job in jobs if job.states & ON_NODES and not names.isdisjoint(job.nodes)]
