"""The submit filter's words to users about how their jobs are saved, in each Lua that is here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from slurm.test_launcher import LAUNCHERS, lua_text, site, submitted
from slurm.test_submit_filter import LUAS, PARTITIONS, UNSET, config

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import domain_pools
from slurm_elastic.config.job_checkpoint import parse_comment
from slurm_elastic.config.sections.checkpoint import (
    METHODS,
    OPTIONS,
    CheckpointSettings,
    PoolCheckpoint,
)
from slurm_elastic.config.sections.copying import Traffic
from slurm_elastic.policies.checkpoint.batch_script import has_relay
from slurm_elastic.policies.launch.job_data import FORM
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.hooks.submit_filter import FILTER, render, to_lua
from tests.policies.scripts import DYING, OTHERS

HARNESS = """
local log, told = {}, {}
slurm = {
  SUCCESS = 0, ERROR = -1,
  log_debug = function(format, ...) end,
  log_error = function(format, ...) log[#log + 1] = string.format(format, ...) end,
  log_user = function(format, ...) told[#told + 1] = string.format(format, ...) end,
}
"""
EXPECTED = "expected one of none, signal, criu, dmtcp, blcr"
SCRIPT = "#!/bin/bash\n"


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


def answers(
    lua: Callable[[str], str], *jobs: Mapping[str, Any], text: str | None = None, tail: str = ""
) -> list[tuple[int, str]]:
    """The filter's code for each job, and what its user reads."""
    text = text or render(site(), domain_pools(site(), expand))[FILTER]
    full = [UNSET | {"partition": "static"} | dict(job) for job in jobs]
    code = f"""{HARNESS}{text}{tail}
    for _, job in ipairs({to_lua(full)}) do
      told = {{}}
      local code = slurm_elastic_submit(job, {to_lua(PARTITIONS)}, 1000)
      print(code .. "\t" .. table.concat(told, "|") .. table.concat(log, "|"))
    end"""
    rows = (line.partition("\t") for line in lua(code).splitlines())
    return [(int(code), said) for code, _, said in rows]


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("ckpt=krui", f"--comment=ckpt=krui: {EXPECTED}"),
        ("project x;ckpt= y", f"--comment=ckpt=: {EXPECTED}"),
        ("ckpt=criu,tcp=colse", "--comment=ckpt=criu,tcp=colse: tcp=colse: expected one of keep, close"),
        ("ckpt=criu,tpc=close", "--comment=ckpt=criu,tpc=close: tpc: expected one of tcp, limit"),
        ("ckpt=criu,tcp", "--comment=ckpt=criu,tcp: 'tcp' is no KEY=VALUE"),
        ("ckpt=criu, tcp=close", "--comment=ckpt=criu,: '' is no KEY=VALUE"),
        ("ckpt=dmtcp,tcp=close", "--comment=ckpt=dmtcp,tcp=close: tcp: expected one of limit"),
        ("ckpt=signal,scope=all",
         "--comment=ckpt=signal,scope=all: scope=all: expected one of batch, full"),
        ("ckpt=signal,blocking=maybe",
         "--comment=ckpt=signal,blocking=maybe: blocking=maybe: expected one of yes, no"),
        ("ckpt=fake,limit=x",
         "--comment=ckpt=fake,limit=x: limit is 'x', expected a number up to 999"),
        ("ckpt=fake,limit=1000",
         "--comment=ckpt=fake,limit=1000: limit is '1000', expected a number up to 999"),
        ("chkpt=criu", "--comment=chkpt=criu: expected ckpt=criu"),
        ("mine checkpoint=dmtcp,limit", "--comment=checkpoint=dmtcp,limit: expected ckpt=dmtcp"),
        ("cpkt=signal", "--comment=cpkt=signal: expected ckpt=signal"),
        ("CKPT=criu", "--comment=CKPT=criu: expected ckpt=criu"),
        ("ckpt:criu", "--comment=ckpt:criu: expected ckpt=criu"),
        ("ckpt", f"--comment=ckpt: expected ckpt=METHOD, METHOD {EXPECTED[9:]}"),
        (" CKPT ", f"--comment=ckpt: expected ckpt=METHOD, METHOD {EXPECTED[9:]}"),
    ],
)  # fmt: skip
def test_a_comment_that_cannot_be_followed_is_an_error_with_the_right_word(
    lua: Callable[[str], str], comment: str, said: str
) -> None:
    """For sbatch, srun and salloc alike."""
    found = answers(lua, {"comment": comment}, {"comment": comment, "script": ""})
    assert found == [(-1, f"slurm-elastic: {said}")] * 2


