"""The subjects of ``explain``: nodes, jobs and pools, as Slurm's commands write them.

Nodes and partitions of the site itself are recognised, too; slurm-elastic leaves these alone.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.cli.orders import forgotten_jobs
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob

MAX_EXPLAINED_NODES = 16  # nodes that are explained at once
_NUMBER = re.compile(r"(job:)?[0-9]{1,10}")
_JOB = re.compile(
    r"(?P<job>[0-9]{1,10})"
    r"(?:_(?P<task>[0-9]{1,10})|_\[[0-9,:.%-]+\](?:%[0-9]{1,10})?|\+(?P<offset>[0-9]{1,4}))?"
    r"(?:\.(?:batch|extern|interactive|[0-9]{1,10}))?"
)
"""A job, with its task of an array, the waiting tasks of an array or its part of a heterogeneous
job, and with its step.
"""
_TASKS = re.compile(r"_([0-9]+|\[)")
_LIST = re.compile(r"[A-Za-z0-9_.,\[\]-]*[,\[][A-Za-z0-9_.,\[\]-]*")


def subjects(config: Config, slurm: Slurm, text: str) -> tuple[str, ...]:
    """The nodes, jobs and pools that ``text`` stands for.

    A node or pool stands for itself, a hostlist for its nodes, and a cloud or its partition for
    its pools. ``pool:NAME`` and ``cloud:NAME`` are as in orders. A step (``18.batch``), a task of
    an array (``18_3``), its waiting tasks (``18_[3-5]``), a part of a heterogeneous job (``18+1``)
    and a job's name become the number of their job (the newest job of that name).
    Raises ConfigError for a wrong or too long hostlist.
    """
    own_nodes = {node for pool in domain_pools(config, expand) for node in pool.nodes}
    if text in own_nodes or any(text == pool.name for pool in config.pools):
        return (text,)
    kind, _, name = text.partition(":")
    if kind == "pool" and any(name == pool.name for pool in config.pools):
        return (name,)
    if kind == "cloud" and any(name == cloud.name for cloud in config.clouds):
        return tuple(pool.name for pool in config.pools if pool.cloud == name)
    for names in ([c.name for c in config.clouds], [c.partition_name for c in config.clouds]):
        if text in names:
            cloud = config.clouds[names.index(text)].name
            return tuple(pool.name for pool in config.pools if pool.cloud == cloud)
    # A list of waiting tasks looks like a list of nodes, too.
    if _JOB.fullmatch(text):
        return (str(job_number(config, slurm, text)),)
    if _LIST.fullmatch(text):
        return _nodes(text)
    return (_newest_of_name(slurm, text) or text,)


def job_label(text: str) -> str:
    """Parse a job as Slurm's commands write it, for argparse."""
    if not _JOB.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:24]!r} is no job such as 18 or 18_3")
    return text


def job_number(config: Config, slurm: Slurm, label: str) -> int:
    """The number of the job with this ``job_label``."""
    job = _JOB.fullmatch(label)
    if job is None:
        raise ValueError(f"{label!r} is no job")
    number = int(job["job"])
    if job["task"] is not None:
        return _task(config, slurm, number, int(job["task"]))
    # Slurm numbers the parts of a heterogeneous job consecutively. The waiting tasks of an array
    # are one job with the array's number.
    return number + int(job["offset"] or 0)


def queued_job_number(config: Config, slurm: Slurm, label: str) -> int:
    """``job_number`` for commands that act on the job.

    The array's number is also the number of the task that starts last. SlurmElasticError if the
    label names other tasks, because these are over.
    """
    number, tasks = job_number(config, slurm, label), _TASKS.search(label)
    queue: Sequence[SlurmJob] = ()
    with contextlib.suppress(SlurmError):  # the command itself reports that Slurm does not answer
        queue = slurm.jobs(ended=True) if tasks else ()
    job = next((job for job in queue if job.id == number), None)
    if tasks and job is not None and job.task is not None and tasks[1] != str(job.task):
        raise SlurmElasticError(f"{label} is not in Slurm's queue")
    return number


def is_of_site(slurm: Slurm, name: str) -> str:
    """The sentence for a node or partition of the site itself; "" if Slurm has no such name."""
    with contextlib.suppress(SlurmError):
        node = slurm.nodes([name]).get(name)
        if node is not None:
            state = " ".join(sorted(node.states))
            return f"{name} is a node of the site itself ({state}): slurm-elastic leaves it alone"
        states = slurm.partition_states()
        if name in states:
            return (
                f"{name} is a partition of the site itself ({states[name]}): slurm-elastic leaves "
                "it alone"
            )
    return ""


def _newest_of_name(slurm: Slurm, name: str) -> str:
    """The number of the job of this name that was submitted last, ended ones too; "" if none."""
    if _NUMBER.fullmatch(name) or not name.isprintable():
        return ""
    with contextlib.suppress(SlurmError):
        if is_of_site(slurm, name):
            return ""
        same = [job for job in slurm.jobs(ended=True) if job.name == name]
        return str(max(same, key=lambda job: (job.submit, job.id)).id) if same else ""
    return ""


def _task(config: Config, slurm: Slurm, array: int, task: int) -> int:
    """The job number of a task. Tasks that have not started are one job with the array's number."""
    with contextlib.suppress(SlurmError):  # ``explain`` itself reports that Slurm does not answer
        for job in slurm.jobs(ended=True):
            if (job.array, job.task) == (array, task):
                return job.id
    return forgotten_jobs.number_of(config, slurm, f"{array}_{task}") or array


def _nodes(text: str) -> tuple[str, ...]:
    try:
        nodes = expand(text)
    except HostlistError as error:
        raise ConfigError(str(error)) from error
    if len(nodes) > MAX_EXPLAINED_NODES:
        raise ConfigError(
            f"{text!r} is {len(nodes)} nodes, and at most {MAX_EXPLAINED_NODES} are explained at "
            "once; `slurm-elastic status` shows them all"
        )
    return tuple(nodes)
