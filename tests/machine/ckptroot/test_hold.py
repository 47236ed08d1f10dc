"""A job that was stopped after its image: who lets it go on here, and when."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_elastic.machine.ckptroot import session as sessions
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.hold import UNFIT_S, Outcome
from slurm_elastic.machine.ckptroot.job_state import JobState
from slurm_elastic.machine.ckptroot.run import Run
from slurm_elastic.machine.ckptroot.session import Session
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused
from slurm_elastic.machine.ckptroot.store import HeadRequest, JobStore, Meta

CALLER = Caller(job=7, uid=2000, gid=2000, user="alice", groups=(2000,), environment={})
META = Meta(7, "7", 2000, 2000, "criu", [])
HOLD = 600.0


def refused() -> int:
    raise RequestRefused("/tmp/a\udcff\n7: not its own")


class Held:
    """A held job at its second run, with one good image; ``now`` is the clock (s)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.now, self.answers, self.asked = 1000.0, list[JobState | None](), 0
        self.restored: list[str] = []
        self.relay: Any = SimpleNamespace(terminated=False, wake_sudo=lambda *_: None)
        monkeypatch.setattr(sessions.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(sessions.time, "sleep", lambda _: None)
        monkeypatch.setattr(sessions.job_state, "ask", self.ask)
        monkeypatch.setattr(sessions.restoring, "restore", self.restore)
        monkeypatch.setattr(sessions.log.syslog, "syslog", lambda *_: None)
        site = HelperSite(cluster="t", directory=directory, key=b"k" * 64, reader=(0, 0), hold=HOLD)
        self.store = JobStore(site, 7)
        (self.store.path / "images" / "1").mkdir(parents=True)
        self.method: Any = SimpleNamespace(name="criu", pid=0, close=lambda: None)
        self.store.claim(1)
        self.run = Run(site, CALLER, 1, self.store, META, self.method)
        self.run.quota = cast("Any", SimpleNamespace(forget=lambda: None, settle=lambda: None))
        self.session = Session(self.run, self.relay)
        self.session.hold.begin()
        self.fails = False

    def ask(self, *_: object) -> JobState | None:
        self.asked += 1
        return self.answers.pop(0)

    def restore(self, run: Run, image: Path) -> int:
        self.restored.append(image.name)
        if self.fails:
            raise RequestRefused("criu restore: exit 1")
        return int(image.name)

    def late(self, *answers: JobState | None) -> Outcome:
        """What is to become of it with these answers of slurmctld, each after the hold."""
        self.answers = list(answers)
        outcome = Outcome.STAYS
        while self.answers:
            self.now += HOLD + 1
            outcome = self.session.hold.outcome()
        return outcome

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.store.path / "status.json").read_text())
        return found


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Held:
    return Held(monkeypatch, tmp_path)


def says(state: str, restarts: int = 1) -> JobState:
    return JobState(state=state, uid=2000, restarts=restarts)


def test_a_save_that_is_refused_for_a_file_whose_name_is_no_text_harms_nobody(held: Held) -> None:
    held.session.hold.end()
    held.method.estimate_size = refused
    held.session.serve(HeadRequest("9", "checkpoint", within=60.0))
    held.session.look_ahead()
    said = (held.store.path / "status.json").read_text()
    assert "no checkpoint: /tmp/a\\\\udcff\\\\n7: not its own" in said
    assert all(line.isprintable() for line in held.store.lines)


