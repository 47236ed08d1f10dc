"""Programs that run as the user, who may make of them whatever he likes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator

import pytest

from slurm_elastic.machine.ckptroot import child
from slurm_elastic.machine.ckptroot.child import Child
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT

pytestmark = ROOT
USER = (65534, 65533, (65533, 60))
LONG = 60.0


def run(script: str, timeout: float = LONG, most: int = 65536) -> tuple[int, str]:
    return child.run(["/bin/sh", "-c", script], timeout, USER, most)


def test_it_is_the_users_in_all_it_is() -> None:
    code, said = run("id -u; id -g; id -G; pwd; echo $HOME$PATH; cat; echo of-error >&2; exit 7")
    path = "/usr/local/bin:/usr/bin:/bin"
    assert (code, said) == (7, f"65534\n65533\n65533 60\n/\n{path}\nof-error\n")


def test_it_has_no_signal_blocked_or_ignored() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        _, said = run("grep -E 'SigBlk|SigIgn' /proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert [int(line.split()[1], 16) for line in said.splitlines()] == [0, 0]


def test_only_its_first_words_are_kept_and_all_are_read() -> None:
    code, said = run("printf 12345; sleep 0.1; head -c 300000 /dev/zero; echo end", most=8)
    assert (code, said) == (0, "12345\0\0\0")
    assert run("head -c 70000 /dev/zero")[1] == "\0" * 65536


def test_one_that_says_nothing_in_time_is_refused_and_ended() -> None:
    with pytest.raises(RequestRefused, match=r"^sh: no answer in 0 s$"):
        run("exec sleep 600", timeout=0.2)


def test_who_else_holds_its_output_is_not_waited_for() -> None:
    code, said = run("sleep 600 & echo $!")
    os.kill(int(said), signal.SIGKILL)
    assert code == 0


def test_nothing_is_left_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    run("true")
    with pytest.raises(RequestRefused):
        run("exec sleep 600", timeout=0.1)
    one = Child(_forked())
    one.end()
    assert len(os.listdir("/proc/self/fd")) == before


def _forked() -> int:
    """A process that waits, in a group of its own."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.write(told, b".")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    os.close(ready)
    os.close(told)
    return pid


@pytest.fixture
def one() -> Iterator[Child]:
    found = Child(_forked())
    yield found
    found.end()


def test_what_is_left_of_its_group_ends_with_it() -> None:
    left, kept = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.fork()
        os.write(kept, b".")
        signal.pause()
        os._exit(0)
    os.close(kept)
    both = 0
    while both < 2:
        both += len(os.read(left, 2))
    Child(pid).end()
    with os.fdopen(left, "rb") as held:
        ready, _, _ = select.select([held], [], [], LONG)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        assert ready == [held], "the other one has it still"


def test_a_signal_reaches_it_and_its_end_is_told(one: Child) -> None:
    assert one.status() is None
    one.signal(int(signal.SIGUSR1))
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    assert one.status() == signal.SIGUSR1


def test_a_core_is_part_of_how_it_ended(one: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    how = os.waitid_result((one.pid, 0, 0, int(signal.SIGSEGV), os.CLD_DUMPED))
    monkeypatch.setattr(child.os, "waitid", lambda *_: how)
    assert one.status() == signal.SIGSEGV | 0x80
    assert os.WCOREDUMP(one.status() or 0)
