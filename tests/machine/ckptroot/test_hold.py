"""A job that was stopped after its image: who lets it go on here, and when."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import session as sessions
from slurm_elastic.machine.ckptroot.caller import Caller, JobState
from slurm_elastic.machine.ckptroot.session import Session
from slurm_elastic.machine.ckptroot.site import Refused, Site
from slurm_elastic.machine.ckptroot.store import Meta, Request, Store

CALLER = Caller(job=7, uid=2000, gid=2000, user="alice", groups=(2000,), environment={})
META = Meta(7, "7", 2000, 2000, "criu", [])
HOLD = 600.0
TELL = sessions.journal.tell


def refused() -> int:
    raise Refused("/tmp/a\udcff\n7: not its own")


class Held:
    """A held job at its second run, with one good image; ``now`` is the clock (s)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.now, self.answers, self.restored, self.asked = 1000.0, list[JobState | None](), 0, 0
        self.relay = SimpleNamespace(terminated=False)
        monkeypatch.setattr(sessions, "Relay", lambda parent: self.relay)
        monkeypatch.setattr(sessions.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sessions.callers, "ask", self.ask)
        monkeypatch.setattr(sessions.journal, "tell", lambda *_: None)
        monkeypatch.setattr(Session, "_restore", self.restore)
        site = Site(cluster="t", directory=directory, key=b"k" * 64, reader=(0, 0), hold=HOLD)
        self.store = Store(site, 7)
        (self.store.path / "images" / "1").mkdir(parents=True)
        method: Any = SimpleNamespace(name="criu", pid=0)
        self.session = Session(site, CALLER, 1, self.store, META, method)
        self.session._held_until = self.now + HOLD

    def ask(self, *_: object) -> JobState | None:
        self.asked += 1
        return self.answers.pop(0)

    def restore(self, image: Path) -> None:
        self.restored += 1

    def late(self, *answers: JobState | None) -> bool:
        """Whether the run is over, with these answers of slurmctld, each after the hold."""
        self.answers = list(answers)
        over = False
        while self.answers:
            self.now += HOLD + 1
            over = self.session._hold_ends()
        return over


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Held:
    return Held(monkeypatch, tmp_path)


def says(state: str, restarts: int = 1) -> JobState:
    return JobState(state=state, uid=2000, restarts=restarts)


def test_a_save_that_is_refused_for_a_file_whose_name_is_no_text_harms_nobody(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions.journal, "tell", TELL)
    held.session._held_until = None
    held.session._method.need = refused
    held.session._serve(Request("9", "checkpoint", within=60.0))
    held.session._reserve()
    said = (held.store.path / "status.json").read_text()
    assert "no checkpoint: /tmp/a\\\\udcff\\\\n7: not its own" in said
    assert all(line.isprintable() for line in held.store._lines)


def test_nobody_is_asked_while_the_hold_lasts(held: Held) -> None:
    assert not held.session._hold_ends()
    assert (held.asked, held.restored) == (0, 0)


def test_a_job_that_still_runs_here_by_slurmctld_goes_on_here(held: Held) -> None:
    assert not held.late(says("RUNNING"))
    assert held.restored == 1
    assert held.session._held_until is None


@pytest.mark.parametrize("found", [says("RUNNING", 2), says("PENDING"), says("CANCELLED"), says("GONE")])  # fmt: skip
def test_a_job_that_runs_elsewhere_or_nowhere_does_not_come_back(
    held: Held, found: JobState
) -> None:
    assert held.late(found)
    assert held.restored == 0


@pytest.mark.parametrize("found", [None, says("SUSPENDED"), says("RUNNING", 0)])
def test_without_slurmctlds_word_it_stays_held(held: Held, found: JobState | None) -> None:
    assert not held.late(found, found)
    assert held.restored == 0
    assert len([line for line in held.store._lines if "stays held" in line]) == 1
    assert not held.late(says("RUNNING"))
    assert held.restored == 1


def test_slurmctld_is_asked_again_soon(held: Held) -> None:
    held.late(None)
    held.now += 11
    held.answers = [says("RUNNING", 2)]
    assert held.session._hold_ends()


@pytest.mark.parametrize(("found", "over"), [(says("RUNNING"), False), (says("PENDING"), True)])
def test_a_sigterm_ends_it_only_with_slurmctlds_word(
    held: Held, found: JobState, over: bool
) -> None:
    held.relay.terminated, held.answers = True, [found]
    assert held.session._hold_ends() is over
    assert held.restored == 0


