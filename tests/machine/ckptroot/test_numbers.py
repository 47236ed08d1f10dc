"""Numbers of processes that are given out again: what has one of ours then is left alone.

Each attack runs in a namespace of its own, where it can choose the next number.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import caller as callers
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT, node_home

pytestmark = ROOT

COMMON = """
import os, signal, sys, time
from pathlib import Path
from slurm_elastic.machine.ckptroot import criu, dmtcp
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.site import RequestRefused, HelperSite
home = Path(sys.argv[1])
site = HelperSite(cluster="t", directory=home / "shared", key=b"k" * 64, reader=(0, 0), tmp="node", dmtcp=str(home / "bin"),
            criu=str(home / "bin" / "criu"), scratch=home / "run")
environment = {b"PROGRESS": os.fsencode(home / "user" / "progress"), b"PATH": b"/usr/bin:/bin"}
caller = Caller(job=7, uid=65534, gid=65534, user="nobody", groups=(65534,), environment=environment)

def payload(*argv):
    return Payload(argv=argv, environment=environment, directory=str(home / "user"), umask=0o22,
                   uid=65534, gid=65534, groups=(65534,))

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)

def stranger(pid):
    '''A process of somebody else's that has the number, and a session of its own; None: it is taken.'''
    for _ in range(50):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        found = os.fork()
        if found == 0:
            if os.getpid() == pid:
                os.setsid()
                time.sleep(600)
            os._exit(0)
        if found == pid:
            until(lambda: os.getsid(pid) == pid)
            return found
        os.waitpid(found, 0)
    return None

def lives(pid):
    return os.waitpid(pid, os.WNOHANG) == (0, 0)
"""

DMTCP = """
method = dmtcp.Dmtcp(site, caller, payload("/bin/sleep", "0.5"))
method.start()
pid = method.pid
until(lambda: method.wait_status() is not None)
method.signal(signal.SIGUSR1)
found = stranger(pid)
method.close()
print("taken" if found is None else "lives" if lives(found) else "killed")
"""

CRIU = """
(home / "bin" / "criu").write_text("#!/bin/sh\\n[ $1 != dump ] || readlink /proc/self/ns/pid >>" + str(home / "entered") + "\\nexit 1\\n")
(home / "bin" / "criu").chmod(0o755)
method = criu.Criu(site, caller, payload("/bin/sleep", "600"))
method.start()
pid = method.inside.init
os.kill(pid, signal.SIGKILL)
until(lambda: not Path(f"/proc/{pid}").exists())
found = stranger(pid)
assert found is not None
(home / "image").mkdir()
try:
    method.dump(home / "image", 60.0, 1 << 30)
except RequestRefused:
    pass
entered = (home / "entered").read_text().split() if (home / "entered").exists() else []
print("taken" if os.readlink("/proc/self/ns/pid") in entered else "left alone", method.inside.tasks())
"""


@pytest.fixture
def home() -> Iterator[Path]:
    made = node_home()
    yield made
    shutil.rmtree(made)


def attacked(home: Path, attack: str) -> str:
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*words, sys.executable, "-c", COMMON + attack, str(home)], capture_output=True, text=True,
        check=False, timeout=120, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_that_has_ended_keeps_its_number_until_nothing_is_signalled_any_more(
    home: Path,
) -> None:
    """A job that cycled through the numbers had root kill the process group that got its own."""
    assert attacked(home, DMTCP) == "taken"


def test_what_has_the_number_of_a_dead_process_1_is_not_entered(home: Path) -> None:
    """CRIU would have stopped and saved what it found there."""
    assert attacked(home, CRIU) == "left alone []"


def test_a_parent_that_ends_meanwhile_is_believed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may have become that of another's sudo, whose environment would be read."""
    parents = iter([os.getppid(), 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(callers, "program_of", lambda pid, proc: os.path.realpath("/usr/bin/sudo"))
    with pytest.raises(RequestRefused):
        callers.own_environment("/usr/bin/sudo")
