"""The .deb on a head node with a real systemd: installed, upgraded while jobs run, refused, purged."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually, patience

from tests.package.head import Head, head

REPO = Path(__file__).parents[2]
SITE = "/srv/site"
BOTH = "slurm-elasticd slurm-elastic-ckptman"
ENV = f'eval "$(slurm-elastic sandbox env --dir {SITE})"; cd {SITE}/work; '
RESTART = f"""
from pathlib import Path
from slurm_elastic.sandbox.cluster import Sandbox
site = Sandbox.attach(Path("{SITE}"))
site.slurmctld_stop()
site.slurmctld_start()
"""
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a head node"),
]


@pytest.fixture(scope="module")
def deb() -> Iterator[Path]:
    work = Path(f"/var/tmp/slurm-elastic-deb-{os.getpid()}")
    try:
        told = subprocess.run(
            [REPO / "scripts" / "package", "deb", "--quick", "--output", work],
            capture_output=True, text=True, check=False, timeout=patience(400),
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
        yield Path(told.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(work, ignore_errors=True)


def newer(deb: Path) -> Path:
    """The package as a later revision: another control file beside the same data."""
    made, rest = bytearray(b"!<arch>\n"), memoryview(deb.read_bytes())[8:]
    while rest:
        head, size = bytes(rest[:60]), int(rest[48:58])
        body, rest = bytes(rest[60 : 60 + size]), rest[60 + size + size % 2 :]
        if head.startswith(b"control.tar "):
            body = revised(body)
        made += head[:48] + f"{len(body):<10}".encode() + head[58:] + body + b"\n" * (len(body) % 2)
    path = deb.with_name("newer.deb")
    path.write_bytes(made)
    return path


def revised(control: bytes) -> bytes:
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(control)) as old,
        tarfile.open(fileobj=made, mode="w") as new,
    ):
        for member in old:
            file = old.extractfile(member) if member.isfile() else None
            text = file.read() if file else b""
            if member.name == "./control":
                text = re.sub(rb"(?m)^(Version: .*?)-1~", rb"\1-2~", text)
                member.size = len(text)
            new.addfile(member, io.BytesIO(text))
    return made.getvalue()


def install(machine: Head, deb: Path) -> str:
    return machine.run("dpkg", "--force-unsafe-io", "--install", str(deb), seconds=300)


def site(machine: Head) -> None:
    """A sandbox of the package's, whose services are systemd's from here on."""
    machine.shell(
        # Its slurmd's want the kind of control groups that this host has.
        "exec unshare --mount bash -ec 'mount --rbind /run/host-cgroup /sys/fs/cgroup;"
        f" exec slurm-elastic sandbox up --dir {SITE} --boot 2 --suspend-time 20'",
        seconds=200,
    )
    machine.shell(
        f"""
        cp {SITE}/etc/{{slurm-elastic.yaml,cluster-uuid,installed.json}} /etc/slurm-elastic/
        for name in {BOTH}; do
            pid=$(sed -n 's/.*"pid": *\\([0-9]*\\).*/\\1/p' {SITE}/run/$name.json)
            kill $pid
            while [ -e /proc/$pid ]; do sleep 0.1; done
            mkdir -p /etc/systemd/system/$name.service.d
            printf '[Service]\\nReadWritePaths={SITE}\\n' >/etc/systemd/system/$name.service.d/site.conf
        done
        slurm-elastic sandbox env --dir {SITE} | sed -n 's/^export \\(.*\\);$/\\1/p' >/etc/default/slurm-elastic
        systemctl daemon-reload
        systemctl start {BOTH}
        """
    )


def batch(machine: Head, seconds: int) -> str:
    answer = machine.shell(
        f"{ENV} setpriv --reuid=nobody --regid=nogroup --clear-groups"
        f" sbatch --parsable --partition=aws --exclusive --wrap 'sleep {seconds}'"
    )
    return answer.split()[-1]


def state(machine: Head, job: str) -> str:
    found = re.search(
        r"JobState=(\w+)", machine.shell(f"{ENV} scontrol show job {job}", check=False)
    )
    return found[1] if found else ""


def active(machine: Head) -> list[str]:
    return machine.run("systemctl", "is-active", *BOTH.split(), check=False).split()


def test_from_the_first_installation_to_the_purge(deb):
    with head() as machine:
        assert "slurm-elastic " in install(machine, deb)
        # Nothing is started, nor will be; what a person needs is there.
        assert active(machine) == ["inactive", "inactive"]
        enabled = machine.run("systemctl", "is-enabled", *BOTH.split(), check=False).split()
        assert enabled == ["disabled", "disabled"]
        assert machine.run("man", "-w", "slurm-elastic-conf", "slurm-elasticd").count(".gz") == 2
        owned = machine.run("dpkg", "-S", "/etc/default/slurm-elastic")
        assert owned.startswith("slurm-elastic:")

        site(machine)
        before = machine.path(f"{SITE}/etc/slurm.conf.before-slurm-elastic").read_bytes()
        upgraded_with_jobs(machine, newer(deb))
        refused_while_a_job_runs(machine)

        purge(machine, before)


def purge(machine: Head, before: bytes) -> None:
    """slurm.conf is as it was; on 22.05 slurmctld has to be restarted before the last files go."""

    def tried() -> bool:
        told.append(machine.run("dpkg", "--purge", "slurm-elastic", check=False, seconds=200))
        return machine.path(f"{SITE}/etc/slurm.conf").read_bytes() == before

    told: list[str] = []
    eventually(tried, 180, lambda: "\n".join(told))
    if "stays installed" in told[-1]:
        assert "stop and start slurmctld" in told[-1]
        machine.shell(f"/opt/slurm-elastic/bin/python -c '{RESTART}'")
        told.append(machine.run("dpkg", "--purge", "slurm-elastic", seconds=200))
    assert machine.path(f"{SITE}/etc/slurm.conf").read_bytes() == before, told
    for gone in ("/opt/slurm-elastic", "/etc/slurm-elastic", "/etc/default/slurm-elastic"):
        assert not machine.path(gone).exists(), told
    assert "inactive" in machine.run("systemctl", "is-active", "slurm-elasticd", check=False)
    assert machine.run("dpkg-query", "-l", "slurm-elastic", check=False).startswith(
        "dpkg-query: no"
    )


def upgraded_with_jobs(machine: Head, deb: Path) -> None:
    """A job runs through the upgrade; another one's request comes while no service is there."""
    assert active(machine) == ["active", "active"], machine.run("journalctl", "-n40")
    running = batch(machine, 60)
    eventually(lambda: state(machine, running) == "RUNNING", 120, lambda: logs(machine))
    first = machine.run("systemctl", "show", "--property=MainPID", *BOTH.split())
    machine.run("systemctl", "stop", "slurm-elasticd")
    requests = machine.path(f"{SITE}/state/requests")
    before = set(requests.iterdir())
    waiting = batch(machine, 1)
    eventually(lambda: set(requests.iterdir()) - before, 60, lambda: logs(machine))
    machine.shell("echo slurm-elasticd.service >/run/slurm-elastic.stopped")  # as prerm would have
    install(machine, deb)
    assert active(machine) == ["active", "active"], logs(machine)
    assert machine.run("systemctl", "show", "--property=MainPID", *BOTH.split()) != first
    assert "-2~" in machine.run("dpkg-query", "-W", "slurm-elastic")
    for job in (running, waiting):
        eventually(lambda job=job: state(machine, job) == "COMPLETED", 180, lambda: logs(machine))


def refused_while_a_job_runs(machine: Head) -> None:
    """A machine that nobody would end any more keeps the package where it is."""
    last = batch(machine, 900)
    eventually(lambda: state(machine, last) == "RUNNING", 120, lambda: logs(machine))
    told = machine.run("dpkg", "--purge", "slurm-elastic", check=False, seconds=200)
    assert "slurm-elastic stays installed" in told
    assert active(machine) == ["active", "active"]
    machine.shell(f"{ENV} scancel {last}")
    eventually(lambda: powered_down(machine), 180, lambda: logs(machine))


def powered_down(machine: Head) -> bool:
    nodes = machine.shell(f"{ENV} sinfo --noheader --Node --format='%N %t'").split("\n")
    ours = [line for line in nodes if line.startswith(("pub", "op"))]
    return bool(ours) and all(line.endswith("idle~") for line in ours)


def logs(machine: Head) -> str:
    return machine.shell(
        f"journalctl -n60 -u slurm-elasticd -u slurm-elastic-ckptman; {ENV} sinfo; squeue; tail -n20 {SITE}/log/slurmctld.log",
        check=False,
    )
