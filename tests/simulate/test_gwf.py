"""Histories in the Grid Workload Format: read strictly, and recognised by their content."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.simulate import simulate
from slurm_elastic.simulate.histories import gwf, workload
from slurm_elastic.simulate.histories.jobs import Job
from slurm_elastic.simulate.histories.workload import Format

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "etc" / "slurm-elastic.yaml"
START = 1_136_070_690
HEADER = """\
# Grid Workloads Archive: a written example
# fields (-1: not available):
# JobID\tSubmitTime\tWaitTime\tRunTime\tNProcs
"""


def line(number: int, submit: float, run: float, **named: object) -> str:
    """A line of 29 fields; the names are those of the format."""
    fields = {
        "JobID": number, "SubmitTime": submit, "WaitTime": 5, "RunTime": run, "NProcs": 2,
        "AverageCPUTimeUsed": 3.5, "UsedMemory": 1024.7, "ReqNProcs": 4, "ReqTime": 600,
        "ReqMemory": -1, "Status": 1, "UserID": "user7", "GroupID": "group1",
        "ExecutableID": "app 3", "QueueID": "queue0", "PartitionID": -1, "OrigSiteID": "G1/site1/c1",
        "LastRunSiteID": "G1/site1/c1", "JobStructure": "UNITARY", "JobStructureParams": -1,
    }  # fmt: skip
    fields |= named
    return "\t".join(map(str, [*fields.values(), *[-1] * (29 - len(fields))])) + "\n"


def written(tmp_path: Path, *lines: str, name: str = "trace.gwf") -> Path:
    path = tmp_path / name
    text = "".join((HEADER, *lines))
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.gwf", "trace.gwf.gz", "without-a-suffix"])
def test_fields_become_jobs(tmp_path: Path, name: str) -> None:
    path = written(
        tmp_path,
        line(1, START, 100),
        line(3, START + 60, 700.4, NProcs=-1, UserID="user9"),
        line(2, START + 50, 30, ReqTime=-1, UserID=-1, GroupID=-1, QueueID=-1),
        line(4, START + 70, -1, WaitTime=-1, Status=5),
        line(5, START + 80, 10, NProcs=-1, ReqNProcs=-1),
        name=name,
    )
    history = workload.load(path)
    assert list(map(history.jobs.__getitem__, range(len(history.jobs)))) == [
        Job(1, 0, 100, 600, 2, user=1, partition=1, account=1),
        Job(2, 50, 30, 30, 2),
        Job(3, 60, 700, 700, 4, user=2, partition=1, account=1),
    ]
    assert history.start == START
    assert history.users == {"user7": 1, "user9": 2}
    assert history.accounts == {"group1": 1}
    assert (history.cancelled, history.overtime) == (1, 1)
    assert history.complaints.sentences() == [
        "1 lines: no processors, left out", "line 8: no processors, left out",
    ]  # fmt: skip


def test_times_may_be_seconds_since_the_traces_begin(tmp_path: Path) -> None:
    history = gwf.load(written(tmp_path, line(1, 40, 100), line(2, 90, 100)))
    assert list(history.jobs.submit) == [40, 90]
    assert history.start == 0


def test_blanks_separate_fields_too(tmp_path: Path) -> None:
    text = line(1, START, 100, ExecutableID="app3")
    one, other = (written(tmp_path, text.replace("\t", sep)) for sep in ("\t", "  "))
    assert gwf.load(one).jobs[0] == gwf.load(other).jobs[0]


def test_no_more_jobs_are_read_than_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, *(line(n, START + n, 9) for n in range(5)), "damaged\n")
    assert len(workload.load(path, 3).jobs) == 3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("1\t2\t3\n", "found 3 fields, expected 29"),
        (line(2, START, 9).rstrip("\n") + "\t7\n", "found 30 fields, expected 29"),
        (line(2, START, "soon"), "field 4 (RunTime): found 'soon', expected a number"),
        (line("x" * 40, START, 9), f"field 1 (JobID): found {'x' * 20!r}, expected a number"),
        (line(2, "nan", 9), "field 2 (SubmitTime): found 'nan', expected a number"),
        (line(2, START, "inf"), "field 4 (RunTime): found 'inf', expected a number"),
        (line(2, -1, 9), "field 2 (SubmitTime): found -1, expected a time"),
        (line(2, START, 1e12), "implausibly large: run 1000000000000"),
    ],
)
def test_a_damaged_line_is_an_error_with_its_place(
    tmp_path: Path, bad: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, line(1, START, 100), bad)
    words = ["--config", str(EXAMPLE), "simulate", "--workload", str(path)]
    assert main(words) == 2
    assert capsys.readouterr().err == f"slurm-elastic: {path}:5: {message}\n"


def test_a_first_line_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":4: found 3 fields, expected 29"):
        gwf.load(written(tmp_path, "1\t2\t3\n"))


def test_files_without_a_job_that_ran_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no job that ran: 1 were cancelled"):
        gwf.load(written(tmp_path, line(1, START, -1)))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        gwf.load(tmp_path / "no")


def test_the_format_is_that_of_the_first_lines(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text("\n" + line(1, START, 9))
    named = tmp_path / "named"
    named.write_text("JobID\tSubmitTime\n" + line(1, START, 9))
    assert [workload.format_of(path) for path in (bare, named)] == [Format.GWF] * 2
    assert len(workload.load(named).jobs) == 1
    assert workload.format_of(ROOT / "tests" / "data" / "synthetic.swf") is Format.SWF
    assert workload.format_of(tmp_path / "no") is Format.SWF
    assert workload.format_of(EXAMPLE) is Format.SWF


def test_standard_input_shows_its_format_and_an_option_overrules_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(EXAMPLE), "simulate", "--workload", "-"]
    for more, code in (((), 0), (("--format", "gwf"), 0), (("--format", "swf"), 2)):
        data = io.BufferedReader(io.BytesIO((HEADER + line(1, START, 100)).encode()))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data))
        assert main([*words, *more]) == code
    capsys.readouterr()


def test_a_gwf_history_gives_the_figures_of_the_same_swf_history(tmp_path: Path) -> None:
    shapes = [(n, 300 * n, 200 + 70 * n, 1 + n % 3) for n in range(1, 20)]
    path = written(
        tmp_path,
        *(line(n, START + at, run, NProcs=procs, ReqTime=2000) for n, at, run, procs in shapes),
    )
    other = tmp_path / "h.swf"
    other.write_text(
        f"; UnixStartTime: {START + 300}\n"
        + "".join(
            f"{n} {at - 300} 5 {run} {procs} -1 -1 {procs} 2000 -1 1 1 1 -1 1 -1 -1 -1\n"
            for n, at, run, procs in shapes
        )
    )
    one, two = (simulate(file, EXAMPLE, "slurm,on_demand+idle(60)") for file in (path, other))
    assert one.totals == two.totals
