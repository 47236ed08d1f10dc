"""22.05's queue as text: equal to its JSON, whatever users write into their jobs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from patience import patience

from benchmarks.small_slurm import SmallSlurm
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client import answers, command
from slurm_elastic.slurm.client.queue_text import FIELDS, QueueText, end_mark

MARK = "<0123456789abcdef>"
PLAIN = {
    "JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "State": "PENDING", "UserName": "ann",
    "UserID": "1000", "GroupID": "1000", "Account": "(null)", "Partition": "batch,cloud",
    "NodeList": "", "Reason": "Priority", "ReasonList": "(Priority)", "StartTime": "N/A",
    "SubmitTime": "1800000000", "EligibleTime": "1800000000", "Requeue": "1", "RestartCnt": "0",
    "Name": "j", "BatchFlag": "1", "Comment": "(null)", "ReqNodes": "", "WorkDir": "/home/ann",
    "STDOUT": "/home/ann/slurm-7.out", "STDERR": "/home/ann/slurm-7.out", "exit_code": "0", "NumNodes": "1", "NumCPUs": "1",
    "TimeLimit": "UNLIMITED", "MinTime": "0:00", "PriorityLong": "100", "Feature": "(null)", "tres-per-node": "N/A",
    "QOS": "(null)", "Reservation": "(null)", "MinCpus": "1", "MinMemory": "0",
    "tres-per-job": "N/A", "tres-per-socket": "N/A", "tres-per-task": "N/A",
    "Licenses": "(null)",
    "EndTime": "N/A", "PreemptTime": "N/A", "tres-alloc": "N/A",
    "cpus-per-tres": "N/A", "mem-per-tres": "N/A", "HetJobID": "N/A",
}  # fmt: skip


def text(*jobs: Mapping[str, str]) -> bytes:
    """As squeue prints them."""
    records = (MARK.join((PLAIN | job)[f] for f in FIELDS) for job in jobs)
    return "".join(f"{record}{end_mark(MARK)}\n" for record in records).encode()


def read(data: bytes, part: int = 65536) -> list[SlurmJob]:
    found = QueueText(MARK)
    for start in range(0, len(data), part):
        found.take(data[start : start + part])
    found.close()
    return found.values


def one(**fields: str) -> SlurmJob:
    (job,) = read(text({name.replace("_per_", "-per-"): v for name, v in fields.items()}))
    return job


def test_a_limit_that_backfill_may_lower_has_its_minimum() -> None:
    assert one(TimeLimit="2:00:00", MinTime="1-00:30:00").min_limit == 88200
    assert (one(TimeLimit="2:00:00").min_limit, one(TimeLimit="2:00:00").least_limit) == (0, 7200)
    assert one(TimeLimit="2:00:00", MinTime="30:00").least_limit == 1800


@pytest.mark.parametrize("part", [1, 5, 64, 65536])
def test_in_whatever_parts_it_comes(part: int) -> None:
    jobs = read(text(*({"JobID": str(n)} for n in range(20))), part)
    assert [job.id for job in jobs] == list(range(20))
    assert read(b"", part) == []


def test_no_name_or_comment_is_taken_for_a_record() -> None:
    """Whoever could forge one could have another's images removed."""
    forged = (
        text({"JobID": "8", "State": "CANCELLED"}).decode().replace(MARK[1:], "0000000000000000>")
    )
    job = one(Name=f"a\n{forged}\nb", Comment="ckpt=criu\n<>", WorkDir="/a\n/b")
    assert (job.id, job.name, job.comment) == (7, f"a\n{forged}\nb", "ckpt=criu\n<>")


@pytest.mark.parametrize("field", ["Name", "Comment", "WorkDir", "STDOUT", "Feature"])
def test_a_text_that_begins_with_a_line_break_ends_no_record(field: str) -> None:
    """Otherwise one such job would make the whole queue unreadable."""
    jobs = read(text({field: "\n"}, {"JobID": "8", field: "\n8\n"}))
    assert [job.id for job in jobs] == [7, 8]
    assert one(Name="\nx").name == "\nx"


def test_what_is_not_set_is_empty() -> None:
    job = one()
    assert (job.account, job.comment, job.features, job.gres, job.nodes) == ("", "", "", "", ())
    assert (job.start, job.limit, job.task, job.array, job.label) == (0.0, None, None, 0, "7")
    assert (job.submit, job.description, job.partitions) == (1.8e9, "", ("batch", "cloud"))


