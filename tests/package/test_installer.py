"""scripts/install from the archive, on Debians with a systemd of their own and no network: installed anywhere, used,
repeated, upgraded while it runs, and taken out again; what is wrong changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from patience import patience

from tests.package.head import Head, head

REPO = Path(__file__).parents[2]
INSTALL = REPO / "scripts" / "install"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can install")
EVERYTHING = r"""
find / -xdev \( -path /var/cache -o -path /var/log -o -path /var/lib/systemd -o -path /var/tmp -o -path /root \
    -o -path /srv/archive -o -path /proc \) -prune -o -type f -printf '%p %s %m %u\n' -o -type l -printf '%p %l\n' \
    -o -printf '%p %y %m %u\n' | grep -v -e '/__pycache__' -e '\.pyc ' | sort
"""
CONF = """
ClusterName=alps
SlurmctldHost=head
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
SlurmdSpoolDir=/var/lib/slurm/slurmd
SelectType=select/cons_tres
ProctrackType=proctrack/linuxproc
NodeName=n1 CPUs=8 RealMemory=32000
PartitionName=batch Nodes=n1 Default=YES State=UP
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--prefix", "here"), "expected an absolute path"),
        (("--prefix", "/usr"), "a directory of the system"),
        (("--prefix", "/home/ann/se"), "SlurmUser may not be able to read"),
        (("--prefix", "/etc/ssl"), "is not empty and not an installation"),
        (("--prefix", "/opt/a b"), "expected letters"),
        (("--prefix",), "--prefix needs a value"),
        (("--extras", "aws,oracle"), "found oracle, expected some of: aws"),
        (("--python", "/bin/true"), "no Python 3.11"),
        (("--slurm-bin", "/nowhere"), "there is no scontrol in /nowhere"),
        (("--user", "a/b"), "expected the name of a user"),
        (("--force",), "found --force, expected an option"),
        (("--uninstall", "--prefix", "/etc/ssl"), "is not empty and not an installation"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_changed(
    words: tuple[str, ...], sentence: str
) -> None:
    done = subprocess.run(
        [INSTALL, *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_dry_run_says_every_step_and_does_none() -> None:
    place = Path(f"/opt/slurm-elastic-dry-{os.getpid()}")
    done = subprocess.run(
        [INSTALL, "--dry-run", "--prefix", place], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("would: ")]
    assert len(steps) >= 5
    assert any(f"make {place}" in step for step in steps)
    assert not place.exists()


@pytest.fixture
def prefix() -> Iterator[Path]:
    """A directory below /opt: nobody but root may write above it, unlike below /tmp."""
    directory = Path(f"/opt/slurm-elastic-test-{os.getpid()}")
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def dry_run(prefix: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [INSTALL, "--dry-run", "--prefix", prefix], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("owner", "mode"), [(0, 0o777), (65534, 0o755), (0, 0o700)])
def test_a_prefix_that_others_may_change_or_not_read_is_refused(
    owner: int, mode: int, prefix: Path
) -> None:
    assert dry_run(prefix).returncode == 0
    prefix.chmod(mode)
    os.chown(prefix, owner, 0)
    done = dry_run(prefix)
    assert done.returncode == 2
    assert f"{prefix} must belong to root" in done.stderr


def test_a_killed_run_is_repeated_and_can_be_taken_out(prefix: Path) -> None:
    (prefix / "pyvenv.cfg").touch()
    assert "is not empty and not an installation" in dry_run(prefix).stderr
    (prefix / "install.begun").touch()
    assert f"make {prefix}" in dry_run(prefix).stdout


def called(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call functions of the installer."""
    definitions = INSTALL.read_text().partition('\noptions "$@"\n')[0]
    given = "\n".join(f"{key}={value}" for key, value in variables.items())
    command = ["bash", "-c", f"{definitions}\n{given}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def function(name: str, **variables: str) -> int:
    return called(name, **variables).returncode


def test_a_stamp_is_not_believed_after_an_upgrade_that_was_killed(prefix: Path) -> None:
    (prefix / "bin").mkdir()
    (prefix / "bin" / "slurm-elastic").symlink_to("/bin/true")
    (prefix / "install.stamp").write_text("abc\n")
    assert function("is_current", PREFIX=str(prefix), STAMP="abc") == 0
    (prefix / "install.begun").touch()
    assert function("is_current", PREFIX=str(prefix), STAMP="abc") == 1


@pytest.mark.parametrize("kind", ["clone", "archive"])
def test_an_upgrade_of_a_unit_alone_is_an_upgrade(kind: str, tmp_path: Path) -> None:
    for name in (
        "wheels/a.whl",
        "etc/slurm-elasticd.service",
        "slurm_elastic/a.py",
        "docs/install.md",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "setup.py").touch()

    def stamp() -> str:
        variables = {"PYTHON": "true", "EXTRAS": "aws", "SOURCE": str(tmp_path), "KIND": kind}
        return called("stamp", **variables).stdout

    before = stamp()
    assert len(before.strip()) == 64
    assert stamp() == before
    (tmp_path / "etc" / "slurm-elasticd.service").write_text("two")
    assert stamp() != before


def test_a_file_of_an_earlier_release_is_kept_if_it_was_edited(tmp_path: Path) -> None:
    for name in ("edited", "as-it-was"):
        (tmp_path / name).write_text("old")
    files = (tmp_path / "edited", tmp_path / "as-it-was")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}\n" for file in files]
    (tmp_path / "install.files").write_text("".join(sums))
    (tmp_path / "edited").write_text("by an admin")
    (tmp_path / "files").touch()
    said = called("remove_old_files", PREFIX=str(tmp_path), WORK=str(tmp_path)).stdout
    assert f"{tmp_path}/edited had been edited: it is kept" in said
    assert (tmp_path / "edited").exists()
    assert not (tmp_path / "as-it-was").exists()


def test_an_upgrade_keeps_the_user_of_before(tmp_path: Path) -> None:
    variables = {"SLURM_BIN": "", "SLURM_CONF": "/nowhere", "SLURM_USER": "''"}
    units = tmp_path / "units"
    units.mkdir()
    (units / "slurm-elasticd.service").write_text("[Service]\nUser=ann\nGroup=ann\n")
    lines = 'find_user; [ "$SLURM_USER" = ann ]'
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this host has a slurm.conf, which is believed first")
    assert function(lines, UNITS=str(units), **variables) == 0


def test_it_has_all_units_that_a_package_has() -> None:
    """packaging/tree.py has the list of the .deb."""
    text = INSTALL.read_text()
    tree = (REPO / "packaging" / "tree.py").read_text().partition("UNITS = (")[2].partition(")")[0]
    units = [
        line.strip(' ",') for line in tree.splitlines() if ".service" in line or ".timer" in line
    ]
    assert len(units) > 6
    assert [unit for unit in units if unit not in text] == []


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    directory = Path(f"/var/tmp/slurm-elastic-installer-{os.getpid()}")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@cache
def archive(work: Path) -> Path:
    done = subprocess.run(
        [REPO / "scripts" / "package", "archive", "--output", work],
        capture_output=True, text=True, check=False, timeout=patience(900),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.splitlines()[-1])


def bare(name: str) -> Path:
    done = subprocess.run(
        [Path(__file__).parent / "bare", name], capture_output=True, text=True, check=False,
        timeout=patience(900),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


class Site:
    """A head with Slurm's configuration and the archive, unpacked."""

    def __init__(self, machine: Head, file: Path) -> None:
        self.machine = machine
        machine.shell(f"mkdir /srv/archive; tar -C /srv/archive -xf /srv/packages/{file.name}")
        (self.place,) = machine.shell("echo /srv/archive/*").split()
        machine.path("/etc/slurm/slurm.conf").write_text(CONF)
        self.before = self.run(EVERYTHING)

    def install(self, *words: str, program: str = "") -> str:
        command = " ".join([program or f"{self.place}/install", *words])
        return self.machine.shell(command, seconds=400)

    def run(self, line: str) -> str:
        return self.machine.shell(f"export PATH=/usr/local/bin:$PATH\n{line}")

    def unchanged(self) -> None:
        assert self.run(EVERYTHING) == self.before


@pytest.fixture(params=["bookworm", "trixie"])
def site(request: pytest.FixtureRequest, work: Path) -> Iterator[Site]:
    file = archive(work)
    with head(bare(request.param), file.parent, masked=("munge", "slurmctld", "slurmd")) as machine:
        yield Site(machine, file)


@pytest.mark.release
@pytest.mark.e2e
def test_from_the_archive_with_systemd(site: Site) -> None:
    run = site.run
    refused = run(f"{site.place}/install --extras nothing || echo code $?")
    assert "code 2" in refused
    assert "would: make /opt/slurm-elastic" in run(f"{site.place}/install --dry-run")
    site.unchanged()

    told = site.install()
    assert "slurm-elastic init" in told
    assert run("slurm-elastic --version").startswith("slurm-elastic 0.")
    assert run("slurm-elastic help install").startswith("# Install")
    run("setpriv --reuid=slurm --regid=slurm --clear-groups slurm-elasticd --help")
    units = "slurm-elasticd slurm-elastic-ckptman slurm-elastic-watchdog"
    assert set(run(f"systemctl is-enabled {units} || true").split()) == {"disabled"}
    wrong = run("systemd-analyze verify /etc/systemd/system/slurm-elastic*.service 2>&1 || true")
    assert "slurm-elastic" not in wrong.replace(
        "/etc/systemd/system/slurm-elastic-metrics.timer", ""
    )

    first = run(EVERYTHING)
    assert "/opt/slurm-elastic is current" in site.install()
    assert run(EVERYTHING) == first

    # A first configuration that conf check accepts, and a service that runs with it.
    run("slurm-elastic init --yes || true")
    assert "throw-away slurmctld" in run("slurm-elastic conf check")
    run("systemctl start slurm-elasticd; sleep 2; systemctl is-active slurm-elasticd")
    before = run("systemctl show --value -p MainPID slurm-elasticd")
    run(f"touch {site.place}/wheels/another")  # an upgrade
    assert "start slurm-elasticd.service" in site.install()
    run("sleep 2; systemctl is-active slurm-elasticd")
    assert run("systemctl show --value -p MainPID slurm-elasticd") != before

    # A unit that the site has edited stays beside the new one, and is not removed.
    run("echo '# ours' >>/etc/systemd/system/slurm-elastic-web.service")
    assert "had been edited" in site.install()
    told = site.install("--uninstall", program="/opt/slurm-elastic/install")
    assert "stay; remove them by hand" in told
    assert run("systemctl is-active slurm-elasticd || true").strip() == "inactive"
    run(
        "rm -rf /etc/slurm-elastic /etc/default/slurm-elastic /var/lib/slurm-elastic /var/log/slurm-elastic"
    )
    run("rm /etc/systemd/system/slurm-elastic-web.service.old")
    left = set(run(EVERYTHING).splitlines()) - set(site.before.splitlines())
    assert [
        line for line in left if "slurm-elastic" in line and not line.startswith(("/run", "/tmp"))
    ] == []


@pytest.mark.release
@pytest.mark.e2e
def test_elsewhere_without_systemd_and_with_a_slurm_of_its_own(site: Site) -> None:
    run = site.run
    run("""mkdir -p /opt/slurm/bin /opt/slurm/sbin
    for p in scontrol sinfo squeue sbatch srun scancel sacctmgr sacct salloc sattach sbcast sprio sshare sstat; do
        [ ! -e /usr/bin/$p ] || mv /usr/bin/$p /opt/slurm/bin; done
    mv /usr/sbin/slurmctld /opt/slurm/sbin""")
    told = site.install("--prefix", "/srv/se", "--no-systemd", "--extras", "aws,ssh")
    assert "Slurm in /opt/slurm/bin" in told
    assert "PATH=/opt/slurm/bin:" in run("cat /etc/default/slurm-elastic")
    assert "slurm-elastic" not in run("ls /etc/systemd/system")
    assert run("stat -c '%U %a' /var/lib/slurm-elastic").strip() == "slurm 700"
    assert "/srv/se/doc/install.md" in run("slurm-elastic help --path install")
    run("slurm-elastic init --yes || true")
    assert "bin_dir: /opt/slurm/bin" in run("cat /etc/slurm-elastic/slurm-elastic.yaml")
    assert "throw-away slurmctld" in run("slurm-elastic conf check")
    site.install("--prefix", "/srv/se", "--uninstall", program="/srv/se/install")
    assert run("ls /srv /usr/local/bin").split().count("se") == 0
    assert "slurm-elastic" not in run("ls /usr/local/bin")


@pytest.mark.release
@pytest.mark.e2e
@pytest.mark.parametrize("name", ["bookworm", "trixie"])
def test_an_empty_debian_is_told_what_it_lacks(name: str, work: Path) -> None:
    """debootstrap's minimal system has no Python."""
    file = archive(work)
    done = subprocess.run(
        [REPO / "containers" / "debian", name], capture_output=True, text=True, check=True
    )
    root = work / f"empty-{name}"
    root.mkdir()
    subprocess.run(["tar", "-C", root, "-xf", done.stdout.strip()], check=True)
    subprocess.run(["tar", "-C", root / "srv", "-xf", file], check=True)
    (place,) = (root / "srv").iterdir()
    done = subprocess.run(
        ["chroot", root, f"/srv/{place.name}/install"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no Python 3.11 or later" in done.stderr
    assert "apt install python3" in done.stderr
    assert not (root / "opt" / "slurm-elastic").exists()