@pytest.mark.parametrize("terminated", [True, False])
def test_a_sigterm_ends_one_that_is_preempted(held: Held, terminated: bool) -> None:
    """It is the head's, and Slurm requeues what ends in its grace."""
    held.relay.terminated = terminated
    held.answers = [replace(says("RUNNING"), preempted=True)]
    assert held.session._hold_ends() is terminated
    assert held.restored == 0


def test_the_head_cannot_release_what_has_another_run(held: Held) -> None:
    held.answers = [says("RUNNING", 2)]
    with pytest.raises(Refused, match="restart 2"):
        held.session._carry_out(Request("a", "release"))
    assert held.restored == 0
    held.answers = [None]
    held.session._carry_out(Request("b", "release"))
    assert held.restored == 1


def test_one_that_cannot_be_brought_back_stays_held_for_another_while(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    (held.store.path / "images" / "2").mkdir()
    tried: list[str] = []

    def broken(_: Session, image: Path) -> None:
        tried.append(image.name)
        raise Refused("criu restore: exit 1")

    monkeypatch.setattr(Session, "_restore", broken)
    assert not held.late(says("RUNNING"))
    assert tried == ["2", "1"], "an older image is better than none"
    assert held.session._held_until == held.now + HOLD
    assert sum("could not be brought back: criu restore" in line for line in held.store._lines) == 2
    assert json.loads((held.store.path / "status.json").read_text())["state"] == "held"


def test_a_signal_for_a_held_job_is_not_delivered_and_that_is_said(held: Held) -> None:
    held.session._take(int(signal.SIGUSR1))
    held.session._take(int(signal.SIGTERM))
    (line,) = held.store._lines
    assert "signal 10 came while the job was held: not delivered" in line


def test_one_for_a_job_that_runs_is_passed_on(held: Held) -> None:
    got: list[int] = []
    held.session._method.signal = got.append  # type: ignore[method-assign]
    held.session._held_until = None
    held.session._take(int(signal.SIGUSR1))
    assert got == [signal.SIGUSR1]


# the end of a run


@pytest.fixture
def ended(held: Held, monkeypatch: pytest.MonkeyPatch) -> Held:
    """Its payload has ended; ``gone`` says whether the job's directory was removed."""
    held.session._method.close = lambda: None  # type: ignore[method-assign]
    monkeypatch.setattr(held.session._quota, "forget", lambda: None)
    monkeypatch.setattr(sessions.time, "sleep", lambda _: None)
    return held


def remains(held: Held, status: int, *answers: JobState | None, terminated: bool = False) -> bool:
    held.relay.terminated, held.answers = terminated, list(answers)
    held.session.leave(status)
    assert held.answers == [], "slurmctld is asked as often as needed"
    return held.store.path.exists()


def test_a_run_that_ends_by_itself_leaves_nothing(ended: Held) -> None:
    assert not remains(ended, 0)


@pytest.mark.parametrize("how", [
    {"status": int(signal.SIGTERM)}, {"status": int(signal.SIGKILL)}, {"status": 0, "terminated": True},
])  # fmt: skip
def test_one_that_was_ended_stays_for_the_next_unless_slurm_says_that_the_job_is_over(
    ended: Held, how: dict[str, Any]
) -> None:
    for state in (says("PENDING"), says("REQUEUED"), says("NODE_FAIL"), says("RUNNING")):
        assert remains(ended, how["status"], state, terminated=how.get("terminated", False))
    assert json.loads((ended.store.path / "status.json").read_text())["state"] == "ended"
    assert remains(ended, how["status"], says("CANCELLED", 2), terminated=True), "of another run"
    over = says("CANCELLED")
    assert not remains(ended, how["status"], over, terminated=how.get("terminated", False))


def test_slurmctld_is_asked_five_times_and_its_silence_keeps_the_images(ended: Held) -> None:
    assert remains(ended, int(signal.SIGKILL), None, None, None, None, None)
    assert not remains(ended, int(signal.SIGKILL), None, None, None, None, says("TIMEOUT"))


def test_a_directory_that_cannot_be_removed_is_the_sweepers(
    ended: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(ended.store, "remove", busy)
    assert remains(ended, 0)
    assert "stays for the sweeper: [Errno 16]" in ended.store._lines[-1]


def test_an_abandoned_run_keeps_the_images_of_earlier_ones(ended: Held) -> None:
    ended.session.abandon(OSError("no scratch"))
    status = json.loads((ended.store.path / "status.json").read_text())
    assert status["state"] == "abandoned"
    assert status["origin"] == {"image": 0, "why": "no scratch"}
    assert ended.store.images() != []
