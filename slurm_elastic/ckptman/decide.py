"""The decision for each running job, from what is known of it and its machines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from slurm_elastic.ckptman.job_settings import CheckpointPlan
from slurm_elastic.model import JobRun
from slurm_elastic.policies.actions import SaveJob
from slurm_elastic.policies.checkpoint import Situation

MOVE, SAVE = "move", "save"
NEVER = float("inf")


class JobFacts(Struct, frozen=True, kw_only=True):
    """All that is known of one run. ``situations``: one for each of its machines that differs.

    ``threatened``: its nodes that are taken away, at ``deadline`` at the earliest (None: not
    known), for ``reason``. ``can_move``: it is a batch job, which alone can be requeued.
    """

    run: JobRun
    choice: CheckpointPlan
    situations: tuple[Situation, ...]
    threatened: tuple[str, ...] = ()
    deadline: float | None = None
    reason: str = ""
    can_move: bool = True

    @property
    def at_risk(self) -> float:
        """Node-seconds of work that would be lost now."""
        since = max((s.since for s in self.situations), default=self.run.started)
        now = max((s.now for s in self.situations), default=since)
        return max(now - since, 0.0) * len(self.run.nodes)


class Plan(Struct, frozen=True, kw_only=True):
    """``move`` the job off its threatened nodes, saved first if ``saves``; ``save``: it goes on."""

    kind: str
    facts: JobFacts
    saves: bool
    reason: str

    @property
    def order(self) -> tuple[float, float]:
        """Moves by deadline, the one with most work at risk first; what has none comes last."""
        urgent = self.facts.deadline if self.kind == MOVE else None
        return (NEVER if urgent is None else urgent, -self.facts.at_risk)


def decide(jobs: Iterable[JobFacts], slack: float) -> tuple[Plan, ...]:
    """The plans for now, the most urgent first; ``slack`` seconds are kept before a deadline."""
    plans = [plan for facts in jobs if (plan := _plan(facts, slack)) is not None]
    return tuple(sorted(plans, key=lambda plan: (plan.kind != MOVE, plan.order)))


def _plan(facts: JobFacts, slack: float) -> Plan | None:
    action = _first_action(facts)
    if facts.threatened and facts.can_move:
        reason = facts.reason
        if action is not None:
            said = action.reason.startswith(reason)
            reason = action.reason if said else f"{reason}: {action.reason}"
        saves = action is not None and all(
            fits(facts.deadline, s.now, s.dump, slack) for s in facts.situations
        )
        return Plan(kind=MOVE, facts=facts, saves=saves, reason=reason)
    if action is None:
        return None
    return Plan(kind=SAVE, facts=facts, saves=True, reason=action.reason)


def _first_action(facts: JobFacts) -> SaveJob | None:
    choice = facts.choice
    if choice.method == "none" or (choice.move_only and not facts.threatened):
        return None
    found = (choice.policy.decide(situation) for situation in facts.situations)
    return next((action for action in found if action is not None), None)


def fits(deadline: float | None, now: float, dump: float, slack: float) -> bool:
    """Whether a save that takes ``dump`` seconds ends ``slack`` before the deadline."""
    return deadline is None or now + dump + slack <= deadline


def estimate(seconds: Sequence[float], expected: float) -> float:
    """Seconds that the next save may take: a quarter more than the longest of the last three."""
    return max(seconds[:3]) * 1.25 if seconds else expected
