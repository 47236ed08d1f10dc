"""How long a run waits for what passes by itself, and what it says meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import image_wait as patiences
from slurm_elastic.machine.ckptroot.image_wait import ImageWait, RunEnded

WHY = "slurmctld does not answer"


class Wait:
    """The waiting of job 7, by a clock of its own; ``told`` is the journal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, output: int) -> None:
        self.now, self.cancelled = 1000.0, False
        self.pauses: list[float] = []
        self.told: list[tuple[int, str]] = []
        monkeypatch.setattr(patiences.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(patiences.signal, "sigtimedwait", self.pause)
        monkeypatch.setattr(patiences.random, "uniform", lambda low, high: (low + high) / 2)
        monkeypatch.setattr(patiences.log, "write", lambda *line: self.told.append(line))
        self.patience = ImageWait(7)
        self.patience.patient = True
        self.patience._note = patiences._Note(output)

    def pause(self, signals: set[signal.Signals], seconds: float) -> object:
        assert signals == {signal.SIGTERM}
        self.pauses.append(seconds)
        self.now += seconds
        return object() if self.cancelled else None


@pytest.fixture
def output(tmp_path: Path) -> Iterator[int]:
    """The job's error output, as slurmstepd opens it; something is in it."""
    found = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(found, b"of before\n")
    yield found
    os.close(found)


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch, output: int) -> Wait:
    return Wait(monkeypatch, output)


def test_it_waits_five_minutes_ever_more_slowly_and_then_goes_on_without(
    wait: Wait, tmp_path: Path
) -> None:
    while wait.patience.retry_after_pause(WHY):
        assert wait.now < 1400
    assert wait.now == 1300.0
    assert wait.pauses[:3] == [1.0, 1.5, 2.25]
    assert set(wait.pauses[7:-1]) == {15.0}
    assert 0 < wait.pauses[-1] <= 15.0
    begins = f"waits, up to 300 s, to continue from its images: {WHY}"
    ends = f"waited 300 s in vain to continue from its images: {WHY}"
    assert wait.told == [(patiences.log.WARNING, f"job 7: {one}") for one in (begins, ends)]
    said = (tmp_path / "out").read_text()
    assert said == f"of before\nslurm-elastic: the job {begins}\nslurm-elastic: the job {ends}\n"


def test_another_reason_is_said_and_has_no_time_of_its_own(wait: Wait) -> None:
    wait.patience.retry_after_pause(WHY)
    wait.patience.retry_after_pause("it is taken")
    assert [line for _, line in wait.told] == [
        f"job 7: waits, up to 300 s, to continue from its images: {WHY}",
        "job 7: waits, up to 299 s, to continue from its images: it is taken",
    ]


def test_one_that_waited_says_how_long_and_leaves_its_output_as_it_was(
    wait: Wait, tmp_path: Path
) -> None:
    for _ in range(2):
        wait.patience.retry_after_pause(WHY)
    wait.patience.retry_after_pause("it is taken")
    wait.patience.finish()
    assert wait.told[-1] == (patiences.log.NOTICE, "job 7: waited 5 s")
    assert (tmp_path / "out").read_text() == "of before\n"


def test_what_something_else_wrote_meanwhile_is_not_cut(
    wait: Wait, output: int, tmp_path: Path
) -> None:
    wait.patience.retry_after_pause(WHY)
    os.write(output, b"of another\n")
    wait.patience.finish()
    assert (
        (tmp_path / "out").read_text().endswith("images: slurmctld does not answer\nof another\n")
    )


def test_one_that_did_not_wait_says_nothing(wait: Wait) -> None:
    assert not wait.patience.waited
    wait.patience.finish()
    assert wait.told == []


def test_a_file_that_is_not_appended_to_gets_no_line(wait: Wait, tmp_path: Path) -> None:
    with open(tmp_path / "plain", "wb") as file:
        note = patiences._Note(file.fileno())
        note.write(b"a line\n")
        note.take_back()
    assert (tmp_path / "plain").read_bytes() == b""


def test_what_is_no_file_gets_it(wait: Wait) -> None:
    read, write = os.pipe()
    note = patiences._Note(write)
    note.write(b"a line\n")
    note.take_back()
    os.close(write)
    with open(read, "rb") as file:
        assert file.read() == b"a line\n"


def test_a_cancelled_job_waits_no_longer(wait: Wait) -> None:
    wait.cancelled = True
    with pytest.raises(RunEnded, match="cancelled while it waited"):
        wait.patience.retry_after_pause(WHY)


@pytest.mark.parametrize("pending", [False, True])
def test_a_cancellation_is_seen_while_an_answer_is_waited_for(
    wait: Wait, monkeypatch: pytest.MonkeyPatch, pending: bool
) -> None:
    came = {signal.SIGTERM, signal.SIGHUP} if pending else {signal.SIGHUP}
    monkeypatch.setattr(patiences.signal, "sigpending", lambda: came)
    if pending:
        with pytest.raises(RunEnded):
            wait.patience.raise_if_cancelled()
    else:
        wait.patience.raise_if_cancelled()


def test_pauses_differ_by_half(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand jobs do not ask at once."""
    monkeypatch.setattr(patiences.random, "uniform", lambda low, high: low)
    wait.patience.retry_after_pause(WHY)
    monkeypatch.setattr(patiences.random, "uniform", lambda low, high: high)
    wait.patience.retry_after_pause(WHY)
    assert wait.pauses == [0.5, 2.25]


def test_a_line_is_removed_before_something_else_is_written_and_only_then(
    wait: Wait, output: int, tmp_path: Path
) -> None:
    wait.patience.retry_after_pause(WHY)
    length = os.fstat(output).st_size
    wait.patience.take_back()
    assert (tmp_path / "out").read_text() == "of before\n"
    os.write(output, b"x" * (length - os.fstat(output).st_size))
    wait.patience.finish()
    assert os.fstat(output).st_size == length, "the job's own output is not cut"
