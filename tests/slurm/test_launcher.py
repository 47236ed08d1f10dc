"""Which jobs are put behind the launcher, and that it never keeps a script from running."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from needs import ROOT
from patience import eventually, patience
from slurm.test_submit_filter import HARNESS, LUAS, PARTITIONS, UNSET, config

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.sections.checkpoint import LAUNCHED, CheckpointSettings, PoolCheckpoint
from slurm_elastic.slurm.hooks.launcher import MARK, RANDOM_DIGITS, launchers
from slurm_elastic.slurm.hooks.submit_filter import FILTER, render, to_lua

SCRIPT = "#!/bin/sh\ntrue\n"
LAUNCHERS = launchers("/shared/ckpt")


def site(**checkpoint: Any) -> Config:
    """The pool of partition ``onprem`` says criu; others what the site says."""
    plain = config()
    pools = tuple(
        replace(pool, checkpoint=PoolCheckpoint(method="criu")) if pool.name == "op" else pool
        for pool in plain.pools
    )
    settings = CheckpointSettings(**{"directory": "/shared/ckpt"} | checkpoint)
    return replace(plain, pools=pools, checkpoint=settings)


def submitted(
    lua: Callable[[str], str], job: Mapping[str, Any], settings: Config | None = None
) -> str:
    """The script afterwards."""
    settings = settings or site()
    code = "\n".join(
        (
            HARNESS,
            render(settings, domain_pools(settings, expand))[FILTER],
            f"local job = {to_lua(UNSET | dict(job))}",
            f"local partitions = {to_lua(PARTITIONS)}",
            "slurm_elastic_submit(job, partitions, 1000)",
            "print(tostring(job.script)); for _, line in ipairs(log) do print(line) end",
        )
    )
    return lua_text(lua, code)


def lua_text(lua: Callable[[str], str], code: str) -> str:
    """What the code prints, with the place of a launcher's random digits instead of them."""
    return re.sub(r"(?m)^# job [0-9a-f]{32}$", f"# job {RANDOM_DIGITS}", lua(code)).removesuffix(
        "\n"
    )


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


CASES: dict[str, tuple[dict[str, Any], str | None]] = {
    "its partition does so": ({"partition": "onprem"}, "criu"),
    "one of its partitions does so": ({}, "criu"),
    "another partition": ({"partition": "public"}, None),
    "the site's own": ({"partition": "static"}, None),
    "it says so": ({"partition": "static", "comment": "ckpt=criu"}, "criu"),
    "it says how": ({"partition": "onprem", "comment": "ckpt=dmtcp"}, "dmtcp"),
    "it says how, with more": ({"comment": "mine; ckpt=blcr,limit=2 yours"}, "blcr"),
    "it wants none": ({"partition": "onprem", "comment": "ckpt=none"}, None),
    "the application does it": (
        {"partition": "onprem", "comment": "ckpt=signal", "script": "#!/bin/sh\nexec prog\n"},
        None,
    ),
    "a word that only looks so": ({"partition": "static", "comment": "nockpt=criu"}, None),
    "a feature says so": ({"partition": "static", "features": "big&ckpt_criu"}, "criu"),
    "a feature wants none": ({"partition": "onprem", "features": "ckpt_none"}, None),
    "a feature, but it says how": (
        {"partition": "static", "features": "ckpt_criu", "comment": "ckpt=dmtcp"},
        "dmtcp",
    ),
    "two features": ({"partition": "onprem", "features": "[ckpt_criu|ckpt_dmtcp]"}, None),
    "features of the site's own": (
        {"partition": "static", "features": "ckpt_ssd&my_ckpt_criu"},
        None,
    ),
    "two nodes": ({"partition": "onprem", "min_nodes": 2}, None),
    "one node": ({"partition": "onprem", "min_nodes": 1}, "criu"),
    "part of a heterogeneous job": ({"partition": "onprem", "het_job_offset": 0}, None),
    "scrontab": ({"partition": "onprem", "cron_job": True}, None),
    "a script without a first line": ({"partition": "onprem", "script": "true\n"}, None),
}


@pytest.mark.parametrize(("job", "method"), CASES.values(), ids=CASES)
def test_jobs_get_the_launcher(
    lua: Callable[[str], str], job: dict[str, Any], method: str | None
) -> None:
    own = job.get("script", SCRIPT)
    wanted = own if method is None else LAUNCHERS[method] + own
    assert submitted(lua, job) == wanted


def test_the_methods_with_a_launcher_are_those_that_the_services_know() -> None:
    assert set(LAUNCHERS) == set(LAUNCHED)


