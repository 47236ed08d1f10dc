"""The .debs on minimal Debians with a real systemd: installed, used, upgraded while jobs run, refused, purged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from patience import eventually, patience

from tests.package.head import Head, head, root

REPO = Path(__file__).parents[2]
SITE = "/srv/site"
BOTH = "slurm-elasticd slurm-elastic-ckptman"
ENV_FILE = "/run/site.env"
ENV = f". {ENV_FILE}; cd {SITE}/work; "
SLURM = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge"]
EVERYTHING = r"""
find / -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/cache \
    -o -path /var/log -o -path /var/tmp -o -path /root \) -prune -o -printf '%p %y %m %u %g %l\n' | sort
find /etc /opt /srv /usr -xdev -type f -printf '%p %s\n' | sort
find /etc /opt /srv -xdev -type f -exec md5sum {} + | sort
"""
PURGE = ("apt-get", "purge", "-y", "slurm-elastic", "slurm-elastic-sandbox")
RESTART = f"""
from pathlib import Path
from slurm_elastic.sandbox.cluster import Sandbox
site = Sandbox.attach(Path("{SITE}"))
site.slurmctld_stop()
site.slurmctld_start()
"""
WRITTEN = f"""
from pathlib import Path
from slurm_elastic.sandbox.build import host_name
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.spec import site_conf
saved = Layout(dir=Path("{SITE}")).read()
print(site_conf(saved.spec, saved.ports, host_name()), end="")
"""
pytestmark = [
    pytest.mark.release,
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a head node"),
]


OLDER = "f450cecc"
"""A commit of an earlier release's state, with all in one package, from which is upgraded where this clone has it."""


