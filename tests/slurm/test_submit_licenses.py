"""Jobs that ask for licences, of which Slurm does not know where they can be used."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from slurm.test_submit_filter import ALL, LUAS, PARTITIONS, config
from slurm.test_submit_times import submitted

from slurm_elastic.config.sections.access import Who, effective_who

JOB = Path(__file__).parents[1] / "data" / "job-submit" / "licenses" / "job.sh"


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


@pytest.mark.parametrize(
    ("licenses", "expected"),
    [
        ("", ALL),
        ("stata", "static,public"),
        ("Stata:2", "static,public"),
        ("stata@server:2", "static,public"),
        ("stata,matlab", "static,public"),
        ("stata:1|matlab:1", "static,public"),
        ("cfs", "nil"),
        ("stata,cfs", "nil"),
        ("stata|cfs", "nil"),
        ("stat", "nil"),
    ],
)
def test_a_job_with_licences_gets_the_clouds_that_list_them(
    lua: Callable[[str], str], licenses: str, expected: str
) -> None:
    plain = config()
    clouds = tuple(
        replace(cloud, allow=replace(cloud.allow, licenses=("stata", "matlab")))
        if cloud.name == "public" and cloud.allow else cloud for cloud in plain.clouds
    )  # fmt: skip
    job = {"licenses": licenses, "time_limit": 10}
    assert submitted(lua, job, PARTITIONS, config(clouds=clouds)) == (expected, "")


def test_a_file_system_as_a_licence_keeps_a_job_at_the_site(lua: Callable[[str], str]) -> None:
    options = dict(re.findall(r"^#SBATCH --(\w+)=(\S+)", JOB.read_text(), re.MULTILINE))
    job = {"licenses": options["licenses"], "time_limit": int(options["time"])}
    assert submitted(lua, job, PARTITIONS, config())[0] == "nil"
    named = job | {"partition": "onprem"}
    assert submitted(lua, named, PARTITIONS, config())[0] == "onprem"


def test_a_cloud_has_its_own_licences_or_those_of_all() -> None:
    everywhere = Who(groups=("staff",), licenses=("a",))
    assert effective_who(None, everywhere).licenses == ("a",)
    assert effective_who(Who(max_time=60.0), everywhere).licenses == ("a",)
    assert effective_who(Who(licenses=("b",)), everywhere).licenses == ("b",)
    assert not Who(licenses=("a",)).anybody
