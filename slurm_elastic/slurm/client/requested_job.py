"""The pending job that Slurm would make from options of sbatch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.model.gres import gpu_request, gres_count, gres_requests
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.commands.sbatch_test_only import count, mebibytes, seconds


def requested_job(
    options: Mapping[str, str],
    partitions: Sequence[str],
    *,
    requeue: bool = True,
    user: str = "",
    uid: int = -1,
    gid: int = -1,
) -> SlurmJob:
    """The job of these options, by their long names as ``sbatch --verbose`` prints them."""

    def number(name: str, default: int) -> int:
        return count(options.get(name, ""), default)

    each, nodes = number("cpus-per-task", 1), number("nodes", 1)
    tasks = number("ntasks", nodes * number("ntasks-per-node", 1))
    node_gres, job_gres = _node_gres(options), _job_gres(options, tasks)
    gpu_cpus, gpu_memory = number("cpus-per-gpu", 0), mebibytes(options.get("mem-per-gpu", ""))
    gpus = max(_gpus(job_gres), _gpus(node_gres) * nodes)
    return SlurmJob(
        id=0,
        states=frozenset({"PENDING"}),
        user=user,
        uid=uid,
        gid=gid,
        account=options.get("account", ""),
        qos=options.get("qos", ""),
        partitions=tuple(partitions),
        requeue=requeue,
        node_count=nodes,
        cpus=max(tasks * each, nodes, gpus * gpu_cpus),
        node_cpus=max(each * number("ntasks-per-node", 1), number("mincpus", 1)),
        node_memory=mebibytes(options.get("mem", "")),
        cpu_memory=mebibytes(options.get("mem-per-cpu", "")),
        limit=seconds(options.get("time", "")) or None,
        gres_cpus=f"gpu:{gpu_cpus}" if gpu_cpus else "",
        gres_memory=f"gpu:{gpu_memory}" if gpu_memory else "",
        features=options.get("constraint", ""),
        gres=node_gres,
        job_gres=job_gres,
        comment=options.get("comment", ""),
        batch=True,
    )


def _node_gres(options: Mapping[str, str]) -> str:
    """The gres that each node of the job needs at least: the gres of a node and of a task."""
    gpus = (options.get(f"gpus-per-{unit}", "") for unit in ("node", "task"))
    return ",".join(filter(None, (options.get("gres", ""), *map(gpu_request, gpus))))


def _job_gres(options: Mapping[str, str], tasks: int) -> str:
    """The gres that all nodes of the job need together."""
    each = gres_requests(gpu_request(options.get("gpus-per-task", "")))
    of_tasks = (f"{name}:{number * tasks}" for name, number in each)
    return ",".join(filter(None, (gpu_request(options.get("gpus", "")), *of_tasks)))


def _gpus(text: str) -> int:
    return gres_count(gres_requests(text), "gpu")
