"""How much memory a process has, as the kernel tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import proc


@pytest.fixture
def smaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "smaps_rollup"
    path.write_text("Rss:    9 kB\nPss_Shmem:     4097 kB\nPss_Anon:  3 kB\n")
    monkeypatch.setattr(proc, "Path", lambda _: path)
    return path


@pytest.mark.parametrize(("shared", "found"), [(4095, 0), (4096, 4097 << 10), (9999, 4097 << 10)])
def test_little_shared_memory_is_not_walked_through(smaps: Path, shared: int, found: int) -> None:
    assert proc.shared_of(7, {"RssShmem": f"{shared} kB"}) == found


@pytest.mark.parametrize("text", ["", "Rss: 9 kB\n", "Pss_Shmem:\n", "Pss_Shmem: many kB\n"])
def test_what_is_not_known_of_it_is_nothing(smaps: Path, text: str) -> None:
    smaps.write_text(text)
    assert proc.shared_of(7, {"RssShmem": "5000 kB"}) == 0
    smaps.unlink()
    assert proc.shared_of(7, {"RssShmem": "5000 kB"}) == 0
    assert proc.shared_of(7, {}) == 0


def test_memory_is_what_is_its_own_swapped_out_too() -> None:
    assert proc.memory_of({"RssAnon": "3 kB", "VmSwap": "2 kB", "RssFile": "9 kB"}) == 5 << 10
    assert proc.memory_of({}) == 0


def test_a_process_that_is_gone_has_no_status() -> None:
    assert proc.status_of(os.getpid())["Pid"] == str(os.getpid())
    assert proc.status_of(1 << 30) == {}


_PARENT = """\
import subprocess, sys, threading
sleep = ["/bin/sh", "-c", "sleep 600 & echo; wait"]
def start():
    child = subprocess.Popen(sleep, stdout=subprocess.PIPE)
    child.stdout.readline()
    return child
children = []
thread = threading.Thread(target=lambda: (children.append(start()), done.wait()), daemon=True)
done = threading.Event()
thread.start()
start()
while not children:
    pass
print(children[0].pid, flush=True)
sys.stdin.read()
"""


def test_a_family_has_the_children_that_other_threads_have_started() -> None:
    """As of Python's executors, Java and Go."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        family = list(proc.family(parent.pid))
        for pid in reversed(family):
            os.kill(pid, 9)
    assert family[0] == parent.pid
    assert child in family
    assert len(family) == 5, "both children with their own children"


def test_a_family_may_be_a_long_chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for pid in range(1, 3000):
        (tmp_path / f"{pid}").write_text(f"{pid + 1}" if pid < 2999 else "")
    monkeypatch.setattr(proc, "threads_of", lambda pid: [pid])
    monkeypatch.setattr(proc, "Path", lambda path: tmp_path / path.split("/")[2])
    assert list(proc.family(1)) == list(range(1, 3000))
