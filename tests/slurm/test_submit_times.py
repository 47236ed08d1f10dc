"""The submit filter and limits: of a job's time, alone and in an array, and of what Slurm takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slurm.test_submit_filter import (
    ALL,
    HARNESS,
    LUAS,
    NO_VAL,
    PARTITION,
    SAID,
    STATIC,
    SUBMIT,
    UNSET,
    config,
)

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.hooks.submit_filter import FILTER, render, to_lua

Partitions = Mapping[str, Mapping[str, Any]]
LIMITED = PARTITION | {"max_time": 60, "default_time": 10}
ENDLESS: Partitions = {"static": STATIC, "onprem": LIMITED, "public": LIMITED}
"""The site's default has no limit, and our partitions have one."""
AT_HOME = "without --time the tasks of this array run in partition static only"


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


def submitted(
    lua: Callable[[str], str],
    job: Mapping[str, Any],
    partitions: Partitions,
    site: Config,
    text: str | None = None,
) -> tuple[str, str]:
    """The job's partitions afterwards ("nil": left alone), and what its user reads."""
    code = (
        HARNESS, SAID, text or render(site, domain_pools(site, expand))[FILTER],
        f"local job = {to_lua(UNSET | dict(job))}", f"local partitions = {to_lua(partitions)}",
        SUBMIT,
    )  # fmt: skip
    first, _, message = lua("\n".join(code)).strip().partition("\n")
    assert first.endswith(" 0"), first
    return first.removesuffix(" 0"), message


# arrays: the tasks that wait get the limit of the first one that starts

ARRAYS: dict[str, tuple[str, dict[str, Any], Partitions, str]] = {
    "no limit, clouds have one": ("1-6", {}, ENDLESS, "nil"),
    "with a number of tasks at once": ("1-6%2", {}, ENDLESS, "nil"),
    "a list of tasks": ("1,3", {}, ENDLESS, "nil"),
    "one task": ("5", {}, ENDLESS, ALL),
    "one task, as a range": ("5-5", {}, ENDLESS, ALL),
    "one task at once, of one": ("5%1", {}, ENDLESS, ALL),
    "a limit of its own": ("1-6", {"time_limit": 60}, ENDLESS, ALL),
    "a limit over the clouds'": ("1-6", {"time_limit": 61}, ENDLESS, "nil"),
    "the site's default limits all": (
        "1-6", {}, dict(ENDLESS) | {"static": STATIC | {"default_time": 30}}, ALL),
    "all the same limit": ("1-6", {}, dict(ENDLESS) | {"static": STATIC | {"max_time": 10}}, ALL),
    "none has a limit": ("1-6", {}, dict.fromkeys(("static", "onprem", "public"), PARTITION) | {
        "static": STATIC}, ALL),
    "a cloud is longer than the site": (
        "1-6", {}, {"static": STATIC | {"max_time": 60}, "onprem": PARTITION,
                    "public": PARTITION | {"max_time": 60}}, "static,public"),
    "the site cannot hold it, clouds differ": (
        "1-6", {"min_nodes": 3}, {
            "static": STATIC | {"total_nodes": 2}, "onprem": PARTITION | {"max_time": 60},
            "public": PARTITION}, "public"),
    "the site cannot hold it, a cloud's default limits all": (
        "1-6", {"min_nodes": 3}, {
            "static": STATIC | {"total_nodes": 2, "max_time": 30},
            "onprem": PARTITION | {"max_time": 60, "default_time": 40},
            "public": PARTITION | {"max_time": 30}}, "onprem"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("indices", "job", "partitions", "expected"), ARRAYS.values(), ids=list(ARRAYS)
)
def test_partitions_of_an_array_give_its_tasks_the_same_limit(
    lua: Callable[[str], str],
    indices: str,
    job: Mapping[str, Any],
    partitions: Partitions,
    expected: str,
) -> None:
    found, _ = submitted(lua, {"array_inx": indices, **job}, partitions, config())
    assert found == expected


SITE_LIMIT: Partitions = {
    "static": STATIC | {"max_time": 60}, "onprem": PARTITION | {"max_time": 60},
    "public": PARTITION | {"default_time": 60},
}  # fmt: skip


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("", (ALL, 60)),
        ("AccountingStorageEnforce=limits\n", ("static,onprem", NO_VAL)),
    ],
)
def test_an_array_gets_its_limit_set_where_backfill_would_give_another(
    lua: Callable[[str], str], tmp_path: Path, conf: str, expected: tuple[str, int]
) -> None:
    """Slurm's backfill gives MaxTime. A limit that is set may be over MaxWall, if Slurm knows one."""
    (tmp_path / "slurm.conf").write_text(f"ClusterName=x\n{conf}")
    site = siteconf.read(tmp_path / "slurm.conf")
    text = render(config(), domain_pools(config(), expand), site)[FILTER]
    code = f"""{HARNESS}{text}
    local job = {to_lua(UNSET | {"array_inx": "1-6"})}
    slurm_elastic_submit(job, {to_lua(SITE_LIMIT)}, 1000)
    print(job.partition .. " " .. string.format("%.0f", job.time_limit))"""
    assert lua(code).split() == [expected[0], str(expected[1])]


