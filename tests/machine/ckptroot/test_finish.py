"""The end of a run is that of the job's program: for sudo, slurmstepd and so for Slurm."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest

from slurm_elastic.machine.ckptroot import main
from slurm_elastic.machine.ckptroot.child import Child

from .helpers import ROOT

FINISH = """
import sys
from slurm_elastic.machine.ckptroot.session import finish
from slurm_elastic.machine.ckptroot.signals import block
block()
print("said")
sys.exit(finish(int(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (0, 0),
        (7 << 8, 7),
        (int(signal.SIGTERM), -int(signal.SIGTERM)),
        (int(signal.SIGKILL), -int(signal.SIGKILL)),
        (int(signal.SIGSEGV) | 0x80, -int(signal.SIGSEGV)),
    ],
)
def test_ends_as_the_payload_did(status: int, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FINISH, str(status)], capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "said\n")


@pytest.mark.parametrize("status", [0, 7 << 8, int(signal.SIGTERM)])
def test_a_child_is_read_as_often_as_one_likes(status: int) -> None:
    pid = os.fork()
    if pid == 0:
        if status < 256 and status:
            os.kill(os.getpid(), status)
        os._exit(status >> 8)
    child = Child(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert [child.status(), child.status()] == [status, status]
    child.signal(int(signal.SIGTERM))
    child.end()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


def test_one_that_runs_has_no_status_and_ends_with_its_group() -> None:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.pause()
        os._exit(0)
    child = Child(pid)
    assert child.status() is None
    child.end()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


# the words of the command line


@ROOT
@pytest.mark.parametrize("text", ["", "8", "1000", "-1", "rwx"])
def test_what_is_no_umask_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "criu", text, "script"], "/nonexistent") == 1
    assert "umask" in capsys.readouterr().err


@ROOT
@pytest.mark.parametrize("words", [[], ["run"], ["ready"], ["sweep", "now"], ["explode"]])
def test_other_words_are_answered_with_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words, "/nonexistent") == 2
    assert capsys.readouterr() == ("", main.USAGE)
