"""Method ``signal`` over a program in memory that catches signals, by the contract and beyond."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import CheckpointError, SlurmError
from slurm_elastic.checkpointers.signal import SignalCheckpointer
from slurm_elastic.ckptman.site import JobList
from slurm_elastic.config.sections.checkpoint import SignalSettings
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.unsavable import obstacle
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.testing.saving import Deadlines, Holds, SaveContract, Spoils


class SignalBed:
    """Programs that save themselves as ``saved`` says; ``deaf`` ones do not catch the signal."""

    def __init__(self, path: Path, saved: str = "file:state-%j") -> None:
        self.path = path
        self.work = path / "work"
        self.work.mkdir(exist_ok=True)
        self.saved = saved
        self.slurm = FakeSlurm()
        self.slurm.on_signal = self._caught
        self.deaf: set[int] = set()
        self.stopped: set[int] = set()
        self.caught: list[tuple[int, str]] = []
        self.saves, self.slept, self.code = 0, 0.0, 0
        self.settings = SignalSettings(saved=saved)
        self.checkpointer = self.reopen()

    def reopen(self) -> SignalCheckpointer:
        return SignalCheckpointer(
            self.settings, self.path / "saves", self.slurm, self._look, self._clock, self._sleep
        )

    def _clock(self) -> float:
        return time.time() + self.slept

    def _sleep(self, seconds: float) -> None:
        """At once: a deadline may be as late as a busy machine needs it."""
        self.slept += seconds

    def _look(self, job: int) -> SlurmJob | None:
        return {j.id: j for j in self.slurm.jobs(ended=True)}.get(job)

    def run(self, job: int = 7, attempt: int = 0, **options: str) -> JobRun:
        output = self.work / f"out-{job}"
        output.touch()
        self.slurm.set_job(job, "RUNNING", restarts=attempt, output=str(output))
        return JobRun(
            job=job, label=str(job), attempt=attempt, user="ann", uid=os.getuid(), gid=0,
            nodes=("n1",), partition="p", started=0.0, directory=str(self.work), options=options,
        )  # fmt: skip

    def _caught(self, job: int, name: str) -> None:
        self.caught.append((job, name))
        if name == "STOP":
            self.stopped.add(job)
            self.slurm.set_job(job, "STOPPED")
        elif name == "CONT":
            self.stopped.discard(job)
            self.slurm.set_job(job, "RUNNING")
        elif job not in self.deaf:
            self.save(job)

    def save(self, job: int) -> None:
        self.saves += 1
        kind = self.saved.partition(":")[0]
        if kind == "file":
            draft = self.work / "draft"
            draft.write_text(f"step {self.saves}")
            os.replace(draft, self.work / f"state-{job}")
        elif kind == "line":
            with (self.work / f"out-{job}").open("a") as out:
                out.write("saved\n")
        else:
            self.slurm.set_job(job, "FAILED" if self.code else "COMPLETED", exit_code=self.code)

    def spoil(self, image: Image) -> None:
        (self.work / f"state-{image.job}").unlink()

    def stick(self, run: JobRun) -> None:
        self.deaf.add(run.job)

    def works(self, run: JobRun) -> bool:
        return run.job not in self.stopped


@pytest.fixture
def bed(tmp_path: Path) -> SignalBed:
    return SignalBed(tmp_path)


class TestSignal(SaveContract, Spoils, Deadlines, Holds):
    pass


def soon(seconds: float = 30.0) -> float:
    return time.time() + seconds


@pytest.mark.parametrize(
    "changes",
    [{"uid": 2000}, {"directory": "/elsewhere"}, {"submitted": 900.0}],
    ids=["of another user", "from another directory", "submitted later"],
)
def test_the_saves_of_an_earlier_job_with_this_number_are_none(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """A script's end is a sign that cannot be looked at again."""
    bed = SignalBed(tmp_path, "exit")
    run = replace(bed.run(), submitted=500.0)
    bed.checkpointer.checkpoint(run, deadline=soon(), stop=True)
    assert bed.checkpointer.images(replace(run, attempt=1, submitted=700.0))
    assert bed.checkpointer.images(replace(run, **changes)) == ()


