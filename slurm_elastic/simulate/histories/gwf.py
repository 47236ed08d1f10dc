"""Reads job histories in the text form of the Grid Workload Format (GWF, of the Grid Workloads
Archive).

A line has 29 fields, separated by tabs or blanks. An unknown field is ``-1``. Lines of comments
begin with ``#``. The file is read line by line, also packed by gzip. Unlike in an SWF
file, a damaged line is an error with its number, because the archive's files are generated:

- processors: the allocated ones (field 5), or the requested ones (field 8) if field 5 is -1;
- the limit: the requested time (field 9), or the run time (field 4) if field 9 is -1; a job that
  ran longer than requested was allowed to (``overtime`` counts such jobs);
- a job that never ran (a run time of -1) is left out and counted as cancelled;
- users and accounts are the names in fields 12 and 13, the partition is the queue (field 15);
- memory is not used, as of SWF files, because traces give it in different units;
- submissions are Unix times in most files. If the first one lies before 1973, they are seconds.

Format: http://gwa.ewi.tudelft.nl/grid-workload-format/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, reason_of
from slurm_elastic.simulate.histories.jobs import Job, implausible_value
from slurm_elastic.simulate.histories.swf import History, opened, unbroken

FIELDS = 29
"""The fields of a line. Some files lack the last ones, which we do not need."""
NUMBERS = (
    "JobID", "SubmitTime", "WaitTime", "RunTime", "NProcs", "AverageCPUTimeUsed", "UsedMemory",
    "ReqNProcs", "ReqTime", "ReqMemory", "Status",
)  # fmt: skip
"""The names of the first fields, which are numbers."""
NAMES = ("UserID", "GroupID", "ExecutableID", "QueueID")
"""The names of the next fields, which are text."""
MIN_FIELDS = len(NUMBERS) + len(NAMES)
_UNKNOWN = "-1"
_FIRST_UNIX_TIME = 10**8  # 1973: earlier submissions are seconds since the begin of the trace


def is_of_gwf(head: str) -> bool:
    """Return True if a file that begins so looks like this format: its comments name the columns,
    or its first other line has as many fields.
    """
    for line in head.splitlines():
        fields = line.split()
        if line.startswith("#"):
            if NUMBERS[1] in fields:
                return True
        elif fields:
            return len(fields) >= FIELDS - 2 or fields[0] == NUMBERS[0]
    return False


def load(path: Path, max_jobs: int | None = None) -> History:
    """Read the first ``max_jobs`` jobs of the history in ``path`` (``-``: standard input). Raises
    ConfigError if the file cannot be read, has a damaged line (``PATH:LINE``), or no job that ran.
    """
    history = History(str(path))
    try:
        with opened(path) as file:
            _read(unbroken(file, history.complaints), history, max_jobs)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"workload {path} cannot be read: {reason_of(error)}") from error
    if not history.jobs:
        raise ConfigError(
            f"workload {path} holds no job that ran: {history.cancelled} were cancelled before"
        )
    _set_origin(history)
    return history


def _read(lines: Iterable[str], history: History, max_jobs: int | None) -> None:
    reader, count = _Reader(history), None
    for number, line in enumerate(lines, start=1):
        if max_jobs is not None and len(history.jobs) >= max_jobs:
            break
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        fields = [field.strip() for field in text.split("\t" if "\t" in text else None)]
        if fields[0] == NUMBERS[0] and count is None:
            continue  # the names of the columns
        where = f"{history.source}:{number}"
        count = count or len(fields)
        if len(fields) < MIN_FIELDS or len(fields) != count:
            expected = max(count, MIN_FIELDS) if count != len(fields) else FIELDS
            raise ConfigError(f"{where}: found {len(fields)} fields, expected {expected}")
        reader.add(where, number, fields)
    history.jobs.sort()


class _Reader:
    """Makes jobs of lines. Names get numbers in the order of their first use."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._users: dict[str, int] = {}
        self._groups: dict[str, int] = {}
        self._queues: dict[str, int] = {}
        history.users, history.accounts = self._users, self._groups

    def add(self, where: str, line: int, fields: Sequence[str]) -> None:
        """Add the job of a line. Raises ConfigError if a field is damaged."""
        history = self._history
        values = [
            _number(where, index, text) for index, text in enumerate(fields[: len(NUMBERS)], 1)
        ]
        submit, run, requested_s = values[1], values[3], values[8]
        procs = values[4] if values[4] > 0 else values[7]
        if submit < 0:
            raise ConfigError(f"{where}: field 2 (SubmitTime): found {submit}, expected a time")
        if run < 0:
            history.cancelled += 1
            return
        if procs <= 0:
            history.complaints.add(line, "no processors, left out")
            return
        user, group, _, queue = fields[len(NUMBERS) : MIN_FIELDS]
        job = Job(
            number=values[0],
            submit=submit,
            run=run,
            limit=max(requested_s, run, 1),
            procs=procs,
            user=_number_of(user, self._users),
            partition=_number_of(queue, self._queues),
            account=_number_of(group, self._groups),
        )
        too_much = implausible_value(job)
        if too_much is not None:
            raise ConfigError(f"{where}: implausibly large: {too_much}")
        history.overtime += 0 < requested_s < run
        history.jobs.append(job)


def _number(where: str, index: int, text: str) -> int:
    try:
        return round(float(text))
    except (ValueError, OverflowError):
        name = NUMBERS[index - 1]
        raise ConfigError(
            f"{where}: field {index} ({name}): found {text[:20]!r}, expected a number"
        ) from None


def _number_of(name: str, numbers: dict[str, int]) -> int:
    return -1 if name == _UNKNOWN else numbers.setdefault(name, len(numbers) + 1)


def _set_origin(history: History) -> None:
    """Shift Unix times so that the first submission is second 0; the header keeps its Unix time."""
    submits = history.jobs.submit
    first_submit = submits[0]
    if first_submit < _FIRST_UNIX_TIME:
        return
    history.header["UnixStartTime"] = str(first_submit)
    for index, submitted in enumerate(submits):
        submits[index] = submitted - first_submit