def has(commit: str) -> bool:
    if shutil.which("git") is None:
        return False
    told = subprocess.run(
        ["git", "-c", f"safe.directory={REPO}", "-C", REPO, "cat-file", "-e", f"{commit}^{{commit}}"],
        capture_output=True, check=False,
    )  # fmt: skip
    return told.returncode == 0


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    directory = Path(f"/var/tmp/slurm-elastic-deb-{os.getpid()}")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@cache
def built(work: Path, *options: str) -> Sequence[Path]:
    """The packages of a release."""
    told = subprocess.run(
        [REPO / "scripts" / "package", "deb", "--quick", "--output", work, *options],
        capture_output=True, text=True, check=False, timeout=patience(600),
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    return [Path(line) for line in told.stdout.splitlines() if line.endswith(".deb")]


def install(machine: Head, debs: Sequence[Path]) -> str:
    """By apt, which resolves what it needs. Nobody is there to be asked about files that the site changed."""
    keep = "Dpkg::Options::=--force-confold"
    return machine.run(
        "apt-get", "install", "-y", "-o", keep, *(f"/srv/packages/{deb.name}" for deb in debs),
        seconds=300,
    )  # fmt: skip


def up(machine: Head) -> None:
    """A sandbox of the packages'."""
    machine.shell(
        # Its slurmd's want the kind of control groups that this host has.
        "exec unshare --mount bash -ec 'mount --rbind /run/host-cgroup /sys/fs/cgroup;"
        f" exec slurm-elastic sandbox up --dir {SITE} --static 1 --boot 2 --suspend-time 10'",
        seconds=200,
    )
    machine.shell(f"slurm-elastic sandbox env --dir {SITE} >{ENV_FILE}")


def site(machine: Head) -> None:
    """A sandbox whose services are systemd's from here on. Its own node is taken."""
    up(machine)
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
        sed -n 's/^export \\(.*\\);$/\\1/p' {ENV_FILE} >/etc/default/slurm-elastic
        systemctl daemon-reload
        systemctl start {BOTH}
        """
    )
    taken = batch(machine, 3000)
    eventually(lambda: ran_on(machine, taken) == "st1", 60, lambda: logs(machine))


def batch(machine: Head, seconds: int) -> str:
    """A plain job of a user's, for a whole machine of whichever cloud."""
    answer = machine.shell(
        f"{ENV} setpriv --reuid=nobody --regid=nogroup --clear-groups"
        f" sbatch --parsable --exclusive --wrap 'sleep {seconds}'"
    )
    return answer.split()[-1]


def state(machine: Head, job: str) -> str:
    return field(machine, job, "JobState")


def ran_on(machine: Head, job: str) -> str:
    return field(machine, job, "NodeList")


def field(machine: Head, job: str, name: str) -> str:
    told = machine.shell(f"{ENV} scontrol show job {job}", check=False)
    found = re.search(rf"(?m)^ +{name}=(\w+)", told)
    return found[1] if found else ""


def active(machine: Head) -> list[str]:
    return machine.run("systemctl", "is-active", *BOTH.split(), check=False).split()


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
@pytest.mark.parametrize("older", [OLDER if has(OLDER) else ""], ids=lambda c: c or "same-tree")
def test_from_the_first_installation_to_the_purge(work, release, older):
    """From one package to the two that it has become. Where history lacks the older release, the same
    tree is upgraded from, as a lower revision.
    """
    old = built(work, "--release", release, "--revision", "0", *(("--of", older) if older else ()))
    new = built(work, "--release", release)
    with head(root(release, new), work) as machine:
        assert len(old) == (1 if older else 2)
        install(machine, old)
        machine.run("apt-get", "install", "-y", "slurmd", seconds=300)  # a sandbox's machines
        nothing_runs_yet(machine)

        site(machine)
        before = as_the_site_wrote_it(machine)
        upgraded_with_jobs(machine, new)
        refused_while_a_job_runs(machine)

        purge(machine, before)


@pytest.mark.parametrize("release", ["bookworm", "trixie"])
def test_each_package_takes_away_what_it_brought(work, release):
    sandbox, ours = debs = built(work, "--release", release)
    with head(root(release, debs), work) as machine:
        machine.run(
            "apt-get", "install", "-y", "python3", "init-system-helpers", *SLURM, seconds=300
        )
        nothing = everything(machine)
        install(machine, [ours])
        told = machine.shell("slurm-elastic sandbox up || echo exit $?")
        assert "install slurm-elastic-sandbox" in told
        assert told.endswith("exit 2\n")
        alone = everything(machine)
        install(machine, [sandbox])

        bursts(machine)
        machine.run("slurm-elastic", "sandbox", "down", "--dir", SITE)

        machine.run("apt-get", "remove", "-y", "slurm-elastic-sandbox")
        assert everything(machine) - alone == alone - everything(machine) == set()
        machine.run("apt-get", "purge", "-y", "slurm-elastic")
        assert everything(machine) - nothing == nothing - everything(machine) == set()


def everything(machine: Head) -> set[str]:
    """All files with their rights, sizes and, where a site may write, contents."""
    return set(machine.shell(EVERYTHING, seconds=200).splitlines())


def bursts(machine: Head) -> None:
    """A user's plain jobs fill the site, then its own cloud, then the public one."""
    up(machine)
    jobs = [batch(machine, 20) for _ in range(4)]
    for job in jobs:
        eventually(lambda job=job: state(machine, job) == "COMPLETED", 180, lambda: logs(machine))
    assert sorted(ran_on(machine, job)[:2] for job in jobs) == ["op", "op", "pu", "st"]


def nothing_runs_yet(machine: Head) -> None:
    """Nothing is started, nor will be; what a person needs is there."""
    assert active(machine) == ["inactive", "inactive"]
    enabled = machine.run("systemctl", "is-enabled", *BOTH.split(), check=False).split()
    assert enabled == ["disabled", "disabled"]
    for page in ("man1/slurm-elastic-conf.1.gz", "man8/slurm-elasticd.8.gz"):
        assert machine.path(f"/usr/share/man/{page}").exists()
    owned = machine.run("dpkg", "-S", "/etc/default/slurm-elastic")
    assert owned.startswith("slurm-elastic:")
    assert "slurm-elastic" in machine.run("slurm-elastic", "--version")


def as_the_site_wrote_it(machine: Head) -> bytes:
    """slurm.conf without anything of ours, by nothing that installs or uninstalls."""
    text = machine.shell(f"/opt/slurm-elastic/bin/python -c '{WRITTEN}'").encode()
    assert machine.path(f"{SITE}/etc/slurm.conf").read_bytes() != text
    return text


def purge(machine: Head, before: bytes) -> None:
    """slurm.conf is as it was; on 22.05 slurmctld has to be restarted before the last files go."""

    def tried() -> bool:
        told.append(machine.run(*PURGE, check=False, seconds=200))
        return machine.path(f"{SITE}/etc/slurm.conf").read_bytes() == before

    told: list[str] = []
    eventually(tried, 180, lambda: "\n".join(told))
    if "stays installed" in told[-1]:
        assert "stop and start slurmctld" in told[-1]
        machine.shell(f"/opt/slurm-elastic/bin/python -c '{RESTART}'")
        told.append(machine.run(*PURGE, seconds=200))
    assert machine.path(f"{SITE}/etc/slurm.conf").read_bytes() == before, told
    for gone in ("/opt/slurm-elastic", "/etc/slurm-elastic", "/etc/default/slurm-elastic"):
        assert not machine.path(gone).exists(), told
    assert "inactive" in machine.run("systemctl", "is-active", "slurm-elasticd", check=False)
    assert machine.run("dpkg-query", "-l", "slurm-elastic", check=False).startswith(
        "dpkg-query: no"
    )


def upgraded_with_jobs(machine: Head, debs: Sequence[Path]) -> None:
    """Jobs run through the upgrade; another one's request comes while no service is there."""
    assert active(machine) == ["active", "active"], machine.run("journalctl", "-n40")
    running = [batch(machine, 45) for _ in range(3)]
    for job in running:
        eventually(lambda job=job: state(machine, job) == "RUNNING", 120, lambda: logs(machine))
    # The site's own cloud first, then the public one.
    assert sorted(ran_on(machine, job)[:2] for job in running) == ["op", "op", "pu"]
    first = machine.run("systemctl", "show", "--property=MainPID", *BOTH.split())
    machine.run("systemctl", "stop", "slurm-elasticd")
    requests = machine.path(f"{SITE}/state/requests")
    before = set(requests.iterdir())
    waiting = batch(machine, 1)
    eventually(lambda: set(requests.iterdir()) - before, 60, lambda: logs(machine))
    machine.shell("echo slurm-elasticd.service >/run/slurm-elastic.stopped")  # as prerm would have
    install(machine, debs)
    assert active(machine) == ["active", "active"], logs(machine)
    assert machine.run("systemctl", "show", "--property=MainPID", *BOTH.split()) != first
    assert "SLURM_CONF" in machine.path("/etc/default/slurm-elastic").read_text()
    for package in ("slurm-elastic", "slurm-elastic-sandbox"):
        assert "-1~" in machine.run("dpkg-query", "-W", package)
    for job in (*running, waiting):
        eventually(lambda job=job: state(machine, job) == "COMPLETED", 180, lambda: logs(machine))


def refused_while_a_job_runs(machine: Head) -> None:
    """A machine that nobody would end any more keeps the package where it is."""
    last = batch(machine, 900)
    eventually(lambda: state(machine, last) == "RUNNING", 120, lambda: logs(machine))
    # Alone: the site here is a sandbox, which goes on.
    apart = "--ignore-depends=slurm-elastic,slurm-elastic-sandbox"
    told = machine.run("dpkg", apart, "--purge", "slurm-elastic", check=False, seconds=200)
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
