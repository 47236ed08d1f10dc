"""Reads job histories in the Standard Workload Format: 18 numbers per line, ``;`` before comments.

Files are read line by line, so that a job takes only 80 bytes of memory. ``.gz`` files are
decompressed on the way. A line that cannot be used is left out, and reported with its number and
the reason. Nothing is guessed:

- processors: the allocated ones (field 5), or the requested ones (field 8) if field 5 is missing;
  if both differ, the work was done on the allocated processors;
- the limit: the requested time (field 9), or the run time (field 4) if it is missing; a job that
  ran longer than requested was allowed to, so its limit is its run time (``overtime`` counts such
  jobs);
- a job that never ran (a run time below 0: cancelled while it waited) is left out;
- the account is the group (field 13), named by its number;
- parts of a job (status 2, 3 and 4 in field 11) are not jobs: the line of the whole job counts; if
  it is missing, the parts count as one job, from the submission of the first;
- fields may also be separated by ``;``; fields after the 18th are ignored;
- times are rounded to seconds; jobs out of order are sorted by submission.

Format: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from slurm_elastic.base.errors import ConfigError, reason_of
from slurm_elastic.simulate.histories.jobs import MAX_SECONDS, Job, Jobs, implausible_value

FIELDS = 18
PARTIAL = (2, 3, 4)
"""The status of a part of a job: a further part follows, it was the last and succeeded, or
failed.
"""
MIN_FIELDS = 9  # fields that a line must have, up to the requested time
MAX_SHOWN = 20
_STATUS_FIELD = 10
_HEAD_BYTES = 4096
BYTE_ORDER_MARK = "\ufeff"


class Complaints:
    """The faults of a history: counts by kind, and sentences for the first ``MAX_SHOWN`` faults.
    ``unit``: ``line``, ``row`` or ``job``.
    """

    def __init__(self) -> None:
        self.unit = "line"
        self.counts: dict[str, int] = {}
        self.shown: list[str] = []

    def add(self, line: int, kind: str, detail: str = "") -> None:
        """Count a fault. Keep its sentence if it is among the first."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(self.shown) < MAX_SHOWN:
            self.shown.append(f"{self.unit} {line}: {kind}{': ' + detail if detail else ''}")

    def __len__(self) -> int:
        return sum(self.counts.values())

    def sentences(self) -> list[str]:
        """Return each kind with its count, then the sentences of the first faults."""
        totals = [f"{count} {self.unit}s: {kind}" for kind, count in self.counts.items()]
        return totals + self.shown


class History:
    """A history read from ``source``: ``jobs``, ``header`` (``; Key: value``) and ``complaints``.

    ``cancelled``: the number of jobs cancelled before they ran; ``overtime``: of jobs that ran
    longer than requested; ``left_out``: of other omitted records, by reason. ``accounts`` and
    ``users``: the numbers by name (None: the history has only numbers).
    """

    def __init__(self, source: str = "") -> None:
        self.source = source
        self.jobs = Jobs()
        self.header: dict[str, str] = {}
        self.complaints = Complaints()
        self.cancelled = 0
        self.overtime = 0
        self.left_out: Counter[str] = Counter()
        self.accounts: Mapping[str, int] | None = None
        self.users: Mapping[str, int] | None = None

    def account(self, name: str) -> int | None:
        """Return the number of an account; None if it has no jobs."""
        return _number_of(name, self.accounts, self.jobs.account)

    def user(self, name: str) -> int | None:
        """Return the number of a user; None if the user has no jobs."""
        return _number_of(name, self.users, self.jobs.user)

    @property
    def start(self) -> int:
        """The Unix time of the history's second 0; 0 if the header lacks it."""
        return _unix_time(self.header.get("UnixStartTime", "")) or 0


def _number_of(
    name: str, number_by_name: Mapping[str, int] | None, numbers: Iterable[int]
) -> int | None:
    if number_by_name is None:
        number_by_name = {str(number): number for number in set(numbers) if number >= 0}
    return number_by_name.get(name)


def load(path: Path, max_jobs: int | None = None) -> History:
    """Read the first ``max_jobs`` usable jobs of the history in ``path`` (``-``: standard input).
    Raises ConfigError if the file cannot be opened or has no usable job.
    """
    history = History(str(path))
    try:
        with opened(path) as file:
            read(unbroken(file, history.complaints), history, max_jobs)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"workload {path} cannot be read: {reason_of(error)}") from error
    if not history.jobs:
        reasons = "; ".join(history.complaints.sentences()[:3])
        raise ConfigError(
            f"workload {path} holds no job that ran{': ' + reasons if reasons else ''}"
        )
    return history


def is_of_swf(path: Path) -> bool:
    """Return True if the first line looks like this format; False if the file cannot be read."""
    try:
        with opened(path) as file:
            first_line = file.readline(_HEAD_BYTES).lstrip(BYTE_ORDER_MARK)
    except (OSError, EOFError, zlib.error):
        return False
    fields = first_line.replace(";", " ").split()
    return first_line.startswith(";") or (
        len(fields) >= MIN_FIELDS and all(map(_is_number, fields))
    )


