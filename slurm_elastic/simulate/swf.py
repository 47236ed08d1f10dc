"""Reads job histories in the Standard Workload Format: 18 numbers a line, ``;`` before comments.

Files are read line by line, so that a job takes only 80 bytes of memory; ``.gz`` is unpacked on the
way. A line that cannot be used is left out, and its number is told with a reason; nothing is
guessed:

- processors are those given (field 5), or else those asked for (field 8): in some histories they
  differ, and the work that was done was done on the former;
- the limit is the time asked for (field 9), or else the run time (field 4); a job that ran longer
  than it asked for was evidently allowed to, so its limit is its run time (``overtime`` counts such
  jobs);
- a job that never ran (run time below 0: cancelled while it waited) is left out;
- the account is the group (field 13), named by its number;
- the parts of a job that ran in parts (status 2, 3 and 4 in field 11) are not jobs: the line of the
  whole job counts, or else the parts together, from the submission of the first;
- fields may be separated by ``;``, too, and those after the 18th are not read;
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

from slurm_elastic.base.errors import ConfigError, why
from slurm_elastic.simulate.jobs import LONGEST, Job, Jobs, beyond

FIELDS = 18
PARTIAL = (2, 3, 4)
"""The status of a part of a job: it goes on later, was the last one and ended well, or failed."""
NEEDED = 9  # up to the time asked for
SHOWN = 20
_STATUS = 10
_HEAD = 4096
_BYTE_ORDER_MARK = "\ufeff"


class Complaints:
    """What was wrong in a history, by kind, with the first lines. ``unit``: ``line`` or ``job``."""

    def __init__(self) -> None:
        self.unit = "line"
        self.counts: dict[str, int] = {}
        self.shown: list[str] = []

    def add(self, line: int, kind: str, detail: str = "") -> None:
        """Count one; keep its sentence if it is among the first."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{self.unit} {line}: {kind}{': ' + detail if detail else ''}")

    def __len__(self) -> int:
        return sum(self.counts.values())

    def sentences(self) -> list[str]:
        """Each kind with its count, then the first lines."""
        totals = [f"{count} {self.unit}s: {kind}" for kind, count in self.counts.items()]
        return totals + self.shown


class History:
    """A history as it was read from ``source``: ``jobs``, ``header`` (``; Key: value``) and
    ``complaints``; how many jobs were ``cancelled`` before they ran, and how many ran ``overtime``.
    ``left_out``: how many records are no jobs of the simulation for another reason, by that reason.
    ``accounts`` and ``users``: the names of its jobs' accounts and users, if those are not their
    numbers.
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
        """The number of an account among the jobs; None if no job is of it."""
        return _numbered(name, self.accounts, self.jobs.account)

    def user(self, name: str) -> int | None:
        """The number of a user among the jobs; None if no job is theirs."""
        return _numbered(name, self.users, self.jobs.user)

    @property
    def start(self) -> int:
        """The Unix time of the history's second 0; 0 if the header does not say."""
        return _unix_time(self.header.get("UnixStartTime", "")) or 0


def _numbered(name: str, known: Mapping[str, int] | None, numbers: Iterable[int]) -> int | None:
    if known is None:
        known = {str(number): number for number in set(numbers) if number >= 0}
    return known.get(name)


def load(path: Path, most: int | None = None) -> History:
    """The history in ``path`` (``-``: standard input), its first ``most`` usable jobs. ConfigError
    if the file cannot be opened or has no usable job.
    """
    history = History(str(path))
    try:
        with _opened(path) as file:
            read(unbroken(file, history.complaints), history, most)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"workload {path} cannot be read: {why(error)}") from error
    if not history.jobs:
        reasons = "; ".join(history.complaints.sentences()[:3])
        raise ConfigError(
            f"workload {path} holds no job that ran{': ' + reasons if reasons else ''}"
        )
    return history


def is_of_swf(path: Path) -> bool:
    """Whether a file looks like it, by its first line; no if it cannot be read."""
    try:
        with _opened(path) as file:
            first = file.readline(_HEAD).lstrip(_BYTE_ORDER_MARK)
    except (OSError, EOFError, zlib.error):
        return False
    words = first.replace(";", " ").split()
    return first.startswith(";") or (len(words) >= NEEDED and all(map(_is_number, words)))


