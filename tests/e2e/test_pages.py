"""The commands of README.md, docs/decision.md and docs/sandbox.md, typed in their order at a sandbox's head."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from pages import ROOT, plain, shown
from patience import patience

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec
from tests.e2e.conftest import why_not
from tests.e2e.world import PATIENCE, Until, back_to_zero, live_machines

pytestmark = pytest.mark.e2e
RESTART = """\
#!{python}
import sys
from pathlib import Path
from slurm_elastic.sandbox.cluster import Sandbox
assert sys.argv[1:] == ["restart", "slurmctld"]
site = Sandbox.attach(Path("{directory}"))
site.slurmctld_stop()
site.slurmctld_start()
"""
ALONE = """\
place=$(mktemp -d /run/se-tmp.XXXXXX)
mount -t tmpfs -o mode=1777 tmpfs "$place"
for path in "$@"; do
    case $path in /tmp/*) mkdir -p "$place/${path#/tmp/}" && mount --bind "$path" "$place/${path#/tmp/}" ;; esac
done
mount --move "$place" /tmp
rmdir "$place"
exec bash -euo pipefail -x
"""
SAVES_BY_CRIU = f"""\
mount -t tmpfs tmpfs /run
for path in etc usr/local/sbin; do
    mkdir -p /run/upper/$path /run/scratch/$path
    mount -t overlay overlay -o lowerdir=/$path,upperdir=/run/upper/$path,workdir=/run/scratch/$path /$path
done
mkdir -p /etc/slurm-elastic /run/sudo
slurm-elastic rootpart /usr/local/sbin/slurm-elastic-ckpt-root
install -m 440 {ROOT}/etc/sudoers.d-slurm-elastic /etc/sudoers.d/slurm-elastic
(umask 077; head -c 64 /dev/urandom >/etc/slurm-elastic/ckpt.key)
"""
"""A host with the root part, for as long as the shell lives. CRIU needs a tmpfs on /run."""
COUNTS = """\
slurm-elastic sandbox up
eval $(slurm-elastic sandbox env)
cd /tmp/slurm-elastic-sandbox/work
printf '%s\\n' '#!/bin/sh' 'for n in $(seq 1500); do sleep 1; echo "$n"; done' >count.sh
setpriv --reuid=65534 --regid=65534 --clear-groups sbatch -p aws --open-mode=append --comment=ckpt=criu count.sh
until [ -s slurm-1.out ]; do sleep 1; done
slurm-elastic ckpt notice $(squeue -h -j 1 -o %N) --in 1m
until grep 'it continues from save' slurm-1.out; do sleep 1; done
scancel 1
slurm-elastic sandbox down
"""
ELSEWHERE = f"""\
mount -t tmpfs tmpfs /usr/local/bin
ln -s {sys.prefix}/bin/slurm-elastic* /usr/local/bin
mkdir /tmp/opt /tmp/opt-work
mount -t overlay overlay -o lowerdir=/opt,upperdir=/tmp/opt,workdir=/tmp/opt-work /opt
mkdir -p /opt/slurm/bin /opt/slurm/sbin
cp /usr/bin/s{{batch,control,info,queue,cancel}} /opt/slurm/bin
cp /usr/sbin/slurm{{ctld,d}} /opt/slurm/sbin
"""


class Head:
    """A shell of root's at the sandbox's head, as ``slurm-elastic sandbox env`` makes one."""

    def __init__(self, site: Sandbox) -> None:
        self._site = site
        path = os.pathsep.join([str(Path(sys.executable).parent), site.env()["PATH"]])
        self._env = site.env() | {"PATH": path}

    def types(self, line: str) -> str:
        """A command that ends well; its output."""
        done = self.tries(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def tries(self, line: str) -> subprocess.CompletedProcess[str]:
        """A command, whatever becomes of it."""
        return subprocess.run(
            ["bash", "-c", line], cwd=self._site.work, env=self._env,
            capture_output=True, text=True, check=False, timeout=patience(200),
        )  # fmt: skip

    def looks(self, line: str, until: Callable[[str], bool]) -> None:
        """A command that goes on; Ctrl-C when a line of it is as wanted."""
        with subprocess.Popen(
            ["env", "--default-signal=INT", "bash", "-c", f"exec {line}"],
            cwd=self._site.work, env=self._env, stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            late = Timer(patience(60), process.kill)
            late.start()
            try:
                assert any(until(text) for text in process.stdout), f"{line} ended"
            finally:
                process.send_signal(signal.SIGINT)
                process.stdout.read()
                assert process.wait() in (0, 130), line
                late.cancel()


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(static_nodes=1, drop=("onprem",), suspend_time=5.0)


@pytest.fixture(scope="module")
def head(site: Sandbox) -> Head:
    return Head(site)


def test_operate_it(site: Sandbox, head: Head) -> None:
    """While a job runs on a machine of the cloud."""
    until = Until(site)
    job = site.submit(until.script, "--partition=aws")
    node = site.wait_job(job, "RUNNING")["NodeList"]
    going_on = {"slurm-elastic status --watch": screens(2), "slurm-elastic web": serves_a_page}

    def typed(line: str) -> None:
        if plain(line) in going_on:
            head.looks(line, going_on.pop(plain(line)))
        elif "sandbox up" in line:  # the one that is there is another than it would make: it stays
            assert "already up" in head.tries(f"{plain(line)} --dir {site.layout.dir}").stderr
        else:
            head.types(line)

    words = {"NODE": node, "JOBID": str(job), "POOL": "pub"}
    shown("README.md", "slurm-elastic status ").run(typed, words)
    assert going_on == {}
    until.go()
    site.wait_job(job)


def screens(wanted: int) -> Callable[[str], bool]:
    """Whether a line begins so many screens of a ``--watch``."""
    seen: list[str] = []

    def looked(line: str) -> bool:
        seen.extend([line] * line.startswith("Daemon: alive"))
        return len(seen) == wanted

    return looked


def serves_a_page(line: str) -> bool:
    path = line.partition("listening at ")[2].partition(";")[0]
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(patience(30))
        link.connect(path)
        link.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        return b"200 OK" in link.recv(4096)


@pytest.mark.release
def test_a_job_is_saved_and_moved(site: Sandbox, head: Head) -> None:
    """As the page has it; NODE is known when the job runs."""
    script = shown("docs/sandbox.md", "#SBATCH --partition=aws --time=30").text
    (site.work / "count.sh").write_text(script)
    job = int(head.types("sbatch --parsable --hold count.sh"))
    output = site.work / f"slurm-{job}.out"

    def counts(number: int) -> bool:
        return output.exists() and number <= len(numbers(output))

    def typed(line: str) -> None:
        if line == "sbatch count.sh":
            line = f"scontrol release {job}"
        said.append(head.types(line))
        if line == f"scontrol release {job}":
            site.wait_for(lambda: counts(6), PATIENCE, "it counts")  # signals come after 5 s
        if line.startswith("slurm-elastic ckpt now"):
            saved = site.work / f"count-{job}"
            site.wait_for(saved.exists, PATIENCE, "it is saved")
            site.wait_for(
                lambda: "signal" in head.types("slurm-elastic ckpt list"), PATIENCE, "it lists it"
            )
        if line.startswith("slurm-elastic ckpt notice"):
            text = "slurm-elastic: it continues from save"
            site.wait_for(lambda: text in output.read_text(), PATIENCE, "it says why it moved")
            more = len(numbers(output)) + 2
            site.wait_for(lambda: counts(more), PATIENCE, "it counts on")

    said: list[str] = []
    shown("docs/sandbox.md", "sbatch count.sh").run(typed, {"JOB": str(job)})
    node = site.job(job)["NodeList"]
    words = {"JOB": str(job), "NODE": node}
    shown("docs/sandbox.md", "slurm-elastic ckpt notice NODE").run(typed, words)
    assert numbers(output) == list(range(1, len(numbers(output)) + 1))
    assert site.job(job)["NodeList"] != node
    assert any("a new kernel: interruption notice" in text for text in said)


def numbers(output: Path) -> list[int]:
    """The numbers that ``count.sh`` has written."""
    return [int(number) for number in re.findall(r"^pub\d: (\d+)$", output.read_text(), re.M)]


@pytest.mark.release
def test_criu_saves_in_a_sandbox_on_a_host_with_the_root_part() -> None:
    """The page's lines of ckpt-root.conf, and CRIU 4 where the test finds it."""
    conf = shown("docs/sandbox.md", "directory = /tmp/slurm-elastic-sandbox/images").text
    lines = [*conf.splitlines(), f"criu = {criu()}"]
    write = ["cat >/etc/slurm-elastic/ckpt-root.conf <<END", *lines, "END"]
    said = alone([SAVES_BY_CRIU, *write, COUNTS])
    assert "it continues from save 1 on pub" in said


def criu() -> str:
    script = ROOT / "tests" / "machine" / "ckptroot" / "criu4"
    done = subprocess.run([script], capture_output=True, text=True, check=False, timeout=500)
    if done.returncode != 0:
        pytest.skip(f"no CRIU 4: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def test_how_to_get_out(site: Sandbox, head: Head) -> None:
    """docs/decision.md: the uninstall waits for nobody, so it comes when no machine is left."""

    def typed(line: str) -> None:
        if "uninstall" in line:
            back_to_zero(site)
        head.types(line)

    assert "include" in site.layout.slurm_conf.read_text()
    systemctl = site.layout.dir / "etc" / "systemctl"  # no systemd is here: the sandbox's own way
    systemctl.write_text(RESTART.format(python=sys.executable, directory=site.layout.dir))
    systemctl.chmod(0o755)
    shown("docs/decision.md", "slurm-elastic pause").run(typed, {"systemctl": str(systemctl)})
    assert "include" not in site.layout.slurm_conf.read_text()
    assert set(site.nodes()) == {"st1"}


def alone(lines: list[str]) -> str:
    """What a shell says to these, in a /tmp and among processes of its own; an error ends it."""
    if reason := why_not():
        pytest.skip(reason)
    namespaces = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child")  # fmt: skip
    path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        [*namespaces, "bash", "-euc", ALONE, "alone", ROOT, sys.prefix], cwd="/",
        env=os.environ | {"PATH": path}, input="\n".join([*lines, ""]), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=patience(400),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.release
def test_a_sandbox_comes_and_goes() -> None:
    lines: list[str] = []
    shown("docs/sandbox.md", "sbatch -D /tmp").run(lines.append)
    said = alone([*lines, "[ ! -e /tmp/slurm-elastic-sandbox ]"])
    assert "Submitted batch job 1" in said


@pytest.mark.release
def test_ten_jobs_fill_a_sandbox() -> None:
    """Who looks at it for a while ends that by Ctrl-C."""
    lines: list[str] = []
    look = "timeout --signal=INT 20 slurm-elastic status --watch || [ $? = 124 ]"
    shown("docs/sandbox.md", "cd /tmp/slurm-elastic-sandbox/work").run(
        lines.append, {"slurm-elastic status --watch": look}
    )
    said = alone(lines)
    assert "Submitted batch job 10" in said
    assert "pub" in said.partition("Daemon: alive")[2]


@pytest.mark.release
def test_a_slurm_that_lies_elsewhere_runs_in_a_sandbox() -> None:
    """Debian's own, as if it had been built there: what /usr/sbin shows then is not the host's."""
    lines: list[str] = []
    shown("docs/sandbox.md", "mount -t overlay overlay").run(lines.append)
    look = "findmnt --noheadings --output FSTYPE /usr/sbin; slurm-elastic sandbox status"
    said = alone([ELSEWHERE, *lines, look, "slurm-elastic sandbox down"])
    assert "\noverlay\n" in said
    assert "The sandbox is up" in said
    assert "slurmctld             running" in said


def test_a_sandbox_from_python() -> None:
    """The machine whose id the page leaves open is one that a job has brought up meanwhile."""
    if reason := why_not():
        pytest.skip(reason)
    text = shown("docs/sandbox.md", "site = Sandbox(SandboxSpec(").text
    first, interrupt, last = text.partition("site.ec2.interrupt")
    names: dict[str, Any] = {}
    directory = Path(f"/tmp/se-page-{os.getpid()}")
    try:
        exec(first.replace("/tmp/se-1", str(directory)), names)
        site: Sandbox = names["site"]
        job = site.submit("sleep 300", "--partition=aws")
        node = site.wait_job(job, "RUNNING", timeout=patience(120))["NodeList"]
        (machine,) = [one.id for one in live_machines(site) if one.node == node]
        exec((interrupt + last).replace("i-...", machine), names)
        assert not directory.exists()
    finally:
        Sandbox(SandboxSpec(dir=directory)).down()


def test_an_opennebula_in_a_sandbox_from_python() -> None:
    """Of three jobs for a machine each two run: so many machines the page's quota gives."""
    if reason := why_not():
        pytest.skip(reason)
    directory = Path(f"/tmp/se-page-{os.getpid()}")
    names: dict[str, Any] = {"Path": Path, "Sandbox": Sandbox, "SandboxSpec": SandboxSpec}
    text = shown("docs/sandbox.md", "from slurm_elastic.sandbox.nebula.control").text
    try:
        exec(text.replace("/tmp/se-2", str(directory)), names)
        site: Sandbox = names["site"]
        jobs = [site.submit("sleep 300", "--exclusive", "--partition=nebula") for _ in range(3)]
        site.wait_for(lambda: running(site, jobs) == 2, patience(120), "two machines")
    finally:
        Sandbox(SandboxSpec(dir=directory)).down()


def running(site: Sandbox, jobs: list[int]) -> int:
    return [site.job(job)["JobState"] for job in jobs].count("RUNNING")
