"""Reads job histories from Slurm's accounting: ``sacct -P`` (a line a job) or ``sacct --json``.

The text form is read line by line and may be of any length; JSON is read as a whole. Both give the
same jobs, and both may be packed by gzip. A line that cannot be used is left out, and its number
(or place) is told with a reason.

- ``sacct -X -P`` with the fields of ``FORMAT`` (any order, more fields do no harm); times are
  local, or Unix time with ``SLURM_TIME_FORMAT=%s``;
- processors are those allocated, or else those asked for; nodes, memory and GPUs (of any type) are
  those of ReqTRES, memory else that of ReqMem (``4000M``; before 21.08 ``4Gn`` a node and ``2Gc`` a
  processor);
- a job waits from Eligible on, if that is known: before, a dependency, a begin time or the limit of
  its array kept it from starting;
- steps (``12.batch``) are left out;
- a job that was cancelled while it waited is only counted; so are one that has not ended, and the
  run of a job that was requeued (``sacct -D``);
- a limit of UNLIMITED or Partition_Limit counts as the run time.

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
from slurm_elastic.simulate.jobs import Job, beyond
from slurm_elastic.simulate.swf import History, unbroken
from slurm_elastic.slurm.client.answers import number, states

FORMAT = (
    "JobIDRaw,User,Account,Partition,Submit,Eligible,ElapsedRaw,TimelimitRaw,ReqCPUS,AllocCPUS,ReqMem,"
    "ReqTRES,State"
)
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_GPU = "gres/gpu"
NEEDED = ("JobIDRaw", "Submit", "ElapsedRaw")
_PACKED = b"\x1f\x8b"
"""The first bytes of a file packed by gzip; standard input has no name that could tell."""
_FREE_TEXT = (
    " (free text may have a '|': leave JobName, Comment, SubmitLine and WorkDir out of --format)"
)
_HEAD = 4096  # bytes of a file that tell its form
NEVER = -1  # the run time of a job that was cancelled while it waited
UNFINISHED = frozenset({"RUNNING", "PENDING", "SUSPENDED", "REQUEUED", "RESIZING", "COMPLETING"})


def load(path: Path, most: int | None = None) -> History:
    """The history in ``path`` (``-``: standard input), its first ``most`` jobs. ConfigError if it
    cannot be read, has neither form, or has no job that ran.
    """
    history = History(str(path))
    try:
        if str(path) == "-":
            _read(sys.stdin.buffer, history, most)
        else:
            with path.open("rb") as file:
                _read(file, history, most)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return _rebased(history)


def is_of_sacct(path: Path) -> bool:
    """Whether a file has one of sacct's two forms, by its first line; no if it cannot be read."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_PACKED)) == _PACKED
        with gzip.open(path) if packed else path.open("rb") as file:
            first = file.read(_HEAD).removeprefix(codecs.BOM_UTF8).lstrip().partition(b"\n")[0]
    except (OSError, EOFError, zlib.error):
        return False
    return first.startswith(b"{") or (b"|" in first and not first.startswith(b";"))


def of_rows(rows: Iterable[Mapping[str, object]]) -> History:
    """The history of rows by the names of sacct's fields. ConfigError if it has no job that ran."""
    history = History("rows")
    history.complaints.unit = "row"
    numbers = _Numbers(history)
    for at, row in enumerate(rows, 1):
        words = dict.fromkeys(NEEDED, "") | {name: _text(value) for name, value in row.items()}
        try:
            _take(_job(words, numbers), history)
        except ValueError as error:
            history.complaints.add(at, "cannot be used", str(error))
    return _rebased(history)


def _text(value: object) -> str:
    """As sacct writes it; dataframes have 60.0 for 60, and None or nan for nothing."""
    if isinstance(value, float):
        return "" if isnan(value) else f"{value:.0f}"
    return "" if value is None else str(value)


class _Names:
    """Numbers names in the order in which they come."""

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


def _read(file: IO[bytes], history: History, most: int | None) -> None:
    raw = (
        file if isinstance(file, io.BufferedReader) else io.BufferedReader(io.BytesIO(file.read()))
    )
    if raw.peek(len(_PACKED))[: len(_PACKED)] == _PACKED:
        with gzip.open(raw, "rt", encoding="utf-8-sig", errors="replace") as unpacked:
            _parse(unpacked, history, most)
        return
    text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace")
    try:
        _parse(text, history, most)
    finally:
        # Or the end of the wrapper would close the file, which may be standard input.
        text.detach()


