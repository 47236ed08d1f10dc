"""Why a pending job waits, and the change that helps. Pure.

``status``, ``mine``, ``explain``, ``price``, ``doctor``, the page and the notes on jobs ask this
module alone, so they cannot disagree. They differ only in how much of a ``Wait`` they show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.job_holds import cause_of_hold
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words.rows import Actor, Fate
from slurm_elastic.policies.launch.spot_use import SPOT_OK, says_spot_ok
from slurm_elastic.policies.launch.verdict import (
    PREDICATES,
    Asker,
    PoolCase,
    Verdict,
    grouped,
    most_together,
    refused_entry,
    verdicts,
)
from slurm_elastic.policies.launch.waiting import is_limit_fixed, is_unproven, sentence
from slurm_elastic.policies.money.account_budgets import barring
from slurm_elastic.policies.waits.situation import Situation

HEALTH = "health"
OURS = frozenset({"bound", "unhelped", HEALTH})
"""Predicates that fail because of us or of the clouds: the job waits for them to pass."""
PASSING = {
    "in use": "nodes in use",
    "reserved": "nodes reserved",
    "partition state": "partition closed",
}
"""Short words for predicates that fail because other jobs or the site keep the pool from the job.
If only such predicates fail, the job does not wait for us. The words show no figures, so that pools
of a cloud share one sentence.
"""
_MISFITS = {
    "requeue": "submit again with --requeue, after scancel {job}",
    "time": "scontrol update jobid={job} timelimit={minutes}",
    "size": "scontrol update jobid={job} numnodes={nodes}",
    "features": "scontrol update jobid={job} features=FEATURE",
    "gres": "submit again with other --gres, after scancel {job}",
    "cpus": "submit again with fewer CPUs a node, after scancel {job}",
    "memory": "scontrol update jobid={job} minmemorynode=MIB",
}
"""Predicates that fail until the job or the pool changes, and the change of the job. Such a pool
does not count.
"""
_FEWER_CPUS = "submit again with fewer tasks or gres, after scancel {job}"
_NO_NODES = "submit again to another partition, after scancel {job}"
_ORDER = {name: number for number, (name, _) in enumerate(PREDICATES)}
_JOB = "\ue000"
"""Stands for the job's name in sentences that several jobs share. It is a character for private
use, so no name or reason contains it.
"""


class Obstacle(NamedTuple):
    """Why a cloud, or some ``pools`` of it, starts no machine for a job."""

    cloud: str
    pools: tuple[str, ...]
    reason: str


class Wait(Struct, frozen=True, kw_only=True):
    """Why a job waits.

    ``fate``: what happens if no person acts. ``text``: the reason, in Slurm's words and their
    meaning or ours. ``actor`` must act, and ``command`` helps. ``is_meant``: a person holds the job
    on purpose. ``verdicts``: on each pool of the job's partitions.

    ``obstacles``: why our pools start no machine for the job; empty if one may, or if the job waits
    for something else. ``is_ours_only``: all of its partitions are ours. ``is_busy``: jobs run on
    nodes of its partitions, which it may get later. ``retry_at``: when a sold-out cloud of it,
    ``retry_cloud``, is asked again (Unix time; None: no cloud is sold out).
    """

    fate: Fate
    text: str
    actor: Actor
    command: str = ""
    is_meant: bool = False
    verdicts: tuple[Verdict, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    is_ours_only: bool = False
    is_busy: bool = False
    retry_at: float | None = None
    retry_cloud: str = ""

    @property
    def is_stuck(self) -> bool:
        """Whether the job does not start by itself."""
        return self.fate is not Fate.STARTS

    @property
    def obstacle_text(self) -> str:
        """The obstacles in a line; "" without any."""
        return "; ".join(f"{name}: {reason}" for name, reason in self.named_obstacles())

    @property
    def reason(self) -> str:
        """The whole reason in a line."""
        if self.is_stuck:
            return f"{'is held' if self.fate is Fate.HELD else 'can never start'}: {self.text}"
        # If nodes of the site may still serve the job, Slurm's reason comes first.
        texts = ("" if self.obstacles and self.is_ours_only else self.text, self.obstacle_text)
        return "; ".join(filter(None, texts))

    @property
    def other_nodes(self) -> str:
        """The nodes that may start the job although no machine starts for it, in a sentence."""
        if not self.obstacles:
            return ""
        servers = ["a node of the site"] if not self.is_ours_only else []
        servers += ["a running machine"] if self.is_busy else []
        return f"{' or '.join(servers)} starts it as soon as it is free" if servers else ""

    @property
    def waits_for_us_alone(self) -> bool:
        """Whether every pool that fits the job fails because of us or of its cloud."""
        fitting = {v.predicate for v in self.verdicts} - _MISFITS.keys()
        return bool(self.obstacles) and fitting <= OURS

    def named_obstacles(self) -> list[tuple[str, str]]:
        """Return each obstacle with its cloud's name, and with its pools if the cloud has several
        obstacles.
        """
        clouds = [obstacle.cloud for obstacle in self.obstacles]
        return [
            (cloud if clouds.count(cloud) == 1 else f"{cloud} ({', '.join(pools)})", reason)
            for cloud, pools, reason in self.obstacles
        ]


class _Request(NamedTuple):
    """All that decides why a job waits. Jobs with equal requests have equal answers.

    ``job``: without the fields that name it. ``hold``: why slurm-elasticd holds it.
    """

    job: SlurmJob
    unhelped: UnhelpedJob | None
    hold: AnyCause | None


class Waits:
    """Answers for many jobs of one situation. Tens of thousands of waiting jobs have few different
    requests, and each is judged once.
    """

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._unhelped = {row.job: row for row in situation.obstacles.unhelped}
        self._judged: dict[_Request, Wait] = {}

    def of(self, job: SlurmJob) -> Wait:
        """Return why the job waits."""
        return named(self.shared(job), job.shell_label)

    def shared(self, job: SlurmJob) -> Wait:
        """Return the answer that all jobs with this request share. ``named`` sets their name."""
        request = self._request(job)
        if request not in self._judged:
            self._judged[request] = _judge(request, self._situation)
        return self._judged[request]

    def of_all_pools(self, job: SlurmJob) -> tuple[Verdict, ...]:
        """Return the verdict on each pool, also of partitions that the job does not list."""
        asker = _asker(self._request(job), self._situation)
        judged = verdicts(asker, self._situation.cases)
        return tuple(_named_verdict(verdict, job.shell_label) for verdict in judged)

    def _request(self, job: SlurmJob) -> _Request:
        # The rules see these fields alone. A rule that reads another field fails its own test, and
        # can never give different answers to equal requests.
        is_fixed = is_limit_fixed(job, self._situation.fixed_arrays)
        has_begin = job.restarts > 0 or job.wait_reason.is_begin_time
        anonymous = replace(
            job, id=0, name="", uid=-1, gid=-1, directory="", output="",
            error_output="", priority=0, submit=0.0, nodes=(), licenses="", allocated="",
            tasks=1, task_list="", task=None, max_running_tasks=0, het_job=0, killed_by=0,
            end=0.0, limit_ends_at=0.0, preempted=0.0, suspended=0.0,
            comment=SPOT_OK if says_spot_ok(job.comment) else "",
            array=job.array if is_fixed else 0, restarts=min(job.restarts, 1),
            start=job.start if has_begin else 0.0, eligible=job.eligible if has_begin else 0.0,
        )  # fmt: skip
        hold = cause_of_hold(job, self._situation.obstacles.job_holds)
        return _Request(anonymous, self._unhelped.get(job.id), hold)


def judge(job: SlurmJob, situation: Situation) -> Wait:
    """Return why the job waits."""
    return Waits(situation).of(job)


def named(wait: Wait, label: str) -> Wait:
    """Return the answer with ``label`` as the job's name in all commands."""
    return replace(
        wait,
        text=_with_name(wait.text, label),
        command=_with_name(wait.command, label),
        verdicts=tuple(_named_verdict(verdict, label) for verdict in wait.verdicts),
        obstacles=tuple(
            obstacle._replace(reason=_with_name(obstacle.reason, label))
            for obstacle in wait.obstacles
        ),
    )