@pytest.mark.parametrize(
    "comment",
    [
        "", "we need no ckpt here", "ckpt later", "the ckpt is in /data/ckpt", "my_ckpt=krui",
        "nockpt=criu", "path=/ckpt/criu", "chkpt=mine", "concept=none", "cockpit=signal",
        "copt=none", "kept=none", "count=fake", "checkpoint",
        "ckpt=criu", "ckpt=criu,limit,tcp=close", "ckpt=none,limit", "chkpt=fake ckpt=criu",
        "ckpt=signal,saved=file:state-%j,stop_signal=USR2,scope=full,blocking=no,limit=3",
    ],
)  # fmt: skip
def test_other_comments_pass(lua: Callable[[str], str], comment: str) -> None:
    assert answers(lua, {"comment": comment, "script": SCRIPT + "exec prog\n"}) == [(0, "")]


def test_the_filter_and_the_service_refuse_the_same_words(lua: Callable[[str], str]) -> None:
    """But for the forms of signals and signs, which the filter leaves to the service."""
    keys = {key for keys in OPTIONS.values() for key in keys} | {"tpc", ""}
    values = ("close", "keep", "batch", "full", "yes", "no", "7", "0", "1000", "x", "")
    words = ["limit", *(f"{key}={value}" for key, value in itertools.product(sorted(keys), values))]
    free = ("signal=", "stop_signal=", "saved=")
    words = [word for word in words if not word.startswith(free)]
    wishes = [f"ckpt={method},{word}" for method in METHODS for word in words]
    found = answers(lua, *({"comment": wish} for wish in wishes))
    assert {w for w, (code, _) in zip(wishes, found, strict=True) if code} == set(
        filter(_is_refused, wishes)
    )


def _is_refused(comment: str) -> bool:
    try:
        parse_comment(comment)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    "line",
    [
        "srun prog", "  srun -n 4 ./prog", "module load x; srun prog", "cd /x && srun prog",
        "OMP_NUM_THREADS=2 srun prog", "time srun prog", "timeout 10m srun prog",
        "nice -n 10 srun prog", "/usr/bin/srun prog", "for i in 1 2; do srun prog $i; done",
        "if srun prog", "then srun prog", "out=$(srun hostname)", "{ srun prog; }", "srun prog &",
        "sleep 1 & srun prog", "yes | srun prog", "exec srun prog # now", "srun",
    ],
)  # fmt: skip
def test_who_starts_steps_by_the_script_is_told_that_they_are_not_saved(
    lua: Callable[[str], str], line: str
) -> None:
    script = f"{SCRIPT}# it runs srun below\necho begin\n{line}\n"
    own, by_pool = (
        {"comment": "ckpt=criu", "script": script},
        {"partition": "onprem", "script": script},
    )
    said = (
        "slurm-elastic: steps (srun) are not saved by {}, and the job is not while one runs. It"
        " would help to start the program without srun, which a job of one node does not need, or"
        " save its state yourself: --comment=ckpt=signal (slurm-elastic help checkpointing)"
    )
    dmtcp = {"comment": "ckpt=dmtcp", "script": script}
    assert answers(lua, own, by_pool, dmtcp) == [
        (0, said.format("criu")), (0, said.format("criu")), (0, said.format("dmtcp")),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "script",
    [
        SCRIPT, SCRIPT + "# srun prog", SCRIPT + "  # srun prog", SCRIPT + "./prog # no srun here",
        SCRIPT + "echo srun", SCRIPT + "./my_srun", SCRIPT + "srun_all", SCRIPT + "SRUN=/usr/bin/srun",
        SCRIPT + "echo ${srun}", SCRIPT + "srun" + "x" * 5000, "#!/usr/bin/python3\nsrun = 3\n",
        SCRIPT + "#" * 1_000_000 + "srun",
    ],
)  # fmt: skip
def test_other_scripts_are_none_of_that(lua: Callable[[str], str], script: str) -> None:
    assert answers(lua, {"comment": "ckpt=criu", "script": script}) == [(0, "")]