def _parse(text: IO[str], history: History, most: int | None) -> None:
    lines = unbroken(text, history.complaints)
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        _from_json(first + "".join(lines), history, most)
    else:
        _from_lines(first, lines, history, most)


def _from_lines(head: str, lines: Iterable[str], history: History, most: int | None) -> None:
    names = head.strip().split("|")
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise ConfigError(
            f"the first line names no {', '.join(missing)}, expected the output of"
            f" sacct -X -P --format={FORMAT}{_breaks(history)}"
        )
    numbers = _Numbers(history)
    for at, line in enumerate(lines, 2):
        if most is not None and len(history.jobs) >= most:
            return
        words = line.rstrip("\n").split("|")
        if len(words) != len(names):
            kind = f"found {len(words)} fields, expected {len(names)}"
            history.complaints.add(at, f"{kind}{_FREE_TEXT if len(words) > len(names) else ''}")
            continue
        row = dict(zip(names, words, strict=True))
        try:
            _take(_job(row, numbers), history)
        except ValueError as error:
            history.complaints.add(at, "cannot be used", str(error))


def _is_left_out(state: str, history: History) -> bool:
    """Whether a record is counted only: the job has not ended, or this run of it was requeued."""
    if state not in UNFINISHED:
        return False
    is_requeued = state == "REQUEUED"
    history.left_out["are runs that were requeued" if is_requeued else "have not ended"] += 1
    return True


def _take(job: Job | None, history: History) -> None:
    """Add the job; ValueError if a value of it is absurdly large."""
    if job is None:
        return
    if job.run < 0:
        history.cancelled += 1
        return
    too_much = beyond(job)
    if too_much is not None:
        raise ValueError(f"{too_much} is beyond all measure")
    history.overtime += 0 < job.limit < job.run
    history.jobs.append(job._replace(limit=max(job.limit, job.run, 1)))


