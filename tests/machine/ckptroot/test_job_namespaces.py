"""The talk with a job's process 1, by a stand-in for it, and what the kernel tells of namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import job_namespaces
from slurm_elastic.machine.ckptroot.job_namespaces import JobNamespaces
from slurm_elastic.machine.ckptroot.payload import Payload
from slurm_elastic.machine.ckptroot.site import RequestRefused

from .helpers import ROOT

NO_PROCESS = 2**22 + 1
"""Above the kernel's PID_MAX_LIMIT: a low one may be ours, in a namespace of processes."""
PAYLOAD = Payload(("script",), {}, "/", 0o22, 2000, 2000, (2000,))


class Bed:
    """Process 1 ``says`` one thing after the other, or nothing; the clock goes on by what is waited
    for. Its middle process is one of ours.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.done: list[object] = []
        self.says: list[dict[str, Any] | None] = [{"init": NO_PROCESS}]
        self.waits: list[float] = []
        self.middle = subprocess.Popen(["/bin/sleep", "600"])
        way = SimpleNamespace(close=self.middle.kill)
        init = job_namespaces.job_init
        monkeypatch.setattr(init, "start", lambda payload: (way, self.middle.pid))
        monkeypatch.setattr(init, "send", lambda way, message: self.done.append(message))
        monkeypatch.setattr(init, "receive", self.receive)
        monkeypatch.setattr(job_namespaces.time, "monotonic", lambda: self.now)
        self.inside = JobNamespaces(PAYLOAD)

    def receive(self, way: object, timeout: float) -> dict[str, Any] | None:
        self.waits.append(timeout)
        self.now += 1.0 if timeout else 0.0
        return self.says.pop(0) if self.says else None


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    made = Bed(monkeypatch)
    yield made
    made.middle.kill()
    made.middle.wait()


def test_an_answer_is_waited_for_as_long_as_there_is_time(bed: Bed) -> None:
    assert (bed.inside.init, bed.waits) == (NO_PROCESS, [30.0])
    bed.says, bed.waits = [None, {"ended": 256}, None, {"pid": 1}], []
    assert bed.inside.ask("start", 30.0, so="much") == {"pid": 1}
    assert (bed.done, bed.waits) == ([{"do": "start", "so": "much"}], [30.0, 29.0, 28.0, 27.0])
    assert bed.inside.wait_status() == 256, "which came meanwhile"
    with pytest.raises(RequestRefused, match=r"^no answer from the job's process 1 in 3 s$"):
        bed.inside.ask("start", 3.0)
    assert bed.waits[-3:] == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "why", "ended"),
    [({"failed": "unshare"}, "^unshare$", None), ({"gone": True}, "processes were killed", 9)],
)
def test_what_process_1_cannot_do_is_refused(
    bed: Bed, answer: dict[str, Any], why: str, ended: int | None
) -> None:
    bed.says = [answer]
    with pytest.raises(RequestRefused, match=why):
        bed.inside.ask("start", 30.0)
    assert bed.inside.wait_status() == ended


@pytest.mark.parametrize(
    ("said", "status"),
    [([{"ended": 256}], 256), ([{"gone": True}], signal.SIGKILL), ([{"pid": 1}, {"ended": 0}], 0)],
)
def test_its_end_is_told_once_and_for_all(
    bed: Bed, said: list[dict[str, Any] | None], status: int
) -> None:
    bed.says = [*said, {"ended": 4}]
    assert [bed.inside.wait_status(), bed.inside.wait_status()] == [status, status]
    assert set(bed.waits[1:]) == {0}, "nothing is waited for"
    bed.says = [{"killed": True}]
    bed.inside.kill()
    assert (bed.waits[-1], bed.inside.wait_status()) == (60.0, None), "it comes back, maybe"


def test_a_process_is_one_of_the_jobs_by_its_namespace(bed: Bed) -> None:
    found = bed.inside.tasks()
    assert {os.getpid(), bed.middle.pid} <= set(found), "here they have no numbers of their own"
    bed.inside.init = bed.middle.pid
    assert set(found) - set(bed.inside.tasks()) >= {bed.middle.pid}
    with bed.inside.made_anew("ipc") as namespace:
        assert os.readlink(f"/proc/self/fd/{namespace}").startswith("ipc:[")


def test_in_the_end_nothing_of_it_stays_open(bed: Bed) -> None:
    before = os.listdir("/proc/self/fd")
    bed.inside.close()
    assert len(before) - len(os.listdir("/proc/self/fd")) == 2
    assert bed.middle.poll() is not None


@ROOT
def test_a_namespace_that_cannot_be_opened_leaves_nothing_open(bed: Bed) -> None:
    assert not os.get_inheritable(bed.inside.mounts)
    assert not os.get_inheritable(bed.inside.numbers)
    bed.middle.kill()
    os.waitid(os.P_PID, bed.middle.pid, os.WEXITED | os.WNOWAIT)
    before, bed.says = os.listdir("/proc/self/fd"), [{"init": NO_PROCESS}]
    with pytest.raises(OSError):
        JobNamespaces(PAYLOAD)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    bed.inside.close()