@pytest.mark.parametrize("script", ["", None])
def test_srun_and_salloc_have_no_script(lua: Callable[[str], str], script: str | None) -> None:
    job = {"partition": "onprem", "comment": "ckpt=criu"}
    found = submitted(lua, job | ({"script": script} if script is not None else {"script": ""}))
    assert found == ""


def test_a_script_is_wrapped_once(lua: Callable[[str], str]) -> None:
    wrapped = submitted(lua, {"partition": "onprem"})
    assert submitted(lua, {"partition": "onprem", "script": wrapped}) == wrapped


def test_a_script_at_slurms_limit_stays_as_it_is(lua: Callable[[str], str]) -> None:
    long = "#!/bin/sh\n" + "#" * (4 << 20)
    assert submitted(lua, {"partition": "onprem", "script": long}) == long


def test_without_a_directory_nothing_is_wrapped(lua: Callable[[str], str]) -> None:
    assert submitted(lua, {"partition": "onprem"}, site(directory=None)) == SCRIPT


def test_the_sites_method_is_for_pools_that_say_nothing(lua: Callable[[str], str]) -> None:
    assert submitted(lua, {"partition": "public"}, site(method="dmtcp")).startswith(
        LAUNCHERS["dmtcp"]
    )


@pytest.mark.parametrize("method", LAUNCHERS)
@pytest.mark.parametrize("program", ["missing", "refuses"])
def test_where_the_node_cannot_do_it_the_script_runs(
    tmp_path: Path, method: str, program: str
) -> None:
    """Arguments, input, exit code, exported functions and what stays behind: nothing."""
    part = tmp_path / "part"
    if program == "refuses":
        part.write_text("#!/bin/sh\nexit 1\n")
        part.chmod(0o755)
    script = tmp_path / "slurm_script"
    body = '#!/bin/bash\nmodule one\necho "$#:$2"; cat; exit 5'
    script.write_text(launchers(str(tmp_path), str(part))[method] + body)
    script.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    bash = shutil.which("bash") or "bash"
    caller = f"module() {{ echo \"module $1\"; }}; export -f module; exec {script} a 'b c'"
    done = subprocess.run(
        [bash, "-c", caller], input="from stdin\n", capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path / "tmp"), "SLURM_JOB_ID": "7"},
    )  # fmt: skip
    assert done.stdout == "module one\n2:b c\nfrom stdin\n", done.stderr
    assert done.returncode == 5
    assert os.listdir(tmp_path / "tmp") == []


@ROOT
@pytest.mark.parametrize("restarts", ["", "1"])
def test_a_restarted_job_waits_until_the_node_knows_its_user(tmp_path: Path, restarts: str) -> None:
    """The directory service may start beside slurmd. The job would start over, and lose its work."""
    part, passwd, script = tmp_path / "part", tmp_path / "passwd", tmp_path / "slurm_script"
    part.write_text("#!/bin/sh\nexit 1\n")
    passwd.write_text(Path("/etc/passwd").read_text())
    script.write_text(launchers(str(tmp_path), "/mnt/part")["criu"] + "#!/bin/sh\necho runs\n")
    passwd.chmod(0o644)
    copy = f"cp {part} /mnt/part; cp {script} /mnt/script; chmod 755 /mnt/part /mnt/script"
    bind = f"mount --bind {passwd} /etc/passwd; {copy}"
    run = "exec setpriv --reuid 54321 --regid 54321 --clear-groups /mnt/script"
    command = ["unshare", "--mount", "/bin/sh", "-ec", f"mount -t tmpfs own /mnt; {bind}; {run}"]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_RESTART_COUNT": restarts}
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        if restarts:
            ps = ["ps", "-o", "comm=", "--ppid", str(job.pid)]
            eventually(lambda: b"sleep" in subprocess.run(ps, capture_output=True).stdout)
            with passwd.open("a") as file:
                file.write("late:x:54321:54321::/nonexistent:/bin/sh\n")
        assert job.communicate(timeout=patience(30))[0] == "runs\n"
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 0


