"""Jobs that name a partition of the site, and clouds that are for jobs of some partitions only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slurm.test_submit_filter import ALL, LUAS, PARTITION, PARTITIONS, STATIC, config, listed
from slurm.test_submit_times import Partitions, submitted
from slurm.test_submit_wrap import PLAIN
from slurm.test_submit_wrap import submitted as wrapped

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.sections.access import Who, effective_who
from slurm_elastic.slurm.hooks.submit_filter import FILTER, render

PARTS: Partitions = PARTITIONS | {
    "gpu": PARTITION | {"total_nodes": 2, "total_cpus": 8, "max_time": 600},
    "other": PARTITION,
}
GPU_JOB = {"tres_per_node": "gres:gpu:1", "time_limit": 10}


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


def site_of(**partitions: tuple[str, ...]) -> Config:
    """The plain site, of whose clouds some are for jobs of these partitions."""
    plain = config()
    clouds = tuple(
        replace(cloud, allow=replace(cloud.allow or Who(), partitions=partitions[cloud.name]))
        if cloud.name in partitions else cloud for cloud in plain.clouds
    )  # fmt: skip
    return replace(plain, clouds=clouds)


GPU_CLOUD = site_of(public=("gpu",))
DEFAULT = site_of(public=("default",), onprem=("gpu", "default"))
BOTH = site_of(public=("static", "gpu"), onprem=("gpu",))


@pytest.mark.parametrize(
    ("site", "job", "expected"),
    [
        # without the key a cloud is for jobs that name no partition
        (config(), {"partition": "gpu"}, "gpu"),
        (config(), {"partition": "static"}, "static"),
        # a cloud for jobs of partition gpu only
        (GPU_CLOUD, {"partition": "gpu"}, "gpu,public"),
        (GPU_CLOUD, {"partition": "gpu", **GPU_JOB}, "gpu,public"),
        (GPU_CLOUD, {}, "static,onprem"),
        (GPU_CLOUD, GPU_JOB, "nil"),
        (GPU_CLOUD, {"partition": "static"}, "static"),
        (GPU_CLOUD, {"partition": "other"}, "other"),
        (GPU_CLOUD, {"partition": "GPU"}, "GPU"),
        (GPU_CLOUD, {"partition": "gpu,static"}, "gpu,static"),
        (GPU_CLOUD, {"partition": "gpu,public"}, "gpu,public"),
        (GPU_CLOUD, {"partition": "public"}, "public"),
        # several partitions and clouds
        (BOTH, {"partition": "gpu"}, "gpu,onprem,public"),
        (BOTH, {"partition": "gpu", **GPU_JOB}, "gpu,public"),
        (BOTH, {"partition": "static"}, "static,public"),
        (BOTH, {}, "static,public"),
        # the word for the default partition: a job that names this partition is a plain job
        (DEFAULT, {"partition": "static"}, "static,onprem,public"),
        (DEFAULT, {}, "static,onprem,public"),
        (DEFAULT, {"partition": "gpu"}, "gpu,onprem"),
        (DEFAULT, {"partition": "other"}, "other"),
        (DEFAULT, {"partition": "default"}, "default"),
        (DEFAULT, {"partition": "static", "req_nodes": "s1"}, "static"),
        # a named partition changes nothing for jobs that are left alone for another reason
        (GPU_CLOUD, {"partition": "gpu", "req_nodes": "g1"}, "gpu"),
        (GPU_CLOUD, {"partition": "gpu", "exc_nodes": "pub1"}, "gpu"),
        (GPU_CLOUD, {"partition": "gpu", "reservation": "res"}, "gpu"),
        (GPU_CLOUD, {"partition": "gpu", "contiguous": 1}, "gpu"),
    ],
)
def test_a_job_gets_the_clouds_that_allow_its_partition(
    lua: Callable[[str], str], site: Config, job: dict[str, Any], expected: str
) -> None:
    text = render(site, domain_pools(site, expand))[FILTER]
    assert listed(lua, job, PARTS, text) == expected


@pytest.mark.parametrize(
    ("job", "gpu", "expected"),
    [
        ({}, {"state_up": 2}, "gpu"),
        ({}, {"min_nodes": 2}, "gpu"),
        ({}, {"allow_alloc_nodes": "login2"}, "gpu"),
        ({"min_nodes": 3}, {}, "public"),
        ({"min_nodes": 3}, {"total_nodes": 3}, "gpu,public"),
        ({"time_limit": 601}, {}, "public"),
        ({"time_limit": 600}, {}, "gpu,public"),
    ],
)
def test_the_named_partition_takes_the_place_of_the_default(
    lua: Callable[[str], str], job: dict[str, Any], gpu: dict[str, Any], expected: str
) -> None:
    parts = dict(PARTS) | {"gpu": PARTS["gpu"] | gpu}
    text = render(GPU_CLOUD, domain_pools(GPU_CLOUD, expand))[FILTER]
    assert listed(lua, {"partition": "gpu", **job}, parts, text) == expected


def test_who_may_not_use_the_named_partition_gets_no_cloud(lua: Callable[[str], str]) -> None:
    text = render(GPU_CLOUD, domain_pools(GPU_CLOUD, expand))[FILTER]
    assert listed(lua, {"partition": "gpu"}, PARTITIONS, text) == "gpu"


@pytest.mark.parametrize(
    ("job", "gpu", "public", "denies_below", "expected"),
    [
        ({"account": "arts"}, {"allow_accounts": "physics"}, {}, False, "gpu"),
        ({"account": "arts"}, {"allow_accounts": "physics,Arts"}, {}, False, "gpu,public"),
        ({"default_account": "arts"}, {"allow_accounts": "physics"}, {}, False, "gpu"),
        ({"account": "arts"}, {"deny_accounts": "arts"}, {}, False, "gpu"),
        ({"account": "arts"}, {"deny_accounts": "law"}, {}, False, "gpu,public"),
        ({"qos": "low"}, {"allow_qos": "high"}, {}, False, "gpu"),
        ({"qos": "low"}, {"deny_qos": "low"}, {}, False, "gpu"),
        ({"default_qos": "high"}, {"allow_qos": "high"}, {}, False, "gpu,public"),
        # An account below "law" is denied in gpu, and the filter does not know the tree.
        ({"account": "arts"}, {"deny_accounts": "law"}, {}, True, "gpu"),
        ({"account": "arts"}, {"deny_accounts": "law"}, {"deny_accounts": "law"}, True, "gpu,public"),
        ({"account": "arts"}, {"deny_accounts": "law"}, {"allow_accounts": "arts"}, True, "gpu,public"),
        ({}, {"deny_accounts": "law"}, {}, True, "gpu,public"),
    ],
)  # fmt: skip
def test_who_is_refused_by_the_named_partition_gets_no_cloud(
    lua: Callable[[str], str],
    job: dict[str, Any],
    gpu: dict[str, Any],
    public: dict[str, Any],
    denies_below: bool,
    expected: str,
) -> None:
    """Slurm accepts a job that one partition of its list admits, so it would run in the cloud."""
    parts = dict(PARTS) | {"gpu": PARTS["gpu"] | gpu, "public": PARTITION | public}
    pools = domain_pools(GPU_CLOUD, expand)
    text = render(GPU_CLOUD, pools, denies_below=denies_below)[FILTER]
    assert listed(lua, {"partition": "gpu", **job}, parts, text) == expected


def test_the_named_default_partition_must_admit_the_account(lua: Callable[[str], str]) -> None:
    """As for each named partition, the list must not admit people whom the partition refuses."""
    parts = dict(PARTS) | {"static": STATIC | {"allow_accounts": "physics"}}
    text = render(DEFAULT, domain_pools(DEFAULT, expand))[FILTER]
    job = {"partition": "static", "account": "arts"}
    assert listed(lua, job, parts, text) == "static"
    assert listed(lua, job | {"account": "physics"}, parts, text) == "static,onprem,public"


def test_lists_of_the_default_partition_close_no_cloud(lua: Callable[[str], str]) -> None:
    parts = dict(PARTITIONS) | {"static": STATIC | {"allow_accounts": "physics"}}
    assert listed(lua, {"account": "arts"}, parts) == ALL


@pytest.mark.parametrize(
    ("array", "cloud", "expected", "message"),
    [
        (None, {"max_time": 60}, "gpu,public",
         "without --time this job may end after 01:00:00 in partition public (in gpu: 10:00:00)"),
        ("1-6", {"max_time": 60}, "gpu",
         "without --time the tasks of this array run in partition gpu only"),
        ("1-6", {"max_time": 600}, "gpu,public", ""),
        ("1-6", {"default_time": 600}, "gpu,public", ""),
    ],
)  # fmt: skip
def test_a_job_without_a_limit_is_judged_by_the_named_partition(
    lua: Callable[[str], str],
    array: str | None,
    cloud: dict[str, Any],
    expected: str,
    message: str,
) -> None:
    parts = dict(PARTS) | {
        "public": PARTITION | {"default_time": cloud.get("max_time", 600), **cloud}
    }
    job = {"partition": "gpu"} | ({"array_inx": array} if array else {})
    found, text = submitted(lua, job, parts, GPU_CLOUD)
    assert found == expected
    assert message in text
    assert bool(text) == bool(message)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"partition": "gpu", "min_nodes": 12},
         ("in partition gpu: it asks for 12 nodes, and at most 2 such nodes can run; "
          "in public: it asks for 12 nodes, and at most 8 such nodes can run")),
        ({"min_nodes": 12},
         ("in partition static: it asks for 12 nodes, and at most 10 such nodes can run; "
          "in onprem: it asks for 12 nodes, and at most 4 such nodes can run")),
    ],
)  # fmt: skip
def test_a_job_too_large_reads_of_the_clouds_that_are_open_to_it(
    lua: Callable[[str], str], job: dict[str, Any], message: str
) -> None:
    found, text = submitted(lua, {"time_limit": 5, **job}, PARTS, GPU_CLOUD)
    assert found == job.get("partition", "nil")
    assert text == f"slurm-elastic: this job can never start {message}"


def test_a_partition_that_the_sites_script_names_counts_as_named(
    lua: Callable[[str], str], tmp_path: Path
) -> None:
    script = PLAIN.format("job_desc.partition = 'gpu' return slurm.SUCCESS")
    assert wrapped(lua, tmp_path, script, {}, GPU_CLOUD, PARTS) == ("0", "gpu,public")
    script = PLAIN.format("job_desc.partition = 'static' return slurm.SUCCESS")
    assert wrapped(lua, tmp_path, script, {}, GPU_CLOUD, PARTS) == ("0", "static,onprem")
    assert wrapped(lua, tmp_path, script, {}, config(), PARTS) == ("0", ALL)


def test_a_list_behind_a_named_partition_has_a_note(lua: Callable[[str], str]) -> None:
    show = """
local submit = slurm_elastic_submit
function slurm_elastic_submit(job, ...)
  local code = submit(job, ...)
  job.partition = tostring(job.admin_comment)
  return code
end
"""
    text = render(BOTH, domain_pools(BOTH, expand))[FILTER] + show
    assert listed(lua, {"partition": "gpu"}, PARTS, text) == "[slurm-elastic clouds=onprem,public]"


def test_a_default_partition_in_the_list_is_still_first(lua: Callable[[str], str]) -> None:
    site = site_of(public=("static",), onprem=("static",))
    text = render(site, domain_pools(site, expand))[FILTER]
    assert listed(lua, {}, {"static": STATIC, **PARTITIONS}, text) == ALL


def test_a_cloud_has_its_own_partitions_or_those_of_all() -> None:
    everywhere = Who(groups=("staff",), partitions=("cpu",))
    assert effective_who(None, everywhere).partitions == ("cpu",)
    assert effective_who(Who(max_time=60.0), everywhere).partitions == ("cpu",)
    assert effective_who(Who(partitions=("gpu",)), everywhere).partitions == ("gpu",)
    assert not Who(partitions=("gpu",)).anybody
