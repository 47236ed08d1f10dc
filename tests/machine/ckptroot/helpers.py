"""For these tests alone, so that they go wherever the root part goes."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.pinned_task import TaskOwner
from slurm_elastic.machine.ckptroot.proc import numbers_of

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the root part is root's")
PATIENCE = 120.0
"""Seconds for what takes an idle machine one at most: they only end what hangs."""


def eventually(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until it is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def aside(does: Callable[[], Any]) -> Any:
    """The result of ``does`` in a process of its own, which hands it over as JSON: it does what
    must not be done to the tests' process itself.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(does()).encode())
        except BaseException:  # noqa: BLE001 - the parent sees that nothing was said
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    assert said, "the child failed"
    return json.loads(said)


_NEW_MOUNTS, _NEW_NUMBERS = 0x00020000, 0x20000000  # CLONE_NEWNS and CLONE_NEWPID


def with_own_numbers(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test where no process of anybody else's can take a number (pid_namespaces(7))."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        def first_process() -> bool:
            subprocess.run(["/bin/mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["/bin/mount", "-t", "proc", "proc", "/proc"], check=True)
            test(*args, **kwargs)
            return True

        def apart() -> bool:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(_NEW_MOUNTS | _NEW_NUMBERS) == 0, os.strerror(ctypes.get_errno())
            return bool(aside(first_process))

        assert aside(apart)

    return run


def owner(uid: int = 0) -> TaskOwner:
    """The owner of a user's tasks that have their numbers in our own namespace."""
    numbers = numbers_of(os.getpid())
    assert numbers is not None
    return TaskOwner(uid, numbers)


def reuse_number(
    process: subprocess.Popen[Any], start: Callable[[], subprocess.Popen[str]]
) -> subprocess.Popen[str]:
    """End a process and start another one that gets its number, in a test ``with_own_numbers``. The
    kernel gives the numbers in turn, so users get there by starting many; we set the last one
    (proc(5)).
    """
    process.kill()
    process.wait()
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(process.pid - 1))
    other = start()
    assert other.pid == process.pid
    return other


def user_of(uid: int, gid: int, *others: int) -> Caller:
    """The caller of job 7, with the rights of these groups."""
    return Caller(7, uid, gid, "x", (gid, *others), {})


def node_home() -> Path:
    """A node's directories: ``shared``, ``user`` of the user nobody, and ``bin`` with a DMTCP."""
    home = Path(tempfile.mkdtemp(prefix="se-node-", dir="/tmp"))
    home.chmod(0o755)
    for name in ("shared", "bin", "user"):
        (home / name).mkdir(mode=0o755)
    os.chown(home / "user", 65534, 65534)
    for name in ("dmtcp_launch", "dmtcp_command", "dmtcp_restart"):
        shutil.copy(Path(__file__).with_name("dmtcp_stand_in.py"), home / "bin" / name)
        (home / "bin" / name).chmod(0o755)
    shutil.copytree(Path(__file__).with_name("dmtcp42"), home / "bin" / "dmtcp42")
    return home
