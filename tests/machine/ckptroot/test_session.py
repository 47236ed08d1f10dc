"""One run of a job, by a method that does nothing: what it is asked for, when, and what is said."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import instructions
from slurm_elastic.machine.ckptroot import manifest as manifests
from slurm_elastic.machine.ckptroot import session as sessions
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.hold import Outcome
from slurm_elastic.machine.ckptroot.job_state import JobState
from slurm_elastic.machine.ckptroot.manifest import ImageManifest
from slurm_elastic.machine.ckptroot.method import Method
from slurm_elastic.machine.ckptroot.quota import Room
from slurm_elastic.machine.ckptroot.run import Run
from slurm_elastic.machine.ckptroot.session import Session, finish
from slurm_elastic.machine.ckptroot.site import HelperSite, RequestRefused
from slurm_elastic.machine.ckptroot.store import HeadRequest, JobStore, Meta

from .helpers import ROOT

pytestmark = ROOT
KEY = b"k" * 64
CALLER = Caller(
    job=7, uid=0, gid=0, user="root", groups=tuple(os.getgroups()),
    environment={b"SLURMD_NODENAME": b"n1"},
)  # fmt: skip
PLENTY = 1 << 40
RUNS = JobState(state="RUNNING", uid=0, restarts=1)


class Node(Method):
    """A method that notes the session's calls in order; ``takes``: seconds a slow one takes."""

    name, pid, stands_still = "criu", 1000, True

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.did: list[object] = []
        self.takes = 0.0
        self.content = b"memory"
        self.size = 6
        self.fails = ""
        self.far: list[str] = []
        self.lost_node = ""
        self.status: int | None = None
        self.gathers: Callable[[Path], object] = lambda image: None

    def _may_fail(self, what: str) -> None:
        self.did.append(what)
        self.clock.now += self.takes
        if self.fails == what:
            raise RequestRefused(f"{what}: exit 1")

    def start(self) -> None:
        self._may_fail("start")

    def restore(self, image: Path, manifest: ImageManifest) -> None:
        self._may_fail("restore")

    def put_back_files(self, image: Path, /) -> None:
        self.did.append("lay out")

    def estimate_size(self) -> int:
        return self.size

    def connections(self) -> list[str]:
        return ["10.1.2.3:27000"]

    def outside_connections(self) -> list[str]:
        return self.far

    def dump(self, image: Path, within: float, most: int, closes: bool, /) -> dict[str, int]:
        (image / "pages").write_bytes(self.content)
        self._may_fail("dump")
        return {}

    def clocks(self) -> dict[str, int] | None:
        return {"monotonic": 5}

    def cpu_bindings(self) -> dict[str, list[int]]:
        return {"1001": [1]}

    def gather(self, image: Path, most: int, /) -> None:
        self.did.append(("gather", most))
        self.gathers(image)

    def resume(self) -> None:
        self.did.append("go on")

    def stop(self) -> None:
        self.did.append("stop")

    def signal(self, number: int) -> None:
        self.did.append(("signal", number))

    def wait_status(self) -> int | None:
        return self.status

    def lost(self) -> str:
        return self.lost_node

    def versions(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.did.append("close")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0


class Bed:
    """The second run of job 7, with one output; ``asked`` for room, of which there is ``room``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, attempt: int = 1) -> None:
        self.clock = Clock()
        self.node = Node(self.clock)
        self.asked: list[object] = []
        self.answers: list[JobState | None] = []
        self.room = PLENTY
        self.looks: list[float] = []
        self.signals: list[list[int]] = []
        self.relay = SimpleNamespace(terminated=False, wait=self.wait, wake_sudo=lambda *_: None)
        monkeypatch.setattr(sessions.time, "monotonic", lambda: self.clock.now)
        monkeypatch.setattr(sessions.job_state, "ask", self.ask)
        self.told: list[str] = []
        monkeypatch.setattr(sessions.log, "write", lambda level, line: self.told.append(line))
        self.site = HelperSite(cluster="t", directory=directory / "shared", key=KEY, reader=(0, 0))
        self.store = JobStore(self.site, 7)
        for name in ("images", "keep"):
            (self.store.path / name).mkdir(parents=True, exist_ok=True)
        self.out = directory / "out"
        self.out.touch()
        self.cpuinfo = directory / "cpuinfo"
        monkeypatch.setattr(instructions, "CPUINFO", self.cpuinfo)
        self.attempt = attempt
        # So many nodes could not use the newest image that an older one is used, or none.
        self.tried = ["n7", "n8", "n9"]
        self.session = self.opened()

    def ask(self, *_: object) -> JobState | None:
        """What slurmctld says: ``answers``, then that the job runs."""
        return self.answers.pop(0) if self.answers else replace(RUNS, restarts=self.attempt)

    def opened(self) -> Session:
        self.store.claim(self.attempt)
        self.store.tried_nodes(self.tried)
        meta = Meta(7, "7", 0, 0, "criu", [str(self.out)])
        self.run = Run(self.site, CALLER, self.attempt, self.store, meta, self.node)
        quota: Any = SimpleNamespace(
            room=self.promise,
            settle=lambda: self.asked.append("settle"),
            forget=lambda: self.asked.append("forget"),
        )
        self.run.quota = quota
        relay: Any = self.relay
        return Session(self.run, relay)

    def promise(self, need: int) -> Room:
        self.asked.append(need)
        room = Room(self.room, "job_quota = 1M")
        room.check(need)
        return room

    def wait(self, timeout: float) -> list[int]:
        """The next signals; the test fails once the clock has gone on for an hour."""
        self.looks.append(timeout)
        self.clock.now += timeout
        assert self.clock.now < 4600, "the run does not end"
        return self.signals.pop(0) if self.signals else []

    def request(self, number: str, verb: str, **more: object) -> None:
        text = json.dumps({"id": number, "verb": verb, **more})
        (self.store.path / "request").write_text(text)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.store.path / "status.json").read_text())
        return found

    def said(self) -> list[str]:
        return [line.partition(" ")[2] for line in self.store.lines]

    def save(
        self, *, stop: bool = False, within: float = 60.0, closes: bool = False
    ) -> tuple[str, int]:
        return self.session.carry_out(HeadRequest("a", "checkpoint", stop, within, closes))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bed:
    return Bed(monkeypatch, tmp_path)


# its begin


def test_a_first_run_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = Bed(monkeypatch, tmp_path, attempt=0)
    first.session.begin()
    assert (first.node.did, first.said()) == (["start"], [])
    found = first.status()
    assert (found["state"], found["node"], found["attempt"]) == ("running", "n1", 0)


def test_a_job_that_slurm_starts_for_the_first_time_again_continues_from_its_image(
    run: Bed,
) -> None:
    """A slurmctld that was restored from older state has forgotten that the job ran."""
    run.out.write_bytes(b"one\n")
    run.save()
    run.attempt = 0
    run.opened().begin()
    assert run.status()["origin"] == {"image": 1, "why": ""}


def test_a_restart_without_images_says_that_it_starts_anew_and_what_becomes_of_its_output(
    run: Bed,
) -> None:
    run.out.write_bytes(b"of others\n")
    run.session.begin()
    assert run.node.did == ["start"]
    first, second = run.said()
    assert first == "no image to continue from: the job starts over"
    assert second.startswith(f"{run.out}: 10 bytes of earlier runs, or of others")
    assert run.told == [f"job 7: {line}" for line in run.said()]


def test_a_restore_says_what_was_given_back_from_which_image_where_and_how_long_it_took(
    run: Bed,
) -> None:
    run.out.write_bytes(b"one\n")
    run.save()
    run.out.write_bytes(b"")
    again = run.opened()
    run.node.takes = 2.5
    again.begin()
    assert run.said() == [
        f"{run.out}: 4 bytes given back, 0 were there",
        "continues from image 1 on n1, restored in 2.500 s",
    ]
    assert run.status()["state"] == "running"
    assert run.status()["origin"] == {"image": 1, "why": ""}


def test_connections_that_are_closed_in_an_image_are_named_when_it_is_restored(run: Bed) -> None:
    run.save(closes=True)
    run.opened().begin()
    assert run.said() == [
        "continues from image 1 on n1, restored in 0.000 s",
        "its connections are closed: 10.1.2.3:27000",
    ]


def test_of_a_request_to_close_connections_the_method_is_told(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(run.node, "dump", lambda *words: asked.append(words[3]) or {})
    for number, more in enumerate(({}, {"tcp": "close"}, {"tcp": "keep"})):
        run.request(str(number), "checkpoint", within=60.0, **more)
        run.session.serve(run.store.request())
    assert asked == [False, True, False]
    images = [manifests.read(image, KEY) for image in run.store.images()]
    assert [one.closed for one in images] == [None, ["10.1.2.3:27000"]]


def test_what_is_no_image_of_this_job_is_not_used_and_why_is_said(run: Bed) -> None:
    run.save()
    run.run.meta = replace(run.run.meta, script="of another job")
    run.session.begin()
    (line, _) = run.said()
    assert line.startswith("image 1 is not used: it is of (JobKey(cluster='t', job=7, uid=0, ")
    assert run.node.did[-1] == "start"
    assert run.status()["origin"] == {"image": 0, "why": line}


def test_the_head_is_told_why_a_run_goes_on_from_an_older_image(run: Bed) -> None:
    run.save()
    run.save()
    (run.store.path / "images" / "2" / "pages").write_bytes(b"MEMORY")
    run.session.begin()
    why = run.status()["origin"]["why"]
    assert why.startswith("image 2 is not used: ")
    assert "changed since the checkpoint" in why
    assert run.status()["origin"]["image"] == 1


def test_a_file_that_it_kept_locked_and_that_has_changed_is_a_reason_to_start_anew(
    run: Bed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    locked = {str(tmp_path / "base.db"): (1, 2)}
    monkeypatch.setattr(run.node, "locked", lambda: locked)
    (tmp_path / "base.db").write_text("another's")
    run.save()
    run.session.begin()
    assert "has changed since the job, which keeps it locked" in run.said()[0]


def has_processor(run: Bed, flags: str) -> Session:
    """The next run, on a node with that processor."""
    run.cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\nprocessor\t: 1\n")
    run.session = run.opened()
    return run.session


ON_X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="flags of x86-64")


@ON_X86
def test_an_image_is_not_used_where_its_programs_would_meet_unknown_instructions(run: Bed) -> None:
    """The C library has chosen its functions by them, and CRIU compares none."""
    has_processor(run, "sse4_2 avx2 avx512f avx512vl sha_ni")
    run.save()
    has_processor(run, "sse4_2 avx2").begin()
    lacks = "the processor of this node lacks avx512f, avx512vl, which the job may use"
    assert run.status()["origin"] == {"image": 0, "why": f"image 1 is not used: {lacks}"}
    has_processor(run, "sse4_2 avx2 avx512f avx512vl amx_tile").begin()
    assert run.status()["origin"]["image"] == 1


@ON_X86
def test_an_image_needs_the_processors_of_all_its_runs(run: Bed) -> None:
    has_processor(run, "avx2")
    run.save()
    has_processor(run, "avx2 avx512f").begin()
    run.save()
    has_processor(run, "avx2").begin()
    lacks = "the processor of this node lacks avx512f, which the job may use"
    why = f"image 2 is not used: {lacks}"
    assert run.status()["origin"] == {"image": 1, "why": why}, "a program started since may use it"


@ON_X86
def test_a_job_that_starts_over_chooses_by_its_new_processor(run: Bed) -> None:
    has_processor(run, "avx2 avx512f")
    run.save()
    has_processor(run, "avx2").begin()
    assert run.status()["origin"]["image"] == 0
    run.save()
    has_processor(run, "avx2").begin()
    assert run.status()["origin"]["image"] == 2


def test_an_image_without_a_word_of_its_processor_is_used(run: Bed) -> None:
    run.save()
    has_processor(run, "avx2").begin()
    assert run.status()["origin"]["image"] == 1


def test_an_image_of_which_a_file_has_changed_is_not_used(run: Bed) -> None:
    run.save()
    (run.store.path / "images" / "1" / "pages").write_bytes(b"MEMORY")
    run.session.begin()
    assert "changed since the checkpoint" in run.said()[0]


def test_a_request_of_an_earlier_run_is_answered_already(run: Bed) -> None:
    run.request("a", "release")
    run.session.begin()
    run.session.serve(run.store.request())
    assert run.status()["answer"] == {}
    run.request("b", "release")
    run.session.serve(run.store.request())
    assert run.status()["answer"]["request"] == "b"


# while it runs


@pytest.mark.parametrize("stop", [False, True])
def test_a_job_that_is_saved_beside_its_work_stands_still_only_until_its_image_is_written(
    run: Bed, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    """To read a large image and to have it on disk takes as long as to write it."""
    digests = manifests.digests

    def read(image: Path, most: int) -> dict[str, tuple[int, str]]:
        run.node.did.append("read")
        return digests(image, most)

    monkeypatch.setattr(manifests, "digests", read)
    run.save(stop=stop)
    did = [word for word in run.node.did if isinstance(word, str)]
    assert did == (["dump", "read", "stop"] if stop else ["dump", "go on", "read"])


@pytest.mark.parametrize("stop", [False, True])
def test_only_an_image_of_a_job_that_runs_on_comes_by_the_nodes_own_disk(
    run: Bed, tmp_path: Path, stop: bool
) -> None:
    (tmp_path / "stage").mkdir()
    object.__setattr__(run.site, "stage", tmp_path / "stage")
    run.session = run.opened()
    seen: list[Path] = []
    run.node.gathers = seen.append
    run.save(stop=stop)
    assert (seen[0] == tmp_path / "stage" / "slurm-elastic-stage" / "7" / "image") is not stop
    (image,) = run.store.images()
    manifests.compare(image, manifests.read(image, KEY))
    assert (image / "pages").read_bytes() == b"memory"


@pytest.mark.parametrize("stop", [False, True])
def test_a_job_goes_on_once_where_its_image_cannot_be_read_again(
    run: Bed, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    def read(image: Path, most: int) -> dict[str, tuple[int, str]]:
        raise RequestRefused("pages: input/output error")

    monkeypatch.setattr(manifests, "digests", read)
    with pytest.raises(RequestRefused, match="no checkpoint: pages: input/output error"):
        run.save(stop=stop)
    assert run.node.did.count("go on") == 1
    assert "stop" not in run.node.did
    assert not run.store.images()


def test_it_ends_with_its_payload(run: Bed) -> None:
    run.node.status = 7 << 8
    assert run.session.run() == 7 << 8
    assert run.looks == [0.5], "its signals and its end are looked for twice a second"


def test_signals_are_passed_on_as_they_come(run: Bed) -> None:
    run.signals = [[int(signal.SIGUSR1), int(signal.SIGTERM)]]
    run.node.status = 0
    run.session.run()
    assert run.node.did == [("signal", signal.SIGUSR1), ("signal", signal.SIGTERM)]


@pytest.mark.parametrize(("poll", "every"), [(0.1, 0.1), (2.0, 2.0)])
def test_requests_are_looked_for_as_often_as_configured(
    run: Bed, monkeypatch: pytest.MonkeyPatch, poll: float, every: float
) -> None:
    object.__setattr__(run.site, "poll", poll)
    looked: list[float] = []

    def served(request: HeadRequest | None) -> None:
        looked.append(run.clock.now)
        run.node.status = 0 if len(looked) == 4 else None

    monkeypatch.setattr(run.session, "serve", served)
    run.session.run()
    gaps = [later - earlier for earlier, later in itertools.pairwise(looked)]
    assert gaps == pytest.approx([every] * 3, abs=0.11)
    assert set(run.looks) == {min(poll, 0.5)}


def test_room_for_its_next_save_is_looked_for_every_minute_and_not_while_it_is_held(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    promised: list[float] = []

    def reserve() -> None:
        promised.append(run.clock.now)
        run.node.status = 0 if len(promised) == 3 else None

    monkeypatch.setattr(run.session, "look_ahead", reserve)
    run.session.run()
    assert promised == [1000.5, 1060.5, 1120.5]
    run.session.hold.until = run.clock.now + 300
    run.answers = [JobState(state="PENDING", uid=0, restarts=1)]
    assert run.session.run() == signal.SIGTERM
    assert len(promised) == 3


def test_a_held_jobs_ended_processes_are_not_its_end(run: Bed) -> None:
    run.node.status = int(signal.SIGKILL)
    run.session.hold.until = run.clock.now + 10
    run.answers = [JobState(state="CANCELLED", uid=0, restarts=1)]
    assert run.session.run() == signal.SIGTERM
    assert run.clock.now > 1010


def test_one_that_is_to_be_asked_about_soon_is_so_within_a_short_hold(run: Bed) -> None:
    object.__setattr__(run.site, "hold", 3.0)
    run.session.hold.until = run.clock.now
    run.clock.now += 0.1
    run.answers = [None]
    assert run.session.hold.outcome() is Outcome.STAYS
    assert run.session.hold.until == run.clock.now + 3.0
    assert run.said() == [
        "no requeue in 3 s, but slurmctld does not answer: the job stays held",
    ]
    run.clock.now += 3.0
    assert run.session.hold.outcome() is Outcome.STAYS, "not before"
    run.clock.now += 0.1
    run.answers = [JobState(state="SUSPENDED", uid=0, restarts=1)]
    run.session.hold.outcome()
    assert run.said()[1] == "no requeue in 3 s, but slurmctld says SUSPENDED: the job stays held"


def test_one_that_nobody_requeued_says_so_and_goes_on(run: Bed) -> None:
    run.save(stop=True)
    run.clock.now += 600.1
    run.answers = [RUNS]
    run.node.status = 0
    assert run.session.run() == 0
    assert run.said()[0] == "no requeue in 600 s: the job continues here"
    assert run.status()["state"] == "running"


# what the head asks for


def test_a_request_is_carried_out_once_and_answered(run: Bed) -> None:
    run.session.serve(None)
    assert not (run.store.path / "status.json").exists()
    one = HeadRequest("a", "checkpoint", within=60.0)
    for _ in range(2):
        run.session.serve(one)
    assert run.node.did.count("dump") == 1
    found = run.status()
    (line,) = run.said()
    assert line.startswith("image 1: 6 bytes in 0.000 s")
    assert found["answer"] == {"request": "a", "ok": True, "message": line, "image": 1}
    assert found["state"] == "running"


def test_a_save_that_stops_the_job_is_answered_as_held(run: Bed) -> None:
    run.session.serve(HeadRequest("a", "checkpoint", stop=True, within=60.0))
    found = run.status()
    assert (found["state"], found["answer"]["ok"]) == ("held", True)


def test_a_request_that_fails_is_answered_with_the_reason(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.session.serve(HeadRequest("a", "explode"))
    assert run.said() == ["explode: unknown request 'explode'"]
    wanted = {"request": "a", "ok": False, "message": "unknown request 'explode'"}
    assert run.status()["answer"] == wanted

    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(run.store, "new_image", fails)
    run.session.serve(HeadRequest("b", "checkpoint"))
    assert run.said()[1] == "checkpoint: MemoryError"


def test_a_release_of_what_is_not_held_changes_nothing(run: Bed) -> None:
    assert run.session.carry_out(HeadRequest("a", "release")) == ("the job continues here", 0)
    assert run.node.did == []


def test_a_release_where_no_image_comes_back_is_refused(run: Bed) -> None:
    run.session.hold.until, run.answers = 2000.0, [RUNS]
    with pytest.raises(RequestRefused, match="no image could be brought back"):
        run.session.carry_out(HeadRequest("a", "release"))


# a save


def test_a_save_that_stops_holds_the_job_as_long_as_configured(run: Bed) -> None:
    run.save(stop=True)
    assert run.node.did[-1] == "stop"
    assert "go on" not in run.node.did
    assert run.session.hold.until == pytest.approx(run.clock.now + 600.0)


def test_one_that_does_not_lets_it_go_on(run: Bed) -> None:
    run.save()
    assert run.node.did[-1] == "go on"
    assert "stop" not in run.node.did
    assert not run.session.is_held


def test_a_held_job_has_its_image_already(run: Bed) -> None:
    run.save(stop=True)
    assert run.save(stop=True) == ("the job is held already, image 1", 1)
    with pytest.raises(RequestRefused, match=r"^the job is held$"):
        run.save()
    (run.store.path / "images" / "1").rename(run.store.path / "images" / "1.new")
    with pytest.raises(RequestRefused, match=r"^the job is held$"):
        run.save(stop=True)


@pytest.mark.parametrize(("takes", "late"), [(60.0, False), (60.5, True)])
def test_an_image_that_is_late_counts_and_stops_nobody(run: Bed, takes: float, late: bool) -> None:
    run.node.takes = takes
    if not late:
        text, number = run.save(stop=True)
        assert (text, number) == ("image 1: 6 bytes in 60.000 s", 1)
        return
    with pytest.raises(
        RequestRefused, match="image 1 is good, but came after the deadline: the job continues"
    ):
        run.save(stop=True)
    assert run.node.did[-1] == "go on"
    assert "stop" not in run.node.did
    assert [path.name for path in run.store.images()] == ["1"]
    assert run.asked == [6, "settle", "settle"]


@pytest.mark.parametrize("dumped", [False, True])
def test_a_save_that_fails_leaves_no_image_and_the_job_runs(run: Bed, dumped: bool) -> None:
    """A method whose dump failed has let them go on itself."""

    def fails(image: Path) -> None:
        raise OSError(28, "No space left on device")

    if dumped:
        run.node.gathers = fails
    else:
        run.node.fails = "dump"
    with pytest.raises(RequestRefused, match=r"^no checkpoint: (dump: exit 1|\[Errno 28\])"):
        run.save(stop=True)
    assert ("go on" in run.node.did) is dumped
    assert "stop" not in run.node.did
    assert list((run.store.path / "images").iterdir()) == []
    assert run.asked == [6, "settle"], "what it took is room again"


def test_room_is_asked_for_memory_and_new_output_together(run: Bed) -> None:
    run.out.write_bytes(b"x" * 8192)
    run.save()
    assert run.asked[0] == 6 + run.out.stat().st_blocks * 512
    run.save()
    assert run.asked[3] == 6, "its output was kept at the image before"


def test_all_of_an_image_takes_no_more_than_the_room(run: Bed) -> None:
    """Memory, then the files that travel, then what the output has gained."""
    run.room = 1 << 20
    run.node.content = b"x" * (256 << 10)
    run.save()
    took = [what[1] for what in run.node.did if isinstance(what, tuple)]
    assert took == [(1 << 20) - (256 << 10)]
    run.node.content = b"x" * (1 << 20)
    run.node.gathers = lambda image: (image / "more").write_bytes(b"y" * 4096)
    run.out.write_bytes(b"z")
    run.room = (1 << 20) + 4096
    with pytest.raises(RequestRefused, match="more than 0 bytes of data to copy"):
        run.save()
    run.room = (1 << 20) - 4096
    run.out.write_bytes(b"")
    with pytest.raises(RequestRefused, match="more than"):
        run.save()
    took = [what[1] for what in run.node.did if isinstance(what, tuple)]
    assert took[2] == 0, "never less than nothing"


def test_what_an_image_is_of_stands_in_its_manifest(run: Bed) -> None:
    run.out.write_bytes(b"four")
    run.node.takes = 1.5
    run.save()
    found = manifests.read(run.store.path / "images" / "1", KEY)
    assert (found.cluster, found.job, found.label, found.attempt) == ("t", 7, "7", 1)
    assert (found.node, found.method, found.pid, found.number) == ("n1", "criu", 1000, 1)
    assert (found.seconds, found.writing) == (1.5, {str(run.out): 4})
    assert found.clocks == {"monotonic": 5}
    assert found.bound == {"1001": [1]}


# room for the next one


def refused() -> int:
    raise RequestRefused("it has a terminal: x")


def test_a_promise_is_changed_where_the_job_has_grown_or_shrunk_by_a_tenth(run: Bed) -> None:
    for size in (1000, 1100, 1111, 1112, 1020, 1010):
        run.node.size = size
        run.session.look_ahead()
    assert run.asked == [1000, 1112, 1010]


def test_no_room_is_said_once_for_each_kind_of_reason(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = iter([
        RequestRefused("no room: 5 MiB needed"), RequestRefused("no room: 6 MiB needed"),
        OSError(116, "Stale file handle"), KeyError("riscv64"), RequestRefused("it has a terminal: x"),
    ])  # fmt: skip

    def need() -> int:
        raise next(reasons)

    with monkeypatch.context() as lacks:
        lacks.setattr(run.node, "estimate_size", need)
        for _ in range(5):
            run.session.look_ahead()
    assert run.said() == [
        "its next save could not be made now: no room: 5 MiB needed",
        "its next save could not be made now: it has a terminal: x",
    ]
    assert run.status()["log"][-1].endswith("it has a terminal: x")
    run.node.size = 3 << 20
    run.session.look_ahead()
    assert run.status()["log"][-1].endswith("3 MiB are promised to its next save")
    run.node.size = 9 << 20
    run.session.look_ahead()
    assert len(run.said()) == 3, "only after it was missing"


def test_the_head_is_told_what_is_in_the_way_of_the_next_save_until_it_is_gone(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.session.look_ahead()
    with monkeypatch.context() as lacks:
        lacks.setattr(run.node, "estimate_size", refused)
        run.session.look_ahead()
    assert run.status()["hindered"] == "it has a terminal: x"
    run.session.look_ahead()
    assert run.status()["hindered"] == "", "it needs as much as it did before"


@pytest.mark.parametrize("closes", [None, True, False])
def test_a_connection_is_in_the_way_unless_saves_close_it(run: Bed, closes: bool | None) -> None:
    run.node.far = ["10.1.2.3:80"]
    run.session.next_save.closes = closes
    run.session.look_ahead()
    kept = "its next save could not be made now: it has a connected TCP socket: to 10.1.2.3:80"
    assert run.said() == ([kept] if closes is False else [])


# its end


def test_a_run_that_was_ended_says_that_its_images_stay(run: Bed) -> None:
    run.answers = [RUNS]
    run.session.leave(int(signal.SIGKILL))
    assert run.said() == ["the run has ended; its images stay for the next"]
    assert (run.node.did, run.asked) == (["close"], [])


@pytest.mark.parametrize("status", [0, 9 << 8, 15 << 8, int(signal.SIGUSR1), int(signal.SIGSEGV)])
def test_whatever_else_ends_it_its_directory_and_its_room_go(run: Bed, status: int) -> None:
    run.session.leave(status)
    assert (run.node.did, run.asked) == (["close"], ["forget"])
    assert not run.store.path.exists()


def test_an_abandoned_run_leaves_nothing_running(run: Bed) -> None:
    run.session.abandon(OSError("no scratch"))
    assert run.node.did == ["close"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_by_the_signal_that_ended_the_payload_and_leaves_no_core_of_its_own(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    done: list[object] = []
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: done.append(limit))
    monkeypatch.setattr(signal, "signal", lambda *what: done.append(what))
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, what: done.append(how))
    monkeypatch.setattr(os, "kill", lambda pid, signum: done.append((pid, signum)))
    assert finish(int(number)) == 128 + number, "should it go on all the same"
    default = [] if number == signal.SIGKILL else [(number, signal.SIG_DFL)]
    core = (resource.RLIMIT_CORE, (0, 0))
    assert done == [core, *default, signal.SIG_UNBLOCK, (os.getpid(), number)]


@pytest.mark.parametrize("has_image", [True, False])
def test_a_job_that_a_save_has_ended_and_not_brought_back_goes_on_from_an_older_image_or_anew(
    run: Bed, monkeypatch: pytest.MonkeyPatch, has_image: bool
) -> None:
    """A save of DMTCP that stops the job ends its processes before root has their images."""
    run.session.begin()
    if has_image:
        (run.store.path / "images" / "3").mkdir()
    run.node.pid = 0
    run.node.did.clear()

    def come_back(*_: object) -> int:
        run.node.pid, run.node.status = 1000, 0
        return 3

    monkeypatch.setattr(sessions.restoring, "restore", come_back)
    monkeypatch.setattr(run.node, "start", come_back)
    assert run.session.run() == 0
    assert (
        "the save has ended the job's processes, and they could not be brought back" in run.said()
    )
    assert run.status()["state"] == "running"
    assert run.status()["origin"]["image"] == (3 if has_image else 0)


# a node of its several


WAITS = "n2 does not answer: the job waits until Slurm requeues it"


def test_an_error_after_the_loss_of_a_node_waits_for_slurms_requeue(run: Bed) -> None:
    run.session.begin()
    run.node.status, run.node.lost_node = 256, "n2"
    run.signals = [[], []]
    run.answers = [replace(RUNS, state="NODE_FAIL")]

    def terminate(timeout: float) -> list[int]:
        run.relay.terminated = run.session.is_held
        return []

    run.relay.wait = terminate
    assert run.session.run() == signal.SIGTERM
    assert run.said()[-1] == WAITS
    assert run.node.did[-1] == "stop"
    assert run.status()["state"] == "held"


def test_without_a_requeue_the_error_is_the_jobs_own(run: Bed) -> None:
    run.session.begin()
    run.node.status, run.node.lost_node = 256, "n2"
    run.answers = [RUNS]
    assert run.session.run() == 256
    assert WAITS in run.said()


@pytest.mark.parametrize("status", [0, 256])
def test_an_end_without_a_lost_node_is_the_jobs_own(run: Bed, status: int) -> None:
    run.session.begin()
    run.node.status = status
    run.node.lost_node = "" if status else "n2"
    assert run.session.run() == status


def test_a_restore_that_fails_with_a_node_does_not_start_the_job_over(run: Bed) -> None:
    run.save()
    again = run.opened()
    run.node.fails, run.node.lost_node = "restore", "n2"
    run.node.did.clear()
    again.begin()
    assert "start" not in run.node.did
    assert again.is_held
    assert run.said()[-1] == WAITS