def read(lines: Iterable[str], history: History, max_jobs: int | None = None) -> History:
    last_submit, job_parts = -(2**62), _Parts(history.left_out)
    jobs, complaints = history.jobs, history.complaints
    for number, line in enumerate(lines, start=1):
        if max_jobs is not None and len(jobs) >= max_jobs:
            break
        fields = line.lstrip(BYTE_ORDER_MARK).split()
        if not fields:
            continue
        if fields[0].startswith(";"):
            _header(line, number, history)
            continue
        values = _values(fields, number, history)
        if values is None or job_parts.take(values):
            continue
        job = _usable(values, number, history)
        if job is None:
            continue
        if job.submit < last_submit:
            complaints.add(
                number, "out of order, sorted", f"submitted {last_submit - job.submit} s earlier"
            )
        last_submit = max(last_submit, job.submit)
        jobs.append(job)
    # Jobs without a line of their own are complete only after the last line.
    for values, number in job_parts.wholes():
        job = _usable(values, number, history)
        if job is not None:
            jobs.append(job)
    jobs.sort()
    return history


class _Parts:
    """Collects the parts of jobs that ran in several parts."""

    def __init__(self, left_out: Counter[str]) -> None:
        self._left_out = left_out
        self._last = 0
        self._open: dict[int, list[int]] = {}

    def take(self, values: list[int]) -> bool:
        """Return True, and keep the part, if the line is a part of a job."""
        is_part = len(values) > _STATUS_FIELD and values[_STATUS_FIELD] in PARTIAL
        if not is_part:
            self._last = values[0]
            return False
        self._left_out["are parts of jobs"] += 1
        if values[0] == self._last:  # the whole job was the line before its parts
            return True
        whole = self._open.get(values[0])
        if whole is None:
            self._open[values[0]] = values
        else:
            whole[3] += max(values[3], 0)
        return True

    def wholes(self) -> Iterator[tuple[list[int], int]]:
        """Return the jobs of which the file has only parts."""
        return ((values, 0) for values in self._open.values())


def _values(fields: list[str], number: int, history: History) -> list[int] | None:
    complain = history.complaints.add
    if len(fields) == 1 and fields[0].count(";") >= MIN_FIELDS - 1:
        fields = fields[0].split(";")
    if len(fields) < MIN_FIELDS:
        complain(number, "too short, left out", f"{len(fields)} fields, expected {FIELDS}")
        return None
    if len(fields) != FIELDS:
        complain(number, "of unusual length, used", f"{len(fields)} fields, expected {FIELDS}")
        fields = fields[:FIELDS]
    try:
        return list(map(int, fields))
    except ValueError:
        try:
            # Some histories have seconds with a fraction.
            return [round(float(word)) for word in fields]
        except (ValueError, OverflowError):
            bad = next(word for word in fields if not _is_number(word))
            complain(number, "not numbers, left out", repr(bad[:20]))
            return None


def _usable(values: list[int], number: int, history: History) -> Job | None:
    # Field 5 is the allocated number. Some systems log only the requested one (field 8).
    run, procs = values[3], values[4] if values[4] > 0 else values[7]
    if run < 0:
        history.cancelled += 1
        return None
    if procs <= 0:
        history.complaints.add(number, "no processors, left out")
        return None
    job = Job(
        number=values[0],
        submit=values[1],
        run=run,
        # A job that ran longer than it asked for would never fit into its own backfill window.
        limit=max(values[8], run, 1),
        procs=procs,
        user=values[11] if len(values) > 11 else -1,
        partition=values[15] if len(values) > 15 else -1,
        account=values[12] if len(values) > 12 else -1,
    )
    too_much = implausible_value(job)
    if too_much is not None:
        history.complaints.add(number, "implausibly large, left out", too_much)
        return None
    history.overtime += 0 < values[8] < run
    return job


def _is_number(word: str) -> bool:
    try:
        return abs(float(word)) < float("inf")
    except ValueError:
        return False


def _header(line: str, number: int, history: History) -> None:
    key, colon, value = (field.strip() for field in line.lstrip("; \t").partition(":"))
    if not colon:
        return
    if key == "UnixStartTime" and _unix_time(value) is None:
        history.complaints.add(number, "UnixStartTime is no time, not used", repr(value[:24]))
        return
    history.header.setdefault(key, value)


def _unix_time(text: str) -> int | None:
    """Return the first word as a Unix time; 0 for -1 (unknown); None if it is no time."""
    word = text.partition(" ")[0].partition("\t")[0]
    if not word or word == "-1":
        return 0
    if len(word) > len(str(MAX_SECONDS)) or not (word.isascii() and word.isdecimal()):
        return None
    return int(word) if int(word) < MAX_SECONDS else None


def opened(path: Path) -> IO[str]:
    """Open a text file, packed by gzip or not; ``-``: standard input."""
    if str(path) == "-":
        return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def unbroken(file: IO[str], complaints: Complaints) -> Iterator[str]:
    """Yield the lines. If a compressed file ends too early, add a complaint after the last."""
    number = 0
    try:
        for line in file:
            number += 1
            yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        complaints.add(number + 1, "the file breaks off here", str(error))
