"""A sandbox on real Slurm: up, used, crashed, cleared away without a trace."""

from __future__ import annotations

import os
import pwd
import re
import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.cli.main import main
from slurm_elastic.machine.local import local_processes
from slurm_elastic.sandbox import build
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.layout import MARKER
from slurm_elastic.sandbox.spec import SandboxSpec, ports_needed

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd and munged need root"),
    unless("slurmctld"),
]


def processes_naming(text: str) -> list[int]:
    """All processes that have ``text`` in arguments, environment or working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if text.encode() in said or where.startswith(text):
            found.append(int(entry.name))
    return found


@pytest.fixture
def spec():
    """Without the public cloud, which only the first test needs."""
    directory = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
    yield SandboxSpec(dir=directory, drop=("aws",))
    Sandbox(SandboxSpec(dir=directory)).down()


@pytest.fixture
def cluster(spec):
    made = Sandbox(spec)
    made.up()
    return made


def test_static_nodes_run_a_users_job_and_down_leaves_nothing(spec):
    steps: list[str] = []
    cluster = Sandbox(replace(spec, drop=()))
    cluster.up(steps.append)
    assert steps
    assert all(cluster.status().values())
    job = cluster.submit("hostname; id -un", "-N2", "-p", "batch", "-o", "out")
    assert cluster.wait_job(job)["NodeList"] == "st[1-2]"
    assert (cluster.work / "out").read_text().splitlines()[1] == "nobody"
    job = cluster.submit("srun /bin/hostname", "--export=NONE", "-p", "batch", "-o", "bare")
    cluster.wait_job(job)
    assert (cluster.work / "bare").read_text().split() == [os.uname().nodename]
    sleeper = cluster.submit("setsid sleep 5001 & exec sleep 5000", "-p", "batch")
    cluster.wait_job(sleeper, "RUNNING")
    ours = processes_naming(str(spec.dir))
    assert ours
    cluster.down()
    assert processes_naming(str(spec.dir)) == []
    assert not spec.dir.exists()
    # Other tests use the same host meanwhile: what counts is what bears this sandbox's name.
    assert not [
        p for top in ("/tmp", "/run", "/var/tmp") for p in Path(top).glob(f"*{spec.dir.name}*")
    ]
    assert str(spec.dir) not in Path("/proc/mounts").read_text()


@pytest.mark.release
def test_up_twice_says_so_and_another_process_can_take_it_down(cluster, spec):
    with pytest.raises(SandboxError, match="already up"):
        Sandbox(spec).up()
    assert cluster.is_up()
    Sandbox.attach(spec.dir).down()
    assert processes_naming(str(spec.dir)) == []


def test_up_starts_a_dead_service_alone_with_what_it_knew(cluster, spec):
    ledger = cluster.layout.dir / "state" / "ledger.db"
    before = ledger.stat().st_ino
    kept = {name: cluster.processes.get(name) for name in ("munged", "slurmctld", "ec2")}
    for kill in (cluster.daemon_kill, cluster.ckptman_kill):
        kill()
        Sandbox(spec).up()
        assert cluster.is_up()
    assert ledger.stat().st_ino == before
    assert {name: cluster.processes.get(name) for name in kept} == kept


def ordered(directory: Path, *words: str) -> int:
    return main(["sandbox", *words, "--dir", str(directory)])


def test_each_service_stops_and_starts_alone_and_status_says_so(cluster, spec, capsys, monkeypatch):
    monkeypatch.setattr(os, "environ", cluster.env())
    job = cluster.submit("sleep 1000", "-p", "batch")
    cluster.wait_job(job, "RUNNING")
    others = {name: cluster.processes.get(name) for name in cluster.status()}
    for service, name, told in (
        ("slurmctld", "slurmctld", "Slurm does not answer"),
        ("slurm-elasticd", "slurm-elasticd", "Daemon: NOT RUNNING"),
        ("ckptman", "slurm-elastic-ckptman", "slurm-elastic-ckptman is NOT RUNNING"),
    ):
        assert ordered(spec.dir, "stop", service) == 0
        assert [n for n, alive in cluster.status().items() if not alive] == [name]
        assert ordered(spec.dir, "stop", service) == 2
        main(["status"])
        assert told in " ".join(capsys.readouterr().out.split())
        if service == "slurmctld":
            assert main(["doctor", "--quick"]) == 1
            assert "slurmctld" in capsys.readouterr().out
        assert ordered(spec.dir, "start", service) == 0
        assert ordered(spec.dir, "start", service) == 2
        del others[name]
        assert {n: cluster.processes.get(n) for n in others} == others
    assert cluster.wait_job(job, "RUNNING")["NodeList"].startswith("st")
    with pytest.raises(SandboxError, match="no service that starts again; expected slurmctld, "):
        cluster.service_stop("munged")


def test_up_restarts_a_crashed_slurmctld_and_announces_what_it_throws_away(cluster, spec):
    job = cluster.submit("sleep 1000", "-p", "batch")
    cluster.wait_job(job, "RUNNING")
    # slurmctld saves its jobs some seconds later, and forgets in a crash what it has not saved.
    saved, began = cluster.layout.dir / "slurmctld" / "job_state", time.time()
    cluster.run(["scontrol", "update", f"jobid={job}", "comment=saved"])
    cluster.wait_for(lambda: saved.exists() and saved.stat().st_mtime > began, 60, "a save")
    ledger = cluster.layout.dir / "state" / "ledger.db"
    before, steps = ledger.stat().st_ino, []
    assert ordered(spec.dir, "stop", "slurmctld", "--crash") == 0
    Sandbox(spec).up(steps.append)
    assert steps == ["slurmctld, which was dead; all other processes still run"]
    assert cluster.wait_job(job, "RUNNING")["NodeList"].startswith("st")
    assert ledger.stat().st_ino == before
    cluster.processes.kill("munged")
    steps.clear()
    Sandbox(spec).up(steps.append)
    assert steps[0] == "removing the old sandbox with its jobs and records: munged ended"


@pytest.mark.release
def test_with_a_slurm_of_which_a_host_has_one_slurmd_it_says_so_and_leaves_nothing(
    spec, monkeypatch
):
    """As soon as slurmctld can say so."""
    real = Sandbox.run

    def run(self, command, *words, **more):
        done = real(self, command, *words, **more)
        if command == ["scontrol", "show", "config"]:
            done.stdout = re.sub(r"(?i)(MULTIPLE_SLURMD +=) yes", r"\1 no", done.stdout)
        return done

    monkeypatch.setattr(Sandbox, "run", run)
    with pytest.raises(SandboxError, match="without --enable-multiple-slurmd"):
        Sandbox(spec).up()
    assert processes_naming(str(spec.dir)) == []
    assert not spec.dir.exists()


@pytest.mark.release
def test_up_clears_a_half_dead_one_away_first(cluster, spec):
    before = cluster.processes.get("munged")
    cluster.daemon_kill()
    cluster.processes.kill("slurmctld")
    (
        cluster.layout.dir / "run" / "local-agent.json"
    ).unlink()  # as a crash between start and record
    again = Sandbox(spec)
    again.up()
    assert again.is_up()
    assert not local_processes.alive(before)
    commands = [
        Path(f"/proc/{p.pid}/cmdline").read_bytes()
        for p in local_processes.carrying(MARKER, str(spec.dir), {0})
    ]
    assert sum(b"cli.services.local_agent" in command for command in commands) == 1


@pytest.mark.release
def test_another_sandbox_takes_none_of_its_ports_not_even_those_of_nodes_that_are_off(
    cluster, spec, monkeypatch, tmp_path
):
    """The block is not even looked at by its listeners, and its turn to be given has come again. A
    record of our own: other tests of this host take blocks meanwhile, and any of the others may be
    theirs.
    """
    first = cluster.layout.read().ports.slurmctld
    record = tmp_path / "ports"
    record.write_text(str(first))
    monkeypatch.setattr(build, "LAST_PORTS", record)
    monkeypatch.setattr(build, "_is_free", lambda port: True)
    other = build.free_ports(spec).slurmctld
    assert abs(other - first) >= ports_needed(spec)
    cluster.down()
    record.write_text(str(first))
    assert build.free_ports(spec).slurmctld == first


def test_sandboxes_that_come_up_at_once_get_different_ports(monkeypatch, tmp_path):
    """Nobody listens on them yet."""
    monkeypatch.setattr(build, "LAST_PORTS", tmp_path / "ports")
    firsts = sorted(build.free_ports(SandboxSpec()).slurmctld for _ in range(20))
    assert all(later - first >= ports_needed(SandboxSpec()) for first, later in pairwise(firsts))


@pytest.mark.release
def test_slurmctld_restarts_with_its_jobs(cluster):
    job = cluster.submit("sleep 2", "-p", "batch")
    cluster.wait_job(job, "RUNNING", "COMPLETED")
    cluster.slurmctld_stop()
    assert not cluster.status()["slurmctld"]
    cluster.slurmctld_start()
    assert cluster.wait_job(job)["ExitCode"] == "0:0"


def test_a_failed_up_tells_the_logs_and_leaves_nothing(spec):
    broken = replace(spec, slurm_conf=("NoSuchOption=1",))
    with pytest.raises(SandboxError, match="NoSuchOption"):
        Sandbox(broken).up()
    assert not spec.dir.exists()
    assert processes_naming(str(spec.dir)) == []


@pytest.mark.parametrize("order", ["up", "down"])
@pytest.mark.parametrize(
    ("owner", "mode", "message"),
    [
        ("nobody", 0o755, "belongs to another user and is not changed"),
        ("root", 0o777, "must be a directory in which only its owner may write"),
        ("root", 0o1777, "must be a directory in which only its owner may write"),
        ("root", 0o775, "must be a directory in which only its owner may write"),
    ],
)
def test_an_empty_directory_that_others_can_write_in_is_not_taken(
    spec, order, owner, mode, message
):
    who = pwd.getpwnam(owner)
    os.chown(spec.dir, who.pw_uid, who.pw_gid)
    spec.dir.chmod(mode)
    try:
        with pytest.raises(SandboxError, match=message):
            getattr(Sandbox(spec), order)()
        assert list(spec.dir.iterdir()) == []
    finally:
        spec.dir.rmdir()


@pytest.mark.release
def test_a_pid_that_was_given_out_again_is_not_killed(cluster, spec):
    other = local_processes.spawn(["sleep", "1000"], {}, log="/dev/null")
    cluster.processes.stop("local-agent")
    record = cluster.layout.dir / "run" / "local-agent.json"
    record.write_text(f'{{"pid": {other.pid}, "start": {other.start - 1}}}')
    cluster.down()
    assert local_processes.alive(other)
    local_processes.send(other, signal.SIGKILL)
