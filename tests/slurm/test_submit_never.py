"""The submit filter says that a job can never start only if that is proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slurm.test_submit_filter import ALL, LUAS, PARTITION, PARTITIONS, STATIC, config
from slurm.test_submit_times import Partitions, submitted

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import domain_pools
from slurm_elastic.model.cluster import Limits
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.hooks.submit_filter import FILTER, render

LIMITED: Partitions = dict(PARTITIONS) | {
    "onprem": PARTITION | {"max_time": 60, "max_nodes": 3, "max_mem_per_node": 2000}
}
SMALL: Partitions = {
    "static": STATIC | {"total_nodes": 2, "total_cpus": 4, "max_time": 600},
    "onprem": PARTITION | {"max_time": 60, "max_nodes": 3},
}


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


@pytest.mark.parametrize(
    ("job", "partitions", "why"),
    [
        ({"partition": "onprem", "min_nodes": 5}, PARTITIONS,
         "onprem: it asks for 5 nodes, and at most 4 such nodes can run"),
        ({"partition": "onprem", "min_nodes": 4}, LIMITED,
         "onprem: it asks for 4 nodes, and MaxNodes is 3"),
        ({"partition": "onprem", "time_limit": 300}, LIMITED,
         "onprem: it asks for a time of 05:00:00, and MaxTime is 01:00:00"),
        ({"partition": "onprem", "min_mem_per_node": 2001}, LIMITED,
         "onprem: it has no node with all that the job asks for"),
        ({"min_nodes": 12}, SMALL, ("static: it asks for 12 nodes, and at most 2 such nodes can run; "
         "in onprem: it asks for 12 nodes, and at most 4 such nodes can run")),
        ({"min_cpus": 99, "num_tasks": 99}, SMALL,
         ("static: it asks for 99 CPUs, and all its nodes together have 4; "
         "in onprem: it asks for more than all its nodes have")),
        ({"time_limit": 6000}, SMALL,
         ("static: it asks for a time of 4-04:00:00, and MaxTime is 10:00:00; "
         "in onprem: it asks for a time of 4-04:00:00, and MaxTime is 01:00:00")),
        ({"partition": "static", "time_limit": 6000}, SMALL,
         "static: it asks for a time of 4-04:00:00, and MaxTime is 10:00:00"),
        ({"min_mem_per_node": 9000}, {"static": STATIC | {"max_mem_per_node": 8000}},
         "static: it asks for 9000 MB of memory on a node, and MaxMemPerNode is 8000"),
        ({"partition": "static"}, {"static": STATIC | {"total_nodes": 0, "total_cpus": 0}},
         "static: it asks for 1 node, and at most 0 such nodes can run"),
        ({"partition": "static,onprem", "min_nodes": 12}, SMALL,
         "static,onprem: it asks for 12 nodes, and at most 2 such nodes can run"),
    ],
)  # fmt: skip
def test_a_job_over_a_limit_reads_it(
    lua: Callable[[str], str], job: Mapping[str, Any], partitions: Partitions, why: str
) -> None:
    found, message = submitted(lua, {"time_limit": 5, **job}, partitions, config())
    assert message == f"slurm-elastic: this job can never start in partition {why}"
    assert found == job.get("partition", "nil")


@pytest.mark.parametrize(
    "features",
    [
        "pub|big", "[pub|big]", "[pub*1&gpu*1]", "pub*2", "(pub|gpu)&big", "big,gpu", "[op*1]",
        "none*1", "a|b", "[nowhere]",
    ],
)  # fmt: skip
def test_nothing_is_said_of_an_expression_of_features(
    lua: Callable[[str], str], features: str
) -> None:
    for partition in ("public", "onprem", "onprem,public"):
        job = {"partition": partition, "features": features, "time_limit": 5}
        assert submitted(lua, job, PARTITIONS, config()) == (partition, "")


@pytest.mark.parametrize(
    "job",
    [
        # Slurm gives such a job more CPUs instead of more memory for each.
        {"partition": "onprem", "min_mem_per_cpu": 3000},
        # --overcommit: several tasks on a CPU.
        {"partition": "onprem", "num_tasks": 99, "min_cpus": 1},
        # A QOS may lift the partition's limit of memory, of which Slurm's lua says nothing.
        {"partition": "static", "min_mem_per_node": 9000, "qos": "long"},
        # Another cluster's partitions are not in sight, and one of several may take it.
        {"partition": "onprem", "min_nodes": 99, "clusters": "other"},
        {"partition": "static,onprem", "min_nodes": 9},
        {"partition": "nowhere", "min_nodes": 99},
        {"partition": "onprem", "min_nodes": 99, "contiguous": 1},
        # --gres=none
        {"partition": "onprem", "tres_per_node": "none"},
        {"partition": "onprem", "tres_per_node": "gres:none"},
        # Slurm may shorten it.
        {"partition": "onprem", "time_limit": 300, "time_min": 30},
    ],
)
def test_nothing_is_said_where_it_is_not_proven(
    lua: Callable[[str], str], job: Mapping[str, Any]
) -> None:
    partitions = dict(LIMITED) | {
        "onprem": LIMITED["onprem"] | {"max_mem_per_cpu": 1000},
        "static": STATIC | {"max_mem_per_node": 8000},
    }
    assert submitted(lua, {"time_limit": 5, **job}, partitions, config())[1] == ""


@pytest.mark.parametrize(
    "caps",
    [
        {"limits": Limits(dollars_per_hour=5.0, nodes=2)},
        {"pools": tuple(replace(pool, max_nodes=2) for pool in config().pools)},
    ],
)
def test_no_never_follows_from_a_limit_that_operators_can_raise(
    lua: Callable[[str], str], caps: dict[str, Any]
) -> None:
    limited = config(**caps)
    text = render(limited, domain_pools(limited, expand))[FILTER]
    for partition, nodes in (("onprem", 4), ("public", 6)):
        job = {"partition": partition, "min_nodes": nodes, "time_limit": 5}
        assert submitted(lua, job, PARTITIONS, limited, text) == (partition, "")
    job = {"partition": "onprem", "min_nodes": 5, "time_limit": 5}
    _, message = submitted(lua, job, PARTITIONS, limited, text)
    assert message.endswith("onprem: it asks for 5 nodes, and at most 4 such nodes can run")


@pytest.mark.parametrize("key", ["qos", "default_qos"])
def test_a_limit_that_a_qos_may_lift_is_said_with_that_condition(
    lua: Callable[[str], str], key: str
) -> None:
    job = {"partition": "onprem", "time_limit": 300, key: "long"}
    _, message = submitted(lua, job, LIMITED, config())
    assert message == (
        "slurm-elastic: this job starts in partition onprem only if QOS long lifts a limit: it asks "
        "for a time of 05:00:00, and MaxTime is 01:00:00"
    )
    assert submitted(lua, job | {"time_limit": 60}, LIMITED, config())[1] == ""


def test_a_job_that_some_partition_holds_reads_nothing(lua: Callable[[str], str]) -> None:
    assert submitted(lua, {"time_limit": 5}, PARTITIONS, config()) == (ALL, "")


def test_nothing_is_said_of_a_partition_that_gets_dynamic_nodes(
    lua: Callable[[str], str], tmp_path: Path
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nMaxNodeCount=100\n")
    empty = {"static": STATIC | {"total_nodes": 0, "total_cpus": 0}}
    job = {"partition": "static", "time_limit": 5}
    text = render(config(), domain_pools(config(), expand), siteconf.read(conf))[FILTER]
    assert submitted(lua, job, empty, config(), text) == ("static", "")