def restart(tmp_path: Path, part: Path) -> subprocess.Popen[str]:
    """A restarted job. ``part``: the root part of its node."""
    script = tmp_path / "slurm_script"
    script.write_text(launchers(str(tmp_path), str(part))["criu"] + "#!/bin/sh\necho starts over\n")
    script.chmod(0o755)
    environment = {
        "PATH": "/usr/bin:/bin", "SLURM_RESTART_COUNT": "1", "SLURM_CLUSTER_NAME": "c",
        "SLURM_JOB_ID": "7",
    }  # fmt: skip
    return subprocess.Popen(
        [script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def sleeps(job: subprocess.Popen[str]) -> list[int]:
    """The pauses of the job's script."""
    ps = ["ps", "-o", "pid=,comm=", "--ppid", str(job.pid)]
    rows = subprocess.run(ps, capture_output=True, text=True, check=False).stdout.splitlines()
    return [int(row.split()[0]) for row in rows if row.split()[1] == "sleep"]


def test_a_restarted_job_with_images_waits_for_another_node(tmp_path: Path) -> None:
    """It would start over and truncate its output, although its image is good."""
    image = tmp_path / "c" / "7" / "images" / "1"
    image.mkdir(parents=True)
    job = restart(tmp_path, tmp_path / "missing")
    try:
        eventually(lambda: sleeps(job))
        image.rmdir()  # another run has used it, or its user has given it up
        eventually(lambda: [os.kill(pause, signal.SIGTERM) for pause in sleeps(job)])
        out, err = job.communicate(timeout=patience(30))
    finally:
        job.kill()
        job.communicate()
    assert out == "starts over\n"
    assert err.count("this node cannot continue the job from its image") == 1


@pytest.mark.parametrize("directory", ["c/7/images", "c/7", "d/7/images/1"])
def test_a_restarted_job_without_images_starts_over_at_once(tmp_path: Path, directory: str) -> None:
    (tmp_path / directory).mkdir(parents=True)
    out, err = restart(tmp_path, tmp_path / "missing").communicate(timeout=patience(30))
    assert (out, err) == ("starts over\n", "")


TEMPORARY = ("/tmp", "/dev/shm", "/var/tmp")
UNUSABLE = {
    "one forbids programs": ("-o noexec", TEMPORARY[:1]),
    "all forbid programs": ("-o noexec", TEMPORARY),
    "one is full": ("-o nr_inodes=1", TEMPORARY[:1]),
    "one has no space": ("-o size=4k,nr_inodes=9", TEMPORARY[:1]),
    "two are read-only": ("-o ro", TEMPORARY[:2]),
}


@ROOT
@pytest.mark.parametrize(("options", "places"), UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize("first_line", ["#!/bin/bash", "#! /bin/bash  -u ", "#!/usr/bin/env bash"])
@pytest.mark.parametrize("method", ["criu", "blcr"])
def test_a_script_runs_although_temporary_directories_are_of_no_use(
    tmp_path: Path, options: str, places: tuple[str, ...], first_line: str, method: str
) -> None:
    script = tmp_path / "slurm_script"  # which is below /tmp
    copied = f"mount -t tmpfs own /mnt; cp -p {script} /mnt/script"
    body = f"{first_line}\necho \"$#:$2\"; cat; env | grep -c '^se_'; exit 5\n"
    script.write_text(launchers(str(tmp_path), "/nonexistent")[method] + body)
    script.chmod(0o755)
    mounts = "; ".join(f"mount -t tmpfs {options} own {place}" for place in places)
    if "size" in options:
        mounts += "; head -c 4096 /dev/zero >/tmp/of-another-job"
    done = subprocess.run(
        ["unshare", "--mount", "/bin/sh", "-ec", f"{copied}; {mounts}; exec /mnt/script a 'b c'"],
        input="from stdin\n", capture_output=True, text=True, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "SLURM_JOB_ID": "7"},
    )  # fmt: skip
    assert done.stdout == "2:b c\nfrom stdin\n0\n", done.stderr
    assert (done.returncode, done.stderr) == (5, "")


def test_the_mark_is_a_line_of_its_own() -> None:
    for text in LAUNCHERS.values():
        assert text.startswith("#!/bin/bash -p\n")
        assert text.endswith(f"\n{MARK}\n")
        assert text.count(f"\n{MARK}\n") == 1


def test_two_jobs_with_one_script_get_launchers_that_differ(lua: Callable[[str], str]) -> None:
    """Their digests tell them apart if the second gets the first one's number."""
    code = "\n".join(
        (
            HARNESS,
            render(site(), domain_pools(site(), expand))[FILTER],
            "for _ = 1, 2 do",
            f"local job = {to_lua(UNSET | {'partition': 'onprem', 'script': SCRIPT})}",
            f"slurm_elastic_submit(job, {to_lua(PARTITIONS)}, 1000)",
            "print(string.match(job.script, '\\n# job (%x+)\\n'))",
            "end",
        )
    )
    first, second = lua(code).split()
    assert len(first) == len(second) == 32
    assert first != second
