"""programs/mounts.sh: it mounts before slurmd starts, or says why it cannot; ``mount`` is a script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.config.mounting import MachineMount
from slurm_elastic.providers.base.joining import mounting

HOME = MachineMount(path="/home", server="10.99.0.1", export="/home", options="hard,nosuid")
DATA = MachineMount(path="/data", server="b", export="/data", options="ro", required=False)


class Machine:
    """A machine whose programs are scripts, and whose mounts are a file."""

    def __init__(self, place: Path, *mounts: MachineMount) -> None:
        self.place = place
        self.mounted, self.console = place / "mounted", place / "console"
        self.ran, self._bin = place / "ran", place / "bin"
        self._bin.mkdir()
        self.mounted.write_text("/dev/sda1 / ext4 rw 0 0\n")
        self.console.touch()
        self.program("mount.nfs4", "exit 1")
        self.mount("exit 0")
        text = mounting(mounts)
        for path, own in {
            "/proc/self/mounts": self.mounted, "/dev/console": self.console,
            "PATH=/usr/sbin:": f"PATH={self._bin}:/usr/sbin:",
            "/run/slurm-elastic/mounts.shown": place / "shown",
            'mkdir -p "$1"': f'mkdir -p "{place}/root$1"',
        }.items():  # fmt: skip
            assert path in text, path
            text = text.replace(path, str(own))
        (place / "mounts").write_text(text)

    def program(self, name: str, script: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def mount(self, script: str) -> None:
        self.program("mount", f'echo "$*" >>{self.ran}\n{script}')

    def run(self) -> tuple[int, list[str]]:
        """The exit code and the lines that the agent gets."""
        done = subprocess.run(
            ["sh", self.place / "mounts"], capture_output=True, text=True, check=False,
            timeout=patience(60), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()


def test_all_directories_are_mounted_with_their_options(tmp_path: Path) -> None:
    machine = Machine(tmp_path, DATA, HOME)
    assert machine.run() == (0, [])
    assert machine.ran.read_text().splitlines() == [
        "-t nfs4 -o ro,retry=0 b:/data /data",
        "-t nfs4 -o hard,nosuid,retry=0 10.99.0.1:/home /home",
    ]
    assert (tmp_path / "root" / "home").is_dir()


def test_a_directory_that_is_mounted_is_left_as_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path, HOME)
    machine.mounted.write_text("10.99.0.1:/home /home nfs4 rw 0 0\n")
    assert machine.run() == (0, [])
    assert not machine.ran.exists()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'mount.nfs4: Connection refused' >&2; exit 32", "Connection refused"),
        (
            "echo 'mount.nfs4: access denied by server while mounting 10.99.0.1:/home'; exit 32",
            "access denied by server while mounting 10.99.0.1:/home",
        ),
        ("printf 'mount: /home: bad option;\\n   more' >&2; exit 32", "mount: /home: bad option;"),
        ("exit 124", "no answer in 45 s"),
    ],
)
def test_a_required_directory_that_cannot_be_mounted_is_told_on_the_console_once(
    tmp_path: Path, script: str, why: str
) -> None:
    machine = Machine(tmp_path, HOME)
    machine.mount(script)
    expected = f"cannot mount 10.99.0.1:/home at /home: {why}"
    assert machine.run() == (1, [expected])
    assert machine.run() == (1, [expected])
    assert machine.console.read_text() == f"slurm-elastic: {expected}\n"


def test_jobs_run_without_a_directory_that_is_not_required(tmp_path: Path) -> None:
    machine = Machine(tmp_path, DATA, HOME)
    machine.mount('case "$*" in *data*) echo no; exit 32 ;; esac')
    assert machine.run() == (0, ["jobs run without /data of b:/data: no"])
    assert machine.ran.read_text().splitlines()[-1].endswith(" /home")


@pytest.mark.parametrize("kind", ["ext4", "autofs"])
def test_another_file_system_there_is_no_home(tmp_path: Path, kind: str) -> None:
    machine = Machine(tmp_path, HOME)
    machine.mounted.write_text(f"x /home {kind} rw 0 0\n")
    why = f"cannot mount 10.99.0.1:/home at /home: {kind} is mounted there already"
    assert machine.run() == (1, [why])


def test_no_mounts_need_no_program() -> None:
    assert mounting(()) == ""