def _job(row: Mapping[str, str], numbers: _Numbers) -> Job | None:
    """One line; None for a step or a job that has not ended. ValueError says what is wrong."""
    key, state = row["JobIDRaw"], row.get("State", "").split(" ")[0]
    if "." in key or _is_left_out(state, numbers.history):
        return None
    run = _whole(row["ElapsedRaw"], "ElapsedRaw")
    if run == 0 and state == "CANCELLED":
        run = NEVER
    procs, tres = _procs(row, run), _listed(row.get("ReqTRES", ""))
    nodes = _nodes(tres.get("node", ""), procs)
    memory = _mebibytes(tres.get("mem", "")) or _asked(row.get("ReqMem", ""), procs, nodes)
    return Job(
        number=_whole(key.split("_")[0].split("+")[0], "JobIDRaw"),
        submit=_begin(_time(row["Submit"]), row.get("Eligible", "")),
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
    """How many nodes were asked for: not more than the job had processors."""
    return max(min(int(text), procs), 1) if text.isdecimal() else 1


def _gpus(counts: Mapping[str, int]) -> int:
    """GPUs of any type (``gres/gpu``), or else those of each type (``gres/gpu:a100``)."""
    typed = sum(number for name, number in counts.items() if name.startswith(f"{_GPU}:"))
    return counts.get(_GPU, 0) or typed


def _begin(submitted: int, eligible: str) -> int:
    """When the job could have started first; sacct writes Unknown where it never could."""
    try:
        return max(submitted, _time(eligible))
    except ValueError:
        return submitted


def _listed(text: str) -> dict[str, str]:
    """Splits ``billing=4,cpu=4,gres/gpu=1,mem=8G,node=1``."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {name: value for name, _, value in pairs}


def _mebibytes(text: str) -> int:
    """The number in ``8G``, ``4000M`` or ``512K``; 0 for anything else."""
    found = _SIZE.fullmatch(text)
    return ceil(float(found[1]) * _UNITS[found[2] or "M"]) if found else 0


def _asked(text: str, procs: int, nodes: int) -> int:
    """ReqMem for the whole job; before 21.08 it was for a node (``n``) or a processor (``c``)."""
    times = {"n": nodes, "c": procs}.get(text[-1:], 1)
    return _mebibytes(text.rstrip("nc")) * times


def _whole(text: str, name: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{name}: found {text!r}, expected a number")
    return int(text)


def _limit(text: str, run: int) -> int:
    """The minutes of ``TimelimitRaw`` in seconds; the run time if there is no limit."""
    return int(text) * 60 if text.isdecimal() else run


def _procs(row: Mapping[str, str], run: int) -> int:
    for name in ("AllocCPUS", "ReqCPUS"):
        if row.get(name, "").isdecimal() and int(row[name]) > 0:
            return int(row[name])
    if run <= 0:
        return 1
    raise ValueError("neither AllocCPUS nor ReqCPUS says how many processors")


def _time(text: str) -> int:
    """Unix time from Unix time or ISO 8601 (local if without an offset). Slurm's 0 is no time."""
    try:
        when = int(text) if text.isdecimal() else int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        when = 0
    if when < 1:
        raise ValueError(f"Submit: found {text!r}, expected a time")
    return when


def _from_json(text: str, history: History, most: int | None) -> None:
    try:
        jobs = json.loads(text)["jobs"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"found neither sacct's JSON nor its -P form{_breaks(history)}") from None
    if not isinstance(jobs, list):
        raise ConfigError(f"jobs: found {type(jobs).__name__}, expected sacct's list of jobs")
    history.complaints.unit = "job"
    numbers = _Numbers(history)
    for at, raw in enumerate(jobs, 1):
        if most is not None and len(history.jobs) >= most:
            return
        try:
            _take(_json_job(raw, numbers), history)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            history.complaints.add(at, "cannot be used", f"{type(error).__name__} {error}")


def _breaks(history: History) -> str:
    """What to add about a packed file that ends too early."""
    return "".join(f" ({sentence})" for sentence in history.complaints.shown)


def _json_job(raw: Mapping[str, Any], numbers: _Numbers) -> Job | None:
    times = raw["time"]
    current = states(raw["state"]["current"])
    if any(_is_left_out(state, numbers.history) for state in sorted(current & UNFINISHED)[:1]):
        return None
    run = int(number(times["elapsed"]) or 0)
    if run == 0 and "CANCELLED" in current:
        run = NEVER
    limit = number(times.get("limit"))
    allocated = [number(t["count"]) for t in _tres(raw, "allocated") if t["type"] == "cpu"]
    procs = int(next(iter(allocated), None) or number(raw["required"]["CPUs"]) or 0)
    if procs < 1 and run > 0:
        raise ValueError("neither allocated nor required CPUs say how many processors")
    submitted = int(number(times["submission"]) or 0)
    if submitted < 1:
        raise ValueError(f"time.submission: found {submitted}, expected a time")
    return Job(
        number=int(raw["job_id"]),
        submit=max(submitted, int(number(times.get("eligible")) or 0)),
        run=run,
        limit=run if limit is None else int(limit) * 60,
        procs=max(procs, 1),
        user=numbers.users[raw.get("user") or ""],
        partition=numbers.partitions[(raw.get("partition") or "").split(",")[0]],
        account=numbers.accounts[raw.get("account") or ""],
        memory=_requested(raw, "mem"),
        gpus=_gpus(
            {
                f"gres/{t.get('name')}": int(number(t["count"]) or 0)
                for t in _tres(raw, "requested")
                if t["type"] == "gres"
            }
        ),
        nodes=max(min(_requested(raw, "node"), procs), 1),
    )


def _requested(raw: Mapping[str, Any], kind: str) -> int:
    """How much of a resource was asked for; 0 if none."""
    counts = (number(t["count"]) for t in _tres(raw, "requested") if t["type"] == kind)
    return int(next(counts, None) or 0)


def _tres(raw: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    yield from (raw.get("tres") or {}).get(kind) or ()


def _rebased(history: History) -> History:
    """Make the first submission second 0; the header keeps its Unix time, as in an SWF file."""
    if not history.jobs:
        complaints = history.complaints.sentences()
        reasons = "; ".join(complaints[:3]) or f"{history.cancelled} were cancelled before they ran"
        raise ConfigError(f"{history.source}: found no job that ran ({reasons})")
    history.jobs.sort()
    first = history.jobs.submit[0]
    history.header["UnixStartTime"] = str(first)
    for index, submitted in enumerate(history.jobs.submit):
        history.jobs.submit[index] = submitted - first
    return history