def test_the_hold_of_a_large_image_lasts_until_the_head_has_read_it(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head gives up an image of 20 GiB after 23 minutes, and then has the whole hold left."""
    size = 20 << 30
    held.session.hold.end()
    saves: Any = SimpleNamespace(
        take=lambda _: (SimpleNamespace(number=2, size=size, seconds=60.0), False),
        stop=lambda: None,
    )
    monkeypatch.setattr(held.session, "_saves", saves)
    held.session.carry_out(HeadRequest("9", "checkpoint", stop=True, within=3600.0))
    held.now += 120 + size / (16 << 20)
    assert held.session.hold.outcome() is Outcome.STAYS
    assert held.asked == 0
    held.now += HOLD
    held.answers = [says("RUNNING")]
    assert held.session.hold.outcome() is Outcome.GOES_ON
    assert "no requeue in 1880 s: the job continues here" in held.store.lines[-1]


def test_a_job_that_waits_for_another_node_waits_while_the_head_is_away(held: Held) -> None:
    """Without a requeue it would continue from an older image, or start over."""
    held.session._wait_elsewhere()
    held.now += UNFIT_S - 1
    assert held.session.hold.outcome() is Outcome.STAYS
    held.answers = [says("RUNNING")]
    held.now += 2
    assert held.session.hold.outcome() is Outcome.GOES_ON


def test_nobody_is_asked_while_the_hold_lasts(held: Held) -> None:
    assert held.session.hold.outcome() is Outcome.STAYS
    assert held.asked == 0


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (says("RUNNING"), Outcome.GOES_ON),
        *((one, Outcome.IS_OVER) for one in (says("RUNNING", 2), says("PENDING"), says("CANCELLED"), says("GONE"))),
    ],
)  # fmt: skip
def test_a_job_goes_on_here_only_where_it_still_runs_here_by_slurmctld(
    held: Held, found: JobState, outcome: Outcome
) -> None:
    assert held.late(found) is outcome


@pytest.mark.parametrize("found", [None, says("SUSPENDED"), says("RUNNING", 0)])
def test_without_slurmctlds_word_it_stays_held(held: Held, found: JobState | None) -> None:
    assert held.late(found, found) is Outcome.STAYS
    assert len([line for line in held.store.lines if "stays held" in line]) == 1
    assert held.late(says("RUNNING")) is Outcome.GOES_ON


def test_slurmctld_is_asked_again_soon(held: Held) -> None:
    held.late(None)
    held.now += 11
    held.answers = [says("RUNNING", 2)]
    assert held.session.hold.outcome() is Outcome.IS_OVER


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (says("RUNNING"), Outcome.STAYS),
        (says("PENDING"), Outcome.IS_OVER),
        # It is the head's, and Slurm requeues what ends in its grace.
        (replace(says("RUNNING"), preempted=True), Outcome.IS_OVER),
    ],
)
def test_a_sigterm_ends_it_only_with_slurmctlds_word(
    held: Held, found: JobState, outcome: Outcome
) -> None:
    assert held.session.hold.outcome() is Outcome.STAYS
    held.relay.terminated, held.answers = True, [found]
    assert held.session.hold.outcome() is outcome


def test_the_head_cannot_release_what_has_another_run(held: Held) -> None:
    held.answers = [says("RUNNING", 2)]
    with pytest.raises(RequestRefused, match="restart 2"):
        held.session.carry_out(HeadRequest("a", "release"))
    assert held.restored == []
    held.answers = [None]
    held.session.carry_out(HeadRequest("b", "release"))
    assert (held.restored, held.session.is_held) == (["1"], False)


def test_one_that_cannot_be_brought_back_stays_held_for_another_while(held: Held) -> None:
    (held.store.path / "images" / "2").mkdir()
    held.fails, held.answers = True, [says("RUNNING")]
    with pytest.raises(RequestRefused, match="no image could be brought back"):
        held.session.carry_out(HeadRequest("a", "release"))
    assert held.restored == ["2", "1"], "an older image is better than none"
    assert held.session.hold.until == held.now + HOLD
    assert sum("could not be brought back: criu restore" in line for line in held.store.lines) == 2
    assert held.status()["state"] == "held"


def test_a_signal_for_a_held_job_is_not_delivered_and_that_is_said(held: Held) -> None:
    held.session.pass_on(int(signal.SIGUSR1))
    held.session.pass_on(int(signal.SIGTERM))
    (line,) = held.store.lines
    assert "signal 10 came while the job was held: not delivered" in line


def test_one_for_a_job_that_runs_is_passed_on(held: Held) -> None:
    got: list[int] = []
    held.method.signal = got.append
    held.session.hold.end()
    held.session.pass_on(int(signal.SIGUSR1))
    assert got == [signal.SIGUSR1]


# the end of a run


def remains(held: Held, status: int, *answers: JobState | None, terminated: bool = False) -> bool:
    held.relay.terminated, held.answers = terminated, list(answers)
    held.session.leave(status)
    assert held.answers == [], "slurmctld is asked as often as needed"
    return held.store.path.exists()


@pytest.mark.parametrize("how", [
    {"status": int(signal.SIGTERM)}, {"status": int(signal.SIGKILL)}, {"status": 0, "terminated": True},
])  # fmt: skip
def test_one_that_was_ended_stays_for_the_next_unless_slurm_says_that_the_job_is_over(
    held: Held, how: dict[str, Any]
) -> None:
    held.session.hold.end()
    for state in (says("PENDING"), says("REQUEUED"), says("NODE_FAIL"), says("RUNNING")):
        assert remains(held, how["status"], state, terminated=how.get("terminated", False))
    assert held.status()["state"] == "ended"
    assert remains(held, how["status"], says("CANCELLED", 2), terminated=True), "of another run"
    over = says("CANCELLED")
    assert not remains(held, how["status"], over, terminated=how.get("terminated", False))


@pytest.mark.parametrize(
    "found",
    [
        says("TIMEOUT"),
        says("PREEMPTED"),
        # COMPLETING hides why Slurm has ended the run.
        replace(says("COMPLETING"), hit_limit=True),
        replace(says("COMPLETING"), preempted=True),
    ],
)
def test_a_run_that_slurm_cut_off_leaves_its_images_for_the_requeue_of_the_head(
    held: Held, found: JobState
) -> None:
    held.session.hold.end()
    assert remains(held, 0, found, terminated=True)
    assert not remains(held, 0, says("COMPLETING"), terminated=True)


@pytest.mark.parametrize("state", ["TIMEOUT", "COMPLETING", "PREEMPTED", "CANCELLED", "GONE"])
def test_a_job_that_ends_while_it_is_held_keeps_its_images(held: Held, state: str) -> None:
    """The head may still be reading the image, or be away until after the time limit."""
    held.relay.terminated, held.answers = True, [says(state)]
    held.relay.wait = lambda _: ()
    assert remains(held, held.session.run(), terminated=True)
    assert held.status()["state"] == "ended"


def test_slurmctld_is_asked_five_times_and_its_silence_keeps_the_images(held: Held) -> None:
    held.session.hold.end()
    assert remains(held, int(signal.SIGKILL), None, None, None, None, None)
    assert not remains(held, int(signal.SIGKILL), None, None, None, None, says("FAILED"))


def test_a_slurmctld_that_lost_its_state_ends_no_image(held: Held) -> None:
    """It kills the jobs that it does not know. They are requeued when its state is back."""
    held.session.hold.end()
    assert remains(held, int(signal.SIGKILL), says("GONE"))
    assert remains(held, 0, says("GONE"), terminated=True)


def test_a_directory_that_cannot_be_removed_is_the_sweepers(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(held.store, "remove", busy)
    assert remains(held, 0, JobState("RUNNING", 2000, 1))
    assert "stays for the sweeper: [Errno 16]" in held.store.lines[-1]


def test_an_abandoned_run_keeps_the_images_of_earlier_ones(held: Held) -> None:
    held.session.abandon(OSError("no scratch"))
    status = held.status()
    assert status["state"] == "abandoned"
    assert status["origin"] == {"image": 0, "why": "no scratch"}
    assert held.store.images() != []


def test_a_hold_that_the_head_renews_does_not_end(held: Held) -> None:
    held.now += HOLD - 1
    message, _ = held.session.carry_out(HeadRequest("a", "hold"))
    assert message == "", "once a minute is too often for the log"
    held.now += 60
    assert held.session.hold.outcome() is Outcome.STAYS
    assert held.asked == 0
    held.session.hold.end()
    held.session.carry_out(HeadRequest("b", "hold"))
    assert not held.session.is_held, "a run that works is not stopped"
