"""programs/epilog.sh, in a mount namespace: after a job slurmd runs the site's own Epilog and the
program of ``join.wipe``, whatever slurm.conf says for all nodes.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.providers.base import joining
from slurm_elastic.slurm.conf.fragment import EPILOG

PROGRAM = Path(joining.__file__).parents[2] / "machine" / "programs" / "epilog.sh"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts are root's")


class Machine:
    """Programs and /run of its own; /dev/console is a file."""

    def __init__(self, place: Path) -> None:
        self.place, self.ran = place, place / "ran"
        self.console = place / "console"
        for name in ("sbin", "run", "site"):
            (place / name).mkdir()
        self.program("sbin/slurm-elastic-wipe", "echo wipe")

    def program(self, name: str, script: str) -> Path:
        path = self.place / name
        path.write_text(f'#!/bin/sh\n{script} >>"{self.ran}"\nexit ${{CODE:-0}}\n')
        path.chmod(0o755)
        return path

    def joined(self, epilog: str, then: str) -> subprocess.CompletedProcess[str]:
        """The program's run and a further command, in mounts of their own."""
        text = PROGRAM.read_text().replace("@{site_epilog}", epilog)
        for path, own in {
            "/usr/local/sbin": f"{self.place}/sbin", "/run/slurm-elastic": f"{self.place}/run",
            "/dev/console": f"{self.console}", "/var/bin": f"{self.place}/var/bin",
        }.items():  # fmt: skip
            assert path in text
            text = text.replace(path, own)
        (self.place / "prepare").write_text(text)
        script = f"sh {self.place}/prepare && sh {self.place}/prepare && {then}"
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False,
            timeout=patience(60),
        )  # fmt: skip


def test_the_sites_own_epilog_runs_first_and_other_machines_keep_theirs(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    epilog = machine.program("site/epilog", 'echo "site $* in $(dirname "$0")"')
    before = epilog.read_text()
    done = machine.joined(str(epilog), f"{epilog} 7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.ran.read_text().splitlines() == [f"site 7 in {tmp_path}/run/site-epilog", "wipe"]
    assert epilog.read_text() == before, "the file itself may be every node's"


@pytest.mark.parametrize("failing", ["site/epilog", "sbin/slurm-elastic-wipe"])
def test_a_failure_of_either_is_the_epilogs(tmp_path: Path, failing: str) -> None:
    machine = Machine(tmp_path)
    epilog = machine.program("site/epilog", "echo site")
    machine.program(failing, "CODE=3; echo failing")
    assert machine.joined(str(epilog), str(epilog)).returncode == 3
    assert len(machine.ran.read_text().splitlines()) == 2, "both have run"


def test_of_several_epilogs_one_runs_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for name in ("10-first", "20-second"):
        machine.program(f"site/{name}", f"echo {name}")
    done = machine.joined(f"{tmp_path}/site/*", f"for one in {tmp_path}/site/*; do $one; done")
    assert done.returncode == 0, done
    assert machine.ran.read_text().splitlines() == ["10-first", "wipe", "20-second"]


def test_a_site_without_an_epilog_has_the_pattern_of_our_lines(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.joined("", f"{tmp_path}/var/bin/true").returncode == 0
    assert machine.ran.read_text() == "wipe\n"
    assert EPILOG == "/[uv][sa]r/bin/true"


@pytest.mark.parametrize("epilog", ["site/none", "/nonexistent/epilog"])
def test_a_machine_without_the_sites_epilog_joins_and_says_so(tmp_path: Path, epilog: str) -> None:
    """A failed boot would be repeated, and paid, for ever."""
    done = Machine(tmp_path).joined(epilog, "echo joined")
    why = (
        "join.wipe does nothing on this machine: "
        f"the Epilog of slurm.conf, {epilog}, is not on this machine"
    )
    assert (done.returncode, done.stdout) == (0, f"{why}\n{why}\njoined\n")
    assert (tmp_path / "console").read_text() == f"slurm-elastic: {why}\n"
