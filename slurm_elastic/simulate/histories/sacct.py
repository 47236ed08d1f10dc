"""Reads job histories from Slurm's accounting: ``sacct -P`` (one line per job) or ``sacct --json``.

The text form is read line by line and may have any length. JSON is read as a whole. Both give the
same jobs, and both may be compressed by gzip. A line that cannot be used is left out, and reported
with its number and the reason.

- ``sacct -X -P`` with the fields of ``FORMAT`` (in any order; further fields are ignored); times
  are local, or Unix time with ``SLURM_TIME_FORMAT=%s``;
- processors: AllocCPUS, or ReqCPUS if nothing was allocated; nodes, memory and GPUs (of any type):
  from ReqTRES; memory also from ReqMem (``4000M``; before 21.08 ``4Gn`` per node and ``2Gc`` per
  processor);
- a job waits from Eligible on, if sacct knows it: before that time, a dependency, a begin time or
  the limit of its array kept it from starting;
- steps (``12.batch``) are left out;
- jobs that never ran, because they were cancelled, missed their deadline or ran on another cluster,
  jobs without an end, and requeued runs (``sacct -D``) are only counted;
- a limit of UNLIMITED or Partition_Limit is replaced by the run time.

Sources: man sacct(1); the JSON of data_parser v0.0.39 on, and of 22.05 (openapi/dbv0.0.38).
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import ceil, isnan
from pathlib import Path
from typing import IO, Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.policies.launch.job_data import NO_DATA, counted_data
from slurm_elastic.simulate.histories.jobs import Job, implausible_value
from slurm_elastic.simulate.histories.swf import History, unbroken
from slurm_elastic.slurm.client.answers import number, states

FORMAT = (
    "JobIDRaw,User,Account,Partition,Submit,Eligible,ElapsedRaw,TimelimitRaw,ReqCPUS,AllocCPUS,ReqMem,"
    "ReqTRES,State"
)
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_GPU = "gres/gpu"
REQUIRED_FIELDS = ("JobIDRaw", "Submit", "ElapsedRaw")
_GZIP_MAGIC = b"\x1f\x8b"
"""The first bytes of a gzip file. The name cannot show the format, because standard input has
none.
"""
_FREE_TEXT = (
    " (free text may have a '|': leave JobName, SubmitLine and WorkDir out of --format, and put"
    " Comment last)"
)
_HEAD_BYTES = 4096  # bytes of a file that are read to recognise its form
COMMENT = "Comment"
"""The column with ``data=120G`` of ``--comment``."""
NEVER = -1  # the run time of a job that was cancelled while it waited
ENDED_WAITING = frozenset({"CANCELLED", "DEADLINE", "REVOKED"})
"""The states of a job without a run time that Slurm never started: a user cancelled it, it could no
longer meet its deadline, or another cluster of the federation started it.
"""
UNFINISHED = frozenset({"RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING", "COMPLETING"})


def load(path: Path, max_jobs: int | None = None) -> History:
    """Read the first ``max_jobs`` jobs of the history in ``path`` (``-``: standard input). Raises
    ConfigError if it cannot be read, has neither form, or has no job that ran.
    """
    history = History(str(path))
    try:
        if str(path) == "-":
            _read(sys.stdin.buffer, history, max_jobs)
        else:
            with path.open("rb") as file:
                _read(file, history, max_jobs)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return _rebased(history)


def is_of_sacct(path: Path) -> bool:
    """Return True if the first line looks like one of sacct's forms; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as file:
            first_line = (
                file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
            )
    except (OSError, EOFError, zlib.error):
        return False
    return first_line.startswith(b"{") or (b"|" in first_line and not first_line.startswith(b";"))


