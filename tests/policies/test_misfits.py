"""What a job reads that fits no pool of its partition: about the pool that fits it best."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words.rows import Fate
from slurm_elastic.policies.launch.verdict import PoolCase
from slurm_elastic.policies.waits.situation import Situation
from slurm_elastic.policies.waits.wait import Wait, judge

JOB = SlurmJob(
    id=7, states=frozenset({"PENDING"}), partitions=("aws",), node_count=10, cpus=10,
    reason="Resources",
)  # fmt: skip


def pool(name: str, nodes: int, cpus: int, **gres: int) -> Pool:
    return Pool(
        name=name, cloud="aws", nodes=tuple(f"{name}{i}" for i in range(nodes)), cpus=cpus,
        real_memory=64_000, gres=gres, markets=(Market.SPOT,),
    )  # fmt: skip


CPU, GPU = pool("cpu", 100, 16), pool("gpu", 4, 8, gpu=4)


def judged(job: SlurmJob, *pools: Pool) -> Wait:
    cases = [PoolCase(pool=p, partition="aws", interactive=True, most=len(p.nodes)) for p in pools]
    wait = judge(job, Situation(now=1000.0, cases=tuple(cases)))
    assert wait.fate is Fate.NEVER
    return wait


@pytest.mark.parametrize("pools", [(CPU, GPU), (GPU, CPU)])
def test_only_pools_that_could_run_the_job_count(pools: tuple[Pool, ...]) -> None:
    wait = judged(replace(JOB, gres="gpu:1"), *pools)
    assert wait.text == "the job asks for 10 nodes, and 4 such can be up together at most"
    assert wait.command == "scontrol update jobid=7 numnodes=4"


def test_more_nodes_are_no_advice_for_a_job_with_too_many_cpus() -> None:
    wait = judged(replace(JOB, node_count=1, cpus=2000), CPU)
    assert wait.text.startswith("the job asks for 125 nodes, and 100 such")
    assert wait.command == "submit again with fewer tasks or gres, after scancel 7"


def test_a_pool_that_may_have_no_node_is_no_reason_to_ask_for_none() -> None:
    case = PoolCase(pool=CPU, partition="aws", interactive=True, most=0)
    wait = judge(JOB, Situation(now=1000.0, cases=(case,)))
    assert wait.fate is Fate.NEVER
    assert wait.command == "submit again to another partition, after scancel 7"
