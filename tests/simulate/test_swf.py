"""Job histories as they come: complete, damaged, cut off."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.simulate.histories import workload
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.histories.swf import History, load, read

LINE = "{n} {submit} 5 {run} {alloc} -1 -1 {procs} {limit} -1 1 153 75 -1 3 2 -1 -1"


def line(
    n: int = 1, submit: int = 0, run: int = 10, alloc: int = 4, procs: int = 4, limit: int = 60
) -> str:
    return LINE.format(n=n, submit=submit, run=run, alloc=alloc, procs=procs, limit=limit)


def history(*lines: str) -> History:
    return read(lines, History())


def test_a_job_and_the_header() -> None:
    found = history("; UnixStartTime: 893466664", ";", "; Note: a: b", line(n=7, submit=3))
    assert found.jobs[0] == Job(7, 3, 10, 60, 4, user=153, partition=2, account=75)
    assert found.start == 893466664
    assert found.header["Note"] == "a: b"
    assert not found.complaints


def test_the_account_is_the_group_by_its_number() -> None:
    found = history(line())
    assert (found.account("75"), found.account("76"), found.account("physics")) == (75, None, None)


def test_processors_are_those_given_and_else_those_asked_for() -> None:
    assert history(line(procs=4, alloc=8)).jobs[0].procs == 8
    assert history(line(procs=4, alloc=-1)).jobs[0].procs == 4
    assert history(line(procs=-1, alloc=8)).jobs[0].procs == 8


def test_the_run_time_where_no_limit_was_asked_for() -> None:
    assert history(line(run=33, limit=-1)).jobs[0].limit == 33


def test_a_job_beyond_its_limit_was_let_run() -> None:
    found = history(line(run=90, limit=60))
    assert found.jobs[0].limit == 90
    assert found.overtime == 1


def test_jobs_that_never_ran_are_counted_and_left_out() -> None:
    found = history(line(run=-1), line(run=0))
    assert len(found.jobs) == 1
    assert found.cancelled == 1


def test_fractions_of_seconds_are_rounded() -> None:
    assert history(line().replace(" 60 ", " 59.7 ")).jobs[0].limit == 60


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2 3", "line 2: too short, left out: 3 fields, expected 18"),
        (line().replace(" 60 ", " 6O "), "line 2: not numbers, left out: '6O'"),
        (line().replace(" 60 ", " nan "), "line 2: not numbers, left out: 'nan'"),
        (line().replace(" 60 ", " inf "), "line 2: not numbers, left out: 'inf'"),
        (line(procs=0, alloc=-1), "line 2: no processors, left out"),
        (line(run=10**15), "line 2: implausibly large, left out: run 1000000000000000"),
        (
            line().replace(" 75 ", f" {2**64} "),
            "line 2: implausibly large, left out: account 18446744073709551616",
        ),
        ("\x00\ufffd\x01", "line 2: too short, left out: 1 fields, expected 18"),
    ],
)
def test_a_damaged_line_is_answered_and_left_out(text: str, words: str) -> None:
    found = history(line(n=1), text, line(n=3))
    assert list(found.jobs.number) == [1, 3]
    assert found.complaints.shown == [words]


def test_a_line_of_unusual_length_is_used_if_it_says_enough() -> None:
    found = history(" ".join(line().split()[:11]))
    assert len(found.jobs) == 1
    assert found.complaints.shown == ["line 1: of unusual length, used: 11 fields, expected 18"]


def test_jobs_out_of_order_are_sorted() -> None:
    found = history(line(n=1, submit=50), line(n=2, submit=20), line(n=3, submit=50))
    assert list(found.jobs.number) == [2, 1, 3]
    assert found.complaints.shown == ["line 2: out of order, sorted: submitted 30 s earlier"]


def test_many_complaints_are_counted_and_the_first_shown() -> None:
    found = history(*["x"] * 100)
    assert found.complaints.counts == {"too short, left out": 100}
    assert len(found.complaints.sentences()) == 21


def test_a_packed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.swf.gz"
    path.write_bytes(gzip.compress("\n".join(line(n=n, submit=n) for n in range(500)).encode()))
    assert len(load(path).jobs) == 500
    assert len(load(path, max_jobs=7).jobs) == 7


def test_a_packed_file_that_breaks_off_gives_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.swf.gz"
    lines = "\n".join(line(n=n, submit=n * n % 9973) for n in range(5000))
    path.write_bytes(gzip.compress(lines.encode())[:-2000])
    found = load(path)
    assert 0 < len(found.jobs) < 5000
    assert found.complaints.counts["the file breaks off here"] == 1


@pytest.mark.parametrize("content", [b"", b"; only: comments\n", b"\x1f\x8b\x08", b"\xff\xfe\x00"])
def test_a_file_without_jobs_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.swf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="holds no job that ran"):
        load(path)


def test_a_file_that_is_not_there_or_not_packed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.swf")
    fake = tmp_path / "plain.swf.gz"
    fake.write_text(line())
    with pytest.raises(ConfigError, match="no job that ran: 1 lines: the file breaks off"):
        load(fake)


@given(st.lists(st.text(max_size=60), max_size=20))
def test_no_text_makes_it_fail(lines: list[str]) -> None:
    found = history(*lines)
    assert sorted(found.jobs.submit) == list(found.jobs.submit)


def test_jobs_keep_together_when_sorted_and_chosen() -> None:
    jobs = Jobs([Job(n, 100 - n, n, n, 1) for n in range(1, 50)])
    assert all(jobs[i].submit == 100 - jobs[i].run for i in range(len(jobs)))
    assert [job.number for job in map(jobs.only([0, 2]).__getitem__, range(2))] == [49, 47]


PARTS = """\
1 0 10 7200 1 -1 -1 1 7200 -1 1 1 1 -1 1 1 -1 -1
1 0 10 3600 1 -1 -1 1 7200 -1 2 1 1 -1 1 1 -1 -1
1 -1 300 1800 1 -1 -1 1 7200 -1 2 1 1 -1 1 1 -1 -1
1 -1 300 1800 1 -1 -1 1 7200 -1 3 1 1 -1 1 1 -1 -1
2 500 0 10800 1 -1 -1 1 10800 -1 1 1 1 -1 1 1 -1 -1
"""
WHOLE = [(1, 0, 7200), (2, 500, 10800)]


def jobs_of(lines: Iterable[str]) -> tuple[list[tuple[int, int, int]], History]:
    history = read(lines, History())
    jobs = history.jobs
    return list(zip(jobs.number, jobs.submit, jobs.run, strict=True)), history


def test_the_parts_of_a_job_are_no_jobs() -> None:
    jobs, history = jobs_of(PARTS.splitlines())
    assert jobs == WHOLE
    assert history.left_out == {"are parts of jobs": 3}
    assert len(history.complaints) == 0


def test_parts_without_a_line_of_their_whole_count_together() -> None:
    assert jobs_of(PARTS.splitlines()[1:])[0] == WHOLE


def test_other_separators_and_columns_after_the_last_are_read() -> None:
    line = "1 0 10 60 2 -1 -1 2 60 -1 1 1 1 -1 1 1 -1 -1"
    for text in (line.replace(" ", ";"), f"{line} some-text", f"\ufeff{line}"):
        assert jobs_of([text])[0] == [(1, 0, 60)]


def test_users_may_have_numbers_as_large_as_hashes() -> None:
    found = history(line().replace(" 153 75 ", f" {2**62} {2**45} "))
    assert not len(found.complaints)
    assert (list(found.jobs.user), list(found.jobs.account)) == ([2**62], [2**45])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04 and more", "is a ZIP archive: unpack it, and name the file in it"),
        (
            b"WorkflowID,JobID,SubmitTime,RunTime\n0,1,5,10\n",
            "has named columns between commas (WorkflowID, JobID, SubmitTime, ...)",
        ),
    ],
)
def test_a_form_that_is_not_read_is_refused_by_its_name(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "history"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(words)):
        workload.load(path)