def read(lines: Iterable[str], history: History, most: int | None = None) -> History:
    last, parts = -(2**62), _Parts(history.left_out)
    jobs, complaints = history.jobs, history.complaints
    for number, line in enumerate(lines, start=1):
        if most is not None and len(jobs) >= most:
            break
        words = line.lstrip(_BYTE_ORDER_MARK).split()
        if not words:
            continue
        if words[0].startswith(";"):
            _header(line, number, history)
            continue
        values = _values(words, number, history)
        if values is None or parts.take(values):
            continue
        job = _usable(values, number, history)
        if job is None:
            continue
        if job.submit < last:
            complaints.add(
                number, "out of order, sorted", f"submitted {last - job.submit} s earlier"
            )
        last = max(last, job.submit)
        jobs.append(job)
    for values, number in parts.wholes():
        job = _usable(values, number, history)
        if job is not None:
            jobs.append(job)
    jobs.sort()
    return history


class _Parts:
    """Collects the parts of jobs that ran in parts."""

    def __init__(self, left_out: Counter[str]) -> None:
        self._left_out = left_out
        self._last = 0
        self._open: dict[int, list[int]] = {}

    def take(self, values: list[int]) -> bool:
        """Whether the line is a part of a job."""
        is_part = len(values) > _STATUS and values[_STATUS] in PARTIAL
        if not is_part:
            self._last = values[0]
            return False
        self._left_out["are parts of jobs"] += 1
        if values[0] == self._last:  # its whole is the line before the parts
            return True
        whole = self._open.get(values[0])
        if whole is None:
            self._open[values[0]] = values
        else:
            whole[3] += max(values[3], 0)
        return True

    def wholes(self) -> Iterator[tuple[list[int], int]]:
        """Jobs of which only parts are there."""
        return ((values, 0) for values in self._open.values())


def _values(words: list[str], number: int, history: History) -> list[int] | None:
    complain = history.complaints.add
    if len(words) == 1 and words[0].count(";") >= NEEDED - 1:
        words = words[0].split(";")
    if len(words) < NEEDED:
        complain(number, "too short, left out", f"{len(words)} fields, expected {FIELDS}")
        return None
    if len(words) != FIELDS:
        complain(number, "of unusual length, used", f"{len(words)} fields, expected {FIELDS}")
        words = words[:FIELDS]
    try:
        return [int(word) for word in words]
    except ValueError:
        try:
            return [round(float(word)) for word in words]
        except (ValueError, OverflowError):
            bad = next(word for word in words if not _is_number(word))
            complain(number, "not numbers, left out", repr(bad[:20]))
            return None


def _usable(values: list[int], number: int, history: History) -> Job | None:
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
        limit=max(values[8], run, 1),
        procs=procs,
        user=values[11] if len(values) > 11 else -1,
        partition=values[15] if len(values) > 15 else -1,
        account=values[12] if len(values) > 12 else -1,
    )
    too_much = beyond(job)
    if too_much is not None:
        history.complaints.add(number, "beyond all measure, left out", too_much)
        return None
    history.overtime += 0 < values[8] < run
    return job


def _is_number(word: str) -> bool:
    try:
        return abs(float(word)) < float("inf")
    except ValueError:
        return False


def _header(line: str, number: int, history: History) -> None:
    key, colon, value = (part.strip() for part in line.lstrip("; \t").partition(":"))
    if not colon:
        return
    if key == "UnixStartTime" and _unix_time(value) is None:
        history.complaints.add(number, "UnixStartTime is no time, not used", repr(value[:24]))
        return
    history.header.setdefault(key, value)


def _unix_time(text: str) -> int | None:
    """The first word as a Unix time; 0 for -1 (unknown), None if it is neither."""
    word = text.partition(" ")[0].partition("\t")[0]
    if not word or word == "-1":
        return 0
    if len(word) > len(str(LONGEST)) or not (word.isascii() and word.isdecimal()):
        return None
    return int(word) if int(word) < LONGEST else None


def _opened(path: Path) -> IO[str]:
    if str(path) == "-":
        return io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def unbroken(file: IO[str], complaints: Complaints) -> Iterator[str]:
    """The lines; if a packed file ends too early, those before that."""
    number = 0
    try:
        for line in file:
            number += 1
            yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        complaints.add(number + 1, "the file breaks off here", str(error))