def test_a_line_of_the_output_is_a_sign_too(tmp_path: Path) -> None:
    bed = SignalBed(tmp_path, "line:saved")
    run = bed.run()
    (bed.work / "out-7").write_text("saved\n")  # of an earlier save: it does not count
    bed.deaf.add(7)
    with pytest.raises(CheckpointError, match="showed no line 'saved'"):
        bed.checkpointer.checkpoint(run, deadline=soon(10.0), stop=False)
    bed.deaf.clear()
    bed.save(7)
    assert bed.checkpointer.checkpoint(run, deadline=soon(), stop=False).size == 0


def test_the_end_of_the_script_is_a_sign_and_nothing_is_stopped_then(tmp_path: Path) -> None:
    bed = SignalBed(tmp_path, "exit")
    run = bed.run()
    bed.checkpointer.checkpoint(run, deadline=soon(), stop=True)
    assert bed.caught == [(7, "USR1")]
    with pytest.raises(CheckpointError, match="saved only before a move"):
        bed.checkpointer.checkpoint(bed.run(8), deadline=soon(), stop=False)


@pytest.mark.parametrize(
    ("saved", "words", "waiting", "is_saved"),
    [
        ("exit", "afterok:7(unfulfilled)", {}, False),
        ("exit:85", "afterany:3(unfulfilled)?afternotok:7(unfulfilled)", {}, False),
        ("exit", "aftercorr:5_*(unfulfilled)", {}, False),
        ("exit", "afterok:4(unfulfilled),afterany:5_2(unfulfilled)", {}, False),
        ("exit", "singleton(unfulfilled)", {"name": "prog"}, False),
        ("exit", "singleton(unfulfilled)", {"name": "other"}, True),
        ("exit", "afterok:7(unfulfilled)", {"uid": 2000}, True),
        ("exit", "after:7+5(unfulfilled),afterok:70(unfulfilled)", {}, True),
        ("exit", "afterok:5_3(unfulfilled)", {}, True),
        ("file:state-%j", "afterok:7(unfulfilled)", {}, True),
    ],
)
def test_a_job_on_which_others_depend_does_not_save_itself_by_ending(
    tmp_path: Path, saved: str, words: str, waiting: dict[str, object], *, is_saved: bool
) -> None:
    """Slurm would start them, with its half-done results, before it can be requeued."""
    bed = SignalBed(tmp_path, saved)
    bed.code = 85 if saved == "exit:85" else 0
    run = bed.run()
    bed.slurm.set_job(7, uid=1000, name="prog", array=5, task=2)
    bed.slurm.set_job(9, "PENDING", **({"uid": 1000} | waiting))
    bed.slurm.dependent[9] = words
    if is_saved:
        assert bed.checkpointer.checkpoint(run, deadline=soon(), stop=True)
        return
    with pytest.raises(CheckpointError, match="job 9 depends on the end of job 7, so"):
        bed.checkpointer.checkpoint(run, deadline=soon(), stop=True)
    assert bed.caught == []


def test_another_exit_code_than_the_one_named_is_no_sign(tmp_path: Path) -> None:
    bed = SignalBed(tmp_path, "exit:85")
    with pytest.raises(CheckpointError, match="ended without having saved itself"):
        bed.checkpointer.checkpoint(bed.run(), deadline=soon(), stop=True)


def test_a_job_that_dies_of_the_signal_is_told_apart(bed: SignalBed) -> None:
    run = bed.run()
    bed.deaf.add(7)
    bed.slurm.on_signal = lambda job, _: bed.slurm.set_job(job, "FAILED", killed_by=10)
    with pytest.raises(CheckpointError, match="did not catch it"):
        bed.checkpointer.checkpoint(run, deadline=soon(), stop=True)


DYING = "#!/bin/bash\npython3 prog.py\n"


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("scope", ["batch", "full"])
def test_a_script_that_would_die_of_the_signal_gets_none(
    bed: SignalBed, scope: str, *, stop: bool
) -> None:
    bed.slurm.scripts[7] = DYING
    run = bed.run(scope=scope)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="does not catch it"):
            bed.checkpointer.checkpoint(run, deadline=soon(), stop=stop)
    assert bed.caught == []


@pytest.mark.parametrize(("stop", "name"), [(False, "URG"), (True, "WINCH")])
def test_a_script_with_a_relay_gets_signals_that_end_nothing(
    bed: SignalBed, name: str, *, stop: bool
) -> None:
    bed.slurm.scripts[7] = DYING.replace("\n", "\n( : ) #__SLURM_ELASTIC_RELAY__\n", 1)
    bed.checkpointer.checkpoint(bed.run(), deadline=soon(), stop=stop)
    assert bed.caught == [(7, name), *([(7, "STOP")] if stop else [])]


