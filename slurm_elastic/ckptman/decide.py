"""Decides for each running job: move it, save it in place, or nothing. Pure: no clock, file or
network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.config.job_checkpoint import MethodChoice
from slurm_elastic.model.causes.saves import FirstSave, NoticeGiven
from slurm_elastic.model.causes.threats import JobThreat, MoveReason, ThreatenedSave
from slurm_elastic.model.checkpoint import JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.actions import SaveJob
from slurm_elastic.policies.checkpoint.checkpoint import (
    DEFAULT_MTTI,
    Never,
    OnNotice,
    fits,
    joint_mtti,
)
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.policies.checkpoint.threat import (
    CERTAIN,
    PLANNED,
    Response,
    Threat,
    ThreatCause,
    due,
    horizon,
    notices,
)
from slurm_elastic.providers.base.prices.book import price_key

MOVE, SAVE = "move", "save"
NO_DEADLINE = float("inf")
NO_POLICY = Never()
_MIN_SLACK_S = OnNotice().slack
TRANSPARENT_METHODS = ("criu", "dmtcp", "fake")
"""Methods that save programs that know nothing about checkpoints."""
MIN_UNSAVED_WORK_S = 60.0
"""Seconds of work since its last save from which a suspended job is saved again."""
MAX_CLOCK_STEP_S = 60.0
"""Seconds by which our clock may be set back before we doubt the times of saves."""
MIN_FIRST_SAVE_S = 5.0
"""Seconds that must be left for a first save, whose duration is not known yet."""


class JobFacts(Struct, frozen=True, kw_only=True):
    """Everything known about one run. ``situations``: one for each group of equal machines that it
    runs on.

    ``cause``: why to move it now (None: no reason to), and ``threat``: the same with its details.
    ``deadline``: the earliest end (Unix time; None: unknown). ``threatened``: the nodes to leave;
    none if the job's time limit ends or it is preempted. ``can_move``: it is a batch job; Slurm
    requeues no other jobs. ``probe``: it is time to find out whether it can be saved.
    ``stays_suspended``: it is suspended, and has done no work that a save now would keep.
    ``departs``: an order of a person wants it to leave its nodes.
    """

    run: JobRun
    choice: MethodChoice
    situations: tuple[Situation, ...]
    cause: ThreatCause | None = None
    threatened: tuple[str, ...] = ()
    deadline: float | None = None
    threat: JobThreat | None = None
    can_move: bool = True
    probe: bool = False
    stays_suspended: bool = False
    departs: bool = False

    @property
    def at_risk(self) -> float:
        """Node-seconds of work that would be lost now."""
        since_at = max((situation.since for situation in self.situations), default=self.run.started)
        now = max((situation.now for situation in self.situations), default=since_at)
        return max(now - since_at, 0.0) * len(self.run.nodes)


class JobPlan(Struct, frozen=True, kw_only=True):
    """The decision about one run. ``kind`` is ``move`` (move the job off its threatened nodes,
    after a save if ``saves``) or ``save`` (save the job, and let it continue on its nodes).
    """

    kind: str
    facts: JobFacts
    saves: bool
    cause: MoveReason

    @property
    def order(self) -> tuple[float, float]:
        """Sort key: the earliest deadline first; of two equal deadlines the job with more work at
        risk. Plans without a deadline come last.
        """
        deadline = self.facts.deadline if self.kind == MOVE else None
        return (NO_DEADLINE if deadline is None else deadline, -self.facts.at_risk)


def plan_all(all_facts: Iterable[JobFacts], slack: float) -> tuple[JobPlan, ...]:
    """The plans for these jobs, most urgent first. ``slack``: seconds to keep free before a
    deadline.
    """
    return in_order(plan for facts in all_facts if (plan := _plan(facts, slack)) is not None)


def in_order(job_plans: Iterable[JobPlan]) -> tuple[JobPlan, ...]:
    """The plans, most urgent first."""
    # Moves before saves in place, which have no deadline.
    return tuple(sorted(job_plans, key=lambda plan: (plan.kind != MOVE, plan.order)))


def _plan(facts: JobFacts, slack: float) -> JobPlan | None:
    action = _first_action(facts)
    is_moved_now = facts.can_move and (action is not None or not _may_save_before_move(facts))
    if facts.cause is not None and facts.threat is not None and is_moved_now:
        # A run that certainly ends at the deadline is saved whatever its policy says.
        saves = (action is not None or facts.cause in CERTAIN) and all(
            fits(facts.deadline, situation.now, situation.dump, slack)
            for situation in facts.situations
        )
        cause = _move_reason(facts.threat, action)
        return JobPlan(kind=MOVE, facts=facts, saves=saves, cause=cause)
    # After the move above: a threatened job moves even if a save in place would keep nothing.
    if facts.stays_suspended:
        return None
    if action is None and facts.probe:
        return JobPlan(kind=SAVE, facts=facts, saves=True, cause=FirstSave())
    if action is None:
        return None
    return JobPlan(kind=SAVE, facts=facts, saves=True, cause=action.cause)


def _may_save_before_move(facts: JobFacts) -> bool:
    """Whether the policy, which wants no save now, may still want one in time. The move waits for
    it, because a run gets no periodic saves while it is moved.
    """
    choice = facts.choice
    if choice.method == "none" or choice.policy == NO_POLICY:
        return False
    # slurm-elasticd waits for the begin of a departure.
    if facts.cause in CERTAIN or facts.departs:
        return False
    if facts.deadline is None:
        # Without an image a move could only wait for the end of the node.
        return all(situation.last is None for situation in facts.situations)
    return all(
        facts.deadline - situation.now > horizon(situation.dump) for situation in facts.situations
    )


def _move_reason(threat: JobThreat, action: SaveJob | None) -> MoveReason:
    if action is None:
        return threat
    # The policy answers the threat itself, which gives no reason of its own.
    is_same = (
        isinstance(threat, NoticeGiven)
        and isinstance(action.cause, NoticeGiven)
        and action.cause.notice == threat.notice
    )
    return action.cause if is_same else ThreatenedSave(threat=threat, save=action.cause)


def _first_action(facts: JobFacts) -> SaveJob | None:
    choice = facts.choice
    if choice.method == "none" or (choice.move_only and facts.cause is None):
        return None
    actions = (choice.policy.decide(situation) for situation in facts.situations)
    return next((action for action in actions if action is not None), None)


def gather(snapshot: Snapshot) -> list[JobFacts]:
    """The facts of the jobs that run on our nodes or on threatened ones. Jobs that are being moved
    already are left out.
    """
    return [
        _facts(snapshot, job, snapshot.choices[job.id])
        for job in snapshot.jobs.values()
        # With the restart count: the next run of a moved job may be threatened as well.
        if job.id in snapshot.choices and (job.id, job.restarts) not in snapshot.migrations
    ]


def _facts(snapshot: Snapshot, job: SlurmJob, choice: MethodChoice) -> JobFacts:
    save_s = snapshot.saves.get(job.id, snapshot.expected)
    check_s = verification_seconds(choice.method, snapshot.saves.get(job.id))
    due_threats = due(snapshot.threats, job, save_s, snapshot.slack, snapshot.now, check_s)
    # A planned end moves only jobs that can be saved. The others lose nothing if they stay until
    # the end.
    leaving = [
        threat
        for threat in due_threats
        if threat.answer is Response.MOVE
        and (threat.cause not in PLANNED or choice.method != "none")
    ]
    left_nodes = {threat.target for threat in leaving}
    return JobFacts(
        run=run_of(job, choice),
        choice=choice,
        situations=tuple(_situations(snapshot, job, choice, due_threats)),
        cause=leaving[0].cause if leaving else None,
        threatened=tuple(node for node in job.nodes if node in left_nodes),
        deadline=leaving[0].until if leaving else None,
        threat=leaving[0].reason if leaving else None,
        can_move=job.batch,
        probe=_needs_probe(snapshot, job, choice),
        stays_suspended=job.is_suspended and not _has_unsaved_work(snapshot, job),
        departs=any(threat.cause is ThreatCause.DEPARTURE for threat in leaving),
    )


def _has_unsaved_work(snapshot: Snapshot, job: SlurmJob) -> bool:
    """Whether a job that a person has suspended did work after its last save."""
    # A job that Slurm suspended in favour of another job must not be resumed for a save.
    if not job.is_suspended_by_person:
        return False
    save_times = (
        image.taken for image in snapshot.images.get(job.id, ()) if image.attempt == job.restarts
    )
    # We resume a suspended job for each save, so it works a little. This work must not cause the
    # next save.
    return job.suspended - max(save_times, default=job.start) > MIN_UNSAVED_WORK_S


def _needs_probe(snapshot: Snapshot, job: SlurmJob, choice: MethodChoice) -> bool:
    """Whether we must try to save the job to find out if that is possible. Only for methods that
    need no help from the job.
    """
    # A job that saves itself may do so when it wants, or end by our signal, so we do not try.
    if job.is_suspended or not is_transparent(choice) or snapshot.now - job.start < snapshot.probe:
        return False
    if choice.move_only:
        return False  # after a loss of the machine its files would not fit to the image
    verdict = snapshot.unsavable.get(job.id)
    return job.id not in snapshot.images and (verdict is None or verdict.attempt != job.restarts)


def is_transparent(choice: MethodChoice) -> bool:
    """Whether the job will be saved some day by a method of which its program knows nothing."""
    return choice.method in TRANSPARENT_METHODS and bool(
        choice.renewals or choice.policy != NO_POLICY
    )


def run_of(job: SlurmJob, choice: MethodChoice) -> JobRun:
    """The run of a job, as checkpoint methods expect it."""
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
        submitted=job.submit,
    )


def verification_seconds(method: str, save_s: float | None) -> float:
    """Seconds that the verification of a job's image may take. ``save_s``: the seconds of its next
    save, if they are known from earlier saves.
    """
    # The head reads what the node has written to the same directory. Slurm must not end the run at
    # its time limit meanwhile: it would count as TIMEOUT, and jobs that depend on it would end.
    return save_s if save_s is not None and method in TRANSPARENT_METHODS else 0.0


def _save_seconds(snapshot: Snapshot, job: int, threats: Sequence[Threat]) -> float:
    """Seconds that the next save of the job may take."""
    save_s = snapshot.saves.get(job, snapshot.expected)
    deadlines = [threat.until for threat in threats if threat.until is not None]
    if job in snapshot.saves or not deadlines:
        return save_s
    # The time of a first save is only a guess. Try it if at least MIN_FIRST_SAVE_S are left: the
    # job has no other image.
    left_s = min(deadlines) - snapshot.now - max(snapshot.slack, _MIN_SLACK_S)
    return min(save_s, max(left_s, MIN_FIRST_SAVE_S))


def _situations(
    snapshot: Snapshot, job: SlurmJob, choice: MethodChoice, threats: Sequence[Threat]
) -> Iterable[Situation]:
    """One situation for each of the job's machines, but equal machines share one: for a policy they
    are the same.
    """
    # Only images of this run: an older run's image says nothing about the work since. Nor does an
    # image from the future, which was made before our clock was set back.
    images = [
        image
        for image in snapshot.images.get(job.id, ())
        if image.attempt == job.restarts and image.taken <= snapshot.now + MAX_CLOCK_STEP_S
    ]
    last_image = max(images, key=lambda image: image.taken, default=None)
    mtti = _mtti(snapshot, job)
    yielded_keys = set()
    for node in job.nodes:
        machine = snapshot.machine_of.get(node)
        node_threats = [threat for threat in threats if threat.target == node]
        lease = snapshot.leases.get(node, 1.0)
        key = machine and (
            machine.instance.launched,
            machine.instance.offer_key,
            machine.pool,
            lease,
        )
        # Threatened machines are never equal, because their notices and deadlines may differ.
        if not node_threats and key in yielded_keys:
            continue
        yielded_keys.add(key)
        launched = machine.instance.launched if machine else job.start
        yield Situation(
            job=str(job.id),
            now=snapshot.now,
            launched=launched,
            # Also the start may be from the future.
            started=min(job.start, snapshot.now),
            last=last_image.taken if last_image else None,
            cost=last_image.seconds if last_image else 0.0,
            dump=_save_seconds(snapshot, job.id, threats),
            prices=snapshot.prices.get(price_key(machine), ()) if machine else (),
            bid=snapshot.bids.get(machine.instance.id) if machine else None,
            notices=notices(node_threats, snapshot.now),
            mtti=mtti,
            lease=lease,
            blocking=choice.blocking,
        )


def _mtti(snapshot: Snapshot, job: SlurmJob) -> float | None:
    """The mean time (s) to an interruption of the job: it is interrupted when the first of its
    machines is taken. Machines of unknown offers count with the default of the policies.
    """
    machines = [snapshot.machine_of.get(node) for node in job.nodes]
    offers = [machine.instance.offer_key if machine else "" for machine in machines]
    times = [snapshot.mtti.get(offer, DEFAULT_MTTI) for offer in offers]
    return joint_mtti(times) if times else None