def _with_name(template: str, label: str) -> str:
    return template.replace(_JOB, label)


def named_command(wait: Wait, labels: Sequence[str]) -> str:
    """Return the command for jobs that share an answer."""
    # scancel refuses "12_[3-6],15" (22.05, measured). The other commands need commas.
    command = wait.command.replace(f"scancel {_JOB}", f"scancel {' '.join(labels)}")
    return command.replace(_JOB, ",".join(labels))


def _named_verdict(verdict: Verdict, label: str) -> Verdict:
    return replace(verdict, reason=_with_name(verdict.reason, label))


def _asker(request: _Request, situation: Situation) -> Asker:
    job = request.job
    overdrawn = barring(situation.obstacles.payers, job.account, job.user)
    return Asker(
        job=job,
        now=situation.now,
        groups=situation.groups,
        default=situation.default,
        ours=frozenset(case.partition for case in situation.cases),
        unhelped=request.unhelped,
        fixed_arrays=situation.fixed_arrays,
        label=_JOB,
        barred=overdrawn.reason if overdrawn else "",
        max_times=situation.max_times,
    )


def _judge(request: _Request, situation: Situation) -> Wait:
    asker = _asker(request, situation)
    partitions = set(request.job.partitions)
    listed = [case for case in situation.cases if case.partition in partitions]
    judged = verdicts(asker, listed)
    is_ours_only = {case.partition for case in listed} == partitions
    misfit = _misfit(asker.job, judged, listed) if is_ours_only else None
    wait = _fate(asker, situation.cases, misfit)
    if request.hold is not None:
        # Slurm would name the job's user, who does not know of the hold.
        wait = replace(wait, text=str(request.hold), is_meant=False)
    wait = replace(
        wait,
        verdicts=judged,
        is_ours_only=is_ours_only,
        is_busy=any(case.nodes is not None and case.nodes.in_use > 0 for case in listed),
    )
    if wait.is_stuck:
        return wait
    return _with_retry(replace(wait, obstacles=_obstacles(judged)), situation)


