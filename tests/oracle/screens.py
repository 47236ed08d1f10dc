"""Whether the screens say the same of one moment, and what is so.

The functions behind ``status --json`` (which the page shows, too), ``explain``, ``mine``, ``cost``,
``metrics`` and ``doctor`` are called on the run's state; Slurm's own answers are beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.jobs import explain as explaining
from slurm_elastic.cli.operate.status import gather
from slurm_elastic.config import Config
from slurm_elastic.model.admin_comment import NoteKind, note_of
from slurm_elastic.watch.doctor import kept as doctor_kept
from slurm_elastic.watch.door import metrics
from slurm_elastic.watch.door.own_jobs import Subject, narrowed, read_own_jobs, slurm_reading
from slurm_elastic.watch.door.questions import OwnJobsAsk
from slurm_elastic.watch.view import Facts, status_view
from tests.oracle.money import cost

EXPLAINED = 6
"""Jobs of a moment that are explained: each takes as long as a whole status."""


class Answers(NamedTuple):
    """What each screen says at that moment. ``gauges``: by metric, its values by labels."""

    now: float
    facts: Facts
    status: Any
    mine: Mapping[int, Any]
    explained: Mapping[int, Any]
    costs: Mapping[str, Any]
    gauges: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]
    stuck: int
    notes: Mapping[int, str]
    jobs: Mapping[int, Any]
    nodes: Mapping[str, Any]


def answers_of(config: Config, slurm: Any, now: float) -> Answers:
    facts = gather(config, slurm, now)
    everyone = Subject(name="")
    reading, narrow = narrowed(slurm_reading(config, slurm, now, subject=everyone), facts, everyone)
    mine = {
        row.id: row
        for row in read_own_jobs(
            config, OwnJobsAsk(since=0.0, everyone=True), everyone, reading, narrow
        ).jobs
    }
    jobs = {job.id: job for job in slurm.jobs()}
    return Answers(
        now=now,
        facts=facts,
        status=status_view(config, facts),
        mine=mine,
        explained=_explained(config, slurm, sorted(jobs)[:EXPLAINED]),
        costs={by: cost(config, by, now) for by in ("job", "cloud", "market")},
        gauges=_gauges(config, slurm, now),
        stuck=doctor_kept.examine(config, slurm, now)[1],
        notes={job: note_of(text, NoteKind.WAIT) for job, text in slurm.admin_comments().items()},
        jobs=jobs,
        nodes=slurm.nodes(),
    )


def _explained(config: Config, slurm: Any, numbers: Sequence[int]) -> dict[int, Any]:
    found = {}
    for number in numbers:
        try:
            found[number] = next(explaining.explanations(config, slurm, str(number)))
        except SlurmElasticError as error:
            found[number] = str(error)
    return found


def _gauges(
    config: Config, slurm: Any, now: float
) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    families = metrics.families(config, now, metrics.node_states(config, now, slurm))
    return {
        family.name.removeprefix(metrics.PREFIX): {
            tuple(sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in families
    }


def wrongs(config: Config, said: Answers, *, judges_stuck: bool = True) -> Iterator[str]:
    """What differs between the screens, or from Slurm. ``judges_stuck``: also which jobs never
    start by themselves.
    """
    if said.facts.ledger_error is not None:
        return
    yield from _of_machines(config, said)
    yield from _of_money(said)
    for job in said.jobs.values():
        yield from _of_job(said, job, judges_stuck=judges_stuck)
    yield from _of_queue(said)
    if judges_stuck:
        yield from _of_stuck(said)


# machines


def _of_machines(config: Config, said: Answers) -> Iterator[str]:
    rows = said.status.instances
    live = sorted(m.instance.id for m in said.facts.machines if not m.has_ended)
    if (ids := sorted(row.id for row in rows)) != live:
        yield f"status shows machines {ids}, on record are {live}"
    opened = Counter[str]()
    for launch in said.facts.open_launches:
        opened[launch.cloud] += len(launch.nodes)
    by_cloud = Counter(row.cloud for row in rows)
    metered = Counter[str]()
    for labels, value in said.gauges["machines"].items():
        metered[dict(labels)["cloud"]] += int(value)
    if metered != by_cloud:
        yield f"metrics have machines {dict(metered)}, status {dict(by_cloud)}"
    for cloud in said.status.clouds:
        if cloud.machines != by_cloud[cloud.name] + opened[cloud.name]:
            yield f"status has {cloud.machines} machines of {cloud.name}, and {by_cloud[cloud.name]} rows"
        states = Counter[str]()
        for pool in said.status.pools:
            states.update(pool.states if pool.cloud == cloud.name else {})
        if states != Counter(cloud.states):
            yield f"status has {cloud.name} {cloud.states}, its pools {dict(states)}"
    if said.status.site.machines != sum(cloud.machines for cloud in said.status.clouds):
        yield f"status has {said.status.site.machines} machines in all"
    yield from _of_nodes(config, said)
    yield from _of_jobs_on_machines(said)


def _of_nodes(config: Config, said: Answers) -> Iterator[str]:
    """The states of nodes are those of the metrics, and of as many nodes as there are."""
    metered = Counter[tuple[str, str]]()
    for labels, value in said.gauges["nodes"].items():
        named = dict(labels)
        metered[named["pool"], named["state"].replace("_", " ")] += int(value)
    shown = {
        (pool.name, state): count
        for pool in said.status.pools
        for state, count in pool.states.items()
    }
    if +metered != Counter(shown):
        yield f"metrics have nodes {dict(metered)}, status {shown}"
    for pool in config.pools:
        if sum(n for (name, _), n in shown.items() if name == pool.name) != len(expand(pool.nodes)):
            yield f"status has {shown}, pool {pool.name} has {pool.nodes}"


def _of_jobs_on_machines(said: Answers) -> Iterator[str]:
    wanted = {m.instance.id for m in said.facts.machines if m.is_wanted}
    for row in said.status.instances:
        if row.id not in wanted:
            continue  # it ends, and another one may serve its node
        here = sorted(job.id for job in row.jobs)
        there = sorted(job.id for job in said.jobs.values() if row.node in job.nodes)
        if here != there:
            yield f"status has jobs {here} on {row.id} of {row.node}, Slurm {there}"


# money


def _of_money(said: Answers) -> Iterator[str]:
    of_jobs = {line.key: line.micro for line in said.costs["job"].lines if not line.unused}
    whole = {by: answer.micro for by, answer in said.costs.items()}
    if len(set(whole.values())) > 1:
        yield f"the sums of cost differ by their key: {whole}"
    for number, row in said.mine.items():
        if row.micro != of_jobs.get(row.label, 0):
            yield f"job {number} costs {row.micro} by mine, {of_jobs.get(row.label, 0)} by cost"
    for number, explained in said.explained.items():
        row, mine = getattr(explained, "job", None), said.mine.get(number)
        if row is not None and mine is not None and row.micro != mine.micro:
            yield f"job {number} costs {row.micro} by explain, {mine.micro} by mine"
    price = sum(m.instance.price for m in said.facts.machines if not m.has_ended)
    metered = sum(
        v for labels, v in said.gauges["dollars_per_hour"].items() if ("basis", "now") in labels
    )
    if abs(said.status.site.price_now - price) > 1e-9 or abs(metered - price) > 1e-9:
        yield f"${price}/h on record, ${said.status.site.price_now} by status, ${metered} by metrics"


# jobs


def _of_job(said: Answers, job: Any, *, judges_stuck: bool) -> Iterator[str]:
    state = "waiting" if "PENDING" in job.states else "running"
    row = said.mine.get(job.id)
    if row is None or (row.state, row.slurm_state) != (state, " ".join(sorted(job.states))):
        yield f"job {job.id} is {sorted(job.states)}, mine says {row}"
        return
    if sorted(expand(row.nodes) if row.nodes else ()) != sorted(job.nodes):
        yield f"job {job.id} is on {job.nodes}, mine says {row.nodes}"
    explained = said.explained.get(job.id)
    if explained is None:
        return
    if isinstance(explained, str):
        yield f"job {job.id} is not explained: {explained}"
        return
    if not all(word in explained.now for word in job.states):
        yield f"job {job.id} is {sorted(job.states)}, explain says {explained.now}"
    own = explained.job
    if own is not None and not judges_stuck:
        own = replace(own, stuck=row.stuck)
    if own is None or (own.state, own.reason, own.stuck, own.retry_at) != (
        row.state, row.reason, row.stuck, row.retry_at,
    ):  # fmt: skip
        yield f"job {job.id}: mine says {row}, explain {own}"
    if state == "waiting":
        yield from _why(said, job, row, explained, judges_stuck=judges_stuck)


def _why(said: Answers, job: Any, row: Any, explained: Any, *, judges_stuck: bool) -> Iterator[str]:
    """The causes of a wait, by status, mine and explain."""
    partitions = set(job.partitions)
    clouds = {c.name for c in said.status.clouds if c.partition in partitions}
    pools = [pool for pool in said.status.pools if pool.cloud in clouds]
    verdicts = {v.pool: v for v in explained.verdicts if v.cloud in clouds}
    shut = {pool.name for pool in pools if pool.shut}
    free = {v.pool for v in verdicts.values() if not v.predicate}
    if both := sorted(shut & free):
        yield f"job {job.id}: status says {both} start nothing, explain that they may"
    waiting = next((w for w in said.status.queue.jobs if w.id == job.id), None)
    if waiting is None:
        yield f"job {job.id} waits, status does not list it"
        return
    if judges_stuck and waiting.stuck != row.stuck:
        yield f"job {job.id}: stuck is {waiting.stuck} by status, {row.stuck} by mine"
    told = any("can never start" in text or "is held" in text for text in explained.attention)
    if judges_stuck and told != row.stuck:
        yield f"job {job.id}: stuck is {row.stuck} by mine, explain says {explained.attention}"
    # A budget of its account or user may bar the job, too, and then mine names that one.
    is_barred = any(
        of.stop and (of.account == job.account or of.user == job.user) for of in said.status.budgets
    )
    # Another cause may keep the job back, too: its row names the cloud and that cause.
    begins = tuple(f"{cloud}{after}" for cloud in clouds for after in (": ", " ("))
    has_own_cause = row.reason.startswith(begins)
    is_shut = bool(pools) and len(shut) == len(pools) and not is_barred and not has_own_cause
    if judges_stuck and waiting.why and not row.stuck and is_shut:
        # One names the offer before the cause, the other one the cloud.
        causes = [pool.shut.partition(": ")[2] or pool.shut for pool in pools]
        lacking = [cause for cause in causes if cause not in row.reason]
        if lacking:
            yield f"job {job.id} waits for {lacking} by status, for {row.reason!r} by mine"
    idle = any(pool.states.get("idle") for pool in pools)
    if row.start is not None and row.start.seconds[1] < 1 and waiting.why and not idle:
        yield f"job {job.id} starts now by mine, and waits for {waiting.why!r} by status"


def _of_queue(said: Answers) -> Iterator[str]:
    waiting = sum(job.tasks for job in said.jobs.values() if "PENDING" in job.states)
    running = sum(job.tasks for job in said.jobs.values() if "PENDING" not in job.states)
    queue = said.status.queue
    if (queue.waiting, queue.running) != (waiting, running):
        yield f"{waiting} jobs wait and {running} run, status says {queue.waiting} and {queue.running}"
    if sum(queue.waits_for.values()) != waiting or sum(queue.reasons.values()) != waiting:
        yield f"{waiting} jobs wait, status has {queue.waits_for} and {queue.reasons}"


def _of_stuck(said: Answers) -> Iterator[str]:
    rows = sum(row.count for row in said.status.kept if row.kind == "job" and row.stuck)
    if rows != said.stuck:
        yield f"{rows} jobs are stuck by status, {said.stuck} by doctor"
    by_mine = sum(row.tasks for row in said.mine.values() if row.stuck)
    shown = sum(row.count for row in said.status.kept if row.kind == "job")
    if by_mine != shown:
        yield f"{by_mine} jobs do not start by themselves by mine, {shown} by status"
