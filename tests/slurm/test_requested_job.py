"""The job that options of sbatch ask for, as ``price`` judges it."""

from __future__ import annotations

import pytest

from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.verdict import could_run, need
from slurm_elastic.slurm.client.requested_job import requested_job

GPUS = Pool(
    name="gp", cloud="aws", nodes=("gp1", "gp2"), cpus=4, real_memory=8000,
    gres={"gpu:t4": 2},
)  # fmt: skip
PLAIN = Pool(name="std", cloud="aws", nodes=("pub1",), cpus=4, real_memory=8000)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"gpus-per-node": "1"}, 1),
        ({"gpus-per-node": "t4:2"}, 1),
        ({"gpus-per-node": "3"}, 0),
        ({"gpus": "t4:2"}, 1),
        ({"gpus": "4"}, 2),
        ({"gpus": "2", "gpus-per-node": "1"}, 1),
        ({"gpus-per-task": "1", "ntasks": "4"}, 2),
        ({"gpus-per-task": "a100:1"}, 0),
        ({"gres": "gres:gpu:t4:1"}, 1),
        ({"gpus": "1", "cpus-per-gpu": "4"}, 1),
        ({"gpus": "1", "cpus-per-gpu": "5"}, 0),
        ({"gpus": "2", "cpus-per-gpu": "4"}, 2),
        ({"gpus-per-node": "2", "mem-per-gpu": "4000"}, 1),
        ({"gpus-per-node": "2", "mem-per-gpu": "4001"}, 0),
    ],
)
def test_gpus_in_any_option_need_nodes_with_them(options: dict[str, str], nodes: int) -> None:
    job = requested_job(options, ("aws",))
    assert not could_run(job, PLAIN)
    assert could_run(job, GPUS) is (nodes > 0)
    assert not nodes or need(job, GPUS) == nodes