@pytest.mark.parametrize(
    ("told", "limit"),
    [("10:00", 600), ("1:00:00", 3600), ("1-02:03:04", 93784), ("UNLIMITED", None),
     ("Partition_Limit", None), ("365-00:00:00", 31536000), ("INVALID", None)],
)  # fmt: skip
def test_time_limits(told: str, limit: int | None) -> None:
    assert one(TimeLimit=told).limit == limit


def test_tasks_of_an_array() -> None:
    waiting = one(ArrayJobID="5", ArrayTaskID="0-9,20%4")
    assert (waiting.tasks, waiting.tasks_at_a_time) == (11, 4)
    assert (waiting.task, waiting.label) == (None, "7")
    running = one(ArrayJobID="5", ArrayTaskID="3", NodeList="n[1-2]", State="RUNNING")
    assert (running.task, running.label, running.nodes) == (3, "5_3", ("n1", "n2"))


def test_what_slurm_adds_to_the_reason() -> None:
    held = one(Reason="JobHeldAdmin", ReasonList="(launch_failed_requeued_held)")
    assert (held.reason, held.description) == ("JobHeldAdmin", "launch failed requeued held")
    assert one(NodeList="n1", ReasonList="n1").description == ""


def test_how_a_job_ended() -> None:
    assert one(exit_code=str(3 << 8)).exit_code == 3
    assert one(exit_code="9").killed_by == 9


def test_when_slurm_ends_a_run_that_it_preempts() -> None:
    runs = {"State": "RUNNING", "StartTime": "1800000100", "EndTime": "1800000260"}
    assert one(**runs).preempted == 0.0
    assert one(**runs, PreemptTime="1800000200").preempted == 1_800_000_260
    assert one(**runs, PreemptTime="1800000050").preempted == 0.0, "that was its last run"
    assert one(PreemptTime="1800000200", EndTime="1800000260").preempted == 0.0, "it was requeued"


def test_the_end_of_a_running_jobs_limit_is_slurms_own() -> None:
    """As of a job that was suspended for 22 s, and of one without a limit: measured."""
    runs = {"State": "RUNNING", "StartTime": "1795975245", "TimeLimit": "2:00"}
    resumed = one(**runs, EndTime="1795975387")
    assert (resumed.limit_ends_at, resumed.end) == (1_795_975_387.0, 0.0)
    assert one(**runs | {"TimeLimit": "UNLIMITED"}, EndTime="NONE").limit_ends_at == 0.0
    assert one(**runs | {"State": "SUSPENDED"}, EndTime="1795975365").limit_ends_at == 0.0
    preempted = one(**runs, EndTime="1795975387", PreemptTime="1795975280")
    assert (preempted.preempted, preempted.limit_ends_at) == (1_795_975_387.0, 0.0)


def test_what_it_wants() -> None:
    job = one(tres_per_node="gres:gpu:1", tres_per_task="gres:fpga:2", Feature="a&b")
    assert (job.gres, job.features) == ("gres:gpu:1 gres:fpga:2", "a&b")
    wants = {"tres-per-job": "gres:gpu:8", "QOS": "long", "Reservation": "maint"}
    job = one(**wants, MinCpus="4", MinMemory="2000M", Licenses="matlab:2,ansys")
    assert (job.licenses, one().licenses) == ("matlab:2,ansys", "")
    assert (job.job_gres, job.qos, job.reservation) == ("gres:gpu:8", "long", "maint")
    assert (job.node_cpus, job.node_memory) == (4, 2000)
    assert (job.gres_cpus, job.gres_memory) == ("", "")
    job = one(**{"cpus-per-tres": "gres:gpu:4", "mem-per-tres": "gres:gpu:2048"})
    assert (job.gres_cpus, job.gres_memory) == ("gres:gpu:4", "gres:gpu:2048")


@pytest.mark.parametrize("cut", [1, 2, 100, 500])
def test_a_text_that_breaks_off_is_no_queue(cut: int) -> None:
    with pytest.raises(ValueError, match="breaks off"):
        read(text({}, {"JobID": "8"})[:-cut])


@pytest.mark.parametrize("answer", [f"7{end_mark(MARK)}\n", "squeue: something\n"])
def test_another_text_is_no_queue(answer: str) -> None:
    with pytest.raises(ValueError, match=r"fields|breaks off"):
        read(answer.encode())