def test_a_job_that_is_not_put_behind_a_launcher_may_have_steps(lua: Callable[[str], str]) -> None:
    script = SCRIPT + "exec srun prog"
    jobs = ({"script": script}, {"script": script, "comment": "ckpt=signal"})
    assert answers(lua, *jobs) == [(0, "")] * 2


@pytest.mark.parametrize(
    ("job", "remedy"),
    [
        ({"script": ""}, "submit a script with sbatch"),
        ({"script": "", "min_nodes": 2}, "submit a script with sbatch"),
        ({"min_nodes": 2}, "ask for one node, or save its state yourself"),
        ({"het_job_offset": 0}, "ask for one node, or save its state yourself"),
    ],
)
@pytest.mark.parametrize("word", [{"comment": "ckpt=criu"}, {"features": "big&ckpt_criu"}])
def test_a_job_of_a_kind_that_its_method_does_not_save_is_told_so(
    lua: Callable[[str], str], job: dict[str, Any], remedy: str, word: dict[str, str]
) -> None:
    ((code, said),) = answers(lua, job | word)
    assert code == 0
    assert said.startswith(
        "slurm-elastic: this job is not saved: criu saves batch jobs of one node. It would help to "
        + remedy
    )


@pytest.mark.parametrize("method", ["criu", "dmtcp", "blcr"])
@pytest.mark.parametrize("configured", [True, False])
def test_a_method_without_the_directory_of_the_site_saves_no_job_and_says_so(
    lua: Callable[[str], str], method: str, configured: bool
) -> None:
    pools = site().pools if configured else config().pools
    without = replace(site(directory=None), pools=pools)
    text = render(without, domain_pools(without, expand))[FILTER]
    jobs = ({"comment": f"ckpt={method}"}, {"features": f"ckpt_{method}"}, {"comment": "x"})
    first, second, other = answers(lua, *jobs, text=text)
    assert first == second == (0, (
        f"slurm-elastic: this job is not saved: {method} keeps images in checkpoint.directory, "
        "which is not set here. The administrators can set it"
    ))  # fmt: skip
    assert other == (0, "")


def test_who_did_not_ask_to_be_saved_is_told_nothing(lua: Callable[[str], str]) -> None:
    jobs = (
        {"partition": "onprem", "script": ""},
        {"partition": "onprem", "min_nodes": 2},
        {"script": "", "comment": "ckpt=none"},
        {"min_nodes": 2, "comment": "ckpt=signal", "script": SCRIPT + "exec prog\n"},
    )
    assert answers(lua, *jobs) == [(0, "")] * 4


@pytest.mark.parametrize("script", DYING)
def test_the_user_of_a_script_that_dies_of_the_save_signal_is_warned(
    lua: Callable[[str], str], script: str
) -> None:
    """scrontab's scripts get no relay."""
    job = {"comment": "ckpt=signal,saved=file:state", "script": script, "cron_job": True}
    said = (
        "slurm-elastic: this job is not saved: its batch script, which alone gets the signal, does"
        " not catch it. It would help to start its program by exec, or catch the signal by trap"
        " (slurm-elastic help checkpointing)"
    )
    assert answers(lua, job, job | {"comment": "x"}) == [(0, said), (0, "")]


@pytest.mark.parametrize("script", DYING)
def test_a_script_that_would_die_of_the_save_signal_gets_a_relay(
    lua: Callable[[str], str], script: str
) -> None:
    job = {"comment": "ckpt=signal,saved=file:state,stop_signal=TERM", "script": script}
    assert answers(lua, job, job | {"comment": "x"}) == [(0, "")] * 2
    first, _, rest = script.partition("\n")
    lines = submitted(lua, job).split("\n", 2)
    assert (lines[0], lines[2]) == (first, rest)
    assert has_relay("\n".join(lines))
    assert "_relay $$ 512 USR1; " in lines[1]
    assert "_relay $$ 16384 TERM; " in lines[1]
    again = submitted(lua, job | {"script": "\n".join(lines)})
    assert again == "\n".join(lines), "once"


def test_launchers_get_the_signal_only_by_the_jobs_own_word(lua: Callable[[str], str]) -> None:
    own, ours = {"comment": "ckpt=signal"}, {"comment": "x", "partition": "onprem"}
    plain = site()
    pools = tuple(replace(p, checkpoint=PoolCheckpoint(method="signal")) for p in plain.pools)
    settings = replace(plain, pools=pools)
    own_line, our_line = (
        submitted(lua, {"script": DYING[0]} | job, settings).split("\n")[1] for job in (own, ours)
    )
    assert 'case "yes:$_name"' in own_line
    assert 'case "no:$_name"' in our_line


