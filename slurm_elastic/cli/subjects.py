"""The subjects of ``explain``: nodes, jobs and pools, as Slurm's commands write them.

Nodes and partitions of the site itself are recognised, too; slurm-elastic leaves these alone.
"""

from __future__ import annotations

import contextlib
import re

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.cli import forgotten_jobs
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.model.protocols import Slurm

MAX_EXPLAINED_NODES = 16  # nodes that are explained at once
_NUMBER = re.compile(r"(job:)?[0-9]{1,10}")
_STEP = re.compile(r"(?P<job>[0-9]{1,10}(_[0-9]{1,10})?)\.(batch|extern|interactive|[0-9]{1,10})")
_TASK = re.compile(r"(?P<array>[0-9]{1,10})_(?P<task>[0-9]{1,10})")
_PART = re.compile(r"(?P<job>[0-9]{1,10})\+(?P<offset>[0-9]{1,4})")
_LIST = re.compile(r"[A-Za-z0-9_.,\[\]-]*[,\[][A-Za-z0-9_.,\[\]-]*")


def subjects(config: Config, slurm: Slurm, text: str) -> tuple[str, ...]:
    """The nodes, jobs and pools that ``text`` stands for.

    A node or pool stands for itself, a hostlist for its nodes, and a cloud or its partition for
    its pools. A step (``18.batch``), a task of an array (``18_3``), a part of a heterogeneous job
    (``18+1``) and a job's name become the number of their job (the newest job of that name).
    Raises SlurmElasticError for a wrong or too long hostlist.
    """
    own_nodes = {node for pool in domain_pools(config, expand) for node in pool.nodes}
    if text in own_nodes or any(text == pool.name for pool in config.pools):
        return (text,)
    for names in ([c.name for c in config.clouds], [c.partition_name for c in config.clouds]):
        if text in names:
            cloud = config.clouds[names.index(text)].name
            return tuple(pool.name for pool in config.pools if pool.cloud == cloud)
    if step := _STEP.fullmatch(text):
        text = step["job"]
    if task := _TASK.fullmatch(text):
        return (_task(config, slurm, int(task["array"]), int(task["task"])),)
    if component := _PART.fullmatch(text):
        # Slurm numbers the parts of a heterogeneous job consecutively.
        return (str(int(component["job"]) + int(component["offset"])),)
    if _LIST.fullmatch(text):
        return _nodes(text)
    return (_newest_of_name(slurm, text) or text,)


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


def _task(config: Config, slurm: Slurm, array: int, task: int) -> str:
    """The job number of a task. Tasks that have not started are one job with the array's number."""
    with contextlib.suppress(SlurmError):  # ``explain`` itself reports that Slurm does not answer
        for job in slurm.jobs(ended=True):
            if (job.array, job.task) == (array, task):
                return str(job.id)
    return str(forgotten_jobs.number_of(config, slurm, f"{array}_{task}") or array)


def _nodes(text: str) -> tuple[str, ...]:
    try:
        nodes = expand(text)
    except HostlistError as error:
        raise SlurmElasticError(str(error)) from error
    if len(nodes) > MAX_EXPLAINED_NODES:
        raise SlurmElasticError(
            f"{text!r} is {len(nodes)} nodes, and at most {MAX_EXPLAINED_NODES} are explained at "
            "once; `slurm-elastic status` shows them all"
        )
    return tuple(nodes)