@pytest.fixture(scope="module")
def cluster() -> Iterator[SmallSlurm]:
    with SmallSlurm(static=2, cloud=1, prolog=False) as running:
        yield running


@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and munged need root")
def test_on_real_slurm_it_is_what_the_json_says(cluster: SmallSlurm) -> None:
    """The jobs wait for many reasons, run, boot, and have ended in some ways."""
    for options, script in (
        (("--array=0-3%2", "--hold", "--comment=ckpt=criu; a|b é"), "exit"),
        (("-t", "1-02:03:04", "-J", "q\nw"), "exit 3"),
        (("--hold", "-J", "\nq"), "exit"),
        (("--hold", "-n1", ":", "-n1"), "exit"),
        (("-t", "90"), "kill -9 $$"),
        (("--begin=now+3600", "--no-requeue", "--nodelist=st[1-2]"), "exit"),
        (("--array=0-1",), "sleep 300"),
        (("-N2", "--array=5,7,9-11%1", "-t", "5"), "exit"),
        (("-p", "cloud", "--no-requeue"), "sleep 300"),
        (("--hold", "--mem=100", "--mincpus=1"), "exit"),
    ):
        cluster.command("sbatch", "-o", "/dev/null", *options, f"--wrap={script}")
    client = cluster.client()
    deadline = time.monotonic() + patience(60)
    seen: set[str] = set()
    while not seen >= {"RUNNING", "PENDING", "FAILED"}:
        assert time.monotonic() < deadline, seen
        seen = {word for job in client.jobs(ended=True) for word in job.states}
    while by_json(cluster) != (found := {job.id: job for job in client.jobs(ended=True)}):
        assert time.monotonic() < deadline, (found, by_json(cluster))
    assert len(found) >= 9
    (leader,) = {job.het_job for job in found.values() if job.het_job}
    assert sum(job.het_job == leader for job in found.values()) == 2
    assert not any(job.has_ended for job in client.jobs())


@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and munged need root")
def test_on_real_slurm_a_requeued_task_of_a_waiting_array_has_a_record(cluster: SmallSlurm) -> None:
    """squeue joins it with the tasks that have not run; its images would be removed."""
    client = cluster.client()
    cluster.command("scancel", "--user=root")
    cluster.command(
        "sbatch", "-o", "/dev/null", "--exclusive", "--array=0-5", "--wrap=sleep 300",
    )  # fmt: skip
    deadline = time.monotonic() + patience(60)

    def tasks(state: str) -> list[SlurmJob]:
        return [j for j in client.jobs() if j.array and state in j.states and j.task is not None]

    while not (running := tasks("RUNNING")):
        assert time.monotonic() < deadline
    requeued = running[0]
    client.requeue(requeued.id)
    while not (found := [job for job in tasks("PENDING") if job.id == requeued.id]):
        assert time.monotonic() < deadline, client.jobs()
    assert [(job.task, job.restarts) for job in found] == [(requeued.task, 1)]
    assert client.job(requeued.id) is not None
    assert {job.id for job in client.jobs(ended=True)} == by_json(cluster).keys()


@pytest.mark.e2e
@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd and munged need root")
def test_on_real_slurm_all_tasks_of_a_long_list_count(cluster: SmallSlurm) -> None:
    """squeue shows the first 64 characters of the list, also in JSON."""
    listed = [task for task in range(120) if task % 5 in (1, 2, 4)]
    cluster.command(
        "sbatch", "-o", "/dev/null", "--hold", "-J", "scattered", "--wrap=exit",
        f"--array={','.join(map(str, listed))}",
    )  # fmt: skip
    for jobs in (by_json(cluster).values(), cluster.client().jobs()):
        assert [job.tasks for job in jobs if job.name == "scattered"] == [len(listed)]


def by_json(cluster: SmallSlurm) -> dict[int, SlurmJob]:
    variables = command.environment(SlurmSettings(conf=str(cluster.conf)))
    done = subprocess.run(
        ["squeue", "--all", "--json"],
        env=cluster.environment() | variables, capture_output=True, check=True,
    )  # fmt: skip
    raw = msgspec.convert(json.loads(done.stdout)["jobs"], list[answers.RawJob])
    return {job.id: job for job in map(answers.job, raw)}


def test_a_running_job_that_is_sent_a_signal_runs() -> None:
    """Slurm 22.05 gives only the one word."""
    assert one(State="SIGNALING", NodeList="n1").states == {"SIGNALING", "RUNNING"}
