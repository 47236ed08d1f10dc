"""Job histories from Slurm's accounting."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.policies.launch.job_data import JobData
from slurm_elastic.simulate.histories import sacct
from slurm_elastic.simulate.histories.jobs import Job
from slurm_elastic.simulate.histories.swf import History
from slurm_elastic.simulate.scenario import PoolModel
from slurm_elastic.simulate.shared_machines import machines_needed

LINES = """\
JobIDRaw|User|Partition|Submit|ElapsedRaw|TimelimitRaw|ReqCPUS|AllocCPUS|State
12|ann|batch|1700000100|60|10|4|8|COMPLETED
12.batch|ann|batch|1700000100|60||4|8|COMPLETED
13|bob|batch,aws|1700000000|7200|60|2|2|TIMEOUT
14|ann|gpu|1700000200|0|10|16|0|CANCELLED by 1000
15|bob|batch|1700000300|0|UNLIMITED|1|1|COMPLETED
16|bob|batch|1700000400|33|60|1|1|RUNNING
"""
JOBS = [
    Job(13, 0, 7200, 7200, 2, 2, 1),
    Job(12, 100, 60, 600, 8, 1, 1),
    Job(15, 300, 0, 1, 1, 2, 1),
]


def element(number: int, **other: object) -> dict[str, object]:
    job: dict[str, object] = {
        "job_id": number,
        "user": "ann",
        "partition": "batch",
        "required": {"CPUs": 4},
        "state": {"current": "COMPLETED"},
        "time": {"submission": 1700000000, "elapsed": 60, "limit": 10},
        "tres": {"allocated": [{"type": "cpu", "count": 8}, {"type": "mem", "count": 100}]},
    }
    return job | other


def written(path: Path, text: str) -> Path:
    file = path / "history"
    file.write_text(text)
    return file


def test_lines_become_jobs_in_the_order_of_submission(tmp_path: Path) -> None:
    history = sacct.load(written(tmp_path, LINES))
    assert [history.jobs[i] for i in range(len(history.jobs))] == JOBS
    assert (history.start, history.cancelled, history.overtime) == (1700000000, 1, 1)
    assert len(history.complaints) == 0


def test_accounts_are_numbered_by_their_names(tmp_path: Path) -> None:
    rows = [line.split("|") for line in LINES.splitlines()]
    names = ["Account", "physics", "physics", "", "chemistry", "physics", "biology"]
    text = "\n".join("|".join((*row, name)) for row, name in zip(rows, names, strict=True))
    history = sacct.load(written(tmp_path, text + "\n"))
    assert list(history.jobs.account) == [
        -1,
        history.account("physics"),
        history.account("physics"),
    ]
    assert history.account("physics") == 1
    assert history.account("nobody") is None
    raw = json.dumps({"jobs": [element(1, account="physics"), element(2)]})
    assert list(sacct.load(written(tmp_path, raw)).jobs.account) == [1, -1]


def test_times_may_be_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LINES.replace("1700000100", "2023-11-14T22:15:00+00:00")
    assert sacct.load(written(tmp_path, text)).jobs.submit[1] == 100
    assert sacct.load(written(tmp_path, text.replace("+00:00", ""))).jobs[0].submit == 0


def test_only_the_first_jobs(tmp_path: Path) -> None:
    assert len(sacct.load(written(tmp_path, LINES), 2).jobs) == 2


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Input:
        buffer = io.BytesIO(LINES.encode())

    monkeypatch.setattr("sys.stdin", Input)
    assert len(sacct.load(Path("-")).jobs) == 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("17|ann", "line 8: found 2 fields, expected 9"),
        ("x|a|b|1|1|1|1|1|COMPLETED", "line 8: cannot be used: JobIDRaw: found 'x', expected a number"),
        ("17|a|b|soon|1|1|1|1|COMPLETED", "line 8: cannot be used: Submit: found 'soon', expected a time"),
        ("17|a|b|0|1|1|1|1|COMPLETED", "line 8: cannot be used: Submit: found '0', expected a time"),
        ("17|a|b|1970-01-01T00:00:00+00:00|1|1|1|1|COMPLETED", "line 8: cannot be used: Submit: found '1970-01-01T00:00:00+00:00', expected a time"),
        ("17|a|b|1|1|1|0|0|COMPLETED", "line 8: cannot be used: neither AllocCPUS nor ReqCPUS says how many processors"),
        (f"17|a|b|1|{'9' * 20}|1|1|1|COMPLETED", f"line 8: cannot be used: run {'9' * 20} is implausibly large"),
        (f"17|a|b|{'9' * 20}|1|1|1|1|COMPLETED", f"line 8: cannot be used: submit {'9' * 20} is implausibly large"),
        (f"17|a|b|1|1|{'9' * 20}|1|1|COMPLETED", f"line 8: cannot be used: limit {int('9' * 20) * 60} is implausibly large"),
        (f"{'9' * 20}|a|b|1|1|1|1|1|COMPLETED", f"line 8: cannot be used: number {'9' * 20} is implausibly large"),
        ("17|a|b|9999-12-31T00:00:00+00:00|1|1|1|1|COMPLETED", "line 8: cannot be used: submit 253402214400 is implausibly large"),
    ],
)  # fmt: skip
def test_a_bad_line_is_left_out_and_answered(tmp_path: Path, line: str, complaint: str) -> None:
    history = sacct.load(written(tmp_path, LINES + line + "\n"))
    assert len(history.jobs) == 3
    assert history.complaints.shown == [complaint]


def test_the_json_of_all_versions(tmp_path: Path) -> None:
    new = element(
        2,
        state={"current": ["TIMEOUT"]},
        time={
            "submission": 1700000060,
            "elapsed": 700,
            "limit": {"set": True, "infinite": False, "number": 10},
        },
    )
    endless = element(
        3, time={"submission": 1700000070, "elapsed": 9, "limit": {"set": False, "infinite": True}}
    )
    waited = element(
        4, state={"current": ["CANCELLED"]}, time={"submission": 1700000080, "elapsed": 0}, tres={}
    )
    runs = element(5, state={"current": ["RUNNING"]})
    text = json.dumps({"meta": {}, "jobs": [element(1), new, endless, waited, runs]})
    history = sacct.load(written(tmp_path, text))
    assert [history.jobs[i] for i in range(len(history.jobs))] == [
        Job(1, 0, 60, 600, 8, 1, 1),
        Job(2, 60, 700, 700, 8, 1, 1),
        Job(3, 70, 9, 9, 8, 1, 1),
    ]
    assert history.cancelled == 1


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "DEADLINE", "REVOKED"])
def test_a_job_that_slurm_ended_while_it_waited_is_no_job_of_no_length(
    tmp_path: Path, state: str
) -> None:
    """The simulator would start machines for it."""
    lines = ["JobIDRaw|Submit|ElapsedRaw|ReqCPUS|State", "1|2026-01-01T00:00:00|60|1|COMPLETED"]
    lines += [f"2|2026-01-01T00:00:00|0|640|{state}", f"3|2026-01-01T00:00:00|5|1|{state}", ""]
    waited = element(2, state={"current": state.split()[:1]}, time={"submission": 9, "elapsed": 0})
    text = json.dumps({"meta": {}, "jobs": [element(1), waited]})
    for number, history in enumerate((sacct.load(written(tmp_path, "\n".join(lines))),
                                      sacct.load(written(tmp_path, text)))):  # fmt: skip
        assert list(history.jobs.number) == [[1, 3], [1]][number]
        assert history.cancelled == 1


def test_a_bad_element_is_left_out_and_answered(tmp_path: Path) -> None:
    text = json.dumps(
        {"jobs": [element(1), {"job_id": 2}, element(3, tres={}, required={"CPUs": 0})]}
    )
    history = sacct.load(written(tmp_path, text))
    assert len(history.jobs) == 1
    assert [shown.split(":")[0] for shown in history.complaints.shown] == ["job 2", "job 3"]


@pytest.mark.parametrize("when", [0, {"set": True, "infinite": False, "number": 0}, None])
def test_a_job_without_a_submission_does_not_begin_the_history_in_1970(
    tmp_path: Path, when: object
) -> None:
    odd = element(2, time={"submission": when, "elapsed": 60})
    history = sacct.load(written(tmp_path, json.dumps({"jobs": [element(1), odd]})))
    assert (len(history.jobs), history.start) == (1, 1700000000)
    (complaint,) = history.complaints.shown
    assert (
        complaint == "job 2: cannot be used: ValueError time.submission: found 0, expected a time"
    )


@pytest.mark.parametrize("when", ["1e30", "1e400", "NaN", "-1e30", "1" + "0" * 400])
def test_a_json_time_beyond_all_measure_is_answered(tmp_path: Path, when: str) -> None:
    odd = json.dumps(element(2, time={"submission": "WHEN", "elapsed": 60}))
    text = f'{{"jobs": [{json.dumps(element(1))}, {odd}]}}'.replace('"WHEN"', when)
    history = sacct.load(written(tmp_path, text))
    assert len(history.jobs) == 1
    assert history.complaints.shown[0].startswith("job 2: cannot be used")


@pytest.mark.parametrize("text", [LINES, json.dumps({"jobs": [element(12), element(13)]})])
def test_either_form_may_be_packed(tmp_path: Path, text: str) -> None:
    packed = tmp_path / "history.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    plain = sacct.load(written(tmp_path, text))
    assert sacct.load(packed).jobs.columns == plain.jobs.columns


def test_a_packed_file_that_breaks_off_gives_what_it_has(tmp_path: Path) -> None:
    rows = "".join(f"{n}|a|b|{1700000000 + n * 7919}|60|1|1|1|COMPLETED\n" for n in range(4000))
    whole = gzip.compress((LINES.splitlines()[0] + "\n" + rows).encode())
    packed = tmp_path / "history.gz"
    packed.write_bytes(whole[: len(whole) // 2])
    history = sacct.load(packed)
    assert 0 < len(history.jobs) < 4000
    assert "the file breaks off here" in history.complaints.shown[-1]
    packed.write_bytes(whole[:12])
    with pytest.raises(ConfigError, match="breaks off here"):
        sacct.load(packed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"jobs": 5}', "jobs: found int, expected sacct's list of jobs"),
        ("", "names no JobIDRaw, Submit, ElapsedRaw"),
        ("JobID|Submit\n", "names no JobIDRaw, ElapsedRaw"),
        ("{", "neither sacct's JSON nor its -P form"),
        ('{"jobs": []}', "found no job that ran"),
        (LINES.splitlines()[0], "found no job that ran"),
    ],
)
def test_what_is_no_history_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sacct.load(written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        sacct.load(tmp_path / "none")


def test_what_a_slurmdbd_of_22_05_says_is_the_same_in_either_form() -> None:
    data = Path(__file__).parent.parent / "data"
    text = sacct.load(data / "sacct-22.05.txt")
    document = sacct.load(data / "sacct-22.05.json")
    assert len(text.complaints) == len(document.complaints) == 0
    by_number = {text.jobs[i].number: text.jobs[i] for i in range(len(text.jobs))}
    assert by_number == {
        document.jobs[i].number: document.jobs[i]._replace(memory=0)  # not asked for in the text
        for i in range(len(document.jobs))
    }
    assert set(document.jobs.memory) == {1}
    assert by_number[1].limit == 300
    assert by_number[2].procs == 2


@pytest.mark.parametrize(
    ("asked", "tres", "memory", "gpus"),
    [
        ("4000M", "billing=4,cpu=4,gres/gpu=2,mem=8G,node=1", 8192, 2),
        ("4000M", "", 4000, 0),
        ("2Gn", "", 2048, 0),
        ("512Mc", "", 2048, 0),
        ("0", "", 0, 0),
        ("", "cpu=4,mem=512K", 1, 0),
    ],
)
def test_memory_and_gpus_are_those_that_were_asked_for(
    tmp_path: Path, asked: str, tres: str, memory: int, gpus: int
) -> None:
    head = "JobIDRaw|Submit|ElapsedRaw|TimelimitRaw|AllocCPUS|ReqMem|ReqTRES|State"
    row = f"1|1700000000|60|5|4|{asked}|{tres}|COMPLETED"
    (job,) = (sacct.load(written(tmp_path, f"{head}\n{row}\n")).jobs[0],)
    assert (job.memory, job.gpus) == (memory, gpus)


HISTORIES = Path(__file__).parents[1] / "data" / "histories"
TYPED = [
    {"type": "gres", "name": "gpu:a100", "count": 2},
    {"type": "gres", "name": "gpu:v100", "count": 1},
]
BOTH = [*TYPED, {"type": "gres", "name": "gpu", "count": 2}]


def from_json(*jobs: dict[str, object]) -> History:
    history = History("text")
    sacct._from_json(json.dumps({"jobs": jobs}), history, None)
    return sacct._rebased(history)


def test_typed_gpus_are_gpus() -> None:
    """Sites whose AccountingStorageTRES names types alone have no gres/gpu."""
    history = sacct.load(HISTORIES / "typed-gpus.sacct")
    assert list(history.jobs.gpus) == [2, 2]
    jobs = [element(number, tres={"requested": t}) for number, t in ((1, TYPED), (2, BOTH))]
    assert list(from_json(*jobs).jobs.gpus) == [3, 2]


def test_memory_of_each_node_and_runs_that_were_requeued() -> None:
    history = sacct.load(HISTORIES / "per-node-memory-and-requeues.sacct")
    assert list(history.jobs.memory) == [8192, 4096]
    assert list(history.jobs.nodes) == [2, 1]
    assert history.left_out == {"are runs that were requeued": 1}


def test_a_job_waits_from_when_it_could_have_started() -> None:
    row = {"JobIDRaw": "1", "Submit": "1700000000", "ElapsedRaw": "60", "ReqCPUS": "1"}
    rows = [row | {"Eligible": when} for when in ("1700000500", "Unknown", "", "1699999999")]
    assert sorted(sacct.of_rows(rows).jobs.submit) == [0, 0, 0, 500]
    assert sacct.FORMAT.count("Eligible") == 1
    late = element(1, time={"submission": 1700000000, "eligible": 1700000500, "elapsed": 60})
    assert list(from_json(late, element(2)).jobs.submit) == [0, 500]


def test_nodes_are_machines_however_few_processors_they_need() -> None:
    row = {"JobIDRaw": "1", "Submit": "1700000000", "ElapsedRaw": "60", "ReqCPUS": "4"}
    rows = [row | {"ReqTRES": f"cpu=4,node={nodes}"} for nodes in (4, 9)]
    jobs = sacct.of_rows(rows).jobs
    assert list(jobs.nodes) == [4, 4], "no node is without a processor"
    pool = PoolModel(name="p", machines=10, procs=16)
    assert list(machines_needed(jobs, pool)) == [4, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path, packed: bool) -> None:
    raw = b"\xef\xbb\xbf" + LINES.encode()
    path = tmp_path / "history"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert sacct.is_of_sacct(path)
    assert len(sacct.load(path).jobs) == 3


def test_a_name_with_a_bar_in_it_says_what_would_help(tmp_path: Path) -> None:
    history = sacct.load(written(tmp_path, LINES + "17|a|b|c|1|1|1|1|1|1|COMPLETED\n"))
    (told,) = history.complaints.shown
    assert told == (
        "line 8: found 11 fields, expected 9 (free text may have a '|': leave JobName,"
        " SubmitLine and WorkDir out of --format, and put Comment last)"
    )


def test_jobs_that_have_not_ended_are_counted(tmp_path: Path) -> None:
    assert sacct.load(written(tmp_path, LINES)).left_out == {"have not ended": 1}
    running = element(1, state={"current": ["RUNNING"]})
    assert from_json(running, element(2)).left_out == {"have not ended": 1}


def test_a_comment_in_the_last_column_says_how_much_data_a_job_moves(tmp_path: Path) -> None:
    names = "JobIDRaw|Submit|ElapsedRaw|AllocCPUS|State|Comment"
    rows = (
        "1|2026-01-01T00:00:00|60|1|COMPLETED|data=5G/1G",
        "2|2026-01-01T00:00:01|60|1|COMPLETED|a | b",
    )
    history = sacct.load(written(tmp_path, "\n".join((names, *rows)) + "\n"))
    assert history.jobs.data == {1: JobData(gb_in=5.0, gb_out=1.0)}
    assert [history.jobs.data_of(job).gb_in for job in range(2)] == [5.0, 0.0]