def _obstacles(judged: Sequence[Verdict]) -> tuple[Obstacle, ...]:
    """Return why no pool of the job's partitions starts a machine for it; empty if one may.

    A job waits for us if a pool fails because of us, and no pool could start it now: it usually
    lists a full own cloud beside a public one that is sold out, paused or limited.
    """
    fitting = [verdict for verdict in judged if verdict.predicate not in _MISFITS]
    predicates = {verdict.predicate for verdict in fitting}
    if predicates.isdisjoint(OURS) or not predicates <= OURS | PASSING.keys():
        return ()
    short = [replace(v, reason=PASSING.get(v.predicate, v.reason)) for v in fitting]
    return tuple(Obstacle(*group) for group in grouped(short))


def _with_retry(wait: Wait, situation: Situation) -> Wait:
    times = situation.obstacles.retry_at
    retries = [
        (times[verdict.pool], verdict.cloud)
        for verdict in wait.verdicts
        if verdict.predicate == HEALTH and verdict.pool in times
    ]
    if not retries:
        return wait
    retry_at, cloud = min(retries)
    return replace(wait, retry_at=retry_at, retry_cloud=cloud)


def _fate(asker: Asker, cases: Sequence[PoolCase], misfit: tuple[str, str] | None) -> Wait:
    """Judge by Slurm's reason, and by ``misfit``: why no pool can ever serve the job."""
    job = asker.job
    row, text = job.wait_reason.row, sentence(job)
    command = job.wait_reason.advice(_JOB)
    if job.is_held:
        return Wait(
            fate=Fate.HELD, text=text, actor=row.actor,
            is_meant=row.is_persons and not job.is_held_by_slurm,
            command=command or f"scontrol release {_JOB}",
        )  # fmt: skip
    if is_unproven(job) and row.fate is Fate.NEVER:
        command = ""  # Slurm may start the job as it is
    text, command = misfit or (text, command)
    if row.may_fit_elsewhere:
        text, command = _elsewhere(asker, cases, (text, command))
    if row.fate is Fate.NEVER and not is_unproven(job):
        return Wait(fate=Fate.NEVER, text=text, command=command, actor=row.actor)
    if misfit:
        return Wait(fate=Fate.NEVER, text=text, command=command, actor=Actor.USER)
    return Wait(fate=Fate.STARTS, text=text, command=command, actor=row.actor)