def test_a_signal_that_ends_nothing_needs_no_script_that_catches_it(bed: SignalBed) -> None:
    bed.slurm.scripts[7] = DYING
    bed.checkpointer.checkpoint(bed.run(signal="URG"), deadline=soon(), stop=False)
    assert bed.caught == [(7, "URG")]


def test_nothing_is_sent_while_the_script_cannot_be_read(bed: SignalBed) -> None:
    run = bed.run()
    bed.checkpointer._look = lambda job: SlurmJob(id=job, states=frozenset({"RUNNING"}))
    bed.slurm.fail_next.append(SlurmError(("scontrol", "write"), 1, "Unable to contact"))
    with pytest.raises(CheckpointError, match="no answer to a look at the batch script") as error:
        bed.checkpointer.checkpoint(run, deadline=soon(), stop=False)
    assert obstacle(str(error.value)) is None, "it passes"
    assert bed.caught == []
    bed.checkpointer.checkpoint(run, deadline=soon(), stop=False)


def test_a_job_whose_run_died_of_the_signal_gets_none_in_its_later_runs(bed: SignalBed) -> None:
    run = bed.run()
    bed.slurm.on_signal = lambda job, _: bed.slurm.set_job(job, "FAILED", killed_by=10)
    with pytest.raises(CheckpointError, match="did not catch it"):
        bed.checkpointer.checkpoint(run, deadline=soon(), stop=False)
    assert bed.checkpointer.hindered(run), "it is known why it ended"
    bed.slurm.set_job(7, "RUNNING", restarts=1, killed_by=0)
    bed.slurm.on_signal = bed._caught
    again = msgspec.structs.replace(run, attempt=1)
    assert not bed.reopen().hindered(again)
    with pytest.raises(CheckpointError, match="does not catch it"):
        bed.reopen().checkpoint(again, deadline=soon(), stop=False)
    assert bed.caught == []


def test_a_run_that_a_person_ends_by_the_same_signal_is_not_ours(clocked: Clocked) -> None:
    clocked.bed.deaf.add(7)
    with pytest.raises(CheckpointError, match="showed no"):
        clocked.save(within=20.0, stop=False)
    clocked.bed.slurm.set_job(7, "FAILED", killed_by=10, end=clocked.now + 100.0)
    assert clocked.method.hindered(clocked.run) == ""
    clocked.bed.slurm.set_job(7, "FAILED", killed_by=10, end=clocked.now - 10.0)
    assert clocked.method.hindered(clocked.run)


def test_a_job_says_for_itself_how_it_is_saved(bed: SignalBed) -> None:
    run = bed.run(signal="USR2", stop_signal="TERM", saved="file:state-%j")
    bed.checkpointer.checkpoint(run, deadline=soon(), stop=False)
    bed.checkpointer.checkpoint(run, deadline=soon(), stop=True)
    assert bed.caught == [(7, "USR2"), (7, "TERM"), (7, "STOP")]


class Crash(BaseException):
    """The service ends, and nothing of it runs any more."""


