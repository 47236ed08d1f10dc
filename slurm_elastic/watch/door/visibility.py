"""Selects the records that a user may see, by the rules of Slurm's PrivateData. Pure functions.

Operators see everything. For other users, the words ``jobs``, ``nodes``, and ``usage`` or
``accounts`` hide the same as in Slurm's own commands: other people's jobs, nodes and accounts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.pool_failures import ConsoleRead
from slurm_elastic.model.directive import LIMITS
from slurm_elastic.model.memory import ChargedRun, Launch
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.pool_order import PoolTerms
from slurm_elastic.policies.waits.situation import MONEY, NODES, Obstacles
from slurm_elastic.state.audit_trail import job_subject, jobs_of, nodes_of
from slurm_elastic.state.ledger import Decision, Machine
from slurm_elastic.watch.door.questions import Chain, ChainAsk, PriceAsk
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.view.checkpoints import CheckpointFacts
from slurm_elastic.watch.view.day import DaySpan, DayView, day_view

T = TypeVar("T")
JOBS = "jobs"
HIDING = frozenset({JOBS, NODES}) | MONEY  # the words of PrivateData that matter to us
_OFFERS = ("ranked", "behind", "refused", "rejected")
"""The details of a decision about offers alone."""


class Viewer(Struct, frozen=True, kw_only=True):
    """A user who is no operator: the ``hidden`` parts (of HIDING), own ``jobs`` and ``nodes``."""

    uid: int
    hidden: frozenset[str]
    jobs: frozenset[int] = frozenset()
    nodes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, uid: int, hidden: Collection[str], jobs: Iterable[SlurmJob]) -> Viewer:
        """A viewer with the jobs that Slurm has now."""
        own_jobs = [job for job in jobs if job.uid == uid]
        return cls(
            uid=uid,
            hidden=frozenset(hidden) & HIDING,
            jobs=frozenset(job.id for job in own_jobs),
            nodes=frozenset(node for job in own_jobs for node in job.nodes),
        )

    def hides(self, *kinds: str) -> bool:
        """Whether any part of these ``kinds`` is hidden from the user."""
        return not self.hidden.isdisjoint(kinds)

    @property
    def hidden_names(self) -> tuple[str, ...]:
        """The hidden parts, in words for people."""
        return tuple(sorted(self.hidden))


def public_facts(facts: Facts) -> Facts:
    """The facts for a user from whom Slurm hides nothing. Consoles are for operators alone."""
    return replace(facts, consoles={}) if facts.consoles else facts


def seen_facts(facts: Facts, viewer: Viewer) -> Facts:
    """The part of the facts that ``viewer`` may see, never with consoles."""
    facts = public_facts(facts)
    if not viewer.hidden:
        return facts
    checkpoints = facts.checkpoints
    if viewer.hides(*MONEY):
        directives = tuple(d for d in facts.directives if not d.word.is_limit)
        facts = replace(facts, payers={}, spent={}, directives=directives)
    if viewer.hides(NODES):
        directives = tuple(d for d in facts.directives if not d.word.node_names)
        facts = replace(facts, holds=(), directives=directives)
    return replace(
        facts,
        obstacles=_seen_obstacles(facts.obstacles, viewer),
        requeued=_of_seen_jobs(facts.requeued, viewer),
        machines=_seen_machines(facts.machines, viewer),
        stopped=_seen_machines(facts.stopped, viewer),
        open_launches=_seen_launches(facts.open_launches, viewer),
        checkpoints=None if checkpoints is None else _seen_checkpoints(checkpoints, viewer),
        private=viewer.hidden_names,
    )


def _of_seen_jobs(rows: Mapping[int, T], viewer: Viewer) -> dict[int, T]:
    """The rows of the jobs that the viewer may see, by job."""
    return {job: rows[job] for job in rows if not viewer.hides(JOBS) or job in viewer.jobs}


def day_seen(
    machines: Sequence[Machine],
    runs: Iterable[ChargedRun],
    now: float,
    span: DaySpan,
    viewer: Viewer | None,
) -> DayView:
    """The view of one day or of several days that ``viewer`` may see (None: all)."""
    if viewer is None or not viewer.hidden:
        return day_view(machines, runs, now, span=span)
    visible_runs = (run for run in runs if not viewer.hides(JOBS) or run.uid == viewer.uid)
    return day_view(_seen_machines(machines, viewer), visible_runs, now, viewer.hidden_names, span)


def _seen_machines(machines: Iterable[Machine], viewer: Viewer) -> tuple[Machine, ...]:
    shown = (m for m in machines if not viewer.hides(NODES) or _is_own(m, viewer))
    return tuple(_without_others(m, viewer) for m in shown)


def _is_own(machine: Machine, viewer: Viewer) -> bool:
    live = not machine.has_ended and machine.instance.node in viewer.nodes
    return live or not viewer.jobs.isdisjoint(machine.jobs)


def _without_others(machine: Machine, viewer: Viewer) -> Machine:
    if viewer.hides(JOBS):
        machine = replace(machine, jobs=_own(machine.jobs, viewer))
    return replace(machine, accounts={}) if viewer.hides(JOBS, *MONEY) else machine


def _seen_launches(launches: Iterable[Launch], viewer: Viewer) -> tuple[Launch, ...]:
    visible_launches = []
    for launch in launches:
        if viewer.hides(NODES) and viewer.jobs.isdisjoint(launch.jobs):
            continue
        jobs = _own(launch.jobs, viewer) if viewer.hides(JOBS) else launch.jobs
        accounts = {} if viewer.hides(JOBS, *MONEY) else launch.accounts
        visible_launches.append(replace(launch, jobs=jobs, accounts=accounts))
    return tuple(visible_launches)


def _seen_checkpoints(facts: CheckpointFacts, viewer: Viewer) -> CheckpointFacts:
    if viewer.hides(JOBS):
        facts = replace(
            facts,
            images=tuple(i for i in facts.images if i.job in viewer.jobs),
            unsavable=tuple(v for v in facts.unsavable if v.job in viewer.jobs),
            migrations=tuple(r for r in facts.migrations if r.run.uid == viewer.uid),
        )
    if viewer.hides(NODES):
        warned = tuple(w for w in facts.warned if w.notice.node in viewer.nodes)
        facts = replace(facts, warned=warned)
    return facts


def refusal(ask: ChainAsk, viewer: Viewer) -> str:
    """Why ``viewer`` may see nothing about the subject; "" if some of it is visible."""
    # Job 0 is not submitted yet: it belongs to nobody.
    number = int(ask.name) if ask.about == "job" else 0
    if number and viewer.hides(JOBS) and number not in viewer.jobs:
        return (
            f"job {ask.name} is not one of your jobs that Slurm still has, and slurm.conf "
            "(PrivateData=jobs) hides other users' jobs"
        )
    if ask.about == "node" and viewer.hides(NODES) and ask.name not in viewer.nodes:
        return f"none of your jobs is on {ask.name}, and slurm.conf (PrivateData=nodes) hides nodes"
    return ""


def own_ask(ask: PriceAsk, viewer: Viewer, user: str) -> PriceAsk:
    """The question for a new job of ``user``, who asks, and without account.

    A forecast for another user or account would reveal how long their jobs ran.
    """
    if not viewer.hides(JOBS):
        return ask
    return replace(ask, job=replace(ask.job, id=0, user=user, account=""))


def seen_chain(chain: Chain, viewer: Viewer) -> Chain:
    """The part of a chain of decisions that ``viewer`` may see, never with consoles."""
    shown = tuple(d for d in chain.decisions if not isinstance(d.cause, ConsoleRead))
    if len(shown) < len(chain.decisions):
        chain = replace(chain, decisions=shown)
    if not viewer.hidden:
        return chain
    visible_decisions = (_seen_decision(decision, viewer) for decision in chain.decisions)
    return Chain(
        decisions=tuple(decision for decision in visible_decisions if decision is not None),
        machines=_seen_machines(chain.machines, viewer),
        obstacles=_seen_obstacles(chain.obstacles, viewer),
        private=viewer.hidden_names,
        labels={
            job: label
            for job, label in chain.labels.items()
            if not viewer.hides(JOBS) or job in viewer.jobs
        },
    )


def seen_terms(table: Sequence[PoolTerms], viewer: Viewer) -> tuple[PoolTerms, ...]:
    """The terms, without causes that may reveal money or machines of other users."""
    if not viewer.hides(NODES, *MONEY):
        return tuple(table)
    hidden = Quoted(text="it cannot sell now")
    return tuple(
        row if row.unavailable is None else replace(row, unavailable=hidden) for row in table
    )


def _seen_obstacles(obstacles: Obstacles, viewer: Viewer) -> Obstacles:
    seen = obstacles.without(viewer.hidden)
    return replace(
        seen,
        unhelped=tuple(
            row for row in seen.unhelped if not viewer.hides(JOBS) or row.job in viewer.jobs
        ),
        job_holds=_of_seen_jobs(seen.job_holds, viewer),
    )


def _seen_decision(decision: Decision, viewer: Viewer) -> Decision | None:
    """The visible part of a decision, or None.

    A decision about several jobs keeps the viewer's own jobs and loses its figures by job.
    """
    if decision.correlation == LIMITS and viewer.hides(*MONEY):
        return None
    jobs = jobs_of(decision)
    own_jobs = _own(jobs, viewer)
    if viewer.hides(NODES) and not own_jobs and not viewer.nodes.issuperset(nodes_of(decision)):
        return None
    if not viewer.hides(JOBS) or (own_jobs and len(own_jobs) == len(jobs)):
        return decision
    if jobs and not own_jobs:
        return None
    foreign_jobs = {job_subject(job) for job in jobs} - {job_subject(job) for job in own_jobs}
    detail = {k: v for k, v in (decision.detail or {}).items() if k in _OFFERS}
    return replace(
        decision,
        subjects=tuple(s for s in decision.subjects if s not in foreign_jobs),
        detail=detail or None,
    )


def _own(jobs: Iterable[int], viewer: Viewer) -> tuple[int, ...]:
    return tuple(job for job in jobs if job in viewer.jobs)