def of_rows(rows: Iterable[Mapping[str, object]]) -> History:
    """Make a history of rows with the names of sacct's fields. Raises ConfigError if no job ran."""
    history = History("rows")
    history.complaints.unit = "row"
    numbers = _Numbers(history)
    for row_number, row in enumerate(rows, 1):
        fields = dict.fromkeys(REQUIRED_FIELDS, "") | {
            name: _text(value) for name, value in row.items()
        }
        try:
            _add_job(_job(fields, numbers), history)
        except ValueError as error:
            history.complaints.add(row_number, "cannot be used", str(error))
    return _rebased(history)


def _text(value: object) -> str:
    """Return a value as sacct writes it. Dataframes have 60.0 for 60, and None or NaN for
    nothing.
    """
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:.0f}"
    return "" if value is None else str(value)


class _Names:
    """Gives each name a number, in the order of their first use."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known) + 1) if name else -1


class _Numbers:
    """The numbers of users, partitions and accounts."""

    def __init__(self, history: History) -> None:
        self.users, self.partitions, self.accounts = _Names(), _Names(), _Names()
        history.accounts, history.users = self.accounts.known, self.users.known
        self.history = history


def _read(file: IO[bytes], history: History, max_jobs: int | None) -> None:
    # peek() needs a BufferedReader. Standard input may be a pipe, which cannot be read twice.
    buffered = (
        file if isinstance(file, io.BufferedReader) else io.BufferedReader(io.BytesIO(file.read()))
    )
    if buffered.peek(len(_GZIP_MAGIC))[: len(_GZIP_MAGIC)] == _GZIP_MAGIC:
        with gzip.open(buffered, "rt", encoding="utf-8-sig", errors="replace") as unpacked:
            _parse(unpacked, history, max_jobs)
        return
    text = io.TextIOWrapper(buffered, encoding="utf-8-sig", errors="replace")
    try:
        _parse(text, history, max_jobs)
    finally:
        # The wrapper would otherwise close the file when it is deleted, even standard input.
        text.detach()


def _parse(text: IO[str], history: History, max_jobs: int | None) -> None:
    lines = unbroken(text, history.complaints)
    first_line = next((line for line in lines if line.strip()), "")
    if first_line.lstrip().startswith("{"):
        _from_json(first_line + "".join(lines), history, max_jobs)
    else:
        _from_lines(first_line, lines, history, max_jobs)


def _from_lines(head: str, lines: Iterable[str], history: History, max_jobs: int | None) -> None:
    names = head.strip().split("|")
    missing = [name for name in REQUIRED_FIELDS if name not in names]
    if missing:
        raise ConfigError(
            f"the first line names no {', '.join(missing)}, expected the output of"
            f" sacct -X -P --format={FORMAT}{_truncation_note(history)}"
        )
    numbers = _Numbers(history)
    for line_number, line in enumerate(lines, 2):
        if max_jobs is not None and len(history.jobs) >= max_jobs:
            return
        # A comment is free text, so it may only be the last column.
        most = len(names) - 1 if names[-1] == COMMENT else -1
        values = line.rstrip("\n").split("|", most)
        if len(values) != len(names):
            kind = f"found {len(values)} fields, expected {len(names)}"
            history.complaints.add(
                line_number, f"{kind}{_FREE_TEXT if len(values) > len(names) else ''}"
            )
            continue
        row = dict(zip(names, values, strict=True))
        try:
            _add_job(_job(row, numbers), history)
        except ValueError as error:
            history.complaints.add(line_number, "cannot be used", str(error))


def _is_left_out(state: str, history: History) -> bool:
    """Return True, and count the record, if the job has not ended or this run was requeued."""
    if state not in UNFINISHED:
        return False
    is_requeued = state == "REQUEUED"
    history.left_out["are runs that were requeued" if is_requeued else "have not ended"] += 1
    return True


def _add_job(job: Job | None, history: History) -> None:
    """Add the job. Raises ValueError if a value is implausibly large."""
    if job is None:
        return
    if job.run < 0:
        history.cancelled += 1
        return
    too_much = implausible_value(job)
    if too_much is not None:
        raise ValueError(f"{too_much} is implausibly large")
    # Slurm ends jobs some time after their limit (OverTimeLimit, KillWait).
    history.overtime += 0 < job.limit < job.run
    history.jobs.append(job._replace(limit=max(job.limit, job.run, 1)))


def _job(row: Mapping[str, str], numbers: _Numbers) -> Job | None:
    """Convert a line to a job; None for a step, or a job that has not ended. Raises ValueError."""
    key, state = row["JobIDRaw"], row.get("State", "").split(" ")[0]
    if "." in key or _is_left_out(state, numbers.history):
        return None
    run = _integer(row["ElapsedRaw"], "ElapsedRaw")
    if run == 0 and state in ENDED_WAITING:
        run = NEVER
    procs, tres = _procs(row, run), _tres_of(row.get("ReqTRES", ""))
    nodes = _nodes(tres.get("node", ""), procs)
    job_number = _integer(key.split("_")[0].split("+")[0], "JobIDRaw")
    if (data := counted_data(row.get(COMMENT, ""))) is not NO_DATA:
        numbers.history.jobs.data[job_number] = data
    memory = _mebibytes(tres.get("mem", "")) or _requested_memory(
        row.get("ReqMem", ""), procs, nodes
    )
    return Job(
        number=job_number,
        submit=_eligible_at(_time(row["Submit"]), row.get("Eligible", "")),
        run=run,
        limit=_limit(row.get("TimelimitRaw", ""), run),
        procs=procs,
        user=numbers.users[row.get("User", "")],
        partition=numbers.partitions[row.get("Partition", "").split(",")[0]],
        account=numbers.accounts[row.get("Account", "")],
        memory=memory,
        gpus=_gpus({name: int(value) for name, value in tres.items() if name.startswith(_GPU)}),
        nodes=nodes,
    )


def _nodes(text: str, procs: int) -> int:
    """Return the number of requested nodes, at most one per processor."""
    return max(min(int(text), procs), 1) if text.isdecimal() else 1


def _gpus(counts: Mapping[str, int]) -> int:
    """Return the GPUs of any type (``gres/gpu``), or the sum of all types (``gres/gpu:a100``)."""
    typed = sum(number for name, number in counts.items() if name.startswith(f"{_GPU}:"))
    return counts.get(_GPU, 0) or typed


def _eligible_at(submitted: int, eligible: str) -> int:
    """Return when the job could first have started. sacct writes Unknown if it never could."""
    try:
        return max(submitted, _time(eligible))
    except ValueError:
        return submitted


def _tres_of(text: str) -> dict[str, str]:
    """Split ``billing=4,cpu=4,gres/gpu=1,mem=8G,node=1``."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: value for name, _, value in pairs}


