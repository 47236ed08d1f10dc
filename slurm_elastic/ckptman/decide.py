"""The decision for each running job, from one look at it and its machines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from slurm_elastic.ckptman.job_settings import MethodChoice
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.model.causes.saves import NoticeGiven
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.actions import SaveJob
from slurm_elastic.policies.checkpoint.checkpoint import (
    DEFAULT_MTTI,
    Never,
    OnNotice,
    Situation,
    fits,
    joint_mtti,
)
from slurm_elastic.policies.checkpoint.threat import (
    CERTAIN,
    PLANNED,
    Cause,
    Response,
    Threat,
    due,
    notices,
)

MOVE, SAVE = "move", "save"
NO_DEADLINE = float("inf")
NO_POLICY = Never()
_MIN_SLACK_S = OnNotice().slack
TRANSPARENT_METHODS = ("criu", "dmtcp", "fake")
"""Methods that save a program that knows nothing of it."""
MIN_UNSAVED_WORK_S = 60.0
"""Seconds of work of a suspended job for which it is not saved once more."""
MIN_FIRST_SAVE_S = 5.0
"""Seconds in which a save is tried whose time nobody has measured yet."""


class JobFacts(Struct, frozen=True, kw_only=True):
    """All that is known of one run. ``situations``: one for each of its machines that differs.

    ``cause``: of what it is to be moved for now (None: nothing), by ``deadline`` at the earliest
    (None: not known), for ``reason``; ``notice``: the kind of
    a cloud's notice that has no reason of its own. ``threatened``: its nodes that are to be left;
    none where only its time limit ends, or it is preempted. ``can_move``: it is a batch job, which
    alone can be requeued. ``probe``: it is time to see whether it can be saved.
    ``stays_suspended``: it is suspended, and has done no work that a save of now would keep.
    """

    run: JobRun
    choice: MethodChoice
    situations: tuple[Situation, ...]
    cause: Cause | None = None
    threatened: tuple[str, ...] = ()
    deadline: float | None = None
    reason: str = ""
    notice: str = ""
    can_move: bool = True
    probe: bool = False
    stays_suspended: bool = False

    @property
    def at_risk(self) -> float:
        """Node-seconds of work that would be lost now."""
        since = max((s.since for s in self.situations), default=self.run.started)
        now = max((s.now for s in self.situations), default=since)
        return max(now - since, 0.0) * len(self.run.nodes)


class JobPlan(Struct, frozen=True, kw_only=True):
    """``move`` the job off its threatened nodes, saved first if ``saves``; ``save``: it goes on."""

    kind: str
    facts: JobFacts
    saves: bool
    reason: str

    @property
    def order(self) -> tuple[float, float]:
        """Moves by deadline, the one with most work at risk first; what has none comes last."""
        urgent = self.facts.deadline if self.kind == MOVE else None
        return (NO_DEADLINE if urgent is None else urgent, -self.facts.at_risk)


def decide(snapshot: Snapshot, slack: float) -> tuple[JobPlan, ...]:
    """The plans for now, the most urgent first; ``slack`` seconds are kept before a deadline."""
    return plan_all(gather(snapshot), slack)


def plan_all(jobs: Iterable[JobFacts], slack: float) -> tuple[JobPlan, ...]:
    """The plans for these jobs."""
    found = [plan for facts in jobs if (plan := _plan(facts, slack)) is not None]
    return tuple(sorted(found, key=lambda plan: (plan.kind != MOVE, plan.order)))


def _plan(facts: JobFacts, slack: float) -> JobPlan | None:
    action = _first_action(facts)
    if facts.cause is not None and facts.can_move:
        reason = facts.reason
        if action is not None:
            is_same = isinstance(action.cause, NoticeGiven) and action.cause.notice == facts.notice
            reason = action.reason if is_same else f"{reason}: {action.reason}"
        # A run that is over at that time for certain is saved whatever its policy says.
        saves = (action is not None or facts.cause in CERTAIN) and all(
            fits(facts.deadline, s.now, s.dump, slack) for s in facts.situations
        )
        return JobPlan(kind=MOVE, facts=facts, saves=saves, reason=reason)
    if facts.stays_suspended:
        return None
    if action is None and facts.probe:
        return JobPlan(
            kind=SAVE, facts=facts, saves=True, reason="a first save tells whether it can"
        )
    if action is None:
        return None
    return JobPlan(kind=SAVE, facts=facts, saves=True, reason=action.reason)


def _first_action(facts: JobFacts) -> SaveJob | None:
    choice = facts.choice
    if choice.method == "none" or (choice.move_only and facts.cause is None):
        return None
    found = (choice.policy.decide(situation) for situation in facts.situations)
    return next((action for action in found if action is not None), None)


# the facts


def gather(snapshot: Snapshot) -> list[JobFacts]:
    """The facts of jobs that run on nodes of ours, or on any node that is threatened, and are not
    on their way already.
    """
    return [
        _facts(snapshot, job, snapshot.choices[job.id])
        for job in snapshot.jobs.values()
        if job.id in snapshot.choices and (job.id, job.restarts) not in snapshot.migrations
    ]


def _facts(snapshot: Snapshot, job: SlurmJob, choice: MethodChoice) -> JobFacts:
    dump = snapshot.saves.get(job.id, snapshot.expected)
    standing = due(snapshot.threats, job, dump, snapshot.slack, snapshot.now)
    # What is planned moves only what can be saved: the rest loses nothing by staying to the end.
    leaving = [
        t for t in standing
        if t.answer is Response.MOVE and (t.cause not in PLANNED or choice.method != "none")
    ]  # fmt: skip
    left = {t.what for t in leaving}
    return JobFacts(
        run=run_of(job, choice),
        choice=choice,
        situations=tuple(_situations(snapshot, job, choice, standing)),
        cause=leaving[0].cause if leaving else None,
        threatened=tuple(node for node in job.nodes if node in left),
        deadline=leaving[0].until if leaving else None,
        reason=leaving[0].why if leaving else "",
        notice=leaving[0].notice if leaving else "",
        can_move=job.batch,
        probe=_needs_probe(snapshot, job, choice),
        stays_suspended=job.is_suspended and not _has_unsaved_work(snapshot, job),
    )


def _has_unsaved_work(snapshot: Snapshot, job: SlurmJob) -> bool:
    """Whether a job that a person has suspended did work since its last save."""
    # One that Slurm has suspended for another job is not resumed for a save.
    if not job.is_suspended_by_person:
        return False
    saves = (i.taken for i in snapshot.images.get(job.id, ()) if i.attempt == job.restarts)
    # It is resumed for the next save, which has it do some more: that alone is no work to save.
    return job.suspended - max(saves, default=job.start) > MIN_UNSAVED_WORK_S


def _needs_probe(snapshot: Snapshot, job: SlurmJob, choice: MethodChoice) -> bool:
    """Whether nothing is known yet of a job that is to be saved some day, and is transparent to its
    method.
    """
    # One that saves itself may do so when it wants, or end by the signal: it is not tried.
    if job.is_suspended or not is_transparent(choice) or snapshot.now - job.start < snapshot.probe:
        return False
    verdict = snapshot.unsavable.get(job.id)
    return job.id not in snapshot.images and (verdict is None or verdict.attempt != job.restarts)


def is_transparent(choice: MethodChoice) -> bool:
    """Whether a job is to be saved some day, by a method of which its program knows nothing."""
    return choice.method in TRANSPARENT_METHODS and bool(
        choice.renewals or choice.policy != NO_POLICY
    )


def run_of(job: SlurmJob, choice: MethodChoice) -> JobRun:
    """The run of a job, as a checkpoint method wants it."""
    return JobRun(
        job=job.id,
        label=job.label,
        attempt=job.restarts,
        user=job.user,
        uid=job.uid,
        gid=job.gid,
        nodes=job.nodes,
        partition=job.partitions[0] if job.partitions else "",
        started=job.start,
        options=choice.options,
        directory=job.directory,
    )


def _save_seconds(snapshot: Snapshot, job: int, threats: Sequence[Threat]) -> float:
    """Seconds that the next save of the job may take."""
    dump = snapshot.saves.get(job, snapshot.expected)
    ends = [threat.until for threat in threats if threat.until is not None]
    if job in snapshot.saves or not ends:
        return dump
    # A guess about a first save is no reason not to try, as there is nothing else to go on from: it
    # is taken to fit as long as there are some seconds for it.
    left = min(ends) - snapshot.now - max(snapshot.slack, _MIN_SLACK_S)
    return min(dump, max(left, MIN_FIRST_SAVE_S))


def _situations(
    snapshot: Snapshot, job: SlurmJob, choice: MethodChoice, threats: Sequence[Threat]
) -> Iterable[Situation]:
    """One for each of its machines that differs from the others in what a policy looks at."""
    own = [i for i in snapshot.images.get(job.id, ()) if i.attempt == job.restarts]
    last = max(own, key=lambda image: image.taken, default=None)
    mtti = _mtti(snapshot, job)
    seen = set()
    for node in job.nodes:
        machine = snapshot.machine_of.get(node)
        standing = [t for t in threats if t.what == node]
        lease = snapshot.leases.get(node, 1.0)
        key = machine and (machine.instance.launched, machine.instance.offer_key, lease)
        if not standing and key in seen:
            continue
        seen.add(key)
        launched = machine.instance.launched if machine else job.start
        offer = (machine.instance.instance_type, machine.instance.zone) if machine else ("", "")
        yield Situation(
            job=str(job.id),
            now=snapshot.now,
            launched=launched,
            started=job.start,
            last=last.taken if last else None,
            cost=last.seconds if last else 0.0,
            dump=_save_seconds(snapshot, job.id, threats),
            prices=snapshot.prices.get(offer, ()),
            bid=snapshot.bid,
            notices=notices(standing, snapshot.now),
            mtti=mtti,
            lease=lease,
            blocking=choice.blocking,
        )


def _mtti(snapshot: Snapshot, job: SlurmJob) -> float | None:
    """The mean time of the job, which is interrupted with the first of its machines that is taken.
    A machine of which nothing is known counts as the policy has it.
    """
    machines = [snapshot.machine_of.get(node) for node in job.nodes]
    offers = [machine.instance.offer_key if machine else "" for machine in machines]
    times = [snapshot.mtti.get(offer, DEFAULT_MTTI) for offer in offers]
    return joint_mtti(times) if times else None
