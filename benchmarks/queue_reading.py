"""Reading a long queue: processor time and peak memory, beside json.loads of the same text.

Each measurement is a process of its own. Pending jobs as JSON, as newer releases are asked for, in
the length of a record of 22.05's; and as the text that 22.05 is asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from benchmarks.report import Row, bounded, noted
from slurm_elastic.ckptman.service import PACE
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client import answers, queue_text
from slurm_elastic.slurm.client.queue_text import QueueText
from slurm_elastic.slurm.client.records import Records

MEMORY, CORE = 300.0, 5.0
"""Goals: MB of a service that holds a queue while it reads the next; % of a core at rest."""
PERIOD = 5.0
"""Seconds between two readings of a short queue."""
_PART = 1 << 16
_FIELDS = 100
"""Fields of a job that we do not use; with them a record has the 4 KB of Slurm's."""


class Cost(Struct):
    """``seconds`` of processor time of one reading, ``mb`` of memory at most."""

    seconds: float
    mb: float


def rows(place: Path, jobs: int) -> Iterator[Row]:
    """The cost of reading a queue of ``jobs`` pending ones."""
    path = place / f"queue-{jobs}"
    path.write_text("".join(record(n) for n in range(1, jobs + 1)))
    text = measured("text", path)
    write(path, jobs)
    ours, plain = (measured(way, path) for way in ("ours", "json"))
    path.unlink()
    for form, cost in (("text", text), ("JSON", ours)):
        label = f"{jobs} jobs as {form}"
        yield noted(f"{label}: processor time of a reading", cost.seconds, "s")
        yield bounded(f"{label}: memory with two queues", cost.mb, MEMORY, "MB")
        share = 100 * cost.seconds / max(PERIOD, (1 + PACE) * cost.seconds)
        yield bounded(f"{label}: of a core at rest", share, CORE, "%")
    label = f"{jobs} jobs as JSON"
    yield noted(f"{label}: part of json.loads' time", ours.seconds / plain.seconds, "")
    yield noted(f"{label}: part of json.loads' memory", ours.mb / plain.mb, "")


def record(number: int, **fields: str) -> str:
    """A job in the text of 22.05, with ``@@`` for the mark."""
    job = dict.fromkeys(queue_text.FIELDS, "N/A") | {
        "JobID": str(number), "ArrayJobID": str(number), "State": "PENDING", "NodeList": "",
        "Account": f"group{number % 40}", "UserName": f"user{number % 200}",
        "UserID": str(1000 + number % 200), "GroupID": "1000", "Partition": "batch,cloud",
        "Reason": "Priority", "ReasonList": "(Priority)", "SubmitTime": str(1_800_000_000 + number),
        "Requeue": "1", "RestartCnt": "0", "Name": f"run-{number % 500}", "BatchFlag": "1",
        "Comment": "(null)", "WorkDir": f"/home/user{number % 200}/project-{number % 1000}",
        "STDOUT": f"/home/user{number % 200}/slurm-{number}.out", "exit_code": "0",
        "NumNodes": "1", "NumCPUs": "4", "TimeLimit": "1:00:00", "PriorityLong": str(1000 + number),
        "Feature": "(null)",
    } | fields  # fmt: skip
    values = "@@".join(job[field] for field in queue_text.FIELDS)
    return f"{values}{queue_text.end_mark('@@')}\n"


def write(path: Path, jobs: int) -> None:
    """The answer of ``squeue --json``."""
    unused = {f"some_field_{n:03}": 0 for n in range(_FIELDS)}
    with path.open("w") as out:
        out.write('{\n  "errors": [\n  ],\n  "jobs": [\n')
        for n in range(1, jobs + 1):
            record = {
                "account": f"group{n % 40}", **unused, "job_id": n, "job_state": "PENDING",
                "state_reason": "Priority", "partition": "batch,cloud", "name": f"run-{n % 500}",
                "user_name": f"user{n % 200}", "user_id": 1000 + n % 200, "priority": 1000 + n,
                "submit_time": 1_800_000_000 + n, "time_limit": 60, "node_count": 1, "cpus": 4,
                "current_working_directory": f"/home/user{n % 200}/project-{n % 1000}",
            }  # fmt: skip
            text = json.dumps(record, indent=2).replace("\n", "\n    ")
            out.write(f"    {text}{',' if n < jobs else ''}\n")
        out.write("  ]\n}\n")


def measured(way: str, text: Path) -> Cost:
    """One of the two ways, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.queue_reading", way, str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, mb = map(float, done.stdout.split())
    return Cost(seconds, mb)


def read(way: str, path: Path) -> list[SlurmJob]:
    """As the client does from a pipe."""
    records: QueueText | Records[answers.RawJob, SlurmJob] = (
        QueueText("@@") if way == "text" else Records("jobs", answers.RawJob, answers.job)
    )
    with path.open("rb", buffering=0) as source:
        while part := source.read(_PART):
            records.take(part)
    records.close()
    return records.values


def main(way: str, path: Path) -> None:
    """Print processor time and peak memory."""
    kept = []
    began = time.process_time()
    if way == "json":
        kept.append(json.loads(path.read_text()))
    else:
        kept.append(read(way, path))
    seconds = time.process_time() - began
    if way != "json":
        kept.append(read(way, path))
    sys.stdout.write(f"{seconds} {peak()}\n")


def peak() -> float:
    """MB of memory at most; getrusage(2) counts from the process on that started this one."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