def _mebibytes(text: str) -> int:
    """Return ``8G``, ``4000M`` or ``512K`` in MiB; 0 for anything else."""
    match = _SIZE.fullmatch(text)
    return ceil(float(match[1]) * _UNITS[match[2] or "M"]) if match else 0


def _requested_memory(text: str, procs: int, nodes: int) -> int:
    """Return ReqMem in MiB for the whole job. Before 21.08 it was per node (``n``) or per processor
    (``c``).
    """
    times = {"n": nodes, "c": procs}.get(text[-1:], 1)
    return _mebibytes(text.rstrip("nc")) * times


def _integer(text: str, name: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{name}: found {text!r}, expected a number")
    return int(text)


def _limit(text: str, run: int) -> int:
    """Return ``TimelimitRaw`` (minutes) in seconds; the run time if there is no limit."""
    return int(text) * 60 if text.isdecimal() else run


def _procs(row: Mapping[str, str], run: int) -> int:
    for name in ("AllocCPUS", "ReqCPUS"):
        if row.get(name, "").isdecimal() and int(row[name]) > 0:
            return int(row[name])
    if run <= 0:
        return 1
    raise ValueError("neither AllocCPUS nor ReqCPUS says how many processors")


def _time(text: str) -> int:
    """Parse Unix time or ISO 8601 (local if it has no offset). Raises ValueError, also for 0, which
    is Slurm's "no time".
    """
    try:
        when = int(text) if text.isdecimal() else int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        when = 0
    if when < 1:
        raise ValueError(f"Submit: found {text!r}, expected a time")
    return when


def _from_json(text: str, history: History, max_jobs: int | None) -> None:
    try:
        jobs = json.loads(text)["jobs"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"found neither sacct's JSON nor its -P form{_truncation_note(history)}"
        ) from None
    if not isinstance(jobs, list):
        raise ConfigError(f"jobs: found {type(jobs).__name__}, expected sacct's list of jobs")
    history.complaints.unit = "job"
    numbers = _Numbers(history)
    for position, record in enumerate(jobs, 1):
        if max_jobs is not None and len(history.jobs) >= max_jobs:
            return
        try:
            _add_job(_json_job(record, numbers), history)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            history.complaints.add(position, "cannot be used", f"{type(error).__name__} {error}")


def _truncation_note(history: History) -> str:
    """Return the complaint about a compressed file that ends too early, in brackets, or ""."""
    return "".join(f" ({sentence})" for sentence in history.complaints.shown)


def _json_job(record: Mapping[str, Any], numbers: _Numbers) -> Job | None:
    times = record["time"]
    current = states(record["state"]["current"])
    if any(_is_left_out(state, numbers.history) for state in sorted(current & UNFINISHED)[:1]):
        return None
    run = int(number(times["elapsed"]) or 0)
    if run == 0 and not ENDED_WAITING.isdisjoint(current):
        run = NEVER
    limit = number(times.get("limit"))
    allocated = [
        number(entry["count"]) for entry in _tres(record, "allocated") if entry["type"] == "cpu"
    ]
    procs = int(next(iter(allocated), None) or number(record["required"]["CPUs"]) or 0)
    if procs < 1 and run > 0:
        raise ValueError("neither allocated nor required CPUs say how many processors")
    submitted = int(number(times["submission"]) or 0)
    if submitted < 1:
        raise ValueError(f"time.submission: found {submitted}, expected a time")
    return Job(
        number=int(record["job_id"]),
        submit=max(submitted, int(number(times.get("eligible")) or 0)),
        run=run,
        limit=run if limit is None else int(limit) * 60,
        procs=max(procs, 1),
        user=numbers.users[record.get("user") or ""],
        partition=numbers.partitions[(record.get("partition") or "").split(",")[0]],
        account=numbers.accounts[record.get("account") or ""],
        memory=_requested(record, "mem"),
        gpus=_gpus(
            {
                f"gres/{entry.get('name')}": int(number(entry["count"]) or 0)
                for entry in _tres(record, "requested")
                if entry["type"] == "gres"
            }
        ),
        nodes=max(min(_requested(record, "node"), procs), 1),
    )


def _requested(record: Mapping[str, Any], kind: str) -> int:
    """Return the requested amount of a resource; 0 if none."""
    counts = (
        number(entry["count"]) for entry in _tres(record, "requested") if entry["type"] == kind
    )
    return int(next(counts, None) or 0)


def _tres(record: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    yield from (record.get("tres") or {}).get(kind) or ()


def _rebased(history: History) -> History:
    """Shift times so that the first submission is second 0. The header keeps its Unix time, as in
    an SWF file.
    """
    if not history.jobs:
        complaints = history.complaints.sentences()
        reasons = "; ".join(complaints[:3]) or f"{history.cancelled} were cancelled before they ran"
        raise ConfigError(f"{history.source}: found no job that ran ({reasons})")
    history.jobs.sort()
    first_submit = history.jobs.submit[0]
    history.header["UnixStartTime"] = str(first_submit)
    for index, submitted in enumerate(history.jobs.submit):
        history.jobs.submit[index] = submitted - first_submit
    return history
