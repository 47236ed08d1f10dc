"""Jobs as sbatch takes them, and what their users do with them later, drawn for a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.clouds import CloudSettings
from tests.chaos.drawn_site import is_sold, spot_nodes

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

NUMBERS = 100
"""Between the numbers of two jobs, for the tasks of arrays."""
STRANGE = (
    "train", "a b", "x\nUserId=root(0) JobState=RUNNING", "n[1-3],m", "JobId=1", "\u4efb\u52a1 \u00e9", "$(id);'",
    "y" * 10_000, "%s%n{0}", "|", "",
)  # fmt: skip
SPOT_OK = "spot=ok"
COMMENTS = (
    "", "", "ckpt=none", "ckpt=fake", "ckpt=fake,limit", "ckpt=criu,tcp=close", "ckpt=nothing,x=1",
    "ckpt=", "data=120G", "ckpt=signal,saved=file:state", SPOT_OK, f"ckpt=none;{SPOT_OK}",
)  # fmt: skip
USERS = ("alice", "bob", "carol")
LIMITS = (None, None, 600, 3600, 86400)
LENGTHS = (20.0, 60.0, 90.0, 300.0)


class DrawnJob(NamedTuple):
    """``among``: the nodes that Slurm may choose for it."""

    among: Sequence[str]
    count: int
    length: float
    fields: Mapping[str, Any]


def draw_job(rng: random.Random, stage: Stage, number: int, cloud: str) -> DrawnJob | None:
    """None if Slurm would refuse it, as no nodes fit."""
    settings = stage.config.cloud(cloud)
    pools = [p for p in stage.config.pools if p.cloud == cloud]
    shape = rng.choice(pools)
    fields: dict[str, Any] = {
        "partitions": (settings.partition_name,),
        "name": rng.choice(STRANGE),
        "comment": rng.choice((*COMMENTS, *STRANGE)) if rng.random() < 0.4 else "",
        "user": rng.choice(USERS),
        "uid": 1000,
        "account": rng.choice((stage.config.who_of(settings).accounts or ("physics",))[:2]),
        "requeue": rng.random() < 0.8,
        "limit": rng.choice(LIMITS),
        "priority": 1,
        "reason": "Resources",
        **_size(rng, shape),
    }
    if rng.random() < 0.2:
        fields["partitions"] += tuple(
            c.partition_name for c in stage.config.clouds if c.name != cloud
        )
    in_partitions = [
        p for p in stage.config.pools
        if stage.config.cloud(p.cloud).partition_name in fields["partitions"]
    ]  # fmt: skip
    among = [
        n
        for p in in_partitions
        if _fits(p, fields) and is_sold(stage.config, p)
        for n in expand(p.nodes)
    ]
    if among and rng.random() < 0.1:
        fields["excluded"] = (rng.choice(among),)
    count = rng.choice((1, 1, 1, 2, 3))
    if among and rng.random() < 0.1:
        among = sorted(rng.sample(among, min(count, len(among))))
        fields["required"], count = tuple(among), len(among)
    if _must_stay_off_spot(stage, fields):
        fields["excluded"] = (*fields.get("excluded", ()), *_filtered(stage, fields, among, count))
    if count > _room(stage, among, fields):
        return None
    if _must_stay_off_spot(stage, fields):
        stage.books.off_spot.add(number)
    _times(rng, stage, number, fields)
    return DrawnJob(among, count, rng.choice(LENGTHS), {**fields, "node_count": count})


def _must_stay_off_spot(stage: Stage, fields: Mapping[str, Any]) -> bool:
    """Whether the job must not lose a machine of any of its clouds."""
    if fields["requeue"] or SPOT_OK in fields["comment"].replace(";", " ").split():
        return False
    accounts = [set(stage.config.who_of(c).no_requeue_on_spot) for c in _clouds_of(stage, fields)]
    return all(of.isdisjoint(("all", fields["account"])) for of in accounts)


def _clouds_of(stage: Stage, fields: Mapping[str, Any]) -> Sequence[CloudSettings]:
    return [c for c in stage.config.clouds if c.partition_name in fields["partitions"]]


def _filtered(
    stage: Stage, fields: Mapping[str, Any], among: Sequence[str], count: int
) -> Iterator[str]:
    """The nodes that the submit filter excludes from a job that must stay off spot machines: of each
    cloud whose other nodes can hold it.
    """
    for cloud in _clouds_of(stage, fields) if "required" not in fields else ():
        pools = [p for p in stage.config.pools if p.cloud == cloud.name]
        names = [n for p in pools for n in spot_nodes(p)]
        others = [n for n in among if stage.nodes[n] == cloud.name and n not in names]
        if len(others) >= count:
            yield from names


def _size(rng: random.Random, pool: PoolSettings) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if rng.random() < 0.4:
        fields["cpus"] = fields["node_cpus"] = rng.randint(1, pool.cpus)
    if rng.random() < 0.4:
        fields["node_memory"] = rng.choice((1, pool.slurm_memory // 2, pool.slurm_memory))
    elif rng.random() < 0.2:
        fields["cpu_memory"] = max(pool.slurm_memory // pool.cpus, 1)
    if pool.gres and rng.random() < 0.6:
        name = rng.choice(sorted(pool.gres))
        key = rng.choice(("gres", "gres", "job_gres"))
        fields[key] = f"gres:{name}:{rng.randint(1, pool.gres[name])}"
    words = (*pool.features, pool.cloud, pool.name)
    if rng.random() < 0.3:
        fields["features"] = rng.choice(("&", "|")).join(rng.sample(words, min(2, len(words))))
    return fields


def _fits(pool: PoolSettings, fields: Mapping[str, Any]) -> bool:
    words = {*pool.features, pool.cloud, pool.name}
    asked = fields.get("features", "")
    join = any if "|" in asked else all
    cpus, memory = fields.get("node_cpus", 1), fields.get("node_memory", 0)
    memory = max(memory, fields.get("cpu_memory", 0) * fields.get("cpus", 1))
    gres = [fields[key].split(":")[1:] for key in ("gres", "job_gres") if key in fields]
    return (
        cpus <= pool.cpus
        and memory <= pool.slurm_memory
        and all(int(of[-1]) <= pool.gres.get(":".join(of[:-1]), 0) for of in gres)
        and (not asked or join(w in words for w in asked.replace("|", "&").split("&")))
    )


def _room(stage: Stage, among: Sequence[str], fields: Mapping[str, Any]) -> int:
    """How many nodes the job may have at most: they are all of one partition."""
    names = set(among) - set(fields.get("excluded", ()))
    clouds = [stage.nodes[n] for n in names]
    return max(map(clouds.count, clouds), default=0)


def _times(rng: random.Random, stage: Stage, number: int, fields: dict[str, Any]) -> None:
    chance = rng.random()
    if chance < 0.15:
        fields["tasks"] = rng.choice((2, 3, 6))
        fields["array"] = number
        fields["max_running_tasks"] = rng.choice((0, 1, 2))
    elif chance < 0.25:
        fields["start"] = fields["eligible"] = stage.now() + rng.choice((60.0, 300.0))
        fields["reason"] = "BeginTime"
        stage.slurm.by_users.add(number)
    elif chance < 0.35 and stage.slurm.queue():
        stage.slurm.after[number] = rng.choice(sorted(stage.slurm.queue()))
        fields["reason"] = "Dependency"


# what users do with their jobs


def change_job(rng: random.Random, stage: Stage) -> str:
    """One order of a user about a job; what it was."""
    jobs = stage.slurm.queue()
    if not jobs or stage.slurm.trouble:
        return ""
    number = rng.choice(sorted(jobs))
    job = jobs[number]
    orders = RUNNING if job.nodes else PENDING
    name = rng.choice(sorted(orders))
    try:
        orders[name](rng, stage, number)
    except SlurmError:
        return ""
    return name


def _cancel(_rng: random.Random, stage: Stage, job: int) -> None:
    stage.books.completed.add(job)
    stage.slurm.finish(job)


def _hold(_rng: random.Random, stage: Stage, job: int) -> None:
    stage.slurm.hold(job)
    stage.slurm.by_users.add(job)


def _release(_rng: random.Random, stage: Stage, job: int) -> None:
    if job in stage.slurm.by_users:
        stage.slurm.release(job)


def _put_off(rng: random.Random, stage: Stage, job: int) -> None:
    stage.slurm.change_pending([job], begin_in=rng.choice((30.0, 200.0)))
    stage.slurm.by_users.add(job)


def _requeue(_rng: random.Random, stage: Stage, job: int) -> None:
    stage.slurm.user_requeues = job
    try:
        stage.slurm.requeue(job)
    finally:
        stage.slurm.user_requeues = 0


def _set_limit(rng: random.Random, stage: Stage, job: int) -> None:
    stage.slurm.change(job, limit=rng.choice(LIMITS))


def _set_requeue(rng: random.Random, stage: Stage, job: int) -> None:
    stage.books.off_spot.discard(job - job % NUMBERS)
    stage.slurm.change(job, requeue=rng.random() < 0.5)


def _rename(rng: random.Random, stage: Stage, job: int) -> None:
    stage.books.off_spot.discard(job - job % NUMBERS)
    stage.slurm.change(job, name=rng.choice(STRANGE), comment=rng.choice(COMMENTS))


def _suspend(_rng: random.Random, stage: Stage, job: int) -> None:
    stage.slurm.suspend(job)
    stage.slurm.by_users.add(job)


def _resume(_rng: random.Random, stage: Stage, job: int) -> None:
    stage.slurm.resume(job)


Order = Callable[[random.Random, "Stage", int], None]
_BOTH: Mapping[str, Order] = {
    "cancelled": _cancel, "another limit": _set_limit, "--requeue changed": _set_requeue,
    "renamed": _rename,
}  # fmt: skip
PENDING: Mapping[str, Order] = {
    **_BOTH, "held": _hold, "released": _release, "put off": _put_off,
}  # fmt: skip
RUNNING: Mapping[str, Order] = {
    **_BOTH, "requeued": _requeue, "suspended": _suspend, "resumed": _resume,
}  # fmt: skip