@pytest.mark.parametrize("script", OTHERS)
def test_the_user_of_a_script_that_may_survive_the_signal_is_not_warned(
    lua: Callable[[str], str], script: str
) -> None:
    job = {"comment": "ckpt=signal,saved=file:state", "script": script}
    assert answers(lua, job) == [(0, "")]


@pytest.mark.parametrize("offset", [0, 1])
def test_a_component_of_a_heterogeneous_job_may_not_save_itself_alone(
    lua: Callable[[str], str], offset: int
) -> None:
    job = {"comment": "ckpt=signal,saved=file:x", "het_job_offset": offset}
    ((code, said),) = answers(lua, job)
    assert code == -1
    assert "a component of a heterogeneous job cannot be saved alone" in said


def test_a_word_that_is_no_method_is_reported_where_the_site_itself_saves_no_jobs(
    lua: Callable[[str], str],
) -> None:
    text = render(config(), domain_pools(config(), expand))[FILTER]
    jobs = ({"comment": "ckpt=sgnal,saved=file:x"}, {"comment": "ckpt=/data/x"})
    first, second = answers(lua, *jobs, text=text)
    assert first == (0, f"slurm-elastic: this job is not saved: --comment=ckpt=sgnal: {EXPECTED}")
    assert second == (0, ""), "it is a word of the user's own"


@pytest.mark.parametrize(
    ("settings", "is_refused"),
    [
        (CheckpointSettings(), False),
        (CheckpointSettings(expected_duration=10.0), True),
        (CheckpointSettings(method="signal"), True),
        (CheckpointSettings(directory="/images"), True),
        (CheckpointSettings(policy="none"), False),
    ],
)
def test_a_mistyped_method_is_refused_if_the_site_has_settings_for_saves(
    lua: Callable[[str], str], settings: CheckpointSettings, is_refused: bool
) -> None:
    """Also if they name no directory and no method, because a job may name the method signal."""
    made = replace(config(), checkpoint=settings)
    text = render(made, domain_pools(made, expand))[FILTER]
    ((code, said),) = answers(lua, {"comment": "ckpt=sgnal"}, text=text)
    assert code == (-1 if is_refused else 0)
    assert said.endswith(f"--comment=ckpt=sgnal: {EXPECTED}")


SEVERAL = {"comment": "ckpt=dmtcp", "min_nodes": 2}


def test_a_job_of_several_nodes_is_saved_by_its_own_word_if_mpirun_starts_it(
    lua: Callable[[str], str],
) -> None:
    text = render(site(), domain_pools(site(), expand))[FILTER]
    job = to_lua(UNSET | SEVERAL | {"script": SCRIPT + "mpirun prog\n"})
    code = f"{HARNESS}{text}\nlocal job = {job}\nslurm_elastic_submit(job, {to_lua(PARTITIONS)}, 1)"
    shown = "\nprint(job.script) print(#told)"
    assert lua_text(lua, code + shown) == LAUNCHERS["dmtcp"] + SCRIPT + "mpirun prog\n\n0"


def test_ranks_that_srun_starts_by_pmi_are_refused_in_a_job_of_several_nodes(
    lua: Callable[[str], str],
) -> None:
    texts = ("srun --mpi=pmix ring\n", "time srun -n 4 \\\n  --mpi pmi2 ring\n")
    refused = answers(lua, *(SEVERAL | {"script": SCRIPT + text} for text in texts))
    reason = (
        "a program started by srun --mpi={} cannot be saved. It would help to start the program"
    )
    for (code, said), pmi in zip(refused, ("pmix", "pmi2"), strict=True):
        assert code == -1
        assert reason.format(pmi) in said
    other = [
        SEVERAL | {"script": SCRIPT + "# srun --mpi=pmix ring\nmpirun ring\n"},
        SEVERAL | {"script": SCRIPT + "exec srun --mpi=pmix ring\n", "comment": "ckpt=signal"},
    ]
    assert answers(lua, *other) == [(0, "")] * 2
    ((code, said),) = answers(lua, SEVERAL | {"script": SCRIPT + "srun hostname\n"})
    assert (code, "start the program by mpirun" in said) == (0, True)


