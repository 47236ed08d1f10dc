"""The .rpms by rpm's own tools: files, scripts and requirements; installed into a Debian's directory, and removed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from needs import unless
from patience import patience

from tests.package.head import head
from tests.package.test_installer import bare

REPO = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.release,
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="scripts/package wants root"),
    unless("rpm"),
]


def rpm(*words: object) -> str:
    done = subprocess.run(
        ["rpm", *map(str, words)], capture_output=True, text=True, check=False,
        timeout=patience(300), cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def rpms() -> Iterator[Sequence[Path]]:
    work = Path(f"/var/tmp/slurm-elastic-rpm-{os.getpid()}")
    try:
        done = subprocess.run(
            [REPO / "scripts" / "package", "rpm", "--output", work],
            capture_output=True, text=True, check=False, timeout=patience(1200),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        yield sorted(Path(line) for line in done.stdout.splitlines() if line.endswith(".rpm"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def test_the_rpms_are_right_and_can_be_installed_and_removed(rpms: Sequence[Path]) -> None:
    both = {path.name.rpartition("-0.")[0]: path for path in rpms}
    assert set(both) == {"slurm-elastic", "slurm-elastic-sandbox"}
    main, sandbox = both["slurm-elastic"], both["slurm-elastic-sandbox"]

    needs = {line for line in rpm("-qp", "--requires", main).splitlines() if "rpmlib" not in line}
    assert needs == {"/bin/sh", "/usr/bin/python3.11", "systemd"}
    needs = {
        line for line in rpm("-qp", "--requires", sandbox).splitlines() if "rpmlib" not in line
    }
    assert needs == {"slurm-elastic = 0.1.0-1"}

    scripts = rpm("-qp", "--scripts", main)
    assert "slurm-elastic conf uninstall" in scripts.partition("preuninstall")[2]
    # They may ask ``systemctl is-enabled``.
    assert not re.search(r"(?<![-\w])enable\b", scripts)

    files = rpm("-qpl", main).splitlines()
    for wanted in (
        "/usr/bin/slurm-elasticd", "/usr/lib/systemd/system/slurm-elasticd.service",
        "/usr/share/man/man1/slurm-elastic.1.gz", "/usr/share/zsh/site-functions/_slurm-elastic",
        "/opt/slurm-elastic/doc/install.md", "/etc/default/slurm-elastic",
    ):  # fmt: skip
        assert wanted in files
    assert not set(files) & set(rpm("-qpl", sandbox).splitlines())
    assert [f for f in files if not f.startswith(("/opt/", "/usr/", "/etc/"))] == []
    configuration = set(rpm("-qpc", main).split())
    assert configuration == {
        "/etc/default/slurm-elastic",
        "/etc/slurm-elastic/slurm-elastic.yaml.example",
    }

    with head(bare("bookworm"), main.parent) as machine:
        root = machine.path("/")
        rpm("--root", root, "--nodeps", "-i", main, sandbox)
        assert machine.run("slurm-elastic", "--version").startswith("slurm-elastic 0.1.0")
        assert machine.run("slurm-elastic", "help", "install").startswith("# Install")
        machine.shell(
            "systemctl daemon-reload; systemctl cat slurm-elasticd slurm-elastic-metrics.timer"
        )
        assert "disabled" in machine.run("systemctl", "is-enabled", "slurm-elasticd", check=False)
        machine.run(
            "setpriv",
            "--reuid=slurm",
            "--regid=slurm",
            "--clear-groups",
            "slurm-elasticd",
            "--help",
        )
        assert rpm("--root", root, "-V", "--nodeps", "slurm-elastic", "slurm-elastic-sandbox") == ""
        machine.shell("echo X=1 >>/etc/default/slurm-elastic")
        rpm("--root", root, "-e", "slurm-elastic-sandbox", "slurm-elastic")
        left = machine.shell(
            "find /opt/slurm-elastic /usr/bin/slurm-elastic* /etc/default /etc/slurm-elastic -type f -o -type l || true",
            check=False,
        )
        assert [
            line for line in left.splitlines() if "slurm-elastic" in line and "No such" not in line
        ] == ["/etc/default/slurm-elastic.rpmsave"]