class Clocked:
    """A method over ``bed`` whose clock shows ``now`` and stands still but for its pauses. Each
    pause may be the last: at ``crash_at`` the service ends.
    """

    def __init__(self, bed: SignalBed) -> None:
        self.now, self.crash_at = 1000.0, float("inf")
        self.bed = bed
        self.run = msgspec.structs.replace(bed.run(), started=900.0)
        self.method = SignalCheckpointer(
            bed.settings, bed.path / "saves", bed.slurm, bed._look, lambda: self.now, self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.crash_at:
            self.crash_at = float("inf")
            raise Crash

    def save(self, within: float = 110.0, *, stop: bool = True) -> Image:
        return self.method.checkpoint(self.run, deadline=self.now + within, stop=stop)

    def sign_comes(self, at: float) -> None:
        self.bed.save(7)
        os.utime(self.bed.work / "state-7", (at, at))

    def crashes(self, at: float, **save: float | bool) -> None:
        self.bed.deaf.add(7)
        self.crash_at = at
        with pytest.raises(Crash):
            self.save(**save)


@pytest.fixture
def clocked(bed: SignalBed) -> Clocked:
    return Clocked(bed)


def test_a_save_that_was_asked_for_before_a_crash_is_not_asked_for_again(clocked: Clocked) -> None:
    clocked.crashes(at=1010.0)
    clocked.sign_comes(1020.0)  # it comes while nobody looks
    clocked.now = 1060.0
    image = clocked.save(50.0)
    assert [name for _, name in clocked.bed.caught] == ["USR1", "STOP"]
    assert image.size > 0
    assert (image.taken, image.seconds) == (1020.0, 20.0), "not when we looked"


@pytest.mark.parametrize(("clock", "taken"), [(-900.0, 1000.0), (900.0, 1060.0)])
def test_a_file_server_with_another_clock_dates_no_save_out_of_its_time(
    clocked: Clocked, clock: float, taken: float
) -> None:
    clocked.crashes(at=1010.0)
    clocked.sign_comes(1020.0 + clock)
    clocked.now = 1060.0
    assert clocked.save(50.0).taken == taken


def test_a_sign_that_came_after_the_time_out_is_no_answer_to_a_later_request(
    clocked: Clocked,
) -> None:
    """The job has worked for hours since, and all of that would be lost."""
    clocked.bed.deaf.add(7)
    for stop in (True, False):
        with pytest.raises(CheckpointError, match="showed no change"):
            clocked.save(stop=stop)
        clocked.sign_comes(clocked.now + 20.0)
        clocked.now += 5 * 3600.0
        clocked.bed.caught.clear()
        with pytest.raises(CheckpointError, match="showed no change"):
            clocked.save(stop=stop)
        assert clocked.bed.caught[0] == (7, "USR1"), "it is asked for anew"
        assert (7, "STOP") not in clocked.bed.caught


def ending(path: Path, saved: str) -> Clocked:
    """A program whose script ends as its sign; it does not catch the first signal in time."""
    clocked = Clocked(SignalBed(path, saved))
    clocked.bed.deaf.add(7)
    with pytest.raises(CheckpointError, match="showed no"):
        clocked.save()
    assert [name for _, name in clocked.bed.caught] == ["USR1", "USR1"]
    clocked.bed.caught.clear()
    return clocked


@pytest.mark.parametrize("later_s", [2.0, 5 * 3600.0])
@pytest.mark.parametrize("saved", ["exit", "exit:85"])
def test_the_end_of_the_script_counts_also_after_the_time_out(
    tmp_path: Path, saved: str, later_s: float
) -> None:
    """It has done nothing since, however long ago it ended."""
    clocked = ending(tmp_path, saved)
    clocked.bed.slurm.set_job(7, "FAILED", exit_code=85, end=clocked.now + 1.0)
    clocked.now += later_s
    image = clocked.save()
    assert clocked.bed.caught == []
    assert image.seconds == pytest.approx(111.0, abs=0.5), "not until we looked"


def test_a_script_that_still_runs_after_the_time_out_is_asked_again_at_once(
    tmp_path: Path,
) -> None:
    clocked = ending(tmp_path, "exit")
    clocked.now += 3600.0
    clocked.bed.deaf.clear()
    image = clocked.save(10.0)
    assert clocked.bed.caught == [(7, "USR1")]
    assert image.seconds < 1.0


def test_a_script_that_is_ending_after_the_time_out_gets_no_signal(tmp_path: Path) -> None:
    clocked = ending(tmp_path, "exit")
    clocked.bed.slurm.set_job(7, "COMPLETING")
    with pytest.raises(CheckpointError, match="showed no end of its script"):
        clocked.save(10.0)
    assert clocked.bed.caught == []


def test_another_end_after_the_time_out_is_no_sign(tmp_path: Path) -> None:
    clocked = ending(tmp_path, "exit:85")
    clocked.bed.slurm.set_job(7, "FAILED", exit_code=1)
    with pytest.raises(CheckpointError, match="ended without having saved itself"):
        clocked.save()


def test_a_request_from_before_a_crash_is_as_old_as_any_other_after_its_time(
    clocked: Clocked,
) -> None:
    clocked.crashes(at=1010.0)
    clocked.sign_comes(1020.0)
    clocked.now = 1000.0 + 110.0
    with pytest.raises(CheckpointError, match="showed no change"):
        clocked.save()
    assert [name for _, name in clocked.bed.caught].count("USR1") > 1


def test_a_signal_that_slurm_refused_is_sent_by_the_next_try(clocked: Clocked) -> None:
    def refuse(job: int, name: str) -> None:
        raise SlurmError(("scancel",), 1, "no answer")

    clocked.bed.slurm.on_signal = refuse
    with pytest.raises(CheckpointError, match="cannot be signalled"):
        clocked.save()
    clocked.bed.slurm.on_signal = clocked.bed._caught
    clocked.now += 2.0
    assert clocked.save().seconds < 1.0
    assert clocked.bed.caught == [(7, "USR1"), (7, "STOP")]


@pytest.mark.parametrize("stop", [True, False])
def test_a_queued_save_signals_no_later_run_of_the_job(clocked: Clocked, *, stop: bool) -> None:
    """Its script may have set no trap yet."""
    clocked.bed.slurm.set_job(7, "RUNNING", restarts=1, start=clocked.now)
    with pytest.raises(CheckpointError, match="that run of it is over"):
        clocked.save(stop=stop)
    assert clocked.bed.caught == []
    assert clocked.method.images(clocked.run) == ()


@pytest.mark.parametrize("states", [("PENDING",), ("COMPLETED",), ("RUNNING", "CONFIGURING")])
def test_a_job_without_processes_gets_no_signal(clocked: Clocked, states: tuple[str, ...]) -> None:
    clocked.bed.slurm.set_job(7, *states)
    with pytest.raises(CheckpointError, match=f"because it is {' '.join(sorted(states))}"):
        clocked.save()
    assert clocked.bed.caught == []


def test_nothing_is_sent_while_slurm_does_not_show_the_job(clocked: Clocked) -> None:
    clocked.bed.slurm.fail_next.append(SlurmError(("squeue",), None, "no answer in 60 s"))
    with pytest.raises(CheckpointError, match="cannot be signalled: squeue: timed out"):
        clocked.save()
    assert clocked.bed.caught == []


def test_the_time_for_traps_counts_from_the_start_that_slurm_shows(clocked: Clocked) -> None:
    """Its nodes had to boot: Slurm sets the start of a run again when they are ready."""
    clocked.bed.slurm.set_job(7, "RUNNING", start=clocked.now - 1.0)
    assert clocked.save().taken == pytest.approx(1004.0)


def test_a_start_from_before_the_clock_was_set_back_costs_no_save(clocked: Clocked) -> None:
    clocked.bed.slurm.set_job(7, "RUNNING", start=clocked.now + 7200.0)
    assert clocked.save().taken == pytest.approx(1005.0)


def test_a_run_that_begins_after_the_sign_is_not_stopped(clocked: Clocked) -> None:
    def saves_and_restarts(job: int, name: str) -> None:
        clocked.bed._caught(job, name)
        clocked.bed.slurm.set_job(7, "RUNNING", restarts=1)

    clocked.bed.slurm.on_signal = saves_and_restarts
    with pytest.raises(CheckpointError, match="that run of it is over"):
        clocked.save()
    assert clocked.bed.caught == [(7, "USR1")]
    (image,) = clocked.method.images(clocked.run)
    clocked.method.verify(image)


@pytest.mark.parametrize("saved", ["file:state-%j", "line:saved"])
@pytest.mark.parametrize(
    "states", [("COMPLETING",), ("COMPLETED",), ("COMPLETING", "FAILED"), ("TIMEOUT",)]
)
def test_a_run_that_ends_right_after_its_sign_needs_no_stop(
    tmp_path: Path, saved: str, states: tuple[str, ...]
) -> None:
    bed = SignalBed(tmp_path, saved)
    clocked = Clocked(bed)

    def saves_and_ends(job: int, name: str) -> None:
        bed._caught(job, name)
        bed.slurm.set_job(7, *states)

    bed.slurm.on_signal = saves_and_ends
    image = clocked.save()
    assert bed.caught == [(7, "USR1")]
    assert clocked.method.images(clocked.run) == (image,)


def test_all_looks_of_one_moment_are_one_question_to_slurm(clocked: Clocked) -> None:
    slurm = clocked.bed.slurm
    clocked.method._look = JobList(slurm, lambda: clocked.now).find
    clocked.save()
    assert slurm.calls["jobs"] == 2, "before the stop, and until it is seen"


def test_a_job_that_waits_for_its_move_goes_on_where_no_sign_comes(bed: SignalBed) -> None:
    """It was told by another signal that it would be moved; others work on by themselves."""
    bed.deaf.update((7, 8))
    for number, options in ((7, {"stop_signal": "USR2"}), (8, {})):
        with pytest.raises(CheckpointError, match="showed no change"):
            bed.checkpointer.checkpoint(bed.run(number, **options), deadline=soon(10.0), stop=True)
    assert bed.caught == [(7, "USR2"), (7, "CONT"), (8, "USR1")]
    with pytest.raises(CheckpointError, match="showed no change"):
        bed.checkpointer.checkpoint(
            bed.run(9, stop_signal="USR2", saved="file:never"), deadline=soon(10.0), stop=False
        )
    assert bed.caught[3:] == [(9, "USR1")]


def test_a_signal_that_was_lost_is_sent_once_more(bed: SignalBed) -> None:
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    saver = SignalCheckpointer(
        bed.settings, bed.path / "saves", bed.slurm, bed._look, lambda: now[0], sleep
    )
    heard: list[float] = []

    def second(job: int, _name: str) -> None:
        heard.append(now[0])
        if len(heard) == 2:
            bed.save(job)

    bed.slurm.on_signal = second
    run = msgspec.structs.replace(bed.run(), started=999.0)
    image = saver.checkpoint(run, deadline=now[0] + 110, stop=False)
    assert heard[0] == pytest.approx(1004.0), "it has only just begun"
    assert heard[1] - heard[0] == pytest.approx(30.0, abs=1.0)
    assert image.seconds >= 30.0
    bed.slurm.on_signal = lambda _job, _name: heard.append(now[0])
    with pytest.raises(CheckpointError, match="showed no change"):
        saver.checkpoint(run, deadline=now[0] + 500, stop=False)
    assert len(heard) == 4, "once more, not again and again"


def test_a_file_of_somebody_else_or_behind_a_link_is_no_sign(bed: SignalBed) -> None:
    run = bed.run()
    bed.deaf.add(7)
    (bed.work / "elsewhere").write_text("x")
    (bed.work / "state-7").symlink_to(bed.work / "elsewhere")
    with pytest.raises(CheckpointError, match="no regular file"):
        bed.checkpointer.checkpoint(run, deadline=soon(), stop=False)
    stranger = msgspec.structs.replace(run, uid=os.getuid() + 1)
    (bed.work / "state-7").unlink()
    (bed.work / "state-7").write_text("x")
    with pytest.raises(CheckpointError, match="showed no change") as there:
        bed.checkpointer.checkpoint(stranger, deadline=bed._clock() + 30.0, stop=False)
    (bed.work / "state-7").unlink()
    with pytest.raises(CheckpointError, match="showed no change") as absent:
        bed.checkpointer.checkpoint(stranger, deadline=bed._clock() + 30.0, stop=False)
    assert str(there.value) == str(absent.value), "the two answers show which files exist"


def test_the_file_of_an_arrays_task_is_named_as_sbatch_names_files(bed: SignalBed) -> None:
    run = msgspec.structs.replace(bed.run(8, saved="file:s-%A-%a-%j"), label="5_2")
    bed.deaf.add(8)
    (bed.work / "s-5-2-8").write_text("old")
    os.utime(bed.work / "s-5-2-8", ns=(1, 1))
    bed.slurm.on_signal = lambda _job, _name: (bed.work / "s-5-2-8").write_text("newer")
    assert bed.checkpointer.checkpoint(run, deadline=soon(), stop=False).size == 5


def test_slurm_that_refuses_the_signal_is_a_clear_error(bed: SignalBed) -> None:
    run = bed.run()
    bed.slurm.fail_next.append(SlurmError(("scancel",), 1, "Invalid job id"))
    with pytest.raises(CheckpointError, match="cannot be signalled: scancel: exit 1"):
        bed.checkpointer.checkpoint(run, deadline=soon(), stop=False)


def test_a_state_directory_that_cannot_be_written_asks_nothing(bed: SignalBed) -> None:
    (bed.path / "saves").write_text("a file where a directory should be")
    with pytest.raises(CheckpointError):
        bed.checkpointer.checkpoint(bed.run(), deadline=soon(), stop=False)
    assert bed.caught == []