@pytest.mark.parametrize(
    "broken",
    [
        "SITE.saving.options = nil; SAVING.options = nil",
        "SAVING.methods = nil",
        "slurm.log_user = function() error('x') end",
    ],
)
def test_after_an_error_a_job_passes_as_it_came(lua: Callable[[str], str], broken: str) -> None:
    ((code, said),) = answers(lua, {"comment": "ckpt=criu,tcp=colse"}, tail=f"\n{broken}\n")
    assert code == 0
    assert "job left as it came" in said


def test_without_a_way_to_tell_why_nothing_is_refused(lua: Callable[[str], str]) -> None:
    job = {"comment": "ckpt=krui"}
    assert answers(lua, job, tail="\nslurm.log_user = nil\n") == [(0, "")]


def test_a_filter_without_data_says_nothing(lua: Callable[[str], str]) -> None:
    text = render(site(), domain_pools(site(), expand))[FILTER]
    begin, end = text.index("local SITE = {"), text.index("\n}\n") + 3
    bare = text[:begin] + "local SITE = {}\n" + text[end:]
    jobs = ({"comment": "ckpt=krui"}, {"comment": "ckpt"}, {"comment": "chkpt=criu"})
    assert answers(lua, *jobs, text=bare) == [(0, "")] * 3


def test_the_launchers_are_before_scripts_with_steps_all_the_same(
    lua: Callable[[str], str],
) -> None:
    text = render(site(), domain_pools(site(), expand))[FILTER]
    job = to_lua(UNSET | {"comment": "ckpt=criu", "script": SCRIPT + "srun prog\n"})
    code = f"{HARNESS}{text}\nlocal job = {job}\nslurm_elastic_submit(job, {to_lua(PARTITIONS)}, 1)"
    text = lua_text(lua, code + "\nprint(job.script)")
    assert text == LAUNCHERS["criu"] + SCRIPT + "srun prog\n"


@pytest.mark.parametrize(
    ("comment", "code"),
    [
        ("resume from ckpt=/scratch/run7/ckpt_400.pt", 0),
        ("ckpt=krui", 0),
        ("ckpt", 0),
        ("ckpt=criu", 0),
        ("ckpt=criu,tcp=colse", -1),
        ("chkpt=criu", -1),
    ],
)
def test_where_no_job_is_saved_a_word_that_is_not_ours_passes(
    lua: Callable[[str], str], comment: str, code: int
) -> None:
    plain = config()
    text = render(plain, domain_pools(plain, expand))[FILTER]
    assert answers(lua, {"comment": comment}, text=text)[0][0] == code


def test_a_script_that_fits_only_without_the_launcher_stays_as_it_is(
    lua: Callable[[str], str], tmp_path: Path
) -> None:
    """Slurm refuses a script over max_script_size."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSchedulerParameters=bf_interval=1,max_script_size=5000\n")
    text = render(site(), domain_pools(site(), expand), siteconf.read(conf))[FILTER]
    tail = "\nlocal submit = slurm_elastic_submit\nfunction slurm_elastic_submit(job, ...)\n"
    tail += "submit(job, ...)\nreturn #job.script end\n"
    short, long = SCRIPT + "x" * 10, SCRIPT + "x" * 4900
    jobs = [{"comment": "ckpt=criu", "script": script} for script in (short, long)]
    lengths = [length for length, _ in answers(lua, *jobs, text=text, tail=tail)]
    assert lengths[0] > len(short)
    assert lengths[1] == len(long)


def test_a_size_of_data_that_cannot_be_read_is_refused(lua: Callable[[str], str]) -> None:
    """Only where traffic is counted: elsewhere "data=" is a word of the user's own."""
    plain = site()
    counted = tuple(replace(cloud, traffic=Traffic(out=0.09)) for cloud in plain.clouds)
    text = render(replace(plain, clouds=counted), domain_pools(plain, expand))[FILTER]
    jobs = [{"comment": word} for word in ("data=120GB", "data=120G", "data=/scratch/1")]
    wrong = f"slurm-elastic: --comment=data=120GB: expected {FORM}"
    assert answers(lua, *jobs, text=text) == [(-1, wrong), (0, ""), (0, "")]
    assert answers(lua, *jobs) == [(0, "")] * 3