def _misfit(
    job: SlurmJob, judged: Sequence[Verdict], listed: Sequence[PoolCase]
) -> tuple[str, str] | None:
    """Why no pool of the job's partitions can ever serve it, and the command that helps; None if a
    pool can. A partition of the site itself we cannot judge.
    """
    if not judged or any(verdict.predicate not in _MISFITS for verdict in judged):
        return None
    closest = _closest(job, judged, listed)
    case, most = _case_of(closest, listed), _capacity(job, closest, listed)
    template = _MISFITS[closest.predicate]
    if closest.predicate == "size" and most == 0:
        template = _NO_NODES  # a limit or a price lets no node be up
    elif closest.predicate == "size" and job.node_count <= most:
        template = _FEWER_CPUS  # its CPUs or gres need more nodes than it asks for
    return closest.reason, template.format(
        job=_JOB, minutes=int((case.max_time or 0) // 60), nodes=most
    )


def _closest(job: SlurmJob, misfits: Iterable[Verdict], cases: Sequence[PoolCase]) -> Verdict:
    """Return the verdict about the pool that fits the job best: it passes the most predicates, and
    of several such pools it is the largest.
    """
    return max(misfits, key=lambda v: (_ORDER[v.predicate], _capacity(job, v, cases)))


def _elsewhere(asker: Asker, cases: Iterable[PoolCase], reason: tuple[str, str]) -> tuple[str, str]:
    """Add to a reason which of our other partitions can hold the job, or that none can.

    ``reason``: the sentence and its remedy. The remedy stays if no partition of ours can hold the
    job.
    """
    job, (text, command) = asker.job, reason
    other_cases = [case for case in cases if case.partition not in job.partitions]
    if not other_cases:
        return reason
    # Slurm would refuse the command, or place the job on nodes that are not for it.
    refusals = {
        case.partition: refusal for case in other_cases if (refusal := refused_entry(asker, case))
    }
    admitting = [case for case in other_cases if case.partition not in refusals]
    if not admitting:
        closest = max(refusals.values(), key=lambda refusal: _ORDER[refusal.predicate])
        return f"{text}; no other cloud takes it ({closest.cloud}: {closest.reason})", command
    # A job that names another partition would be rejected for its choice, not for its size.
    judged = {
        name: verdicts(
            replace(asker, job=replace(job, partitions=(name,))),
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
        command = f"scontrol update jobid={_JOB} partition={names}"
        return f"{text}; {noun} {names} can hold it", command
    misfits = [verdict for rows in judged.values() for verdict in rows]
    closest = _closest(job, misfits, admitting)
    return f"{text}; no other cloud can hold it ({closest.cloud}: {closest.reason})", command


def _case_of(verdict: Verdict, cases: Iterable[PoolCase]) -> PoolCase:
    return next(case for case in cases if case.pool.name == verdict.pool)


def _capacity(job: SlurmJob, verdict: Verdict, cases: Sequence[PoolCase]) -> int:
    """How many nodes may be up together: of those that could run the job, if only its size does not
    fit, else of the verdict's cloud.
    """
    if verdict.predicate == "size":
        return most_together(job, _case_of(verdict, cases), cases)
    of_cloud = [case for case in cases if case.pool.cloud == verdict.cloud]
    max_nodes = sum(case.most for case in of_cloud)
    limits = [case.cloud_most for case in of_cloud if case.cloud_most is not None]
    return min([max_nodes, *limits])
