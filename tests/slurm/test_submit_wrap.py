"""A site's own job_submit.lua with the two lines that `conf check` prints, in each Lua that is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from slurm.test_submit_filter import ALL, HARNESS, LUAS, PARTITIONS, SAID, UNSET, config

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.slurm.conf.submissions import filter_lines
from slurm_elastic.slurm.hooks.submit_filter import (
    FILTER,
    calls_filter,
    final_return,
    loses_refusals,
    render,
    to_lua,
)

LOSING = (Path(__file__).parents[1] / "data" / "job-submit" / "loses-the-refusal.lua").read_text()
"""A call whose answer nobody returns."""
PLAIN = "function slurm_job_submit(job_desc, part_list, submit_uid)\n  {}\nend\n"
MODIFY = "function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end\n"
DEFAULT = """if job_desc.partition == nil then
    for name, part in pairs(part_list) do
      if part.flag_default ~= 0 then job_desc.partition = name end
    end
  end
  return slurm.SUCCESS"""
SITES: Mapping[str, str] = {
    "does nothing": PLAIN.format("return slurm.SUCCESS"),
    "returns nothing": PLAIN.format("slurm.log_debug('x')"),
    "returns a word": PLAIN.format("return 'fine'"),
    "writes the default partition": PLAIN.format(DEFAULT),
    "wants one switch": PLAIN.format("job_desc.req_switch = 1 return slurm.SUCCESS"),
    "ends by another function": "local function rules() return slurm.SUCCESS end\n"
    + PLAIN.format("return rules()"),
    "ends with a return": PLAIN.format("return slurm.SUCCESS") + MODIFY
    + "slurm.log_debug('loaded')\nreturn slurm.SUCCESS -- all is well\n",
    "calls the filter by itself": PLAIN.format(
        "return slurm_elastic_submit(job_desc, part_list, submit_uid)"),
    "loses the filter's answer": LOSING.replace('"/etc/slurm/slurm_elastic.lua"', "'FILTER'"),
}  # fmt: skip
"""What slurm_job_submit of sites does, of which all but the last took a plain job as it came."""


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


def with_lines(script: str, directory: Path) -> str:
    """The script with the printed lines at the printed place."""
    lines, place = script.splitlines(), final_return(script)
    at = len(lines) if place is None else place - 1
    return "\n".join([*lines[:at], *filter_lines(directory), *lines[at:], ""])


def submitted(
    lua: Callable[[str], str],
    directory: Path,
    script: str,
    job: Mapping[str, Any],
    site: Config | None = None,
    partitions: Mapping[str, Mapping[str, Any]] = PARTITIONS,
) -> tuple[str, str]:
    """The answer to Slurm and the partition of the job, as slurmctld runs the file."""
    site = site or config()
    (directory / FILTER).write_text(render(site, domain_pools(site, expand))[FILTER])
    text = with_lines(script.replace("FILTER", str(directory / FILTER)), directory)
    (directory / "job_submit.lua").write_text(text)
    code = f"""{HARNESS}{SAID}slurm.ERROR = -1
    pcall(dofile, {to_lua(str(directory / FILTER))})
    dofile({to_lua(str(directory / "job_submit.lua"))})
    local job = {to_lua(UNSET | dict(job))}
    local ok, answer = pcall(slurm_job_submit, job, {to_lua(partitions)}, 1000)
    print(tostring(answer))
    print(tostring(job.partition))"""
    answer, partition = lua(code).splitlines()
    return answer, partition


@pytest.mark.parametrize("script", SITES.values(), ids=list(SITES))
def test_a_plain_job_gets_the_list_behind_any_script(
    lua: Callable[[str], str], tmp_path: Path, script: str
) -> None:
    answer, partition = submitted(lua, tmp_path, script, {})
    assert partition == ALL
    assert answer in ("0", "0.0")


@pytest.mark.parametrize("script", SITES.values(), ids=list(SITES))
def test_a_job_that_the_filter_refuses_is_refused_behind_any_script(
    lua: Callable[[str], str], tmp_path: Path, script: str
) -> None:
    answer, _ = submitted(lua, tmp_path, script, {"comment": "ckpt=criu,tcp=colse"})
    assert answer in ("-1", "-1.0")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return slurm.ERROR", "-1"),
        ("return 2047", "2047"),
        ("error('site', 0)", "site"),
    ],
)
def test_what_the_site_refuses_stays_refused(
    lua: Callable[[str], str], tmp_path: Path, body: str, expected: str
) -> None:
    answer, partition = submitted(lua, tmp_path, PLAIN.format(body), {})
    assert (answer.removesuffix(".0"), partition) == (expected, "nil")


@pytest.mark.parametrize(
    ("body", "job", "partition"),
    [
        ("job_desc.partition = 'other' return slurm.SUCCESS", {}, "other"),
        (DEFAULT, {"partition": "static"}, "static"),
        (DEFAULT, {"partition": "public"}, "public"),
        (DEFAULT, {"req_switch": 1}, "static"),
        ("job_desc.req_switch = 1 return slurm.SUCCESS", {"req_switch": 1}, "nil"),
    ],
)
def test_what_the_user_or_the_site_chose_stays(
    lua: Callable[[str], str], tmp_path: Path, body: str, job: Mapping[str, Any], partition: str
) -> None:
    assert submitted(lua, tmp_path, PLAIN.format(body), job)[1] == partition


def test_a_call_whose_answer_is_lost_is_seen() -> None:
    assert calls_filter(LOSING)
    assert loses_refusals(LOSING)
    by_hand = SITES["calls the filter by itself"]
    assert calls_filter(by_hand)
    assert not loses_refusals(by_hand)
    assert not loses_refusals(with_lines(LOSING, Path("/x")))


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("", None),
        ("function f()\n  return 1\nend\n", None),
        ("function f() return 1 end", None),
        ("x = 1\nreturn slurm.SUCCESS", 2),
        ("x = 1\n  return slurm.SUCCESS -- loaded\n\n-- the end\n", 2),
        ("--[[ a\nb ]]\nreturn 0\n--[[ return\n1 ]]\n", 3),
        ("returned = 1\n", None),
    ],
)
def test_the_return_that_ends_a_script_is_found(script: str, line: int | None) -> None:
    assert final_return(script) == line
