"""The relay that the submit filter puts into batch scripts, in real shells with real programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import eventually

from slurm_elastic.slurm.hooks.submit_filter import _relay_line

PYTHON = """import signal, time
signal.signal(signal.SIGUSR1, lambda *_: open("python", "a").write("x"))
open("python.begun", "w")
time.sleep(600)
"""
SHELL = """#!/bin/sh
trap 'printf x >> shell' USR1
touch shell.begun
while :; do sleep 0.2; done
"""
C = r"""#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
static void save(int s) { int f = open("c", O_WRONLY | O_CREAT | O_APPEND, 0644); write(f, "x", 1); }
int main(void) {
    signal(SIGUSR1, save);
    close(open("c.begun", O_WRONLY | O_CREAT, 0644));
    for (;;) pause();
}
"""
COMMANDS = {
    "python": f"{sys.executable} prog.py | cat",
    "shell": "env nice ./prog.sh",
    "c": "(./prog; true)",
}
SHELLS = [path for name in ("bash", "dash", "ksh", "zsh") if (path := shutil.which(name))]


class Job:
    """A batch script, and signals for all of its processes, as Slurm sends them."""

    def __init__(self, shell: str, directory: Path, commands: str, launchers: str = "no") -> None:
        relay = _relay_line().replace("@SAVE@", "512 USR1").replace("@STOP@", "2048 USR2")
        relay = relay.replace("@LAUNCHERS@", launchers)
        (directory / "job").write_text(f"#!{shell}\n{relay}\n{commands}\nexit 3\n")
        command = [*shell.split(), "job"]
        self._shell = subprocess.Popen(command, cwd=directory, start_new_session=True)
        self._proc = Path("/proc")
        # The relay starts beside the script, and a busy host may start the script's program first.
        eventually(self._has_relay)

    def _has_relay(self) -> bool:
        return self._shell.poll() is not None or any(map(self._catches_both, self.processes()))

    def _catches_both(self, pid: int) -> bool:
        try:
            status = (self._proc / str(pid) / "status").read_text()
        except OSError:
            return False
        mask = int(status.partition("SigCgt:")[2].split()[0], 16)
        wanted = 1 << signal.SIGURG - 1 | 1 << signal.SIGWINCH - 1
        return mask & wanted == wanted

    def processes(self) -> list[int]:
        found = []
        for stat in self._proc.glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self._shell.pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
        return found

    def signal(self, number: int) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def end(self) -> int:
        return self._shell.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def started(shell: str, commands: str, launchers: str = "no") -> Job:
        jobs.append(Job(shell, tmp_path, commands, launchers))
        return jobs[-1]

    yield started
    for job in jobs:
        job.signal(signal.SIGKILL)
        job.end()


def prepare(directory: Path, kind: str) -> None:
    (directory / "prog.py").write_text(PYTHON)
    (directory / "prog.sh").write_text(SHELL)
    (directory / "prog.sh").chmod(0o755)
    if kind == "c":
        (directory / "prog.c").write_text(C)
        subprocess.run(["cc", "prog.c", "-o", "prog"], cwd=directory, check=True)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", COMMANDS)
def test_the_program_saves_and_the_script_survives(
    start: Callable[..., Job], tmp_path: Path, shell: str, kind: str
) -> None:
    prepare(tmp_path, kind)
    job = start(shell, COMMANDS[kind])
    eventually((tmp_path / f"{kind}.begun").exists)
    for count in (1, 2):
        job.signal(signal.SIGURG)
        eventually(lambda count=count: saves(tmp_path / kind) == count)
    assert job.processes()


@pytest.mark.parametrize("options", ["-e", "-f", "-eu"])
@pytest.mark.parametrize("shell", SHELLS)
def test_options_in_the_first_line_of_the_script_change_no_save(
    start: Callable[..., Job], tmp_path: Path, shell: str, options: str
) -> None:
    prepare(tmp_path, "shell")
    job = start(f"{shell} {options}", "./prog.sh")
    eventually((tmp_path / "shell.begun").exists)
    for count in (1, 2):
        job.signal(signal.SIGURG)
        eventually(lambda count=count: saves(tmp_path / "shell") == count)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_ends_as_without_the_relay(start: Callable[..., Job], shell: str) -> None:
    job = start(shell, "sleep 0.1 & wait; sleep 0.1")
    assert job.end() == 3
    eventually(lambda: not job.processes())


@pytest.mark.parametrize("shell", SHELLS)
def test_no_program_dies_that_does_not_catch_the_signal(
    start: Callable[..., Job], tmp_path: Path, shell: str
) -> None:
    job = start(shell, "sleep 0.5; touch begun; until [ -e go ]; do sleep 0.1; done; touch over")
    eventually((tmp_path / "begun").exists)
    job.signal(signal.SIGURG)
    job.signal(signal.SIGWINCH)
    (tmp_path / "go").touch()
    assert job.end() == 3
    assert (tmp_path / "over").exists()


LAUNCHER = """#!/bin/sh
trap 'printf x >> launcher' USR1
touch launcher.begun
while :; do sleep 0.2; done
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["mpirun", "mpiexec.hydra", "srun"])
def test_a_launcher_gets_the_signal_only_by_the_jobs_own_word(
    start: Callable[..., Job], tmp_path: Path, shell: str, name: str
) -> None:
    """A launcher hands it on to its ranks, which die of it if they do not catch it."""
    (tmp_path / name).write_text(LAUNCHER)
    (tmp_path / name).chmod(0o755)
    prepare(tmp_path, "shell")
    job = start(shell, f"./{name} & ./prog.sh & wait")
    eventually(
        lambda: (tmp_path / "launcher.begun").exists() and (tmp_path / "shell.begun").exists()
    )
    job.signal(signal.SIGURG)
    # The launcher is the older child, so the relay comes to it first.
    eventually(lambda: saves(tmp_path / "shell") == 1)
    assert not saves(tmp_path / "launcher")
    job.signal(signal.SIGKILL)
    (tmp_path / "launcher.begun").unlink()
    job = start(shell, f"./{name}", launchers="yes")
    eventually((tmp_path / "launcher.begun").exists)
    job.signal(signal.SIGURG)
    eventually(lambda: saves(tmp_path / "launcher") == 1)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
def test_the_ranks_of_a_real_launcher_survive_a_signal_that_they_do_not_catch(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "rank").write_text("touch begun; until [ -e go ]; do sleep 0.1; done; touch over")
    prepare(tmp_path, "shell")
    mpirun = "mpirun --allow-run-as-root --oversubscribe -n 1 sh rank"
    job = start("bash", f"{mpirun} & rank=$!; ./prog.sh & wait $rank || exit 4; kill $!")
    eventually(lambda: (tmp_path / "begun").exists() and (tmp_path / "shell.begun").exists())
    job.signal(signal.SIGURG)
    eventually(lambda: saves(tmp_path / "shell") == 1)
    (tmp_path / "go").touch()
    assert job.end() == 3
    assert (tmp_path / "over").exists()


def saves(path: Path) -> int:
    return len(path.read_text()) if path.exists() else 0
