"""Machines that leave: their cloud takes them away, or an operator sends them away. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_elastic.base.units import brief
from slurm_elastic.model.cluster import NoticeKind
from slurm_elastic.model.directive import Departure, Directive, given
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, phase
from slurm_elastic.policies.repair.departure import concerned, is_leaving, is_persons
from slurm_elastic.watch.view.checkpoints import CheckpointsView, ThreatView

TAKEN = ("is taken away", "may be taken away")
"""How phrases about machines begin that their cloud takes away."""
LOST = "CANNOT BE SAVED"
"""What they say of such a job."""


def taken_away(
    view: CheckpointsView | None, jobs: Mapping[str, Sequence[SlurmJob]]
) -> dict[str, str]:
    """By node, that its machine is taken away, and what becomes of its ``jobs``."""
    found = {}
    for one in view.threats if view else ():
        fates = "; ".join(_fates(view, one.node, jobs.get(one.node, ()))) if view else ""
        found[one.node] = f"{taken(one)}: {fates}" if fates else taken(one)
    return found


def taken(threat: ThreatView) -> str:
    """What becomes of its machine, and when."""
    if threat.kind == NoticeKind.REBALANCE:
        return f"may be taken away ({threat.kind})"
    if threat.kind == NoticeKind.DEPARTURE:
        return "leaves by an operator's order"
    when = "" if threat.left is None else f" in {brief(threat.left)}" if threat.left > 0 else " now"
    return f"is taken away{when} ({threat.kind})"


def _fates(view: CheckpointsView, node: str, jobs: Iterable[SlurmJob]) -> Iterator[str]:
    """Of its jobs those that are on their way, and those that cannot be saved."""
    moves = [move for move in view.moves if node in move.nodes and not move.over]
    for move in moves:
        yield f"job {move.label} {f'{LOST}: {move.note}' if move.hopeless else f'is {move.step}'}"
    told = {move.job for move in moves}
    here = {job.id for job in jobs} - told
    for one in view.unsavable:
        if one.job in here:
            yield f"job {one.label} {LOST}: {one.why}"


def sent_away(
    directives: Iterable[Directive], machine: Machine, node: SlurmNode, now: float
) -> str:
    """How an operator has the machine leave once it is up; empty: it stays, or a person has drained
    its node.
    """
    if phase(node) is not Phase.UP or is_persons(node):
        return ""
    for one in directives:
        word = one.word
        if not isinstance(word, Departure) or not one.holds(now):
            continue
        if concerned([machine], word, one.starts):
            turn = "" if word.unavailable is None or is_leaving(node) else " in its turn"
            jobs = " once its jobs are moved" if word.aggressive else " after its jobs"
            return f"leaves{turn}{jobs if is_busy(node) else ''}: {word.manner}{given(one)}"
    return ""