def test_the_user_of_an_array_that_stays_reads_which_time_would_let_it_burst(
    lua: Callable[[str], str],
) -> None:
    _, message = submitted(lua, {"array_inx": "1-6"}, ENDLESS, config())
    assert message.startswith(f"slurm-elastic: {AT_HOME}")
    assert "onprem, public would set another" in message
    assert message.endswith("With --time=01:00:00 or less it runs there, too")
    _, message = submitted(lua, {"array_inx": "1-6", "time_limit": 60}, ENDLESS, config())
    assert message == ""


# single jobs


def test_a_job_without_a_limit_reads_when_a_cloud_ends_it(lua: Callable[[str], str]) -> None:
    found, message = submitted(lua, {}, ENDLESS, config())
    assert found == ALL
    assert message == (
        "slurm-elastic: without --time this job may end after 00:10:00 in partition onprem, 00:10:00"
        " in partition public (in static: no limit)"
    )


@pytest.mark.parametrize(
    ("job", "static"),
    [
        ({"time_limit": 5}, STATIC),
        ({}, STATIC | {"default_time": 60}),
        ({}, STATIC | {"max_time": 10}),
        ({"partition": "static"}, STATIC),
        ({"partition": "onprem", "time_limit": 5}, STATIC),
        ({"partition": "onprem"}, STATIC | {"default_time": 10}),
    ],
)
def test_who_gets_the_limit_of_the_site_reads_nothing(
    lua: Callable[[str], str], job: Mapping[str, Any], static: Mapping[str, Any]
) -> None:
    _, message = submitted(lua, job, dict(ENDLESS) | {"static": static}, config())
    assert message == ""


def test_who_names_a_cloud_without_a_limit_reads_it_too(lua: Callable[[str], str]) -> None:
    _, message = submitted(lua, {"partition": "onprem"}, ENDLESS, config())
    assert message == (
        "slurm-elastic: without --time this job may end after 00:10:00 in partition onprem"
    )


@pytest.mark.parametrize("job", [{}, {"array_inx": "1-6"}])
def test_who_gets_only_a_cloud_without_a_limit_reads_its_default(
    lua: Callable[[str], str], job: Mapping[str, Any]
) -> None:
    partitions = dict(ENDLESS) | {"static": STATIC | {"total_nodes": 1}}
    found, message = submitted(lua, {"min_nodes": 2, **job}, partitions, config())
    assert found == "onprem,public"
    assert message == (
        "slurm-elastic: without --time this job may end after 00:10:00 in partition onprem, public"
    )
    short = dict(partitions) | {"static": STATIC | {"total_nodes": 1, "default_time": 10}}
    assert submitted(lua, {"min_nodes": 2, **job}, short, config())[1] == ""
    assert submitted(lua, {"min_nodes": 2, "time_limit": 5, **job}, partitions, config())[1] == ""


# the length of the list


def many(count: int) -> tuple[Config, Partitions, list[str]]:
    """A site with that many clouds of long names; their names as the configuration ranks them."""
    plain = config()
    onprem = next(cloud for cloud in plain.clouds if cloud.name == "onprem")
    pool = next(pool for pool in plain.pools if pool.cloud == "onprem")
    names = [f"cloud-with-a-long-name-{i:02}" for i in range(count)]
    clouds = tuple(replace(onprem, name=name) for name in names)
    pools = tuple(
        replace(pool, name=f"pool{i}", cloud=name, nodes=f"n{i}-[1-2]")
        for i, name in enumerate(names)
    )
    partitions = {"static": STATIC} | dict.fromkeys(names, PARTITION)
    return config(clouds=clouds, pools=pools), partitions, names


@pytest.mark.parametrize("count", [37, 38, 39, 40, 100])
def test_the_list_is_never_longer_than_slurm_takes(lua: Callable[[str], str], count: int) -> None:
    """1,024 characters; the best clouds are in it, in their order."""
    site, partitions, names = many(count)
    found, _ = submitted(lua, {}, partitions, site)
    listed = found.split(",")
    assert len(found) <= 1024
    assert listed == ["static", *names][: len(listed)]
    following = ["static", *names][len(listed) : len(listed) + 1]
    assert not following or len(f"{found},{following[0]}") > 1024
