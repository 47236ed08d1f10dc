"""Machines that leave because their cloud takes them away or an operator sends them away. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.cluster import NoticeKind
from slurm_elastic.model.directive import Departure, Directive, given, kept_replacements
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_leaving, phase
from slurm_elastic.policies.repair.departure import concerned, is_persons
from slurm_elastic.watch.view.checkpoints import CheckpointsView, ThreatView

TAKEN = ("is taken away", "may be taken away")
"""First words of the phrases about machines that their cloud takes away."""
UNSAVABLE = "CANNOT BE SAVED"
"""Marks a job in these phrases that will lose its work."""


def taken_phrases(
    view: CheckpointsView | None, jobs: Mapping[str, Sequence[SlurmJob]]
) -> dict[str, str]:
    """Return a phrase for each node whose machine is taken away.

    The phrase also says what becomes of the node's ``jobs``.
    """
    phrases = {}
    for threat in view.threats if view else ():
        fates = "; ".join(_fates(view, threat.node, jobs.get(threat.node, ()))) if view else ""
        phrases[threat.node] = f"{taken_phrase(threat)}: {fates}" if fates else taken_phrase(threat)
    return phrases


def taken_phrase(threat: ThreatView) -> str:
    """Return what happens to the machine of a threat, and when."""
    if threat.kind == NoticeKind.REBALANCE:
        return f"may be taken away ({threat.kind})"
    if threat.kind == NoticeKind.DEPARTURE:
        return "leaves by an operator's order"
    when = "" if threat.left is None else f" in {brief(threat.left)}" if threat.left > 0 else " now"
    return f"is taken away{when} ({threat.kind})"


def _fates(view: CheckpointsView, node: str, jobs: Iterable[SlurmJob]) -> Iterator[str]:
    """Yield a phrase for each job of the node that is being moved or that cannot be saved."""
    moves = [move for move in view.moves if node in move.nodes and not move.over]
    for move in moves:
        yield (
            f"job {move.label} "
            f"{f'{UNSAVABLE}: {move.note}' if move.hopeless else f'is {move.step}'}"
        )
    moved_jobs = {move.job for move in moves}
    staying_jobs = {job.id for job in jobs} - moved_jobs
    for lost in view.unsavable:
        if lost.job in staying_jobs:
            yield f"job {lost.label} {UNSAVABLE}: {lost.why}"


def departure_phrase(
    directives: Iterable[Directive], machine: Machine, node: SlurmNode, now: float
) -> str:
    """Return how an operator's order has the machine leave once it is up.

    Return "" if no order concerns it, or if a person has drained its node.
    """
    if phase(node) is not Phase.UP or is_persons(node):
        return ""
    for order in directives:
        departure = order.word
        if not isinstance(departure, Departure) or not order.holds(now):
            continue
        if concerned([machine], departure, order.starts):
            turn = "" if departure.unavailable is None or is_leaving(node) else " in its turn"
            jobs = " once its jobs are moved" if departure.aggressive else " after its jobs"
            return f"leaves{turn}{jobs if is_busy(node) else ''}: {departure.manner}{given(order)}"
    return ""


def kept_phrase(
    directives: Iterable[Directive], machine: Machine, node: SlurmNode, now: float
) -> str:
    """Return until when the machine is kept without a job, because it was started ahead of a
    migration. Return "" for any other machine, and for a machine that does not wait for a job.
    """
    if phase(node) is not Phase.UP or is_busy(node) or is_persons(node):
        return ""
    order = kept_replacements(directives, now).get(machine.instance.node)
    if order is None or not isinstance(order.word, Departure) or order.word.replacements is None:
        return ""
    left = brief(order.word.replacements.kept_until - now)
    return f"kept {left} more unless used, as a replacement: {order.word.fact}{given(order)}"


def replacements_phrase(directive: Directive) -> str:
    """Return how many replacements of a migration have started, as the end of its line."""
    word = directive.word
    if not isinstance(word, Departure) or word.replacements is None:
        return ""
    started, wanted = len(word.replacements.machines), word.replacements.wanted
    return f"; {started} of {counted(wanted, 'replacement')} started"
